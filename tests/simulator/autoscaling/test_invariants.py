"""What holds at every step of the reference simulator, whatever trace and actions (autoscaler specification §16)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.workload import WHOLE_VM, Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation, Watch
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit

WIDTHS = st.sampled_from([1, 1, 1, 2, 4, 8, WHOLE_VM])
ACTIONS = st.lists(st.one_of(st.integers(0, 6), st.tuples(*[st.integers(-5, 5)] * 3)), min_size=1, max_size=25)


@st.composite
def traces(draw: st.DrawFn, one_core: bool = False) -> Trace:
    jobs = draw(st.integers(1, 40))
    arrivals = draw(st.lists(st.integers(0, 1500), min_size=jobs, max_size=jobs))
    services = draw(st.lists(st.floats(0.001, 900.0), min_size=jobs, max_size=jobs))
    widths = [1] * jobs if one_core else draw(st.lists(WIDTHS, min_size=jobs, max_size=jobs))
    return make_trace("drawn", arrivals, services, width=widths)


@st.composite
def configs(draw: st.DrawFn) -> SimulationConfig:
    choice: dict[str, Any] = {
        "dispatch": draw(st.sampled_from(["first_fit", "best_fit", "next_fit"])),
        "backfill": draw(st.booleans()),
        "removal_choice": draw(st.sampled_from(["newest", "least_work_lost", "random"])),
        "removal_mode": draw(st.sampled_from(["immediate", "drain", "checkpoint"])),
        "cancel_booting": draw(st.booleans()),
        "cooldown_s": draw(st.sampled_from([0.0, 120.0])),
        "cooldown_scope": draw(st.sampled_from(["per_type", "global", "per_direction"])),
        "cpu_sampling": draw(st.sampled_from(["instant", "average", "sampled"])),
        "billing": draw(st.sampled_from(["step", "exact", "hour"])),
        "integral_penalty": draw(st.booleans()),
        "limits": (4, 3, 2),
    }
    return preset("train-text", max_steps=4000, **_typed(choice))


def _typed(choice: dict[str, Any]) -> dict[str, Any]:
    from simulator.autoscaling import configuration as c

    kinds = {
        "dispatch": c.Dispatch,
        "removal_choice": c.RemovalChoice,
        "removal_mode": c.RemovalMode,
        "cooldown_scope": c.CooldownScope,
        "cpu_sampling": c.CpuSampling,
        "billing": c.Billing,
    }
    return {name: kinds[name](value) if name in kinds else value for name, value in choice.items()}


def drive(simulation: Simulation, actions: list[Any]) -> list[Any]:
    """Play the actions, then grow to the limits so that every job ends; return the results."""
    results = []
    while not simulation.finished:
        action = actions[len(results)] if len(results) < len(actions) else [5, 5, 5]
        results.append(simulation.step(action))
    return results


@settings(max_examples=150, deadline=None)
@given(traces(), configs(), ACTIONS, st.integers(0, 2**32))
def test_jobs_cores_and_work_are_conserved_at_every_step(
    trace: Trace, config: SimulationConfig, actions: list[Any], seed: int
) -> None:
    simulation = Simulation(config, trace, seed)
    for index in range(10_000):
        if simulation.finished:
            break
        mask = simulation.mask()
        action = actions[index] if index < len(actions) else [5, 5, 5]
        result = simulation.step(action)
        info = result.info
        assert info.submitted == info.waiting + info.executing + info.finished
        assert 0 <= info.cores_busy <= info.cores_ready <= config.max_cores
        for kind, limit in enumerate(config.limits):
            assert info.ready[kind] + info.booting[kind] + info.draining[kind] <= limit
        assert info.ready[0] + info.booting[0] >= 1
        assert np.all((result.obs >= 0.0) & (result.obs <= 1.0))
        vector = simulation.observe_v2()
        assert vector.shape == (20,)
        assert np.array_equal(vector[:7], result.obs)
        assert result.rent >= 0.0
        assert result.penalty >= 0.0
        if isinstance(action, int):
            assert info.accepted == bool(mask[action])
        free = simulation.fleet_view().free_cores
        assert free == info.cores_ready - info.cores_busy
        if info.waiting and free > 0 and not config.backfill:
            head_needs = max(trace.width.max(), 8 if (trace.width == WHOLE_VM).any() else 1)
            assert free < head_needs * sum(info.ready)
    run = simulation.measures()
    assert run.jobs_finished == trace.jobs
    if not (trace.width == WHOLE_VM).any():
        assert run.executed_core_s == pytest.approx(trace.work_core_s + run.lost_core_s, rel=1e-9, abs=1e-6)
    assert run.utilisation <= 1.0 + 1e-9


@settings(max_examples=60, deadline=None)
@given(traces(), configs(), ACTIONS, st.integers(0, 2**32), st.integers(1, 20))
def test_the_same_seed_and_actions_give_the_same_bits_also_from_a_restored_state(
    trace: Trace, config: SimulationConfig, actions: list[Any], seed: int, at: int
) -> None:
    first = Simulation(config, trace, seed)
    whole = drive(first, actions)
    second = Simulation(config, trace, seed)
    saved, upto = second.state(), 0
    for action in actions[: min(at, len(whole))]:
        second.step(action)
        upto += 1
    if not second.finished:
        saved = second.state()
        drive(second, actions[upto:])
        assert second.measures() == first.measures()
        second.restore(saved)
        rest = drive(second, actions[upto:])
        assert [r.obs.tobytes() for r in rest] == [r.obs.tobytes() for r in whole[upto:]]
        assert [r.info for r in rest] == [r.info for r in whole[upto:]]
    assert second.measures() == first.measures()


def completions(config: SimulationConfig, trace: Trace) -> list[float]:
    """Return the end times of the jobs under a constant fleet, to five seconds, in order."""
    simulation = Simulation(config, trace)
    ends: list[float] = []
    while not simulation.finished:
        done = simulation.info().finished
        simulation.step(0)
        ends += [simulation.info().now_s] * (simulation.info().finished - done)
    return ends


@settings(max_examples=25, deadline=None)
@given(traces(one_core=True), st.tuples(*[st.integers(0, 3)] * 3), st.integers(0, 2))
def test_adding_cores_to_a_constant_fleet_never_delays_an_end(trace: Trace, fleet: tuple[int, ...], grow: int) -> None:
    small = (fleet[0] + 1, fleet[1], fleet[2])
    large = tuple(n + (kind == grow) for kind, n in enumerate(small))
    before = completions(preset("train-text", initial=small, step_s=5.0), trace)
    after = completions(preset("train-text", initial=large, step_s=5.0), trace)
    assert all(b <= a for a, b in zip(before, after, strict=True))


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(2, 7))
def test_rent_is_linear_in_prices_and_penalty_in_the_waiting_price(trace: Trace, factor: int) -> None:
    from dataclasses import replace

    base = preset("train-text")
    dear_types = tuple(replace(t, price_per_hour=factor * t.price_per_hour) for t in base.types)
    dear = replace(base, types=dear_types, waiting_price_per_hour=factor * base.waiting_price_per_hour)
    runs = []
    for config in (base, dear):
        simulation = Simulation(config, trace)
        drive(simulation, [1, 3, 5])
        runs.append(simulation.measures())
    assert runs[1].rent == pytest.approx(factor * runs[0].rent, rel=1e-12)
    assert runs[1].penalty == pytest.approx(factor * runs[0].penalty, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(traces())
def test_halving_the_step_leaves_waits_and_work_of_a_constant_fleet_unchanged(trace: Trace) -> None:
    runs = []
    for step_s in (60.0, 30.0):
        simulation = Simulation(preset("train-text", initial=(2, 1, 1), step_s=step_s), trace)
        while not simulation.finished:
            simulation.step(0)
        runs.append(simulation)
    assert runs[0].measures().mean_wait_s == runs[1].measures().mean_wait_s
    assert runs[0].measures().p95_wait_s == runs[1].measures().p95_wait_s
    assert runs[0].measures().executed_core_s == runs[1].measures().executed_core_s
    assert runs[0].steps in (runs[1].steps // 2, (runs[1].steps + 1) // 2)


def test_watching_an_episode_changes_nothing_and_sees_every_moment_asked_for() -> None:
    seen: list[float] = []
    alone = Simulation(SimulationConfig(), train_fit(), seed=3)
    watched = Simulation(SimulationConfig(), train_fit(), seed=3, watch=Watch(10.0, lambda s: seen.append(s.now_s)))
    for action in np.random.default_rng(5).integers(0, 7, size=40).tolist():
        mine, theirs = alone.step(action), watched.step(action)
        assert (mine.rent, mine.penalty, mine.info) == (theirs.rent, theirs.penalty, theirs.info)
        np.testing.assert_array_equal(mine.obs, theirs.obs)
    assert seen == [10.0 * number for number in range(1, 241)]
