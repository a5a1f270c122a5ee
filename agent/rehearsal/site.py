"""The managed application of the dry run, in a process of its own: job source, queue, one worker per VM in service.

A worker pulls jobs when it has free cores and reports what a real VM would. It stops pulling as soon as its instance
metadata announces a termination or a spot interruption, finishes what it runs, and reports idle. Jobs that would not
be done when AWS takes the VM go back to the queue in time.

The process is started with the name of the workload and a seed. It reads one JSON object (a `SiteSpec`) from standard
input, then orders, one JSON object a line: {"gap_s": 300} loses all metrics for so long, {"stop": true} ends it. It
writes {"ready": true} and, at the end, the job source's summary. `site_process` starts it, `SiteProcess` controls it.
"""

from __future__ import annotations

import heapq
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np
from botocore.exceptions import BotoCoreError, ClientError

from agent.rehearsal.scenario import WORKER_KEY, aws_client, recorded_trace
from domain.clock import Clock
from domain.errors import TrimtabError
from domain.samples import NEWEST_JOBS, QueueMetric, QueueSeries, Sample, VmMetric, VmSeries, job_quantiles
from domain.workload import Trace
from simulator.paced_clock import FollowedClock, Stop

REPORT_EVERY_S = 10.0
STATUS_EVERY_S = 30.0
POLL_EVERY_S = 60.0
"""A worker with free cores asks the queue at least so often; a new message calls it at once, as long polling does."""
FAILED_CALL = (BotoCoreError, ClientError)
HAND_BACK_S = 45.0
"""What still runs so long before AWS takes the VM goes back to the queue: how long a job takes is unknown."""
IDLE_CPU_PERCENT = 3.0
BASE_RAM_GB = 0.5
JOB_RAM_GB = 0.13


class SiteClock(Clock, Protocol):
    """A clock that is held while one of the site's threads is at work."""

    def sleep(self, seconds: float, stop: Stop | None = None) -> None:
        """Wait for `seconds`, less when stopped; the time is not held meanwhile."""
        ...

    def leave(self) -> None:
        """No longer hold the time for the calling thread."""
        ...


class SqsJobs:
    """The job queue on SQS; a failed call counts as an empty response and is made again at the next poll."""

    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url

    def receive(self, most: int) -> list[dict[str, Any]]:
        """Return at most `most` messages, each with Body and ReceiptHandle."""
        with suppress(*FAILED_CALL):
            messages: list[dict[str, Any]] = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=most
            ).get("Messages", [])
            return messages
        return []

    def delete(self, receipt: str) -> None:
        """Delete the message of a job that is done; when that fails the job comes back and is counted once."""
        with suppress(*FAILED_CALL):
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=receipt)

    def hand_back(self, receipt: str) -> None:
        """Make one message visible again; when that fails it comes back by itself, only later."""
        with suppress(*FAILED_CALL):
            self._client.change_message_visibility(QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=0)

    def put(self, bodies: list[str]) -> None:
        """Send at most ten messages, again until SQS has them all."""
        entries = [{"Id": str(k), "MessageBody": body} for k, body in enumerate(bodies)]
        while entries:
            try:
                response = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
            except FAILED_CALL:
                continue
            failed = {failure["Id"] for failure in response.get("Failed", [])}
            entries = [entry for entry in entries if entry["Id"] in failed]


class JobSource(Thread):
    """Submits the trace's jobs when their time comes, and records when each waited, ran and finished.

    The trace begins at `start`; what happens after `end` does not count.
    """

    def __init__(
        self,
        fleet: str,
        trace: Trace,
        start: float,
        end: float,
        clock: Clock,
        put: Callable[[list[str]], None],
        report: Callable[[Sequence[Sample]], None],
    ) -> None:
        """Set up; `put` takes at most ten message bodies a call, `report` takes samples."""
        super().__init__(name="job source", daemon=True)
        self._fleet, self._trace, self._end = fleet, trace, end
        self._arrivals = trace.arrival_s + start
        self._clock, self._put, self._report = clock, put, report
        self._ended = Event()
        self._lock = Lock()
        self._due_in_all = int(self._arrivals.searchsorted(end, side="right"))
        self._finished: dict[int, tuple[float, float]] = {}
        self._repeated = 0
        self._waited_s: dict[int, float] = {}
        self._waiting_since = {int(trace.job_id[k]): float(self._arrivals[k]) for k in range(self._due_in_all)}
        self.submitted = 0

    def stop(self) -> None:
        """Submit nothing more."""
        self._ended.set()

    def job_started(self, job_id: int, at: float) -> None:
        """End the wait of a job that a worker has begun."""
        with self._lock:
            since = self._waiting_since.pop(job_id, None)
            if since is not None:
                self._waited_s[job_id] = self._waited_s.get(job_id, 0.0) + max(0.0, min(at, self._end) - since)

    def job_returned(self, job_id: int, at: float) -> None:
        """Let a job wait again whose work is lost."""
        with self._lock:
            if job_id not in self._finished and at < self._end:
                self._waiting_since.setdefault(job_id, at)

    def job_done(self, job_id: int, at: float, service_s: float) -> None:
        """Record a finished job; one that was delivered and run twice counts once."""
        with self._lock:
            if job_id in self._finished:
                self._repeated += 1
            else:
                self._finished[job_id] = (at, service_s)
                self._waiting_since.pop(job_id, None)

    def run(self) -> None:
        """Submit and report until `stop` is called."""
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
            self._clock.sleep(wake - self._clock.now())

    def _body(self, k: int) -> str:
        job_id, service_s = int(self._trace.job_id[k]), float(self._trace.service_s[k])
        return json.dumps({"job_id": job_id, "submitted_at": float(self._arrivals[k]), "service_s": service_s})

    def _send(self, at: float) -> None:
        with self._lock:
            served = [service_s for _, service_s in self._finished.values()]
            # Jobs that are still to come are listed with the time of their arrival.
            oldest_s = max(0.0, at - min(self._waiting_since.values(), default=at))
        readings: list[tuple[QueueMetric, float]] = [
            (QueueMetric.SUBMITTED_TOTAL, float(self.submitted)),
            (QueueMetric.FINISHED_TOTAL, float(len(served))),
            (QueueMetric.FINISHED_CORE_SECONDS_TOTAL, sum(served)),
            (QueueMetric.OLDEST_WAIT_SECONDS, oldest_s),
        ]
        if served:
            readings.append((QueueMetric.JOB_CORE_SECONDS, sum(served) / len(served)))
            readings += job_quantiles(served[-NEWEST_JOBS:]).items()
        self._report([Sample(QueueSeries(self._fleet, metric), value, at) for metric, value in readings])

    def summary(self) -> dict[str, Any]:
        """Return the state of the jobs at `end`.

        submitted, finished, repeated: jobs. waiting_job_s: seconds that jobs spent in the queue, including those still
        there. mean_wait_s, p95_wait_s: time in the queue per finished job, all its stays together.
        """
        now = min(self._clock.now(), self._end)
        with self._lock:
            finished = [job_id for job_id, (at, _) in self._finished.items() if at <= self._end]
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


@dataclass(frozen=True, slots=True)
class Machine:
    """What a VM is: its id, fleet and group key, cores and memory in GB."""

    vm: str
    fleet: str
    group: str
    cores: int
    memory_gb: float


@dataclass(frozen=True, slots=True)
class VmStatus:
    """What a VM's metadata announces: whether it is to be terminated, and when AWS takes it back (epoch seconds)."""

    terminating: bool = False
    taken_at: float | None = None


class RunningJob(NamedTuple):
    """A job on a core, ordered by when it ends, and the receipt that will delete its message."""

    ends_at: float
    job_id: int
    started_at: float
    service_s: float
    receipt: str


class VmGone(Exception):
    """The VM under the worker no longer exists: AWS took it back, whatever its group still shows."""


class Worker(Thread):
    """The VM's worker process, as a thread.

    status: returns the VM's status, raises VmGone when the VM no longer exists. report: takes samples. jobs: records
    every job begun, given up and done.
    """

    def __init__(
        self,
        machine: Machine,
        queue: SqsJobs,
        clock: SiteClock,
        status: Callable[[], VmStatus],
        report: Callable[[Sequence[Sample]], None],
        jobs: JobSource,
    ) -> None:
        super().__init__(name=f"worker {machine.vm}", daemon=True)
        self.machine = machine
        self.status = VmStatus()
        self.handed_back = 0
        self.called = Event()
        self._queue, self._clock, self._read_status = queue, clock, status
        self._report, self._jobs = report, jobs
        self._killed = Event()
        self._running: list[RunningJob] = []
        self._busy_core_s = 0.0
        self._counted_at = clock.now()

    @property
    def busy(self) -> int:
        """Cores at work: jobs begun and neither finished nor handed back; those are lost with the VM."""
        return len(self._running)

    @property
    def free(self) -> int:
        """Cores that a job may begin on; none once the VM is to go."""
        going = self.status.terminating or self.status.taken_at is not None
        return 0 if going else self.machine.cores - self.busy

    def kill(self) -> None:
        """End with the VM: what ran is lost, and its messages come back when their visibility time is over."""
        self._killed.set()

    def run(self) -> None:
        """Work until killed."""
        try:
            self._work()
        finally:
            self._clock.leave()

    def _work(self) -> None:
        start = self._clock.now()
        next_report = (start // REPORT_EVERY_S + 1.0) * REPORT_EVERY_S
        next_status = next_poll = start
        while not self._killed.is_set():
            now = self._clock.now()
            freed = self._finish(now)
            if now >= next_status:
                try:
                    self._update_status(self._read_status())
                except VmGone:
                    break
                next_status = (now // STATUS_EVERY_S + 1.0) * STATUS_EVERY_S
            if self.status.taken_at is not None and now >= self.status.taken_at - HAND_BACK_S:
                self._hand_back(now)
            if now >= next_poll or freed or self.called.is_set():
                self.called.clear()
                self._pull(now)
                next_poll = now + POLL_EVERY_S
            while next_report <= now:
                self._send(next_report)
                next_report += REPORT_EVERY_S
            wake = min(next_report, next_status, next_poll, *(job.ends_at for job in self._running[:1]))
            self._clock.sleep(wake - self._clock.now(), self.called)
        for job in self._running:
            self._jobs.job_returned(job.job_id, self._clock.now())

    def _update_status(self, status: VmStatus) -> None:
        """Neither a termination nor an interruption is ever taken back; a request that failed shows neither."""
        taken_at = status.taken_at if status.taken_at is not None else self.status.taken_at
        self.status = VmStatus(status.terminating or self.status.terminating, taken_at)

    def _pull(self, now: float) -> None:
        if self.free <= 0:
            return
        for message in self._queue.receive(min(10, self.free)):
            body = json.loads(message["Body"])
            number, service_s = body["job_id"], body["service_s"]
            self._count(now)
            heapq.heappush(self._running, RunningJob(now + service_s, number, now, service_s, message["ReceiptHandle"]))
            self._jobs.job_started(number, now)

    def _finish(self, now: float) -> bool:
        before = len(self._running)
        while self._running and self._running[0].ends_at <= now:
            self._count(now)
            job = heapq.heappop(self._running)
            self._queue.delete(job.receipt)
            self._jobs.job_done(job.job_id, job.ends_at, job.service_s)
        return len(self._running) < before

    def _hand_back(self, now: float) -> None:
        self._count(now)
        for job in self._running:
            self._queue.hand_back(job.receipt)
            self._jobs.job_returned(job.job_id, now)
        self.handed_back += self.busy
        self._running.clear()

    def _count(self, now: float) -> None:
        self._busy_core_s += self.busy * (now - self._counted_at)
        self._counted_at = now

    def _send(self, at: float) -> None:
        self._count(max(at, self._counted_at))
        share = min(1.0, self._busy_core_s / (REPORT_EVERY_S * self.machine.cores))
        self._busy_core_s = 0.0
        readings = (
            (VmMetric.CPU_PERCENT, max(IDLE_CPU_PERCENT, 100.0 * share)),
            (VmMetric.RAM_PERCENT, 100.0 * (BASE_RAM_GB + JOB_RAM_GB * self.busy) / self.machine.memory_gb),
            (VmMetric.BUSY_CORES, float(self.busy)),
            (VmMetric.WORK_CORE_SECONDS, max(0.0, sum(at - job.started_at for job in self._running))),
        )
        fleet, group, vm = self.machine.fleet, self.machine.group, self.machine.vm
        self._report([Sample(VmSeries(fleet, group, vm, metric), value, at) for metric, value in readings])


ROSTER_EVERY_S = 5.0
CONNECT_WITHIN_WALL_S = 5.0
END_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """What the process needs to know.

    Endpoint, queue, groups (AWS name -> key, cores, memory in GB), when the jobs start and stop counting, the file of
    the clock to follow, listener.
    """

    endpoint: str
    queue_url: str
    fleet: str
    groups: dict[str, tuple[str, int, float]]
    start: float
    end: float
    clock_file: str
    listener_host: str
    listener_port: int


class Metadata:
    """A VM's instance metadata, requested over HTTP as by a worker on it."""

    def __init__(self, endpoint: str, vm: str) -> None:
        address = urlsplit(endpoint)
        self._vm = vm
        self._connection = HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=5)

    def status(self) -> VmStatus:
        """Return what the metadata announces; where there is no response, nothing.

        Raises VmGone when there is no such VM. The group does not show that: a VM that AWS takes back after a spot
        notification stays in it until the health check or the end of its lifecycle hook.
        """
        code, state = self._get("autoscaling/target-lifecycle-state")
        if code == 404:
            raise VmGone(self._vm)
        spot_code, action = self._get("spot/instance-action")
        taken_at = None
        if spot_code == 200:
            taken_at = datetime.fromisoformat(json.loads(action)["time"]).timestamp()
        return VmStatus(code == 200 and state.strip() == "Terminated", taken_at)

    def _get(self, item: str) -> tuple[int, str]:
        try:
            self._connection.request("GET", f"/_trimtab/imds/{self._vm}/latest/meta-data/{item}")
            response = self._connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, HTTPException):
            self._connection.close()
            return 0, ""


class Reporter:
    """Sends samples to the agent's Graphite listener over TCP at once, except during an ordered gap.

    What is sent is counted on the clock, so that the loop can wait until all of it has arrived.
    """

    def __init__(
        self, host: str, port: int, clock: Clock, count_sent: Callable[[int], None] = lambda lines: None
    ) -> None:
        self._address = host, port
        self._clock, self._count_sent = clock, count_sent
        self._silent_until = 0.0
        self._lock = Lock()
        self._connection: socket.socket | None = None

    def __call__(self, samples: Sequence[Sample]) -> None:
        """Send samples, unless a gap is on; a failed send loses them, as from a VM without network."""
        if self._clock.now() < self._silent_until:
            return
        lines = "".join(f"{sample.series.path} {float(sample.value)!r} {sample.at:.0f}\n" for sample in samples)
        with self._lock, suppress(OSError):
            try:
                if self._connection is None:
                    self._connection = socket.create_connection(self._address, CONNECT_WITHIN_WALL_S)
                self._connection.sendall(lines.encode())
                self._count_sent(len(samples))
            except OSError:
                self._close()
                raise

    def go_silent(self, seconds: float) -> None:
        """Lose every sample for `seconds` of the clock's time."""
        self._silent_until = self._clock.now() + seconds

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Site:
    """Runs the job source, and one worker for each VM in service."""

    def __init__(self, spec: SiteSpec, trace: Trace) -> None:
        self.spec = spec
        self.clock = FollowedClock(Path(spec.clock_file), awaited=True)
        self.reporter = Reporter(spec.listener_host, spec.listener_port, self.clock, self.clock.count_sent)
        self._groups = aws_client("autoscaling", spec.endpoint, WORKER_KEY)
        self._jobs = SqsJobs(aws_client("sqs", spec.endpoint, WORKER_KEY), spec.queue_url)
        self.source = JobSource(spec.fleet, trace, spec.start, spec.end, self.clock, self._put, self.reporter)
        self._workers: dict[str, Worker] = {}
        self._ended = Event()
        self._roster = Thread(target=self._update_roster, name="roster", daemon=True)
        self._gone: list[Worker] = []
        self._called = 0

    def start(self) -> None:
        """Start the threads."""
        for thread in (self.source, self._roster):
            self.clock.attend(thread)
            thread.start()

    def _put(self, bodies: list[str]) -> None:
        """Put jobs on the queue, and call as many workers in turn as have cores for them."""
        self._jobs.put(bodies)
        workers, left = list(self._workers.values()), len(bodies)
        for _ in workers:
            worker = workers[self._called % len(workers)]
            self._called += 1
            if left > 0 and worker.free > 0:
                left -= worker.free
                self.clock.wake(worker, worker.called)

    def stop(self) -> dict[str, Any]:
        """End everything and return the job source's summary, with the jobs lost and handed back by their workers."""
        self._ended.set()
        self.source.stop()
        self._roster.join(timeout=5)
        summary = self.source.summary()
        gone = self._gone + [worker for worker in self._workers.values() if not worker.is_alive()]
        every = self._gone + list(self._workers.values())
        for worker in self._workers.values():
            worker.kill()
        self.reporter.close()
        # A worker whose VM vanished last may still sleep, on a clock that has stopped: its jobs are lost all the same.
        lost, handed_back = sum(worker.busy for worker in gone), sum(worker.handed_back for worker in every)
        return {**summary, "lost": lost, "handed_back": handed_back}

    def _update_roster(self) -> None:
        while not self._ended.is_set():
            with suppress(*FAILED_CALL):
                names = list(self.spec.groups)
                response = self._groups.describe_auto_scaling_groups(AutoScalingGroupNames=names)
                self._match(response["AutoScalingGroups"])
            self.clock.sleep(ROSTER_EVERY_S, self._ended)

    def _match(self, groups: list[dict[str, Any]]) -> None:
        alive = {
            instance["InstanceId"]: (group["AutoScalingGroupName"], instance["LifecycleState"])
            for group in groups
            for instance in group["Instances"]
        }
        for vm in [vm for vm in self._workers if vm not in alive]:
            worker = self._workers.pop(vm)
            worker.kill()
            self.clock.wake(worker, worker.called)
            self._gone.append(worker)
        for vm, (group, lifecycle) in alive.items():
            if vm not in self._workers and lifecycle == "InService":
                machine = Machine(vm, self.spec.fleet, *self.spec.groups[group])
                status = Metadata(self.spec.endpoint, vm).status
                worker = Worker(machine, self._jobs, self.clock, status, self.reporter, self.source)
                self.clock.attend(worker)
                worker.start()
                self._workers[vm] = worker


class SiteFailed(TrimtabError):
    """The site's process ended before the dry run did."""


class SiteProcess:
    """A site's process: takes its specification, then orders, and returns its summary at the end."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._popen.poll() is None

    def begin(self, spec: SiteSpec) -> None:
        """Start job source and workers; raises SiteFailed when that fails."""
        self._write(asdict(spec))
        self._read()

    def lose_metrics(self, seconds: float) -> None:
        """Order a gap in all metrics."""
        self._write({"gap_s": seconds})

    def finish(self) -> dict[str, Any]:
        """End it and return its summary."""
        self._write({"stop": True})
        return self._read()

    def abort(self) -> None:
        """End it at once, without a summary; does nothing when it has ended."""
        self._popen.kill()
        self._popen.wait()

    def _write(self, line: dict[str, Any]) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(line) + "\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def _read(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise self._failed()
        read: dict[str, Any] = json.loads(line)
        return read

    def _failed(self) -> SiteFailed:
        try:
            status = str(self._popen.wait(timeout=2.0))
        except subprocess.TimeoutExpired:
            status = "still running"
        return SiteFailed(f"the process of job source and workers ended (exit {status}): its output is above")


@contextmanager
def site_process(workload: str, seed: int, max_cores: int) -> Iterator[SiteProcess]:
    """Run the site in a process of its own; it ends when its input does, so it cannot outlive this one."""
    command = [sys.executable, "-m", "agent.rehearsal.site", workload, str(seed), str(max_cores)]
    # In a session of its own, so that Ctrl-C reaches this process alone, which then ends the other in good order.
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert popen.stdin is not None
    assert popen.stdout is not None
    try:
        yield SiteProcess(popen)
    finally:
        with suppress(BrokenPipeError):
            popen.stdin.close()
        try:
            popen.wait(timeout=END_WITHIN_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        popen.stdout.close()


def main() -> None:
    """Run the site until the order to stop, or until the parent process is gone."""
    workload, seed, max_cores = sys.argv[1:]
    trace, _ = recorded_trace(workload, int(seed), int(max_cores))
    first = sys.stdin.readline()
    if not first:
        return
    site = Site(SiteSpec(**json.loads(first)), trace)
    site.start()
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        if "gap_s" in order:
            site.reporter.go_silent(float(order["gap_s"]))
        if order.get("stop"):
            break
    summary = site.stop()
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(summary) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
