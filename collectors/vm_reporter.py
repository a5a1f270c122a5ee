"""What runs on a VM: measure in step with the clock, add what the job workers tell, send, and watch for the end."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Protocol

import structlog

from collectors.host import HostSampler
from collectors.instance_metadata import InstanceMetadata
from collectors.run_directory import NOTHING_KNOWN, RunDirectory, VmWork
from domain.errors import CollectionFailed
from domain.samples import Sample, VmMetric, VmSeries

log = structlog.get_logger(__name__)

SPREAD_SHARE = 0.1
"""Each VM measures this share of the interval after the beat, at most: not all of them send in the same instant."""


class SampleSender(Protocol):
    """Where a VM's samples go."""

    def send_samples(self, samples: list[Sample]) -> None:
        """Queue samples; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class VmIdentity:
    """Whose samples these are: fleet and group by their keys, and the VM's id."""

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
        """Return what can be told of the VM, stamped `at`."""
        readings = self._sampler.sample()
        work = NOTHING_KNOWN if self._workers is None else self._workers.work(self._now())
        if work.busy_cores is not None and work.work_core_seconds is not None:
            readings[VmMetric.BUSY_CORES] = work.busy_cores
            readings[VmMetric.WORK_CORE_SECONDS] = work.work_core_seconds
        self._tell_silent(work)
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

    def _tell_silent(self, work: VmWork) -> None:
        if work.silent and work.silent != self._silent:
            remedy = "busy cores are not reported; remove the files of workers that are gone"
            log.warning("workers_silent", workers=work.silent[:10], remedy=remedy)
        self._silent = work.silent


class DrainWatch:
    """Asks the instance metadata in its own thread whether the VM is to be taken away, and tells the workers."""

    def __init__(
        self, metadata: InstanceMetadata, directory: RunDirectory, now: Callable[[], float], interval_s: float = 5.0
    ) -> None:
        self._metadata = metadata
        self._directory = directory
        self._now = now
        self._interval_s = interval_s
        self._failing = False
        self.reason: str | None = None

    def look(self) -> None:
        """Ask once. Without an answer everything stays as it is."""
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
        """Look once in the interval until stopped."""
        self.look()
        while not stopping.wait(self._interval_s):
            self.look()

    def start(self, stopping: Event) -> Thread:
        """Run in a thread."""
        thread = Thread(target=self.run, args=(stopping,), name="drain-watch", daemon=True)
        thread.start()
        return thread
