"""Random configurations, traces and actions, and the comparison of the compiled simulator with the reference."""

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from domain.fleet import VmType
from domain.units import MINUTE_S
from domain.workload import NO_STAGE, WHOLE_VM, Trace, make_trace
from simulator.autoscaling.actions import Order
from simulator.autoscaling.batch import FastSimulation
from simulator.autoscaling.configuration import (
    COMPAT,
    EXACT,
    Billing,
    Compat,
    CooldownScope,
    CpuSampling,
    Dispatch,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
    compat_rows,
)
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import FleetView, StepResult

Action = int | tuple[int, ...] | list[Order]


def compats() -> st.SearchStrategy[Compat]:
    """Draw switches: none, one, all, or any of them."""
    rows = st.integers(1, 16)
    some = st.lists(rows, min_size=2, max_size=9, unique=True).map(lambda chosen: compat_rows(*chosen))
    return st.one_of(st.just(EXACT), rows.map(compat_rows), st.just(COMPAT), some)


@st.composite
def configs(draw: st.DrawFn, switches: st.SearchStrategy[Compat] | None = None) -> SimulationConfig:
    """Draw a configuration: one to four VM types and every option there is; switches: those of compat, none."""
    compat = EXACT if switches is None else draw(switches)
    kinds = draw(st.integers(1, 4))
    prices = st.sampled_from([0.0, 0.086, 0.2, 0.4, 1.234567])
    types = tuple(
        VmType(
            f"type-{k}", draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from([2.0, 7.5, 16.0])), draw(prices)
        )
        for k in range(kinds)
    )
    # The published observation divides by the largest limit.
    fewest = 0 if compat == EXACT else 1
    limits = (draw(st.integers(fewest, 5)), *(draw(st.integers(0, 5)) for _ in range(kinds - 1)))
    minimum = tuple(draw(st.integers(0, min(1, limit))) for limit in limits)
    initial = tuple(draw(st.integers(0, limit)) for limit in limits)
    low = draw(st.sampled_from([0.0, 30.0, 45.0, 60.0, 100.0]))
    boots: dict[str, Any] = {"boot_low_s": low, "boot_high_s": low + draw(st.sampled_from([0.0, 0.0, 52.0]))}
    if draw(st.booleans()):
        lows = tuple(draw(st.sampled_from([0.0, 40.0, 90.0])) for _ in range(kinds))
        boots |= {"boot_lows_s": lows, "boot_highs_s": tuple(x + draw(st.sampled_from([0.0, 30.0])) for x in lows)}
    elif draw(st.booleans()):
        points = st.lists(st.sampled_from([0.0, 20.0, 55.5, 90.0, 300.0]), min_size=2, max_size=5)
        boots |= {"boot_quantiles_s": tuple(tuple(sorted(draw(points))) for _ in range(kinds))}
    spot = draw(st.booleans())
    return SimulationConfig(
        types=types,
        limits=limits,
        minimum=minimum,
        initial=initial,
        speed=draw(st.one_of(st.just(()), st.just(tuple(0.5 + k * 0.7 for k in range(kinds))))),
        step_s=MINUTE_S if compat.minute_steps else draw(st.sampled_from([60.0, 60.0, 30.0, 12.5, 400.0])),
        waiting_price_per_hour=draw(st.sampled_from([0.036, 0.0, 1.7])),
        **boots,
        dispatch_latency_s=draw(st.sampled_from([0.0, 0.0, 0.0, 7.5, 30.0, 61.3])),
        compat=compat,
        dispatch=draw(st.sampled_from(Dispatch)),
        backfill=draw(st.booleans()),
        removal_choice=draw(st.sampled_from(RemovalChoice)),
        removal_mode=draw(st.sampled_from(RemovalMode)),
        cancel_booting=draw(st.booleans()),
        cooldown_s=draw(st.sampled_from([0.0, 0.0, 90.0, 120.0])),
        cooldown_scope=draw(st.sampled_from(CooldownScope)),
        cpu_sampling=draw(st.sampled_from(CpuSampling)),
        sample_interval_s=draw(st.sampled_from([10.0, 7.3])),
        samples_needed=draw(st.sampled_from([1, 3])),
        idle_cpu=draw(st.sampled_from([0.0, 0.1])),
        base_ram_gb=draw(st.sampled_from([0.0, 0.7])),
        billing=draw(st.sampled_from(Billing)),
        bill_from_ready=draw(st.booleans()),
        integral_penalty=draw(st.booleans()),
        max_steps=draw(st.sampled_from([3, 25, 60])),
        reclaims_per_hour=tuple(draw(st.sampled_from([0.0, 4.0, 60.0])) for _ in range(kinds)) if spot else (),
        reclaim_notice_s=draw(st.sampled_from([120.0, 0.0, 31.5])) if spot else 120.0,
    )


@st.composite
def traces(draw: st.DrawFn, config: SimulationConfig) -> Trace:
    """Draw a trace that fits the configuration: few or many ties, equal or different jobs, open or closed loop."""
    widest = max((t.cores for t, limit in zip(config.types, config.limits, strict=True) if limit), default=0)
    jobs = draw(st.integers(0, 60)) if widest else 0
    horizon = draw(st.sampled_from([0, 100, 1500]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrival = rng.integers(0, horizon + 1, jobs) * draw(st.sampled_from([1.0, 0.37]))
    kind = draw(st.sampled_from(["equal", "few", "different", "tiny"]))
    service = {
        "equal": np.full(jobs, 60.0),
        "few": rng.choice([30.0, 60.0, 90.5], jobs),
        "different": rng.lognormal(4.0, 1.0, jobs),
        "tiny": rng.choice([1e-14, 1e-5, 20.0], jobs),
    }[kind]
    width = draw(st.sampled_from(["one", "mixed", "whole"]))
    widths = {
        "one": np.ones(jobs, dtype=np.int64),
        "mixed": rng.integers(0, widest + 1, jobs),
        "whole": np.full(jobs, WHOLE_VM),
    }[width]
    stages = draw(st.integers(1, 4))
    stage = np.sort(rng.integers(0, stages, jobs)) if jobs else np.zeros(0, dtype=np.int64)
    release, pause = np.full(jobs, NO_STAGE), np.zeros(jobs)
    if jobs and draw(st.booleans()):
        present = np.unique(stage)
        for index, earlier in enumerate(present[:-1]):
            held = (stage == present[index + 1]) & (rng.random(jobs) < draw(st.sampled_from([1.0, 0.6])))
            release[held] = earlier
        arrival[release != NO_STAGE] = 0.0
        pause[release != NO_STAGE] = rng.choice([0.0, 0.0, 30.0, 45.0], int((release != NO_STAGE).sum()))
    return make_trace(
        "drawn",
        arrival,
        service,
        job_id=rng.permutation(jobs) + 1,
        width=widths,
        ram_gb=rng.choice([0.13, 0.5, 0.0], jobs) if draw(st.booleans()) else 0.13,
        stage=stage,
        release_after=release,
        pause_s=pause,
        serial_fraction=draw(st.sampled_from([0.0, 0.05])),
    )


@st.composite
def actions(draw: st.DrawFn, config: SimulationConfig) -> list[Action]:
    """Draw actions for the first steps: indices, changes per type, or orders in any order."""
    kinds = len(config.types)
    index = st.integers(0, 2 * kinds)
    changes = st.tuples(*[st.sampled_from([-5, -2, -1, 0, 0, 1, 2, 5])] * kinds)
    orders = st.lists(st.builds(Order, st.integers(0, kinds - 1), st.integers(-3, 3)), max_size=4)
    found: list[Action] = draw(st.lists(st.one_of(index, changes, orders), min_size=1, max_size=40))
    return found


def take(simulation: Simulation | FastSimulation, action: Action) -> StepResult:
    """Do one step whatever the form of its action."""
    if isinstance(action, list):
        return simulation.step_orders(action)
    return simulation.step(action)


def assert_same_view(one: FleetView, other: FleetView) -> None:
    """Assert that two views are equal to the last bit."""
    for field in fields(FleetView):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype, field.name
            assert np.array_equal(first, second, equal_nan=first.dtype == np.float64), (field.name, first, second)
        elif field.name == "queue":
            for part in fields(first):
                assert getattr(first, part.name) == getattr(second, part.name), part.name
        else:
            assert first == second, field.name


def assert_same(fast: FastSimulation, twin: Simulation) -> None:
    """Assert that all outputs of the two are equal to the last bit."""
    assert (fast.steps, fast.finished, fast.truncated) == (twin.steps, twin.finished, twin.truncated)
    assert fast.info() == twin.info()
    assert fast.observe().tobytes() == twin.observe().tobytes(), (fast.observe(), twin.observe())
    assert fast.observe_v2().tobytes() == twin.observe_v2().tobytes(), (fast.observe_v2(), twin.observe_v2())
    assert fast.mask().tolist() == twin.mask().tolist()
    assert fast.mask_multi().tolist() == twin.mask_multi().tolist()
    assert_same_view(fast.fleet_view(), twin.fleet_view())
    assert fast.measures() == twin.measures()


def assert_same_result(one: StepResult, other: StepResult) -> None:
    """Assert that two steps had the same result to the last bit."""
    assert one.info == other.info
    assert one.obs.tobytes() == other.obs.tobytes(), (one.obs, other.obs)
    assert (one.rent, one.penalty, one.done, one.truncated) == (other.rent, other.penalty, other.done, other.truncated)
