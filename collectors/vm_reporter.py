"""The collector on a VM: measure on the clock's beat, add the job workers' reports, send, and watch for termination."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Protocol

import psutil
import structlog

from collectors.instance_metadata import InstanceMetadata
from collectors.run_directory import NOTHING_KNOWN, RunDirectory, VmWork
from domain.errors import CollectionFailed
from domain.samples import Sample, VmMetric, VmSeries


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """One core's counters since boot, in seconds: idle, waiting for input and output included, and all of it."""

    idle: float
    total: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in total, and bytes available to programs."""

    total: int
    available: int


def core_times() -> tuple[CoreTimes, ...]:
    """Read the counters of every core."""
    times = []
    for core in psutil.cpu_times(percpu=True):
        # Linux counts a guest's time in user and nice as well.
        guests = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
        times.append(CoreTimes(core.idle + getattr(core, "iowait", 0.0), sum(core) - guests))
    return tuple(times)


def memory() -> Memory:
    """Read total and available memory."""
    read = psutil.virtual_memory()
    return Memory(read.total, read.available)


def cpu_percent(before: Sequence[CoreTimes], after: Sequence[CoreTimes]) -> float | None:
    """Return the share of CPU time in use between two readings, 0..100.

    Time that the hypervisor gave to others counts as in use: the VM wanted it. None when the readings cannot be
    compared: no time passed, a counter began anew, or the number of cores changed in between.
    """
    if len(before) != len(after) or any(b.total > a.total for b, a in zip(before, after, strict=True)):
        return None
    total = sum(a.total - b.total for b, a in zip(before, after, strict=True))
    # The kernel may correct a core's idle time downwards a little; the core was not busier than all the time for it.
    idle = sum(max(0.0, a.idle - b.idle) for b, a in zip(before, after, strict=True))
    return None if total <= 0.0 else 100.0 * min(max(0.0, (total - idle) / total), 1.0)


def ram_percent(read: Memory) -> float | None:
    """Return the share of memory in use, 0..100; None when there is none."""
    return None if read.total <= 0 else 100.0 * min(max(0.0, 1.0 - read.available / read.total), 1.0)


class HostSampler:
    """Reads the VM's CPU and memory; CPU is the mean since the call before, so the first call has none."""

    def __init__(
        self, read_cores: Callable[[], tuple[CoreTimes, ...]] = core_times, read_memory: Callable[[], Memory] = memory
    ) -> None:
        self._read_cores, self._read_memory = read_cores, read_memory
        self._before: tuple[CoreTimes, ...] = read_cores()

    def sample(self) -> dict[VmMetric, float]:
        """Return the readings that are known now; an implausible one is left out."""
        cores = self._read_cores()
        readings = {
            VmMetric.CPU_PERCENT: cpu_percent(self._before, cores),
            VmMetric.RAM_PERCENT: ram_percent(self._read_memory()),
        }
        self._before = cores
        return {metric: value for metric, value in readings.items() if value is not None}


log = structlog.get_logger(__name__)

SPREAD_SHARE = 0.1
"""Each VM measures this share of the interval after the beat, at most: not all of them send in the same instant."""


class SampleSender(Protocol):
    """The receiver of a VM's samples."""

    def send_samples(self, samples: list[Sample]) -> None:
        """Queue samples; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class VmIdentity:
    """The source of samples: fleet and group by their keys, and the VM's id."""

    fleet: str
    group: str
    vm: str


class VmReporter:
    """Measures this VM once in `interval_s`, stamped with multiples of it, and hands the samples to the sender."""

    def __init__(
        self,
        identity: VmIdentity,
        sampler: HostSampler,
        sender: SampleSender,
        now: Callable[[], float],
        interval_s: float = 10.0,
        workers: RunDirectory | None = None,
    ) -> None:
        self._identity = identity
        self._sampler = sampler
        self._sender = sender
        self._now = now
        self._interval_s = interval_s
        self._workers = workers
        self._offset_s = SPREAD_SHARE * interval_s * (zlib.crc32(identity.vm.encode()) / 2**32)
        self._silent: tuple[str, ...] = ()

    def measure(self, at: float) -> list[Sample]:
        """Return the VM's samples, stamped `at`."""
        readings = self._sampler.sample()
        work = NOTHING_KNOWN if self._workers is None else self._workers.work(self._now())
        if work.busy_cores is not None and work.work_core_seconds is not None:
            readings[VmMetric.BUSY_CORES] = work.busy_cores
            readings[VmMetric.WORK_CORE_SECONDS] = work.work_core_seconds
        self._log_silent(work)
        identity = self._identity
        return [
            Sample(VmSeries(identity.fleet, identity.group, identity.vm, metric), value, at)
            for metric, value in readings.items()
        ]

    def next_beat(self) -> float:
        """Return the next time to measure at: the multiple of the interval that follows now."""
        return (math.floor((self._now() - self._offset_s) / self._interval_s) + 1.0) * self._interval_s

    def run(self, stopping: Event) -> None:
        """Measure and send on every beat until stopped; a beat that could not be kept is left out.

        When the clock is set, the beat follows it: at most one interval passes without a measurement.
        """
        beat = self.next_beat()
        while not stopping.wait(max(0.0, beat + self._offset_s - self._now())):
            now = self._now() - self._offset_s
            if now < beat:
                beat = min(beat, self.next_beat())
                continue
            at = math.floor(now / self._interval_s) * self._interval_s
            beat = at + self._interval_s
            try:
                self._sender.send_samples(self.measure(at))
            except Exception:
                log.exception("measuring_failed")

    def _log_silent(self, work: VmWork) -> None:
        if work.silent and work.silent != self._silent:
            remedy = "busy cores are not reported; remove the files of workers that are gone"
            log.warning("workers_silent", workers=work.silent[:10], remedy=remedy)
        self._silent = work.silent


class DrainWatch:
    """Polls the instance metadata in a thread of its own and signals the workers when the VM is to be terminated."""

    def __init__(
        self, metadata: InstanceMetadata, directory: RunDirectory, now: Callable[[], float], interval_s: float = 5.0
    ) -> None:
        self._metadata = metadata
        self._directory = directory
        self._now = now
        self._interval_s = interval_s
        self._failing = False
        self.reason: str | None = None

    def poll(self) -> None:
        """Poll once. Without a response everything stays as it is."""
        try:
            reason = self._metadata.leaving()
            self._directory.ask_to_drain(reason, self._now())
        except (CollectionFailed, OSError) as error:
            if not self._failing:
                log.warning("drain_not_known", error=str(error))
            self._failing = True
            return
        if reason != self.reason:
            log.info("drain_asked" if reason else "drain_withdrawn", reason=reason or self.reason)
        self.reason, self._failing = reason, False

    def run(self, stopping: Event) -> None:
        """Poll once in the interval until stopped."""
        self.poll()
        while not stopping.wait(self._interval_s):
            self.poll()

    def start(self, stopping: Event) -> Thread:
        """Run in a thread."""
        thread = Thread(target=self.run, args=(stopping,), name="drain-watch", daemon=True)
        thread.start()
        return thread
