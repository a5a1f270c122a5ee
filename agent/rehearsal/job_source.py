"""Plays a job trace into the queue in real order, and reports what only the job source knows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any, Protocol

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
    """Submits the trace's jobs when their time comes and keeps the books on them."""

    def __init__(
        self, fleet: str, trace: Trace, origin: float, clock: Clock, put: Outbox, report: Callable[[Sample], None]
    ) -> None:
        super().__init__(name="job source", daemon=True)
        self._fleet, self._trace, self._origin = fleet, trace, origin
        self._clock, self._put, self._report = clock, put, report
        self._ended = Event()
        self._lock = Lock()
        self._finished: dict[int, JobDone] = {}
        self._repeated = 0
        self.submitted = 0

    def stop(self) -> None:
        """Submit nothing more."""
        self._ended.set()

    def job_done(self, job: JobDone) -> None:
        """Take a finished job; one that was delivered and worked off twice counts once."""
        with self._lock:
            if job.job_id in self._finished:
                self._repeated += 1
            else:
                self._finished[job.job_id] = job

    @property
    def finished(self) -> int:
        """Jobs finished."""
        return len(self._finished)

    def run(self) -> None:
        """Submit and report until the trace is through and `stop` was called."""
        arrivals = self._trace.arrival_s + self._origin
        next_report = (self._clock.now() // REPORT_EVERY_S + 1.0) * REPORT_EVERY_S
        while not self._ended.is_set():
            now = self._clock.now()
            due = int(arrivals.searchsorted(now, side="right"))
            while self.submitted < due and not self._ended.is_set():
                upto = min(due, self.submitted + 10)
                self._put([self._body(k, float(arrivals[k])) for k in range(self.submitted, upto)])
                self.submitted = upto
            while next_report <= now:
                self._send(next_report)
                next_report += REPORT_EVERY_S
            wake = next_report if due >= arrivals.size else min(next_report, float(arrivals[due]))
            self._clock.sleep(max(0.5, wake - self._clock.now()))

    def _body(self, k: int, arrival: float) -> str:
        return json.dumps(
            {
                "job_id": int(self._trace.job_id[k]),
                "submitted_at": arrival,
                "service_s": float(self._trace.service_s[k]),
            }
        )

    def _send(self, at: float) -> None:
        with self._lock:
            served = [job.service_s for job in self._finished.values()]
        readings: list[tuple[QueueMetric, float]] = [
            (QueueMetric.SUBMITTED_TOTAL, float(self.submitted)),
            (QueueMetric.FINISHED_TOTAL, float(len(served))),
        ]
        if served:
            readings.append((QueueMetric.JOB_CORE_SECONDS, sum(served) / len(served)))
        for metric, value in readings:
            self._report(Sample(QueueSeries(self._fleet, metric), value, at))

    def summary(self) -> dict[str, Any]:
        """Return jobs submitted, finished and repeated, and mean and 95th-percentile wait in seconds."""
        with self._lock:
            waits = sorted(max(0.0, job.started_at - job.submitted_at) for job in self._finished.values())
        return {
            "submitted": self.submitted,
            "finished": len(waits),
            "repeated": self._repeated,
            "mean_wait_s": sum(waits) / len(waits) if waits else 0.0,
            "p95_wait_s": waits[math.ceil(0.95 * len(waits)) - 1] if waits else 0.0,
        }
