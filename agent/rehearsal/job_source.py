"""Plays a job trace into the queue in real order, and reports what only the job source knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any, Protocol

import numpy as np

from agent.rehearsal.worker import JobDone
from domain.clock import Clock
from domain.samples import QueueMetric, QueueSeries, Sample
from domain.workload import Trace

REPORT_EVERY_S = 10.0


class Outbox(Protocol):
    """Where jobs are put: at most ten bodies a call."""

    def __call__(self, bodies: list[str]) -> None:
        """Put the messages on the queue."""
        ...


class JobSource(Thread):
    """Submits the trace's jobs when their time comes and keeps the books on them.

    The trace begins at `start`; what happens after `end` is not in the books.
    """

    def __init__(
        self,
        fleet: str,
        trace: Trace,
        start: float,
        end: float,
        clock: Clock,
        put: Outbox,
        report: Callable[[Sample], None],
    ) -> None:
        super().__init__(name="job source", daemon=True)
        self._fleet, self._trace, self._end = fleet, trace, end
        self._arrivals = trace.arrival_s + start
        self._clock, self._put, self._report = clock, put, report
        self._ended = Event()
        self._lock = Lock()
        self._due_in_all = int(self._arrivals.searchsorted(end, side="right"))
        self._finished: dict[int, JobDone] = {}
        self._repeated = 0
        self._waited_s: dict[int, float] = {}
        self._waiting_since = {int(trace.job_id[k]): float(self._arrivals[k]) for k in range(self._due_in_all)}
        self.submitted = 0

    def stop(self) -> None:
        """Submit nothing more."""
        self._ended.set()

    def job_started(self, job_id: int, at: float) -> None:
        """A worker has begun the job: its wait is over."""
        with self._lock:
            since = self._waiting_since.pop(job_id, None)
            if since is not None:
                self._waited_s[job_id] = self._waited_s.get(job_id, 0.0) + max(0.0, min(at, self._end) - since)

    def job_returned(self, job_id: int, at: float) -> None:
        """The job's work is lost: it waits again."""
        with self._lock:
            if job_id not in self._finished and at < self._end:
                self._waiting_since.setdefault(job_id, at)

    def job_done(self, job: JobDone) -> None:
        """Take a finished job; one that was delivered and worked off twice counts once."""
        with self._lock:
            if job.job_id in self._finished:
                self._repeated += 1
            else:
                self._finished[job.job_id] = job
                self._waiting_since.pop(job.job_id, None)

    def run(self) -> None:
        """Submit and report until the trace is through and `stop` was called."""
        next_report = (self._clock.now() // REPORT_EVERY_S + 1.0) * REPORT_EVERY_S
        while not self._ended.is_set():
            now = self._clock.now()
            due = min(self._due_in_all, int(self._arrivals.searchsorted(now, side="right")))
            while self.submitted < due and not self._ended.is_set():
                upto = min(due, self.submitted + 10)
                self._put([self._body(k) for k in range(self.submitted, upto)])
                self.submitted = upto
            while next_report <= now:
                self._send(next_report)
                next_report += REPORT_EVERY_S
            wake = next_report if due >= self._due_in_all else min(next_report, float(self._arrivals[due]))
            self._clock.sleep(max(0.5, wake - self._clock.now()))

    def _body(self, k: int) -> str:
        return json.dumps(
            {
                "job_id": int(self._trace.job_id[k]),
                "submitted_at": float(self._arrivals[k]),
                "service_s": float(self._trace.service_s[k]),
            }
        )

    def _send(self, at: float) -> None:
        with self._lock:
            served = [job.service_s for job in self._finished.values()]
            # Jobs that are still to come stand there with the time of their arrival.
            oldest_s = max(0.0, at - min(self._waiting_since.values(), default=at))
        readings: list[tuple[QueueMetric, float]] = [
            (QueueMetric.SUBMITTED_TOTAL, float(self.submitted)),
            (QueueMetric.FINISHED_TOTAL, float(len(served))),
            (QueueMetric.OLDEST_WAIT_SECONDS, oldest_s),
        ]
        if served:
            readings.append((QueueMetric.JOB_CORE_SECONDS, sum(served) / len(served)))
        for metric, value in readings:
            self._report(Sample(QueueSeries(self._fleet, metric), value, at))

    def summary(self) -> dict[str, Any]:
        """Return what had become of the jobs at `end`.

        submitted, finished, repeated: jobs. waiting_job_s: seconds that jobs spent in the queue, those included that
        were still there. mean_wait_s, p95_wait_s: time in the queue per finished job, all its stays together.
        """
        now = min(self._clock.now(), self._end)
        with self._lock:
            finished = [job.job_id for job in self._finished.values() if job.finished_at <= self._end]
            waits = np.array([self._waited_s.get(job_id, 0.0) for job_id in finished], dtype=np.float64)
            waiting_job_s = sum(self._waited_s.values())
            waiting_job_s += sum(max(0.0, now - since) for since in self._waiting_since.values())
        return {
            "submitted": self.submitted,
            "finished": len(finished),
            "repeated": self._repeated,
            "waiting_job_s": waiting_job_s,
            "mean_wait_s": float(waits.mean()) if waits.size else 0.0,
            "p95_wait_s": float(np.percentile(waits, 95.0)) if waits.size else 0.0,
        }
