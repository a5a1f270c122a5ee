"""The job source submits jobs in real order and counts waits, returns and repeats."""

import json
from collections.abc import Sequence

import pytest

from agent.rehearsal.site import JobSource
from domain.samples import QueueMetric, Sample
from domain.workload import make_trace
from tests.agent.rehearsal.bench import START, EndingClock


class Desk:
    """A job source over jobs at given seconds, the messages it put on the queue, and the samples it reported."""

    def __init__(self, arrivals: Sequence[float], end: float = 100.0, until: float = 1000.0) -> None:
        self.clock = EndingClock(until)
        self.put: list[tuple[float, list[dict[str, float]]]] = []
        self.reported: list[Sample] = []
        trace = make_trace("desk", arrivals, [10.0] * len(arrivals))
        self.source = JobSource("web", trace, START, START + end, self.clock, self._take, self.reported.extend)
        self.clock.at_end = self.source.stop

    def _take(self, bodies: list[str]) -> None:
        self.put.append((self.clock.now() - START, [json.loads(body) for body in bodies]))

    def done(self, job_id: int, started: float, finished: float) -> None:
        self.source.job_done(job_id, START + finished, finished - started)


def test_jobs_are_put_on_the_queue_when_their_time_comes():
    desk = Desk([0.0, 0.0, 33.0], until=60.0)
    desk.source.run()
    assert [(round(at), [job["job_id"] for job in jobs]) for at, jobs in desk.put] == [(0, [1, 2]), (33, [3])]
    assert desk.put[1][1][0] == {"job_id": 3, "submitted_at": START + 33.0, "service_s": 10.0}


def test_more_than_ten_jobs_at_once_take_more_than_one_call():
    desk = Desk([5.0] * 23, until=60.0)
    desk.source.run()
    assert [len(jobs) for _, jobs in desk.put] == [10, 10, 3]


def test_jobs_after_the_end_are_not_submitted():
    desk = Desk([5.0, 99.0, 101.0], end=100.0, until=200.0)
    desk.source.run()
    assert desk.source.submitted == 2


def test_it_reports_submitted_and_finished_and_the_mean_job_every_ten_seconds():
    desk = Desk([0.0, 15.0], until=35.0)
    desk.done(1, 0.0, 12.0)
    desk.source.run()
    submitted = [(s.at - START, s.value) for s in desk.reported if s.series.metric is QueueMetric.SUBMITTED_TOTAL]
    assert submitted == [(10.0, 1.0), (20.0, 2.0), (30.0, 2.0)]
    assert {s.value for s in desk.reported if s.series.metric is QueueMetric.JOB_CORE_SECONDS} == {12.0}
    assert {s.value for s in desk.reported if s.series.metric is QueueMetric.FINISHED_TOTAL} == {1.0}


def test_nothing_finished_means_no_reading_of_the_mean_job_rather_than_zero():
    desk = Desk([0.0], until=15.0)
    desk.source.run()
    assert not [s for s in desk.reported if s.series.metric is QueueMetric.JOB_CORE_SECONDS]


def test_a_job_worked_off_twice_counts_once():
    desk = Desk([0.0], until=200.0)
    desk.source.job_started(1, START + 5.0)
    desk.done(1, 5.0, 15.0)
    desk.done(1, 40.0, 50.0)
    desk.clock.advance(200.0)
    summary = desk.source.summary()
    assert (summary["finished"], summary["repeated"], summary["mean_wait_s"]) == (1, 1, 5.0)


def test_all_stays_of_a_job_in_the_queue_count_and_so_do_jobs_that_still_wait():
    desk = Desk([0.0, 20.0, 30.0], end=100.0)
    desk.source.job_started(1, START + 10.0)
    desk.source.job_returned(1, START + 40.0)
    desk.source.job_started(1, START + 45.0)
    desk.done(1, 45.0, 60.0)
    desk.source.job_started(2, START + 21.0)
    desk.clock.advance(150.0)
    summary = desk.source.summary()
    assert summary["mean_wait_s"] == pytest.approx(15.0)
    assert summary["waiting_job_s"] == pytest.approx(15.0 + 1.0 + 70.0)


def test_what_happens_after_the_end_is_not_counted():
    desk = Desk([0.0, 0.0], end=100.0)
    desk.source.job_started(1, START + 110.0)
    desk.done(1, 110.0, 120.0)
    desk.clock.advance(150.0)
    summary = desk.source.summary()
    assert (summary["finished"], summary["waiting_job_s"]) == (0, 200.0)


def test_before_anything_has_finished_waits_are_zero_and_not_a_failure():
    summary = Desk([]).source.summary()
    assert (summary["mean_wait_s"], summary["p95_wait_s"], summary["submitted"]) == (0.0, 0.0, 0)


def test_it_reports_the_quantiles_of_the_hundred_jobs_that_finished_last():
    desk = Desk([0.0] * 150, until=15.0)
    for job in range(1, 151):
        desk.done(job, 0.0, float(job))
    desk.source.run()
    reported = {s.series.metric: s.value for s in desk.reported}
    assert reported[QueueMetric.JOB_CORE_SECONDS_P50] == 100.5
    assert reported[QueueMetric.JOB_CORE_SECONDS_P99] == pytest.approx(149.01)
    assert reported[QueueMetric.JOB_CORE_SECONDS] == 75.5
