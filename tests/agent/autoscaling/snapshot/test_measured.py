"""What a fold measures for learning beside the snapshot: boots, lengths, jobs finished, work lost."""

import pytest

from agent.autoscaling.minutes import Boot, JobLengths, MinuteMeasurements
from collectors.intake import Claims
from domain.observed import Instance, Lifecycle
from domain.samples import QueueMetric
from tests.agent.autoscaling.snapshot.scene import T0, Scene, running

QUEUE = {"waiting": 3.0, "running": 2.0}
LENGTHS = {
    "job_core_seconds": 60.0,
    "job_core_seconds_p10": 20.0,
    "job_core_seconds_p50": 50.0,
    "job_core_seconds_p90": 90.0,
    "job_core_seconds_p99": 200.0,
}


def measured(scene: Scene) -> MinuteMeasurements:
    return scene.folded.measured


def pending(vm: str, launched_at: float) -> Instance:
    return Instance(vm, "a", Lifecycle.PENDING, launched_at=launched_at)


def test_a_boot_lasts_from_the_launch_to_the_first_report_and_counts_once() -> None:
    scene = Scene()
    scene.minute()
    scene.place("s", pending("i-1", scene.now + 10.0))
    launched = scene.now + 10.0
    scene.minute()
    scene.place("s", running("i-1", launched))
    scene.report("s", "i-1", [launched + 83.0], cpu_percent=1.0, busy_cores=0.0)
    scene.minute()
    assert measured(scene).boots == (Boot(0, 83.0),)
    scene.minute(cpu={"i-1": 5.0})
    assert measured(scene).boots == ()


def test_a_vm_that_ran_before_the_agent_started_has_no_boot() -> None:
    scene = Scene()
    scene.place("s", running("i-1", T0 - 3600.0), pending("i-2", T0 - 20.0))
    scene.minute(cpu={"i-1": 5.0})
    assert measured(scene).boots == ()
    # One that was booting then was watched to its first report.
    scene.place("s", running("i-1", T0 - 3600.0), running("i-2", T0 - 20.0))
    scene.report("s", "i-2", [scene.now + 15.0], cpu_percent=1.0, busy_cores=0.0)
    scene.minute(cpu={"i-1": 5.0})
    assert measured(scene).boots == (Boot(0, 95.0),)


def test_a_vm_that_was_attached_later_has_no_boot() -> None:
    scene = Scene()
    scene.minute()
    scene.place("s", running("i-1", scene.now - 3600.0))
    scene.minute(cpu={"i-1": 5.0})
    assert measured(scene).boots == ()


def test_lengths_are_quantiles_only_where_all_of_them_are_reported_in_order() -> None:
    scene = Scene()
    scene.minute(queue={**QUEUE, **LENGTHS})
    assert measured(scene).lengths == JobLengths(60.0, 20.0, 50.0, 90.0, 200.0)
    scene = Scene()
    scene.minute(queue={**QUEUE, **LENGTHS, "job_core_seconds_p90": 40.0})
    assert measured(scene).lengths is None
    scene = Scene()
    scene.minute(queue={**QUEUE, "job_core_seconds": 60.0, "job_core_seconds_p50": 50.0})
    assert measured(scene).lengths is None


def test_waiting_is_the_mean_over_the_minute_and_finished_grows_over_a_restart_of_its_counter() -> None:
    scene = Scene()
    scene.minute(queue={**QUEUE, "finished_total": 100.0})
    assert measured(scene).finished == 0
    scene.report_queue(scene.now + 20.0, waiting=9.0, running=2.0, finished_total=104.0)
    scene.minute(queue={**QUEUE, "finished_total": 3.0})
    assert (measured(scene).waiting, measured(scene).finished) == (6.0, 7)
    scene.minute(cpu={})
    assert measured(scene).finished is None


def test_the_work_of_finished_jobs_grows_over_a_restart_of_its_counter_within_what_the_claims_allow() -> None:
    scene = Scene()
    scene.minute(queue={**QUEUE, "finished_total": 100.0, "finished_core_seconds_total": 9e4})
    assert measured(scene).finished_core_s == 0.0
    # More than jobs may come in a minute, and less than their work may be.
    scene.minute(queue={**QUEUE, "finished_total": 104.0, "finished_core_seconds_total": 5e6})
    assert measured(scene).finished_core_s == 4.91e6
    scene.minute(queue={**QUEUE, "finished_total": 1.0, "finished_core_seconds_total": 300.0})
    assert measured(scene).finished_core_s == 300.0
    scene.minute(queue=QUEUE)
    assert measured(scene).finished_core_s is None


def test_the_work_of_finished_jobs_may_grow_by_the_longest_jobs_that_are_believed() -> None:
    claims, work = Claims(max_submitted_per_minute=10.0, max_job_core_s=500.0), QueueMetric.FINISHED_CORE_SECONDS_TOTAL
    assert (claims.growth(30.0), claims.growth(120.0)) == (10.0, 20.0)
    assert claims.growth(120.0, work) == 10_000.0
    assert claims.restarted(90_000.0, 4_000.0, 60.0, work)
    assert not claims.restarted(90_000.0, 4_000.0, 60.0)


def test_without_a_counter_of_finished_jobs_those_finished_that_neither_wait_nor_run() -> None:
    scene = Scene()
    scene.minute(queue={"waiting": 5.0, "running": 2.0, "submitted_total": 10.0})
    scene.minute(queue={"waiting": 3.0, "running": 2.0, "submitted_total": 12.0})
    assert measured(scene).finished == 4


@pytest.mark.parametrize(("lifecycle", "lost"), [(Lifecycle.IN_SERVICE, 240.0), (Lifecycle.DRAINING, 0.0)])
def test_work_under_way_is_lost_with_a_vm_that_was_not_drained(lifecycle: Lifecycle, lost: float) -> None:
    scene = Scene()
    scene.place("s", Instance("i-1", "a", lifecycle, launched_at=T0 - 3600.0))
    scene.minute(cpu={"i-1": 90.0}, work_core_seconds=240.0)
    scene.place("s")
    scene.minute()
    assert measured(scene).lost_core_s == lost
    scene.minute()
    assert measured(scene).lost_core_s == 0.0
