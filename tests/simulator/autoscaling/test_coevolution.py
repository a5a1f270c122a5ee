"""The closed loop: stages are released by the end of the one before (autoscaler specification §7.2)."""

import numpy as np
import pytest

from domain.workload import WHOLE_VM, make_trace
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import CoevolutionVariant, coevolution
from tests.simulator.autoscaling.baseline_runs import nothing, run_policy


def test_a_stage_arrives_its_pause_after_the_last_job_of_the_one_before() -> None:
    trace = make_trace(
        "two", [0.0, 0.0, 0.0], [30.0, 90.0, 10.0], stage=[0, 0, 1], release_after=[-1, -1, 0], pause_s=[0.0, 0.0, 25.0]
    )
    simulation = Simulation(preset("train-text", step_s=1.0), trace)
    submitted = []
    while not simulation.finished:
        submitted.append(simulation.step(0).info.submitted)
    assert submitted.index(3) + 1 == 90 + 25
    assert len(submitted) == 90 + 25 + 10


def test_a_slower_fleet_delays_what_comes_later() -> None:
    trace = coevolution(0, generations=2)
    small = run_policy(preset("paper-live", initial=(1, 0, 0)), trace, nothing)
    large = run_policy(preset("paper-live", initial=(5, 5, 5)), trace, nothing)
    assert small.run_time_s > 2 * large.run_time_s


def test_a_whole_vm_job_takes_every_core_and_loses_its_serial_share() -> None:
    trace = make_trace("whole", [0.0], [800.0], width=WHOLE_VM, serial_fraction=0.05)
    simulation = Simulation(preset("train-text", initial=(0, 0, 1), minimum=(0, 0, 0), step_s=1.0), trace)
    busy = [simulation.step(0).info.cores_busy for _ in range(134)]
    assert busy == [8] * 134
    assert simulation.step(0).done  # 800 * (0.05 + 0.95 / 8) = 135 s
    assert simulation.measures().executed_core_s == pytest.approx(8 * 135.0)


def test_a_whole_vm_job_waits_for_an_empty_vm() -> None:
    trace = make_trace("mixed", [0.0, 1.0], [100.0, 40.0], width=[1, WHOLE_VM])
    simulation = Simulation(preset("train-text", initial=(1, 0, 0)), trace)
    assert simulation.step(0).info.waiting == 1
    assert simulation.step(0).done


def test_work_and_stages_are_as_calibrated() -> None:
    trace = coevolution(1)
    assert trace.jobs == 20 * 128
    assert len(np.unique(trace.stage)) == 40
    # 337.9 core-minutes of work a generation; the serial share makes about 420 of occupied cores out of it
    assert trace.work_core_s / 60 / 20 == pytest.approx(64 * (3.96 + 1.32), rel=0.02)
    assert set(trace.width.tolist()) == {WHOLE_VM}


@pytest.mark.parametrize(("fleet", "minutes", "utilisation"), [((1, 3, 7), 171, 0.69), ((2, 2, 10), 148, 0.61)])
def test_run_time_of_70_and_92_cores_is_near_the_published_one(
    fleet: tuple[int, int, int], minutes: float, utilisation: float
) -> None:
    runs = [run_policy(preset("paper-live", initial=fleet), coevolution(seed), nothing) for seed in range(3)]
    assert np.mean([run.run_time_s for run in runs]) / 60 == pytest.approx(minutes, rel=0.03)
    assert np.mean([run.utilisation for run in runs]) == pytest.approx(utilisation, abs=0.06)


def test_the_fixed_list_does_not_wait_for_anybody() -> None:
    trace = coevolution(0, generations=3, variant=CoevolutionVariant.FIXED_LIST)
    assert not trace.staged
    assert sorted(set(trace.arrival_s.tolist())) == [30.0, 270.0, 510.0, 750.0, 990.0, 1230.0]
    assert set(coevolution(0, variant=CoevolutionVariant.ONE_CORE).width.tolist()) == {1}
