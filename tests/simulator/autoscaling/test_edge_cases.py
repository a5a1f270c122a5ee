"""The edge cases of the autoscaler specification, §14, on the reference simulator."""

import math
from dataclasses import replace

import numpy as np
import pytest

from domain.errors import BadInput, TraceError, TrimtabError
from domain.workload import Job, make_trace, trace_of
from simulator.autoscaling.actions import Order
from simulator.autoscaling.configuration import (
    Billing,
    CooldownScope,
    CpuSampling,
    Dispatch,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
)
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import EpisodeOver
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit


def config(**changes: object) -> SimulationConfig:
    return preset("train-text", **{"boot_low_s": 60.0, "boot_high_s": 60.0, "initial": (1, 0, 0), **changes})


def test_no_jobs_at_all_is_done_at_once_and_costs_nothing() -> None:
    simulation = Simulation(config(), make_trace("empty", [], []))
    assert simulation.finished
    assert simulation.measures().cost == 0.0
    with pytest.raises(EpisodeOver, match="reset"):
        simulation.step(0)


def test_a_job_longer_than_the_horizon_truncates_the_episode() -> None:
    simulation = Simulation(config(max_steps=3), make_trace("long", [0.0], [1e6]))
    results = [simulation.step(0) for _ in range(3)]
    assert [(r.done, r.truncated) for r in results] == [(False, False), (False, False), (False, True)]
    with pytest.raises(EpisodeOver):
        simulation.step(0)


def test_jobs_at_time_zero_arrive_after_the_first_action() -> None:
    simulation = Simulation(config(), make_trace("t0", [0.0] * 5, [30.0] * 5))
    first = simulation.reset()
    assert first.tolist() == pytest.approx([2 / 140, 0, 0, 0, 0, 0, 0])
    result = simulation.step(0)
    # two at once: ends at 30 and 60, the fifth starts at 60 exactly, which is still step 1
    assert (result.info.submitted, result.info.finished, result.info.executing) == (5, 4, 1)
    assert simulation.step(0).done


def test_an_arrival_exactly_at_a_step_end_belongs_to_that_step() -> None:
    simulation = Simulation(config(), make_trace("edge", [60.0, 60.5], [10.0, 10.0]))
    assert simulation.step(0).info.submitted == 1
    assert simulation.step(0).info.submitted == 2


def test_job_end_vm_ready_and_arrival_at_one_instant_are_followed_by_one_dispatch() -> None:
    # S is busy until 60 with both cores; an M is ready at 60; six jobs arrive at 60 and all start at once.
    simulation = Simulation(config(), make_trace("tie", [0.0] * 2 + [60.0] * 6, [60.0] * 2 + [30.0] * 6))
    result = simulation.step(3)
    assert (result.info.finished, result.info.executing, result.info.waiting) == (2, 6, 0)
    assert result.info.ready == (1, 1, 0)
    assert simulation.step(0).done
    assert simulation.measures().mean_wait_s == 0.0


def test_a_vm_ready_exactly_at_a_step_end_counts_and_was_paid_from_its_request() -> None:
    simulation = Simulation(config(), make_trace("idle", [600.0], [1.0]))
    result = simulation.step(5)
    assert result.info.ready == (1, 0, 1)
    assert result.rent == pytest.approx((0.20 + 0.80) / 60, rel=1e-12)
    assert result.obs[0] == pytest.approx(10 / 140)


def test_removing_a_vm_in_the_step_in_which_its_job_would_end_loses_the_job() -> None:
    simulation = Simulation(config(initial=(1, 1, 0)), make_trace("lost", [0.0] * 3, [100.0] * 3))
    simulation.step(0)
    result = simulation.step(4)
    # The M ran the third job for 60 s; it goes back to the queue and starts anew on the S at 100 s.
    assert result.info.executing == 1
    assert simulation.measures().lost_core_s == 60.0
    assert simulation.measures().interruptions == 1
    simulation.step(0)
    assert simulation.step(0).done
    assert simulation.measures().executed_core_s == 360.0


def test_the_last_running_s_is_never_removed() -> None:
    simulation = Simulation(config(), make_trace("one", [0.0], [600.0]))
    assert not simulation.mask()[2]
    result = simulation.step(2)
    assert not result.info.accepted
    assert result.info.outcome.refused == (1, 0, 0)
    assert result.info.ready == (1, 0, 0)
    simulation.step(1)
    simulation.step(2)
    assert simulation.info().ready == (1, 0, 0)


def test_a_booting_s_does_not_let_the_running_one_go() -> None:
    simulation = Simulation(config(boot_low_s=90.0, boot_high_s=90.0), make_trace("one", [0.0], [600.0]))
    simulation.step(1)
    assert simulation.info().booting == (1, 0, 0)
    assert not simulation.step(2).info.accepted


def test_an_addition_at_the_limit_is_refused_while_one_is_booting() -> None:
    slow = config(limits=(2, 0, 0), boot_low_s=90.0, boot_high_s=90.0)
    simulation = Simulation(slow, make_trace("x", [0.0], [600.0]))
    assert simulation.step(1).info.accepted
    assert not simulation.mask()[1]
    assert simulation.info().booting == (1, 0, 0)
    assert simulation.step(1).info.outcome.refused == (1, 0, 0)


def test_removal_and_addition_of_one_type_in_one_action_are_carried_out_in_the_order_given() -> None:
    simulation = Simulation(config(limits=(1, 1, 0), initial=(1, 1, 0)), make_trace("x", [0.0], [600.0]))
    saved = simulation.state()
    swapped = simulation.step_orders([Order(1, -1), Order(1, 1)]).info
    assert swapped.outcome == ((0, 1, 0), (0, 1, 0), (0, 0, 0))
    simulation.restore(saved)
    other = simulation.step_orders([Order(1, 1), Order(1, -1)]).info
    assert other.outcome == ((0, 0, 0), (0, 1, 0), (0, 1, 0))


def test_a_vector_removes_before_it_adds_larger_types_first() -> None:
    simulation = Simulation(config(initial=(2, 2, 2)), make_trace("x", [0.0], [600.0]))
    outcome = simulation.step([5, -1, -5]).info.outcome
    assert outcome == ((5, 0, 0), (0, 1, 2), (0, 0, 3))


def test_an_interrupted_job_that_had_waited_keeps_its_place_at_the_head() -> None:
    # Jobs 1, 2 run on S; 3 (after waiting 10 s) and 4 would run from 60 on the M that boots; 5 and 6 arrive later.
    arrivals, services = [0.0, 0.0, 50.0, 55.0, 61.0, 62.0], [200.0, 400.0, 300.0, 300.0, 5.0, 5.0]
    simulation = Simulation(config(), make_trace("head", arrivals, services))
    simulation.step(3)
    simulation.step([0, -1, 0])  # jobs 3 and 4 are interrupted at 60; no other job may overtake them
    assert simulation.info().waiting == 4
    view = simulation.fleet_view()
    assert view.queue.oldest_wait_s == 70.0
    assert view.queue.queued_core_s == 610.0
    simulation.step(0)
    result = simulation.step(0)  # at 200 job 1 ends and job 3 starts, 4, 5 and 6 still wait
    assert (result.info.executing, result.info.waiting, result.info.finished) == (2, 3, 1)


def test_a_fleet_without_any_vm_of_two_types_runs_on_the_third() -> None:
    simulation = Simulation(config(initial=(2, 0, 0)), make_trace("x", [0.0] * 5, [50.0] * 5))
    assert simulation.mask().tolist() == [True, True, True, True, False, True, False]
    result = simulation.step([0, -1, -2])
    assert result.info.outcome == ((0, 0, 0), (0, 0, 0), (0, 1, 2))
    assert (result.info.ready, result.info.finished, result.info.executing) == ((2, 0, 0), 4, 1)


def test_all_vms_booting_gives_zero_use_and_jobs_wait() -> None:
    empty = config(initial=(0, 0, 0), minimum=(0, 0, 0), boot_low_s=90.0, boot_high_s=90.0)
    simulation = Simulation(empty, make_trace("x", [0.0], [5.0]))
    assert not simulation.mask()[2]
    result = simulation.step([0, 0, 1])
    assert result.obs.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert result.info.cores_booting == 8
    assert simulation.step(0).done


def test_a_job_wider_than_any_usable_vm_is_an_error_at_load() -> None:
    with pytest.raises(TraceError, match=r"width of job 7 is 8: .* 4 cores"):
        Simulation(config(limits=(1, 1, 0)), trace_of("wide", [Job(7, 0.0, 1.0, width=8)]))
    with pytest.raises(TraceError, match="no VM type may be used"):
        Simulation(
            config(limits=(0, 0, 0), minimum=(0, 0, 0), initial=(0, 0, 0)), make_trace("x", [0.0], [1.0], width=0)
        )


def test_fragmented_cores_do_not_add_up_and_the_head_blocks_unless_backfill_is_on() -> None:
    trace = make_trace("wide", [0.0, 0.0, 1.0, 2.0], [300.0, 300.0, 60.0, 10.0], width=[1, 3, 4, 1])
    strict = Simulation(config(initial=(1, 1, 0)), trace).step(0)
    assert (strict.info.executing, strict.info.waiting, strict.info.finished) == (2, 2, 0)
    filled = Simulation(config(initial=(1, 1, 0), backfill=True), trace).step(0)
    assert (filled.info.executing, filled.info.waiting, filled.info.finished) == (2, 1, 1)


def test_work_passed_over_by_backfill_stays_in_the_queued_work() -> None:
    # Four cores wanted, two there: jobs 2 and 3 pass by, the last of the queue starts, and 1200 core-seconds wait.
    trace = make_trace("wide", [0.0, 0.0, 0.0], [300.0, 400.0, 400.0], width=[4, 1, 1])
    simulation = Simulation(config(backfill=True, limits=(10, 1, 0)), trace)
    result = simulation.step(0)
    assert (result.info.executing, result.info.waiting) == (2, 1)
    assert simulation.fleet_view().queue.queued_core_s == 1200.0


def test_best_fit_takes_the_fullest_vm_and_next_fit_goes_on_where_it_stopped() -> None:
    trace = make_trace("fit", [0.0, 1.0, 2.0], [500.0] * 3, width=[1, 2, 1])
    busy = {}
    for order in Dispatch:
        simulation = Simulation(config(initial=(2, 1, 0), dispatch=order), trace)
        simulation.step(0)
        busy[order] = simulation.fleet_view().vm_cpu.tolist()
    assert busy[Dispatch.FIRST_FIT] == [1.0, 1.0, 0.0]
    assert busy[Dispatch.BEST_FIT] == [1.0, 1.0, 0.0]
    assert busy[Dispatch.NEXT_FIT] == [0.5, 1.0, 0.25]


def test_service_below_a_millisecond_and_clocks_above_a_hundred_million_seconds_keep_their_order() -> None:
    start = 2.0e8
    trace = make_trace("late", [start, start + 1e-6, start + 1.0], [1e-4, 5e-5, 0.25])
    simulation = Simulation(config(max_steps=10_000_000, step_s=1e8), trace)
    while not simulation.finished:
        simulation.step(0)
    assert simulation.measures().executed_core_s == pytest.approx(0.25015, abs=1e-6)
    assert simulation.measures().mean_wait_s == pytest.approx(0.0, abs=1e-7)


def test_a_job_too_short_to_move_the_clock_still_ends() -> None:
    simulation = Simulation(config(step_s=1e8), make_trace("tiny", [1e8] * 9, [1e-12] * 9))
    assert simulation.step(0).done


@pytest.mark.exhaustive
def test_a_million_jobs_are_worked_off() -> None:
    jobs = 1_000_000
    trace = make_trace("million", np.arange(jobs) * 0.1, np.full(jobs, 10.0))
    simulation = Simulation(config(initial=(10, 10, 10), step_s=600.0), trace)
    while not simulation.finished:
        simulation.step(0)
    assert simulation.measures().executed_core_s == pytest.approx(1e7)


def test_a_cooldown_may_outlast_the_episode() -> None:
    simulation = Simulation(config(cooldown_s=1e9), make_trace("x", [0.0], [200.0]))
    assert simulation.step(1).info.accepted
    assert simulation.mask().tolist() == [True, False, False, True, False, True, False]
    assert not simulation.step(1).info.accepted
    assert simulation.fleet_view().cooldown_out_s[0] == pytest.approx(1e9 - 120)


def test_cooldowns_bind_by_type_by_direction_or_everywhere() -> None:
    def mask_after_adding_m(scope: CooldownScope) -> list[bool]:
        simulation = Simulation(
            config(initial=(2, 1, 1), cooldown_s=300.0, cooldown_scope=scope), make_trace("x", [0.0], [2000.0])
        )
        simulation.step(3)
        return simulation.mask().tolist()

    assert mask_after_adding_m(CooldownScope.PER_TYPE) == [True, True, True, False, False, True, True]
    assert mask_after_adding_m(CooldownScope.PER_DIRECTION) == [True, True, True, False, True, True, True]
    assert mask_after_adding_m(CooldownScope.GLOBAL) == [True, False, False, False, False, False, False]


def test_a_cooldown_ends_exactly_after_its_length_and_a_refusal_starts_none() -> None:
    simulation = Simulation(config(cooldown_s=120.0), make_trace("x", [0.0], [2000.0]))
    accepted = [simulation.step(1).info.accepted for _ in range(5)]
    assert accepted == [True, False, True, False, True]
    assert not simulation.step(6).info.accepted
    assert simulation.fleet_view().cooldown_in_s[2] == 0.0


def test_penalty_zero_price_zero_and_limit_zero_are_allowed() -> None:
    base = config(waiting_price_per_hour=0.0, limits=(3, 0, 2))
    free_l = replace(base, types=(base.types[0], base.types[1], replace(base.types[2], price_per_hour=0.0)))
    simulation = Simulation(free_l, make_trace("x", [0.0] * 20, [100.0] * 20))
    assert not simulation.mask()[3]
    assert simulation.step([0, 5, 2]).info.outcome == ((0, 0, 2), (0, 0, 0), (0, 5, 0))
    while not simulation.finished:
        simulation.step(0)
    run = simulation.measures()
    assert run.penalty == 0.0
    assert run.rent == pytest.approx(run.steps * 0.20 / 60, rel=1e-12)


def test_reset_in_mid_episode_starts_from_scratch() -> None:
    trace = train_fit()
    simulation = Simulation(preset("train-fit"), trace, seed=3)
    first = [simulation.step(5).obs.tobytes() for _ in range(20)]
    simulation.reset()
    assert [simulation.step(5).obs.tobytes() for _ in range(20)] == first
    simulation.reset(seed=4)
    assert simulation.seed == 4


def test_the_boot_time_of_the_ith_vm_of_a_type_does_not_depend_on_other_requests() -> None:
    trace = make_trace("x", [0.0], [5000.0])

    def ready_times_of_m(noise: int) -> list[float]:
        simulation = Simulation(preset("train-text", step_s=1.0, initial=(1, 0, 0)), trace, seed=5)
        times = []
        for step in range(200):
            before = simulation.info().ready[1]
            simulation.step([noise if step < 3 else 0, 1 if step in (0, 20) else 0, 0])
            times += [simulation.info().now_s] * (simulation.info().ready[1] - before)
        return times

    assert len(ready_times_of_m(0)) == 2
    assert ready_times_of_m(0) == ready_times_of_m(2)


def test_removal_takes_the_newest_or_the_vm_that_loses_least_work() -> None:
    trace = make_trace("x", [0.0, 0.0, 30.0], [500.0, 500.0, 500.0])
    lost = {}
    for choice in (RemovalChoice.NEWEST, RemovalChoice.LEAST_WORK_LOST):
        simulation = Simulation(config(initial=(2, 0, 0), minimum=(0, 0, 0), removal_choice=choice), trace)
        simulation.step(0)
        simulation.step(2)
        lost[choice] = simulation.measures().lost_core_s
    assert lost == {RemovalChoice.NEWEST: 30.0, RemovalChoice.LEAST_WORK_LOST: 30.0}
    reverse = make_trace("y", [0.0, 0.0, 0.0, 30.0], [20.0, 20.0, 500.0, 500.0])
    simulation = Simulation(config(initial=(2, 0, 0), removal_choice=RemovalChoice.LEAST_WORK_LOST), reverse)
    simulation.step(0)
    simulation.step(2)
    assert simulation.measures().lost_core_s == 30.0  # VM 0 has run the job of time 30 for 30 s, VM 1 one for 60 s


def test_a_draining_vm_ends_its_jobs_takes_no_new_ones_and_is_paid_until_then() -> None:
    trace = make_trace("x", [0.0] * 3 + [70.0] * 3, [100.0] * 6)
    simulation = Simulation(config(initial=(1, 1, 0), removal_mode=RemovalMode.DRAIN), trace)
    simulation.step(0)
    result = simulation.step([0, -1, 0])
    assert (result.info.ready, result.info.draining) == ((1, 0, 0), (0, 0, 0))
    assert result.rent == pytest.approx((0.2 + 0.4) / 60, rel=1e-12)
    assert (result.info.finished, result.info.executing, result.info.waiting) == (3, 2, 1)
    assert simulation.step(0).rent == pytest.approx(0.2 / 60, rel=1e-12)
    assert simulation.measures().interruptions == 0


def test_a_checkpointed_job_goes_on_where_it_was() -> None:
    trace = make_trace("x", [0.0] * 3, [100.0] * 3)
    simulation = Simulation(config(initial=(1, 1, 0), removal_mode=RemovalMode.CHECKPOINT), trace)
    simulation.step(0)
    simulation.step([0, -1, 0])
    assert simulation.step(0).done  # 60 s done, the other 40 from 100 to 140
    run = simulation.measures()
    assert (run.interruptions, run.lost_core_s, run.executed_core_s) == (1, 0.0, 300.0)


def test_billing_by_the_second_has_a_minimum_and_by_the_hour_rounds_up() -> None:
    trace = make_trace("x", [0.0], [3700.0])

    def rents(billing: Billing, **changes: object) -> list[float]:
        simulation = Simulation(
            config(billing=billing, removal_mode=RemovalMode.DRAIN, boot_low_s=20.0, boot_high_s=20.0, **changes), trace
        )
        steps = [simulation.step(5).rent]
        while not simulation.finished:
            steps.append(simulation.step(6 if len(steps) == 1 else 0).rent)
        return steps

    exact = rents(Billing.EXACT)
    assert exact[0] == pytest.approx((0.2 + 0.8) / 60, rel=1e-12)
    assert exact[1] == pytest.approx(0.2 / 60, rel=1e-12)
    assert sum(rents(Billing.EXACT, bill_from_ready=True)) == pytest.approx(sum(exact), rel=1e-12)  # 40 s cost 60
    hourly = rents(Billing.HOUR)
    assert hourly[0] == pytest.approx(1.0, rel=1e-12)
    assert sum(hourly) == pytest.approx(0.2 * 2 + 0.8, rel=1e-12)


def test_the_integral_penalty_prices_each_second_of_waiting() -> None:
    trace = make_trace("x", [0.0] * 3, [30.0] * 3)
    simulation = Simulation(config(integral_penalty=True), trace)
    assert simulation.step(0).penalty == pytest.approx(30 * 0.036 / 3600, rel=1e-12)
    assert Simulation(config(), trace).step(0).penalty == 0.0


def test_a_faster_core_shortens_the_job() -> None:
    simulation = Simulation(config(speed=(2.0, 1.0, 1.0)), make_trace("x", [0.0], [100.0]))
    assert simulation.step(0).done
    assert simulation.measures().executed_core_s == 50.0


def test_cancelling_a_boot_takes_the_newest_booting_vm_first() -> None:
    slow = config(cancel_booting=True, boot_low_s=90.0, boot_high_s=90.0)
    simulation = Simulation(slow, make_trace("x", [0.0], [300.0]))
    simulation.step(1)
    assert simulation.step(2).info.outcome.removed == (1, 0, 0)
    assert simulation.info().booting == (0, 0, 0)
    assert simulation.info().ready == (1, 0, 0)
    assert not simulation.mask()[2]


def test_actions_that_do_not_exist_are_refused_with_the_ones_that_do() -> None:
    simulation = Simulation(config(), make_trace("x", [0.0], [300.0]))
    with pytest.raises(BadInput, match=r"action is 7: give an index in 0\.\.6"):
        simulation.step(7)
    with pytest.raises(BadInput, match="give 3 changes"):
        simulation.step([1, 0])
    with pytest.raises(BadInput, match="preset is 'nope': choose one of train-text"):
        preset("nope")


def test_a_state_of_another_trace_is_not_restored() -> None:
    simulation = Simulation(config(), make_trace("x", [0.0], [300.0]))
    other = Simulation(config(), make_trace("y", [0.0], [301.0]))
    with pytest.raises(TrimtabError, match="another configuration or trace"):
        simulation.restore(other.state())


def test_the_multi_mask_shows_each_change_of_which_a_part_would_be_accepted() -> None:
    simulation = Simulation(config(initial=(1, 1, 0), limits=(1, 4, 2)), make_trace("x", [0.0], [300.0]))
    rows = simulation.mask_multi().tolist()
    assert rows[0] == [False, False, False, True, False, False, False]
    assert rows[1] == [True, True, True, True, True, True, True]
    assert rows[2] == [False, False, False, True, True, True, True]


def test_cpu_is_instantaneous_averaged_or_read_as_a_monitor_reads_it() -> None:
    # An S with one core busy from 0 to 25 s, and both from 15 to 25: 35 core-seconds of 120.
    trace = make_trace("x", [0.0, 15.0, 500.0], [25.0, 10.0, 1.0], ram_gb=0.8)
    shown = {}
    for sampling in CpuSampling:
        obs = Simulation(config(cpu_sampling=sampling), trace).step(0).obs
        shown[sampling] = (float(obs[1]), float(obs[3]))
    assert shown[CpuSampling.INSTANT] == (0.0, 0.0)
    assert shown[CpuSampling.AVERAGE] == (pytest.approx(35 / 120), 0.0)
    # readings at 10, 20, ..., 60: 0.5, 1, 0, 0, 0, 0 and 0.1, 0.2 of the RAM
    assert shown[CpuSampling.SAMPLED] == (pytest.approx(1.5 / 6), pytest.approx(0.3 / 6))


def test_a_vm_with_fewer_than_three_readings_is_left_out_of_the_means_but_counts_as_allocated() -> None:
    for boot_s, expected in ((40.0, [0.5, 0.0]), (41.0, [0.5])):
        simulation = Simulation(
            config(cpu_sampling=CpuSampling.SAMPLED, boot_low_s=boot_s, boot_high_s=boot_s),
            make_trace("x", [0.0], [600.0]),
        )
        result = simulation.step(3)
        cpu = simulation.fleet_view().vm_cpu
        assert cpu[np.isfinite(cpu)].tolist() == expected
        assert result.obs[0] == pytest.approx(6 / 140)
        assert result.obs[1] == pytest.approx(sum(expected) / len(expected))


def test_an_idle_worker_shows_its_own_cpu() -> None:
    simulation = Simulation(config(idle_cpu=0.1), make_trace("x", [0.0], [600.0]))
    assert simulation.step(0).obs[1] == pytest.approx(0.5 + 0.5 * 0.1)


def test_recent_waiting_jobs_are_counted_behind_interrupted_ones() -> None:
    trace = make_trace("x", [0.0] * 4 + [100.0, 110.0], [55.0, 300.0, 500.0, 500.0, 10.0, 500.0])
    simulation = Simulation(config(initial=(1, 1, 0)), trace)
    simulation.step(0)
    # The M goes with two jobs of step 1; one of them restarts on the S, the other and both new jobs wait.
    assert simulation.step(4).obs[5:].tolist() == [pytest.approx(3 / 6), 1.0]


def test_obs_v2_shows_counts_cooldown_queue_and_the_next_loss() -> None:
    trace = make_trace("x", [0.0] * 20, [3600.0] * 20)
    simulation = Simulation(config(initial=(1, 2, 0), cooldown_s=300.0, boot_low_s=90.0, boot_high_s=90.0), trace)
    simulation.step(5)
    vector = simulation.observe_v2()
    expected = [0.1, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.1, 0.8, math.log(11) / math.log(1001), 10 / 140, 60 / 3600, 0.4]
    np.testing.assert_allclose(vector[7:], np.array(expected, dtype=np.float32), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"limits": (1, 2)}, "limits is"),
        ({"initial": (11, 0, 0)}, "initial is"),
        ({"boot_low_s": 90.0, "boot_high_s": 60.0}, "boot_low_s, boot_high_s is"),
        ({"step_s": 0.0}, "step_s is"),
        ({"step_s": 0.0001}, "whole milliseconds"),
        ({"waiting_price_per_hour": -1.0}, "waiting_price_per_hour is"),
        ({"idle_cpu": 1.5}, "idle_cpu is"),
        ({"speed": (1.0,)}, "speed is"),
        ({"types": ()}, "types is"),
    ],
)
def test_a_wrong_configuration_names_field_and_remedy(changes: dict[str, object], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        preset("train-text", **changes)
