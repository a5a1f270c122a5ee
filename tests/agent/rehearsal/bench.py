"""A bench for one worker: a clock that ends it at a given time, a queue in memory, and a record of its jobs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

from agent.rehearsal.site import Machine, VmStatus, Worker
from domain.clock import VirtualClock
from domain.samples import Sample, VmMetric, VmSeries

START = 1_795_208_400.0


class EndingClock(VirtualClock):
    """A virtual clock that calls `at_end` when it gets to `end`."""

    def __init__(self, end: float) -> None:
        super().__init__(START)
        self._end = START + end
        self.at_end: Callable[[], None] = lambda: None
        self.called_at: float | None = None

    def sleep(self, seconds: float, stop: Event | None = None) -> None:
        left_s = min(seconds, self._end - self.now())
        if stop is not None and self.called_at is not None and self.called_at - self.now() <= left_s:
            left_s, self.called_at = self.called_at - self.now(), None
            stop.set()
        super().sleep(left_s)
        if self.now() >= self._end:
            self.at_end()

    def leave(self) -> None:
        pass


class MemoryQueue:
    """Jobs that become available at a time; counts the calls and the messages requested."""

    def __init__(self, clock: VirtualClock, jobs: list[tuple[float, float]]) -> None:
        self.clock = clock
        self.waiting = [(START + at, k + 1, service) for k, (at, service) in enumerate(jobs)]
        self.asked: list[tuple[float, int]] = []
        self.deleted: list[str] = []
        self.handed_back: list[tuple[float, str]] = []

    def receive(self, most: int):
        now = self.clock.now()
        self.asked.append((now - START, most))
        ready = [job for job in self.waiting if job[0] <= now][:most]
        self.waiting = [job for job in self.waiting if job not in ready]
        return [
            {
                "Body": json.dumps({"job_id": number, "submitted_at": at, "service_s": service}),
                "ReceiptHandle": f"receipt-{number}",
            }
            for at, number, service in ready
        ]

    def delete(self, receipt: str) -> None:
        self.deleted.append(receipt)

    def hand_back(self, receipt: str) -> None:
        self.handed_back.append((self.clock.now() - START, receipt))


@dataclass
class JobRecord:
    """The jobs that the worker began, gave back and finished, in seconds from the start."""

    started: list[tuple[int, float]] = field(default_factory=list)
    returned: list[tuple[int, float]] = field(default_factory=list)
    done: list[tuple[int, float, float]] = field(default_factory=list)

    def job_started(self, job_id: int, at: float) -> None:
        self.started.append((job_id, at - START))

    def job_returned(self, job_id: int, at: float) -> None:
        self.returned.append((job_id, at - START))

    def job_done(self, job_id: int, at: float, service_s: float) -> None:
        self.done.append((job_id, at - START, service_s))


class Bench:
    """One worker on a VM of two cores and 8 GB, run until `end` seconds from the start."""

    def __init__(
        self,
        jobs: list[tuple[float, float]],
        end: float,
        status: Callable[[float], VmStatus] | None = None,
        called_at: float | None = None,
    ):
        self.clock = EndingClock(end)
        self.clock.called_at = None if called_at is None else START + called_at
        self.queue = MemoryQueue(self.clock, jobs)
        self.jobs = JobRecord()
        self.samples: list[Sample] = []
        status_at = status or (lambda _: VmStatus())
        machine = Machine("i-1", "web", "workers_s", 2, 8.0)
        self.worker = Worker(
            machine, self.queue, self.clock, lambda: status_at(self.clock.now() - START), self.samples.extend, self.jobs
        )
        self.clock.at_end = self.worker.kill
        self.worker.run()

    def readings(self, metric: VmMetric) -> dict[float, float]:
        """The values of one metric by seconds from the start."""
        series = VmSeries("web", "workers_s", "i-1", metric)
        return {sample.at - START: sample.value for sample in self.samples if sample.series == series}
