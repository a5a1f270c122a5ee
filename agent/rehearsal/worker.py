"""One synthetic VM: pulls jobs when it has free cores, works them off, and reports what a real one would.

It stops pulling as soon as its instance metadata says that it is to be terminated, or that AWS takes it back, finishes
what it runs, and reports idle. What would not be done when AWS takes the VM goes back to the queue in time.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Protocol

from domain.clock import Clock
from domain.samples import Sample, VmMetric, VmSeries

REPORT_EVERY_S = 10.0
LOOK_EVERY_S = 15.0
POLL_AT_FIRST_S = 6.0
POLL_AT_MOST_S = 12.0
HAND_BACK_S = 45.0
"""What still runs so long before AWS takes the VM goes back to the queue: nobody knows how long a job will take."""
IDLE_CPU_PERCENT = 3.0
BASE_RAM_GB = 0.5
JOB_RAM_GB = 0.13


@dataclass(frozen=True, slots=True)
class Machine:
    """What a VM is: its id, fleet and group key, cores and memory in GB."""

    vm: str
    fleet: str
    group: str
    cores: int
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Fate:
    """What a VM's metadata says of its future: whether it is to be terminated, and when AWS takes it back."""

    terminating: bool = False
    taken_at: float | None = None


@dataclass(frozen=True, slots=True)
class JobDone:
    """One finished job: its id, when it was submitted, started and finished, and its service time in core-seconds."""

    job_id: int
    submitted_at: float
    started_at: float
    finished_at: float
    service_s: float


class JobQueue(Protocol):
    """The calls a worker makes on the job queue."""

    def receive(self, most: int) -> list[dict[str, Any]]:
        """Return at most `most` messages, each with Body and ReceiptHandle."""
        ...

    def delete(self, receipt: str) -> None:
        """Remove a message whose job is done."""
        ...

    def hand_back(self, receipt: str) -> None:
        """Let another worker have the message at once."""
        ...


class Books(Protocol):
    """Where it is written down what became of the jobs."""

    def job_started(self, job_id: int, at: float) -> None:
        """A worker has begun the job."""
        ...

    def job_returned(self, job_id: int, at: float) -> None:
        """The job's work is lost; it waits again."""
        ...

    def job_done(self, job: JobDone) -> None:
        """The job is finished."""
        ...


@dataclass(frozen=True, slots=True)
class Running:
    """A job on a core, and the receipt that will delete its message."""

    job_id: int
    submitted_at: float
    started_at: float
    service_s: float
    receipt: str


class MachineGone(Exception):
    """The VM under the worker is no more: AWS took it back, whatever its group still shows."""


class Worker(Thread):
    """The VM's worker process, as a thread.

    look: returns what the VM's metadata says, raises MachineGone when there is no VM any more. report: takes samples.
    books: hears of every job begun, given up and done.
    """

    def __init__(
        self,
        machine: Machine,
        queue: JobQueue,
        clock: Clock,
        look: Callable[[], Fate],
        report: Callable[[Sample], None],
        books: Books,
    ) -> None:
        super().__init__(name=f"worker {machine.vm}", daemon=True)
        self.machine = machine
        self._queue = queue
        self._clock = clock
        self._look = look
        self._report = report
        self._books = books
        self._killed = Event()
        self._jobs: list[tuple[float, int, Running]] = []
        self._busy_core_s = 0.0
        self._counted_at = clock.now()
        self.fate = Fate()
        self.handed_back = 0

    @property
    def busy(self) -> int:
        """Cores at work."""
        return len(self._jobs)

    @property
    def lost(self) -> int:
        """Jobs that are lost, once its VM is gone: those that it had begun and not handed back."""
        return len(self._jobs)

    @property
    def pulling(self) -> bool:
        """Whether it still takes jobs."""
        return not self.fate.terminating and self.fate.taken_at is None

    def kill(self) -> None:
        """The VM is gone: whatever ran is lost, its messages come back when their visibility time is over."""
        self._killed.set()

    def run(self) -> None:
        """Work until killed."""
        start = self._clock.now()
        next_report = (start // REPORT_EVERY_S + 1.0) * REPORT_EVERY_S
        next_look = next_poll = start
        pause_s = POLL_AT_FIRST_S
        while not self._killed.is_set():
            now = self._clock.now()
            self._finish(now)
            if now >= next_look:
                try:
                    self._learn(self._look())
                except MachineGone:
                    break
                next_look = now + LOOK_EVERY_S
            if self.fate.taken_at is not None and now >= self.fate.taken_at - HAND_BACK_S:
                self._hand_back(now)
            if now >= next_poll:
                got = self._pull(now)
                pause_s = POLL_AT_FIRST_S if got else min(POLL_AT_MOST_S, 2.0 * pause_s)
                next_poll = now + pause_s
            while next_report <= now:
                self._send(next_report)
                next_report += REPORT_EVERY_S
            wake = min(next_report, next_look, next_poll, *(job[0] for job in self._jobs[:1]))
            self._clock.sleep(max(0.5, wake - self._clock.now()))
        for _, _, job in self._jobs:
            self._books.job_returned(job.job_id, self._clock.now())

    def _learn(self, fate: Fate) -> None:
        """Neither a termination nor a notice is ever taken back; a look that failed shows neither."""
        taken_at = fate.taken_at if fate.taken_at is not None else self.fate.taken_at
        self.fate = Fate(fate.terminating or self.fate.terminating, taken_at)

    def _pull(self, now: float) -> bool:
        free = self.machine.cores - self.busy
        if not self.pulling or free <= 0:
            return True
        messages = self._queue.receive(min(10, free))
        for message in messages:
            job = json.loads(message["Body"])
            running = Running(job["job_id"], job["submitted_at"], now, job["service_s"], message["ReceiptHandle"])
            self._count(now)
            heapq.heappush(self._jobs, (now + running.service_s, running.job_id, running))
            self._books.job_started(running.job_id, now)
        return bool(messages)

    def _finish(self, now: float) -> None:
        while self._jobs and self._jobs[0][0] <= now:
            self._count(now)
            at, _, job = heapq.heappop(self._jobs)
            self._queue.delete(job.receipt)
            self._books.job_done(JobDone(job.job_id, job.submitted_at, job.started_at, at, job.service_s))

    def _hand_back(self, now: float) -> None:
        self._count(now)
        for _, _, job in self._jobs:
            self._queue.hand_back(job.receipt)
            self._books.job_returned(job.job_id, now)
        self.handed_back += len(self._jobs)
        self._jobs.clear()

    def _count(self, now: float) -> None:
        self._busy_core_s += self.busy * (now - self._counted_at)
        self._counted_at = now

    def _send(self, at: float) -> None:
        self._count(max(at, self._counted_at))
        share = min(1.0, self._busy_core_s / (REPORT_EVERY_S * self.machine.cores))
        self._busy_core_s = 0.0
        cpu = max(IDLE_CPU_PERCENT, 100.0 * share)
        ram = 100.0 * (BASE_RAM_GB + JOB_RAM_GB * self.busy) / self.machine.memory_gb
        work = sum(at - job.started_at for _, _, job in self._jobs)
        readings = (
            (VmMetric.CPU_PERCENT, cpu),
            (VmMetric.RAM_PERCENT, ram),
            (VmMetric.BUSY_CORES, float(self.busy)),
            (VmMetric.WORK_CORE_SECONDS, max(0.0, work)),
        )
        for metric, value in readings:
            self._report(Sample(VmSeries(self.machine.fleet, self.machine.group, self.machine.vm, metric), value, at))
