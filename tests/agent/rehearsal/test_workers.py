"""A synthetic VM pulls, works, reports, drains and hands back as a real worker should."""

import itertools

import pytest

from agent.rehearsal.site import HAND_BACK_S, POLL_EVERY_S, STATUS_EVERY_S, VmGone, VmStatus
from domain.samples import VmMetric
from tests.agent.rehearsal.bench import START, Bench


def test_it_pulls_only_as_many_jobs_as_it_has_free_cores():
    bench = Bench([(0.0, 100.0)] * 5, 60.0)
    assert [job for job, _ in bench.jobs.started] == [1, 2]
    assert bench.queue.asked == [(0.0, 2)]


def test_it_pulls_again_when_a_core_is_free():
    bench = Bench([(0.0, 10.0), (0.0, 30.0), (0.0, 10.0)], 60.0)
    assert bench.jobs.started == [(1, 0.0), (2, 0.0), (3, 10.0)]
    assert (10.0, 1) in bench.queue.asked


def test_a_call_makes_it_pull_at_once():
    bench = Bench([(3.25, 10.0)], 14.0, called_at=3.25)
    assert bench.jobs.started == [(1, 3.25)]
    assert bench.jobs.done == [(1, 13.25, 10.0)]


def test_a_vm_that_is_to_go_has_no_cores_for_a_job():
    staying, going = Bench([], 5.0), Bench([], 5.0, lambda _: VmStatus(terminating=True))
    assert (staying.worker.free, going.worker.free) == (2, 0)


def test_it_asks_seldom_while_nothing_calls_it():
    bench = Bench([], 120.0)
    at = [when for when, _ in bench.queue.asked]
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(at)]
    assert set(pauses) == {POLL_EVERY_S}


def test_it_works_a_job_for_its_service_time_and_deletes_its_message():
    bench = Bench([(0.0, 25.0)], 60.0)
    assert bench.jobs.started == [(1, 0.0)]
    assert bench.jobs.done == [(1, 25.0, 25.0)]
    assert bench.queue.deleted == ["receipt-1"]
    assert bench.worker.busy == 0


def test_it_reports_every_ten_seconds_what_it_measured():
    bench = Bench([(0.0, 100.0)], 60.0)
    cpu, ram = bench.readings(VmMetric.CPU_PERCENT), bench.readings(VmMetric.RAM_PERCENT)
    busy, work = bench.readings(VmMetric.BUSY_CORES), bench.readings(VmMetric.WORK_CORE_SECONDS)
    assert list(cpu) == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert set(cpu.values()) == {50.0}
    assert set(ram.values()) == {100.0 * 0.63 / 8.0}
    assert set(busy.values()) == {1.0}
    assert list(work.values()) == pytest.approx([10.0, 20.0, 30.0, 40.0, 50.0])


def test_cpu_is_the_share_of_the_ten_seconds_in_which_cores_worked():
    bench = Bench([(0.0, 5.0), (0.0, 5.0)], 30.0)
    assert list(bench.readings(VmMetric.CPU_PERCENT).values()) == pytest.approx([50.0, 3.0], abs=0.01)


def test_it_reports_idle_when_there_is_nothing_to_do():
    bench = Bench([], 30.0)
    assert list(bench.readings(VmMetric.BUSY_CORES).values()) == [0.0, 0.0]
    assert list(bench.readings(VmMetric.CPU_PERCENT).values()) == [3.0, 3.0]


def test_a_vm_that_is_to_terminate_pulls_nothing_more_and_finishes_its_jobs():
    bench = Bench([(0.0, 80.0), (40.0, 10.0)], 120.0, lambda at: VmStatus(terminating=at >= 30.0))
    assert [job_id for job_id, _, _ in bench.jobs.done] == [1]
    assert max(at for at, _ in bench.queue.asked) < 30.0 + STATUS_EVERY_S
    assert bench.readings(VmMetric.BUSY_CORES)[110.0] == 0.0
    assert bench.queue.handed_back == []


def test_a_status_request_that_fails_takes_no_termination_back():
    bench = Bench([(60.0, 10.0)], 120.0, lambda at: VmStatus(terminating=at < 20.0))
    assert bench.jobs.started == []


def test_with_a_spot_notice_it_pulls_nothing_more():
    bench = Bench([(60.0, 10.0)], 100.0, lambda at: VmStatus(taken_at=START + 150.0 if at >= 30.0 else None))
    assert bench.jobs.started == []


def test_what_will_not_be_done_when_aws_takes_the_vm_goes_back_to_the_queue_in_time():
    taken = 120.0
    bench = Bench([(0.0, 50.0), (0.0, 500.0)], taken, lambda _: VmStatus(taken_at=START + taken if _ >= 10.0 else None))
    assert [job_id for job_id, _, _ in bench.jobs.done] == [1]
    ((at, receipt),) = bench.queue.handed_back
    assert receipt == "receipt-2"
    assert taken - HAND_BACK_S <= at <= taken - HAND_BACK_S + 10.0
    assert bench.jobs.returned == [(2, at)]
    assert (bench.worker.handed_back, bench.worker.busy) == (1, 0)
    assert bench.readings(VmMetric.BUSY_CORES)[100.0] == 0.0


def test_a_killed_worker_loses_its_jobs_and_returns_them():
    bench = Bench([(0.0, 500.0), (0.0, 500.0)], 60.0)
    assert bench.worker.busy == 2
    assert bench.jobs.returned == [(1, 60.0), (2, 60.0)]
    assert bench.queue.deleted == []


def test_it_ends_with_its_vm():
    def status(at: float) -> VmStatus:
        if at >= 30.0:
            raise VmGone("i-1")
        return VmStatus()

    bench = Bench([(0.0, 500.0)], 120.0, status)
    assert bench.worker.busy == 1
    assert max(bench.readings(VmMetric.CPU_PERCENT)) <= 30.0
