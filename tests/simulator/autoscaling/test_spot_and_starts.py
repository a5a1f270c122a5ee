"""Start latency, boot times per type, spot VMs, and the time to the first core (autoscaler specification §2, §12.2)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import RemovalMode, SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.world_file import preset
from tests.simulator.autoscaling.test_invariants import ACTIONS, drive, traces


def config(**changes: object) -> SimulationConfig:
    return preset("train-text", **{"boot_low_s": 60.0, "boot_high_s": 60.0, "initial": (1, 0, 0), **changes})


def test_a_start_takes_its_latency_on_the_core() -> None:
    simulation = Simulation(config(dispatch_latency_s=20.0), make_trace("x", [0.0, 0.0, 0.0], [30.0, 30.0, 5.0]))
    result = simulation.step(0)
    # Two run from 20 to 50; the third has a core from 50 on and would run from 70.
    assert (result.info.finished, result.info.waiting, result.info.executing) == (2, 1, 0)
    assert simulation.step(0).done
    assert simulation.measures().run_time_s == 120.0
    assert simulation.measures().mean_wait_s == pytest.approx((20 + 20 + 70) / 3)


def test_a_vm_that_goes_before_its_jobs_run_sends_them_back_without_loss() -> None:
    trace = make_trace("x", [50.0] * 4, [30.0] * 4)
    simulation = Simulation(config(initial=(1, 1, 0), dispatch_latency_s=20.0), trace)
    assert simulation.step(0).info.waiting == 4
    result = simulation.step(4)
    # The S runs its own two from 70 to 100 and then, after another start, the others from 120 on.
    assert (result.info.finished, result.info.executing) == (2, 2)
    assert simulation.step(0).done
    run = simulation.measures()
    assert (run.interruptions, run.lost_core_s) == (2, 0.0)
    assert run.mean_wait_s == pytest.approx((20 + 20 + 70 + 70) / 4)


def test_a_draining_vm_runs_the_jobs_that_had_its_cores() -> None:
    trace = make_trace("x", [50.0] * 4, [30.0] * 4)
    drains = config(initial=(1, 1, 0), dispatch_latency_s=20.0, removal_mode=RemovalMode.DRAIN)
    simulation = Simulation(drains, trace)
    simulation.step(0)
    assert simulation.step(4).done
    assert simulation.measures().interruptions == 0


def test_boot_times_may_differ_by_type() -> None:
    by_type = config(boot_lows_s=(30.0, 90.0, 150.0), boot_highs_s=(30.0, 90.0, 150.0))
    simulation = Simulation(by_type, make_trace("x", [0.0], [600.0]))
    ready = [simulation.step([1, 1, 1] if step == 0 else 0).info.ready for step in range(3)]
    assert ready == [(2, 0, 0), (2, 1, 0), (2, 1, 1)]
    for wrong in ({"boot_lows_s": (1.0, 1.0, 1.0)}, {"boot_lows_s": (2.0,) * 3, "boot_highs_s": (1.0,) * 3}):
        with pytest.raises(BadInput, match="boot_lows_s, boot_highs_s is"):
            config(**wrong)


def notices(seed: int, action: int) -> list[float]:
    """Return when three first M VMs of which the provider takes 6 an hour each were given notice."""
    spot = config(initial=(1, 3, 0), reclaims_per_hour=(0.0, 6.0, 0.0), step_s=1.0)
    simulation = Simulation(spot, make_trace("x", [0.0], [7200.0]), seed)
    times: list[float] = []
    for step in range(7200):
        before = simulation.measures().reclaimed
        simulation.step(action if step < 5 else 0)
        times += [simulation.info().now_s] * (simulation.measures().reclaimed - before)
        if len(times) == 3:
            return times
    return times


def test_a_spot_vm_is_taken_back_at_its_own_time_whatever_else_is_done() -> None:
    assert len(notices(7, 0)) == 3
    assert notices(7, 0) == notices(7, 1) == notices(7, 5)
    assert notices(7, 0) != notices(8, 0)


def test_reclaims_come_at_their_rate() -> None:
    spot = config(initial=(1, 10, 0), reclaims_per_hour=(0.0, 2.0, 0.0))
    taken = 0
    for seed in range(40):
        simulation = Simulation(spot, make_trace("x", [0.0], [900.0]), seed)
        while not simulation.finished:
            simulation.step(0)
        taken += simulation.measures().reclaimed
    # 400 VMs for a quarter of an hour: each is taken with 1 - exp(-0.5).
    assert taken == pytest.approx(400 * (1 - np.exp(-0.5)), rel=0.12)


def test_a_vm_under_notice_takes_no_job_and_loses_its_own_after_two_minutes() -> None:
    spot = config(initial=(0, 1, 0), minimum=(0, 0, 0), reclaims_per_hour=(0.0, 30.0, 0.0), step_s=1.0)
    simulation = Simulation(spot, make_trace("x", [0.0] * 2 + [400.0], [5000.0, 5000.0, 10.0]), seed=3)
    while simulation.info().ready[1]:
        simulation.step(0)
    noticed = simulation.info().now_s
    assert (simulation.info().draining, simulation.info().cores_ready) == ((0, 1, 0), 0)
    assert not simulation.mask()[4]
    assert simulation.fleet_view().requested.tolist() == [0, 0, 0]
    rents = [simulation.step(0).rent for _ in range(121)]
    assert (simulation.info().draining, simulation.info().executing) == ((0, 0, 0), 0)
    assert rents[0] > 0.0
    assert rents[-1] == 0.0
    run = simulation.measures()
    assert (run.reclaimed, run.interruptions) == (1, 2)
    assert run.lost_core_s == pytest.approx(2 * (noticed + 119.5), abs=2.0)


def test_an_idle_spot_vm_leaves_at_once_and_a_busy_one_when_its_job_ends() -> None:
    # VMs of three types that are taken after about a second; the S has a job of 90 s.
    spot = config(initial=(1, 1, 1), minimum=(0, 0, 0), reclaims_per_hour=(3600.0,) * 3)
    simulation = Simulation(spot, make_trace("x", [0.0, 500.0], [90.0, 1.0]))
    first = simulation.step(0)
    assert (first.info.ready, first.info.draining) == ((0, 0, 0), (1, 0, 0))
    assert simulation.step(0).info.draining == (0, 0, 0)
    assert (simulation.measures().reclaimed, simulation.measures().interruptions) == (3, 0)


def test_wrong_rates_and_notices_are_refused() -> None:
    with pytest.raises(BadInput, match="reclaims_per_hour is"):
        config(reclaims_per_hour=(1.0,))
    with pytest.raises(BadInput, match="reclaim_notice_s is"):
        config(reclaim_notice_s=-1.0)
    with pytest.raises(BadInput, match="dispatch_latency_s is"):
        config(dispatch_latency_s=-1.0)


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(
    traces(),
    ACTIONS,
    st.integers(0, 2**32),
    st.sampled_from(list(RemovalMode)),
    st.sampled_from([0.0, 7.5, 60.0, 130.0]),
    st.sampled_from([0.0, 4.0, 30.0]),
)
def test_jobs_and_cores_are_conserved_with_starts_and_reclaims(
    trace: Trace, actions: list[Any], seed: int, mode: RemovalMode, latency_s: float, rate: float
) -> None:
    wild = config(
        limits=(4, 3, 2),
        removal_mode=mode,
        dispatch_latency_s=latency_s,
        reclaims_per_hour=(0.0, rate, rate),
        # At 30 an hour a job of 15 minutes begins again a thousand times before it ends.
        max_steps=1_000_000,
    )
    simulation = Simulation(wild, trace, seed)
    for result in drive(simulation, actions):
        info = result.info
        assert info.submitted == info.waiting + info.executing + info.finished
        assert 0 <= info.cores_busy <= info.cores_ready <= 36
        assert np.all((result.obs >= 0.0) & (result.obs <= 1.0))
    run = simulation.measures()
    assert run.jobs_finished == trace.jobs
    if not (trace.width == 0).any():
        assert run.executed_core_s == pytest.approx(trace.work_core_s + run.lost_core_s, rel=1e-9, abs=1e-6)


def test_the_time_to_the_first_core_runs_from_the_first_job_without_one() -> None:
    # Two jobs run from the start; a third waits from 30 s on. A VM asked for at 60 is ready at 120: 90 s.
    trace = make_trace("x", [0.0, 0.0, 30.0, 40.0], [900.0, 900.0, 10.0, 10.0])
    simulation = Simulation(config(), trace)
    simulation.step(0)
    assert (simulation.measures().bursts, simulation.measures().first_core_s) == (1, 0.0)
    simulation.step(3)
    assert (simulation.measures().bursts, simulation.measures().first_core_s) == (1, 90.0)


def test_only_the_first_vm_answers_a_burst_and_one_that_ends_by_itself_does_not_count() -> None:
    arrivals = [0.0] * 3 + [300.0] * 20
    trace = make_trace("x", arrivals, [20.0] * 3 + [600.0] * 20)
    simulation = Simulation(config(), trace)
    while simulation.info().now_s < 300.0:
        simulation.step(0)
    # The first burst ended after 20 s without a new VM; the second began at 300, at the end of step 5.
    assert (simulation.measures().bursts, simulation.measures().first_core_s) == (2, 0.0)
    simulation.step(3)
    simulation.step(3)
    assert (simulation.measures().bursts, simulation.measures().first_core_s) == (2, 60.0)
