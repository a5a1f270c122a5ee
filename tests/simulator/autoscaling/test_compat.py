"""The published simulator's differences, all together and one by one (autoscaler specification §8, §16)."""

from dataclasses import replace

import numpy as np
import pytest

from domain.errors import BadInput
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import (
    COMPAT,
    EXACT,
    ROWS,
    Compat,
    Dispatch,
    RemovalChoice,
    SimulationConfig,
    compat_rows,
    truncated_service_s,
)
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import StepResult
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit, train_text
from tests.simulator.autoscaling.baseline_runs import nothing, run_policy


def published(**changes: object) -> SimulationConfig:
    return preset("compat", boot_low_s=71.0, boot_high_s=71.0, **changes)


def small(*rows: int, **changes: object) -> SimulationConfig:
    fixed = {"boot_low_s": 71.0, "boot_high_s": 71.0, "initial": (1, 0, 0), "compat": compat_rows(*rows)}
    return preset("train-text", **{**fixed, **changes})


def steps(config: SimulationConfig, trace: Trace, *actions: int) -> list[StepResult]:
    """Play the actions, then nothing until the end."""
    simulation = Simulation(config, trace)
    results: list[StepResult] = []
    while not simulation.finished:
        results.append(simulation.step(actions[len(results)] if len(results) < len(actions) else 0))
    return results


@pytest.mark.parametrize(
    ("trace", "fleet", "count", "rent", "penalty", "cost"),
    [
        (train_text(), (1, 1, 1), 778, 18.27504, 284.8128, 303.08784),
        (train_text(), (4, 4, 4), 199, 18.62784, 15.4794, 34.10724),
        (train_text(), (5, 4, 3), 225, 18.816, 25.0674, 43.8834),
        (train_text(), (10, 10, 10), 197, 46.0992, 0.9006, 46.9998),
        (train_fit(), (1, 1, 1), 231, 5.4096, 5.2998, 10.7094),
    ],
)
def test_constant_fleets_cost_the_same_as_in_the_published_simulator(
    trace: Trace, fleet: tuple[int, ...], count: int, rent: float, penalty: float, cost: float
) -> None:
    run = run_policy(published(initial=fleet), trace, nothing)
    assert run.steps == count
    assert (run.rent, run.penalty, run.cost) == pytest.approx((rent, penalty, cost), abs=1e-9)


def test_without_switches_nothing_is_different() -> None:
    assert Compat() == EXACT == compat_rows()
    assert compat_rows(*range(1, 17)) == COMPAT
    assert len(ROWS) == 16
    assert preset("compat").removal_choice is RemovalChoice.RANDOM
    with pytest.raises(BadInput, match=r"compat row is 17: give a row in 1\.\.16"):
        compat_rows(17)


def test_row_1_an_event_at_a_steps_very_end_belongs_to_the_next_one() -> None:
    trace = make_trace("x", [0.0, 66.0], [66.0, 1.0])
    exact, offset = steps(small(), trace), steps(small(1), trace)
    assert [r.info.now_s for r in offset] == [66.0, 126.0]
    # In both, step 1 ends without the second job: at 60 s, and at 66 s because that instant is the next step's.
    assert [r.info.submitted for r in exact] == [1, 2]
    assert [(r.info.submitted, r.info.finished) for r in offset] == [(1, 0), (2, 2)]


def test_row_2_jobs_of_a_minute_come_at_the_start_of_the_step_of_its_number() -> None:
    trace = make_trace("x", [0.0, 59.0, 60.0, 179.0], [10.0, 10.0, 10.0, 10.0])
    assert [r.info.submitted for r in steps(small(2), trace)] == [3, 4]
    assert [r.info.finished for r in steps(small(2), trace)] == [3, 4]
    both = Simulation(small(1, 2), trace)
    assert both.info().submitted == 2
    assert [both.step(0).info.submitted for _ in range(2)] == [3, 4]


def test_row_2_a_job_is_handed_over_after_the_steps_action() -> None:
    results = steps(small(2, initial=(1, 1, 0)), make_trace("x", [60.0] * 3, [50.0] * 3), 4)
    assert [(r.info.finished, r.info.executing) for r in results] == [(2, 1), (3, 0)]


def test_row_3_a_job_waits_a_minute_on_its_core_and_the_core_is_not_busy() -> None:
    simulation = Simulation(small(3), make_trace("x", [0.0, 0.0, 0.0], [90.0, 45.0, 30.0]))
    first = simulation.step(0)
    # Started at the very end of the step: only the third job has no core.
    assert (first.info.waiting, first.info.executing, first.info.cores_busy) == (1, 2, 2)
    assert simulation.fleet_view().queue.queued_core_s == 30.0
    second = simulation.step(0)
    # The second job ended at 105; the third got its core then and runs from 165 on.
    assert (second.info.waiting, second.info.executing, second.info.finished) == (1, 1, 1)
    assert second.obs[1] == pytest.approx(0.5)
    assert simulation.fleet_view().free_cores == 0
    assert simulation.step(0).info.finished == 2
    assert simulation.step(0).done
    run = simulation.measures()
    assert run.executed_core_s == 165.0
    assert run.mean_wait_s == pytest.approx((60 + 60 + 165) / 3)
    assert run.penalty == pytest.approx(2 * 60 * 0.036 / 3600)


def test_row_3_a_core_delivers_six_sevenths_of_its_capacity_to_jobs_of_six_minutes() -> None:
    trace = make_trace("x", [0.0] * 12, [360.0] * 12)
    exact, late = (run_policy(small(*rows), trace, nothing) for rows in ((), (3,)))
    assert (exact.steps, late.steps) == (36, 42)


def test_row_4_a_job_chained_to_anothers_end_starts_later() -> None:
    chain = make_trace("x", [0.0, 0.0, 0.0, 150.0], [60.0, 100.0, 30.0, 10.0])
    simulation = Simulation(small(4, step_s=1.0), chain)
    finished = [simulation.step(0).info.finished for _ in range(160)]
    assert [finished.index(n) + 1 for n in (1, 2, 3, 4)] == [60, 91, 100, 160]
    assert simulation.measures().mean_wait_s == pytest.approx((60 + 0.59) / 4)


def test_row_5_a_second_costs_a_rounded_share_of_the_hourly_price() -> None:
    trace = make_trace("x", [0.0], [600.0])
    exact, rounded = (run_policy(small(*rows), trace, nothing) for rows in ((), (5,)))
    assert exact.rent == pytest.approx(0.2 * 600 / 3600, rel=1e-12)
    assert rounded.rent == pytest.approx(0.2 * 0.00028 * 600, rel=1e-12)


def test_row_6_an_interrupted_job_goes_to_the_tail_and_is_not_seen_waiting() -> None:
    trace = make_trace("x", [0.0] * 6 + [10.0], [600.0] * 7)
    exact, free = (Simulation(small(*rows, initial=(1, 1, 0)), trace) for rows in ((), (6,)))
    for simulation in (exact, free):
        simulation.step(0)
    assert exact.step(4).penalty == pytest.approx(5 * 0.0006)
    result = free.step(4)
    assert result.penalty == pytest.approx(1 * 0.0006)
    assert result.obs[5] == pytest.approx(1 / 7)
    assert free.measures().interruptions == 4
    for simulation in (exact, free):
        for _ in range(9):
            simulation.step(0)
    # At 600 s both cores are free: exactly, two interrupted jobs start; here the job of 10 s and one of them.
    assert (exact.info().waiting, exact.info().executing) == (3, 2)
    assert (free.info().waiting, free.info().executing) == (0, 2)
    assert (exact.fleet_view().queue.oldest_wait_s, free.fleet_view().queue.oldest_wait_s) == (660.0, 600.0)


def test_row_7_the_step_in_which_the_last_job_ends_is_free() -> None:
    trace = make_trace("x", [0.0] * 3, [90.0] * 3)
    exact, free = steps(small(), trace), steps(small(7), trace)
    assert [r.rent for r in free] == [r.rent for r in exact[:-1]] + [0.0]
    assert free[-1].penalty == 0.0
    simulation = Simulation(small(7), trace)
    while not simulation.finished:
        simulation.step(0)
    assert simulation.measures().cost == pytest.approx(sum(r.rent + r.penalty for r in free), rel=1e-12)


def busy_vms(*rows: int) -> np.ndarray:
    """Return obs-7 with an S at full and an M at half use, 0.8 of 8 GB and 0.8 of 16 GB of RAM, the L empty."""
    trace = make_trace("x", [0.0] * 4, [600.0] * 4, ram_gb=0.4)
    return steps(small(*rows, initial=(1, 1, 1)), trace)[0].obs


def test_row_8_the_high_percentile_is_the_least_value() -> None:
    assert busy_vms()[[2, 4]] == pytest.approx([0.9, 0.09])
    assert busy_vms(8)[[2, 4]].tolist() == [0.0, 0.0]
    alone = steps(small(8), make_trace("x", [0.0], [600.0]))[0].obs
    assert alone[2] == pytest.approx(0.5)


def test_row_9_only_the_last_vms_ram_is_known() -> None:
    trace = make_trace("x", [0.0] * 4, [600.0] * 4, ram_gb=0.4)
    two = small(9, initial=(1, 1, 0))
    assert steps(replace(two, compat=EXACT), trace)[0].obs[[3, 4]] == pytest.approx([0.075, 0.095])
    assert steps(two, trace)[0].obs[[3, 4]] == pytest.approx([0.025, 0.045])
    assert steps(replace(two, compat=compat_rows(8, 9)), trace)[0].obs[[3, 4]] == pytest.approx([0.025, 0.0])


def test_row_10_vms_count_against_the_recently_submitted() -> None:
    trace = make_trace("x", [0.0] * 5 + [70.0] * 5, [600.0] * 10)
    exact, less = steps(small(), trace, 1), steps(small(10), trace, 1)
    assert [r.obs[6] for r in exact[:2]] == pytest.approx([3 / 5, 1.0])
    assert [r.obs[6] for r in less[:2]] == pytest.approx([3 / (5 - 2), 5 / (10 - 2)])
    few = steps(small(10, initial=(1, 1, 0)), make_trace("x", [0.0, 0.0], [9.0, 9.0]))
    assert few[0].obs[6] == 0.0


def test_rows_1_2_and_10_the_first_batch_is_never_recent() -> None:
    results = steps(small(1, 2, 10), make_trace("x", [0.0] * 50, [60.0] * 50))
    assert results[0].obs[5] > 0.9
    assert results[0].obs[6] == 0.0


def test_row_11_one_limit_stands_for_every_type() -> None:
    trace = make_trace("x", [0.0], [60.0])
    assert steps(small(limits=(10, 2, 1)), trace)[0].obs[0] == pytest.approx(2 / 36)
    assert steps(small(11, limits=(10, 2, 1)), trace)[0].obs[0] == pytest.approx(2 / 140)


def test_row_12_the_first_observation_is_blank() -> None:
    assert Simulation(small(), train_fit()).observe()[0] == pytest.approx(2 / 140)
    simulation = Simulation(small(12), train_fit())
    assert simulation.observe().tolist() == [0.0] * 7
    assert simulation.observe_v2()[:7].tolist() == [0.0] * 7
    assert simulation.step(0).obs[0] == pytest.approx(2 / 140)


def test_row_13_a_job_is_a_whole_number_of_instructions() -> None:
    assert truncated_service_s(360.0, 60.0) == 360.0
    assert truncated_service_s(45.0, 60.0) == pytest.approx(45.0, abs=1e-12)
    assert truncated_service_s(1.0, 60.0) == pytest.approx(0.996, abs=1e-12)
    assert truncated_service_s(1e-9, 60.0) == pytest.approx(60.0 / 10_000, abs=1e-12)
    assert run_policy(small(13), make_trace("x", [0.0], [1.0]), nothing).executed_core_s == pytest.approx(0.996)


def test_row_14_placement_goes_on_where_it_stopped() -> None:
    trace = make_trace("fit", [0.0, 1.0, 2.0], [500.0] * 3, width=[1, 2, 1])
    simulation = Simulation(small(14, initial=(2, 1, 0)), trace)
    simulation.step(0)
    assert simulation.config.dispatch is Dispatch.FIRST_FIT
    assert simulation.fleet_view().vm_cpu.tolist() == [0.5, 1.0, 0.25]


def test_row_15_a_lone_number_for_the_first_fleet_is_ignored() -> None:
    with pytest.raises(BadInput, match="initial is"):
        small(initial=(7,))
    assert small(15, initial=(7,)).initial == (1, 1, 1)
    assert small(15, initial=(2, 3, 4)).initial == (2, 3, 4)


def test_row_16_changes_nothing_but_the_steps_that_may_be_asked_for() -> None:
    trace = train_fit()
    exact, same = steps(small(), trace), steps(small(16), trace)
    assert [(r.rent, r.penalty, r.obs.tobytes()) for r in same] == [(r.rent, r.penalty, r.obs.tobytes()) for r in exact]
    with pytest.raises(BadInput, match=r"step_s is 30\.0: give 60"):
        small(16, step_s=30.0)


@pytest.mark.parametrize("row", range(1, 17))
def test_each_row_alone_ends_every_job_once_and_goes_on_from_a_saved_state(row: int) -> None:
    trace = make_trace("x", np.arange(60) * 17.0, np.arange(60) % 7 * 40.0 + 5.0)
    actions = [1, 3, 0, 5, 4, 2, 6, 1, 4, 0] * 4
    whole, again = (Simulation(small(row, initial=(2, 1, 1)), trace, seed=4) for _ in range(2))
    for index, action in enumerate(actions):
        if whole.finished:
            break
        if index == 6:
            again.restore(whole.state())
        result = whole.step(action)
        assert np.all((result.obs >= 0.0) & (result.obs <= 1.0))
        if index >= 6:
            assert again.step(action).obs.tobytes() == result.obs.tobytes()
    while not whole.finished:
        whole.step(0)
        again.step(0)
    assert whole.measures() == again.measures()
    assert whole.measures().jobs_finished == 60
