"""Many copies side by side: each is the reference simulator with its own seed and trace, whatever the others do."""

import copy
import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from domain.errors import BadInput, TraceError, TrimtabError
from domain.workload import Trace, make_trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.batch import AutoscalingBatch, FastSimulation
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, SimulationConfig
from simulator.autoscaling.packing import ENUMERATIONS, SAME_NAME
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_fit, train_rand

CONFIG = preset("train-text", limits=(4, 3, 2), max_steps=70)
TRACES = (train_fit(), train_rand(1), coevolution(2))


def random_actions(batch: AutoscalingBatch, steps: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kinds = len(batch.config.types)
    return rng.integers(0, 7, size=(steps, batch.copies, kinds) if batch.multi else (steps, batch.copies))


@pytest.mark.parametrize("observation", ["obs-7", "obs-v2"])
@pytest.mark.parametrize("action_set", ["act-7", "act-multi"])
def test_each_copy_is_a_simulation_of_its_own_seed_and_trace(observation: str, action_set: str) -> None:
    batch = AutoscalingBatch(CONFIG, TRACES, 7, observation=observation, actions=action_set)
    seeds, places = np.array([5, 0, 9, 9, 2**40, 3, 1]), np.array([0, 1, 2, 2, 1, 0, 2])
    first = batch.reset(seeds, places).copy()
    twins = [Simulation(CONFIG, TRACES[place], int(seed)) for seed, place in zip(seeds, places, strict=True)]

    def seen(twin: Simulation) -> bytes:
        return (twin.observe() if observation == "obs-7" else twin.observe_v2()).tobytes()

    assert [row.tobytes() for row in first] == [seen(twin) for twin in twins]
    for actions in random_actions(batch, 75):
        masks = batch.masks().copy()
        obs, reward, terminated, truncated = batch.step(actions)
        for index, twin in enumerate(twins):
            if twin.finished or twin.truncated:
                assert (reward[index], terminated[index], truncated[index]) == (0.0, twin.finished, twin.truncated)
                continue
            mask = twin.mask() if action_set == "act-7" else twin.mask_multi()
            assert np.array_equal(masks[index], mask)
            chosen: Any = int(actions[index]) if action_set == "act-7" else [MULTI_CHANGES[i] for i in actions[index]]
            result = twin.step(chosen)
            assert obs[index].tobytes() == seen(twin)
            assert (reward[index], terminated[index], truncated[index]) == (
                result.reward,
                result.done,
                result.truncated,
            )
    for index, twin in enumerate(twins):
        run = twin.measures()
        assert batch.measures(index) == run
        assert batch.steps[index] == run.steps
        assert batch.finished[index] == run.jobs_finished
        assert batch.waiting[index] == twin.info().waiting
        assert batch.rent[index] == pytest.approx(run.rent, rel=1e-15)
        assert batch.penalty[index] == pytest.approx(run.penalty, rel=1e-15)


@pytest.mark.parametrize("mode", ["train-text", "compat"])
def test_a_copy_that_is_over_begins_its_next_episode_in_the_step_after(mode: str) -> None:
    config = preset(mode, limits=(4, 3, 2), max_steps=5)
    batch = AutoscalingBatch(config, TRACES[:2], 3)
    batch.reset(np.array([10, 11, 12]), np.array([0, 1, 1]))
    nothing = np.zeros(3, dtype=np.int64)
    for _ in range(4):
        assert not batch.step_auto(nothing)[3].any()
    assert batch.step_auto(nothing)[3].all()
    obs, reward, terminated, truncated = batch.step_auto(np.full(3, 5))
    assert reward.tolist() == [0.0] * 3
    assert not (terminated | truncated).any()
    assert batch.steps.tolist() == [0] * 3
    # The next seed is the old one plus the number of copies, the next trace the one after; the action was ignored.
    twins = [Simulation(config, TRACES[place], seed) for seed, place in ((13, 1), (14, 0), (15, 0))]
    assert [row.tobytes() for row in obs] == [twin.observe().tobytes() for twin in twins]
    obs = batch.step_auto(np.full(3, 5))[0]
    assert [row.tobytes() for row in obs] == [twin.step(5).obs.tobytes() for twin in twins]


def test_resetting_some_copies_leaves_the_others_alone() -> None:
    batch, alone = (AutoscalingBatch(CONFIG, TRACES[:1], 4) for _ in range(2))
    actions = random_actions(batch, 30)
    for row in actions[:10]:
        batch.step(row)
        alone.step(row)
    which = np.array([False, True, False, True])
    batch.reset_where(which, np.full(4, 77), np.zeros(4, dtype=np.int64))
    assert batch.steps.tolist() == [10, 0, 10, 0]
    for row in actions[10:]:
        obs, others = batch.step(row)[0], alone.step(row)[0]
        assert np.array_equal(obs[~which], others[~which])
    assert [batch.measures(index) == alone.measures(index) for index in range(4)] == [True, False, True, False]


@pytest.mark.parametrize("name", ["train-text", "live-like", "paper-live", "compat"])
def test_a_state_goes_on_in_any_copy_of_another_batch_with_the_same_bits(name: str) -> None:
    config = preset(name, backfill=True, limits=(4, 3, 2))
    batch = AutoscalingBatch(config, (TRACES[2],), 3)
    actions = random_actions(batch, 60)
    for row in actions[:25]:
        batch.step(row)
    state = batch.state(1)
    other = AutoscalingBatch(config, (TRACES[2],), 2)
    other.restore(1, state)
    for row in actions[25:]:
        expected = [part[1] for part in batch.step(row)]
        found = [part[1] for part in other.step(np.array([0, row[1]]))]
        assert [np.asarray(part).tobytes() for part in found] == [np.asarray(part).tobytes() for part in expected]
    assert other.measures(1) == batch.measures(1)
    other.restore(0, state)
    assert other.measures(0).steps == 25


def test_a_state_of_another_trace_or_configuration_is_refused() -> None:
    batch = AutoscalingBatch(CONFIG, TRACES[:2], 2)
    for config, traces in ((CONFIG, TRACES[1:]), (replace(CONFIG, cooldown_s=60.0), TRACES[:2])):
        with pytest.raises(TrimtabError, match="another configuration or trace"):
            batch.restore(0, AutoscalingBatch(config, traces, 1).state(0))


def test_a_batch_is_neither_copied_nor_sent_away() -> None:
    batch = AutoscalingBatch(CONFIG, TRACES[:1], 1)
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="build it where it is used"):
            attempt(batch)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, backfill=True)])
@pytest.mark.parametrize("trace", [TRACES[1], TRACES[2]])
def test_a_copy_takes_at_most_64_bytes_for_each_of_its_jobs(config: SimulationConfig, trace: Trace) -> None:
    worlds = AutoscalingBatch(config, [trace], 3).worlds
    by_job = [table for table in worlds[:14] if table.shape[-1] >= trace.jobs > 100]
    assert sum(table.nbytes for table in by_job) <= 64 * 3 * trace.jobs
    assert any(table is worlds.waits for table in by_job)


def test_two_hundred_vms_are_measured_as_numpy_adds_them() -> None:
    config = preset("train-text", limits=(210, 20, 9), initial=(200, 11, 5), idle_cpu=0.1, base_ram_gb=0.3)
    rng = np.random.default_rng(0)
    trace = make_trace("many", rng.uniform(0, 600, 900), rng.lognormal(5, 1, 900), ram_gb=rng.uniform(0, 1, 900))
    fast, twin = FastSimulation(config, trace), Simulation(config, trace)
    for action in [0, 2, 2, 1, 5, 6, 3, 4, 0, 0]:
        assert fast.step(action).obs.tobytes() == twin.step(action).obs.tobytes()


def test_totals_beyond_64_bits_of_the_smallest_unit_stay_exact() -> None:
    # 90,000 jobs wait at 800 dollars an hour each: 1.2 million dollars a step.
    trace = make_trace("dear", np.zeros(90_000), np.full(90_000, 50.0))
    config = preset("train-text", waiting_price_per_hour=800.0, initial=(1, 0, 0))
    fast, twin = FastSimulation(config, trace), Simulation(config, trace)
    for _ in range(3):
        assert fast.step(0).penalty == twin.step(0).penalty
    assert fast.measures() == twin.measures()
    assert fast.measures().penalty > 2**63 / UNITS_PER_DOLLAR


def test_every_setting_is_packed() -> None:
    with_code_of_their_own = {
        *("types", "limits", "minimum", "initial", "speed", "waiting_price_per_hour", "dispatch_latency_s", "compat"),
        *("boot_low_s", "boot_high_s", "boot_lows_s", "boot_highs_s", "boot_quantiles_s", "reclaims_per_hour"),
    }
    settings = {field.name for field in fields(SimulationConfig)}
    assert settings <= {*SAME_NAME, *ENUMERATIONS} | with_code_of_their_own, "pack a new setting, then name it here"


def test_a_setting_whose_costs_outgrow_64_bits_is_refused() -> None:
    with pytest.raises(BadInput, match=r"step_s is 1000000000000\.0: "):
        AutoscalingBatch(replace(CONFIG, step_s=1e12), TRACES[:1], 1)


def bad_calls() -> list[tuple[Any, str]]:
    return [
        (lambda batch: batch.step(np.array([0, 7])), r"actions\[1\] is \[7\]: give indices in 0\.\.6"),
        (lambda batch: batch.step(np.array([-1, 0])), r"actions\[0\] is \[-1\]"),
        (lambda batch: batch.step(np.zeros(3, dtype=np.int64)), r"give int64 of shape \(2,\)"),
        (lambda batch: batch.step(np.zeros(2, dtype=np.int32)), r"give int64 of shape \(2,\)"),
        (lambda batch: batch.reset(np.arange(3)), r"seeds is \(3,\)"),
        (lambda batch: batch.reset(np.arange(2), np.array([0, 1])), r"trace_index is 1: give indices in 0\.\.0"),
        (lambda batch: AutoscalingBatch(CONFIG, [], 1), "give at least one trace"),
        (lambda batch: AutoscalingBatch(CONFIG, TRACES, 0), "copies is 0"),
        (lambda batch: AutoscalingBatch(CONFIG, TRACES, 1, observation="obs-9"), "choose one of obs-7, obs-v2"),
        (lambda batch: AutoscalingBatch(CONFIG, TRACES, 1, actions="act-9"), "choose one of act-7, act-multi"),
    ]


@pytest.mark.parametrize(("call", "words"), bad_calls())
def test_a_bad_call_names_what_is_wrong_and_does_nothing(call: Any, words: str) -> None:
    batch = AutoscalingBatch(CONFIG, TRACES[:1], 2)
    with pytest.raises(BadInput, match=words):
        call(batch)
    assert batch.steps.tolist() == [0, 0]


def test_a_job_wider_than_every_vm_is_an_error_at_load() -> None:
    config: SimulationConfig = replace(CONFIG, limits=(4, 3, 0), initial=(1, 1, 0))
    with pytest.raises(TraceError, match="width of job 2"):
        AutoscalingBatch(config, [TRACES[0], make_trace("wide", [0.0, 0.0], [1.0, 1.0], width=[4, 5])], 1)
