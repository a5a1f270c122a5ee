"""A fleet's jobs, one by one: each holds a core of one VM until its work is done, so that a lost job can be counted."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import chain

import numpy as np

from benchmarks.loaded_cloud import JOB_CORE_S, SAMPLE_S, SWING
from collectors.base import SampleSink
from domain.fleet import Fleet
from domain.samples import PREFIX, QueueMetric, VmMetric

SHORT_S, LONG_S, LONG_SHARE = (40.0, 100.0), (200.0, 500.0), 0.2
"""Most jobs end before a hook's first period does, the others need heartbeats; the mean is JOB_CORE_S or so."""
JUMP = 10.0
SENDER, SECOND_SENDER = "10.0.0.1:40001", "10.0.0.1:40002"


class JobWorkers:
    """The job queue of a fleet and its VMs at work.

    swing: mean load as a share of the cores at the start, period in seconds, phase. cores_of: a VM's own cores. ended:
    called with each VM that is gone and the number of jobs that it had. The sets name VMs with a fault: `leaving` take
    no jobs, `broken` neither, `hung` do no work, `doubled` have a second sender behind the same address, which reports
    no busy core, at the same time or half a second later.
    """

    def __init__(
        self,
        fleet: Fleet,
        swing: tuple[float, float, float],
        dice: np.random.Generator,
        cores_of: Callable[[str], int],
        ended: Callable[[str, int], None],
    ) -> None:
        self.fleet, self._dice, self._cores_of, self._ended = fleet, dice, cores_of, ended
        self._level, self._period_s, self._phase = swing
        self.leaving: set[str] = set()
        self.broken: set[str] = set()
        self.hung: set[str] = set()
        self.doubled: set[str] = set()
        self.frozen = self.jumps = False
        self._names: list[list[str]] = []
        self._vms: list[str] = []
        self._keys: list[str] = []
        self._ranks: dict[str, float] = {}
        self._left = self._size = np.zeros((0, 0))
        self._first_cores = 0.0
        self._queue: deque[tuple[float, float]] = deque()
        self.submitted = self._finished = 0
        self._counts: dict[QueueMetric, float] = {}

    def seat(self, names: list[list[str]]) -> None:
        """Take these VMs, by group, for those that work; the jobs of the others are queued again."""
        if names == self._names:
            return
        self._names = names
        vms = list(chain.from_iterable(names))
        wide = max((self._cores_of(vm) for vm in vms), default=0)
        left, size = np.full((len(vms), wide), np.inf), np.zeros((len(vms), wide))
        rows = {vm: row for row, vm in enumerate(vms)}
        for row, vm in enumerate(vms):
            left[row, : self._cores_of(vm)] = 0.0
        for row, vm in enumerate(self._vms):
            there, cores = rows.get(vm), int(np.isfinite(self._left[row]).sum())
            if there is not None:
                left[there, :cores], size[there, :cores] = self._left[row, :cores], self._size[row, :cores]
            else:
                at_work = np.flatnonzero(self._left[row, :cores] > 0.0)
                self._queue.extendleft((self._size[row, core], 0.0) for core in at_work)
                self._ended(vm, len(at_work))
                self.leaving.discard(vm)
        self._ranks = {vm: self._ranks.get(vm) or self._dice.uniform() for vm in vms}
        self._vms, self._left, self._size = vms, left, size
        self._keys = [group.key for group, some in zip(self.fleet.groups, names, strict=True) for _ in some]
        self._first_cores = self._first_cores or float(sum(self._cores_of(vm) for vm in vms))

    def work(self, now: float) -> None:
        """Let ten seconds of work arrive and be done."""
        load = self._level * (1.0 + SWING * math.sin(2.0 * math.pi * now / self._period_s + self._phase))
        arrived = self._dice.poisson(max(0.0, load) * self._first_cores * SAMPLE_S / JOB_CORE_S)
        is_long = self._dice.uniform(size=arrived) < LONG_SHARE
        lengths = np.where(is_long, self._dice.uniform(*LONG_S, arrived), self._dice.uniform(*SHORT_S, arrived))
        self._queue.extend((float(length), now) for length in lengths)
        self.submitted += int(arrived)
        works = np.array([vm not in self.hung for vm in self._vms], dtype=bool)
        busy = (self._left > 0.0) & np.isfinite(self._left)
        self._left = np.where(busy & works[:, None], np.maximum(self._left - SAMPLE_S, 0.0), self._left)
        self._finished += int((busy & (self._left == 0.0)).sum())
        refused = self.leaving | self.broken
        takers = [row for row, vm in enumerate(self._vms) if vm not in refused]
        takers.sort(key=lambda row: self._ranks[self._vms[row]])
        for row in takers:
            if not self._queue:
                break
            for core in np.flatnonzero(self._left[row] == 0.0):
                if self._queue:
                    self._left[row, core] = self._size[row, core] = self._queue.popleft()[0]

    def busy_cores(self, vm: str) -> int:
        """Return how many cores of a VM work."""
        if vm not in self._vms:
            return 0
        row = self._left[self._vms.index(vm)]
        return int(((row > 0.0) & np.isfinite(row)).sum())

    def report(self, store: SampleSink, now: float) -> None:
        """Hand what every VM and the job source measured in the last ten seconds to the store."""
        at_work = (self._left > 0.0) & np.isfinite(self._left)
        busy = at_work.sum(axis=1).astype(float)
        share = busy / np.maximum(np.isfinite(self._left).sum(axis=1), 1)
        works = np.array([vm not in self.hung for vm in self._vms], dtype=bool)
        done = np.where(at_work & works[:, None], self._size - np.where(at_work, self._left, 0.0), 0.0).sum(axis=1)
        noise = self._dice.uniform(0.0, 4.0, share.size)
        values = np.column_stack([95.0 * share + noise, 20.0 + 60.0 * share, busy, done])
        # A VM reports at its own place within the ten seconds, always the same one.
        times = [now - self._ranks[vm] * 1e4 % SAMPLE_S for vm in self._vms]
        paths = [
            f"{PREFIX}.{self.fleet.name}.{key}.{vm}.{metric}".encode()
            for key, vm in zip(self._keys, self._vms, strict=True)
            for metric in VmMetric
        ]
        store.append(paths, values.ravel().tolist(), [at for at in times for _ in VmMetric], now, SENDER)
        for row, vm in enumerate(self._vms):
            if vm in self.doubled:
                path = f"{PREFIX}.{self.fleet.name}.{self._keys[row]}.{vm}.{VmMetric.BUSY_CORES}".encode()
                store.append([path], [0.0], [times[row] + round(self._ranks[vm]) * 0.5], now, SECOND_SENDER)
        if not self.frozen or not self._counts:
            self._counts = self._measured(now, float(busy.sum()))
        counts = dict(self._counts)
        if self.jumps:
            counts[QueueMetric.WAITING] = JUMP * (1.0 + counts[QueueMetric.WAITING])
        queue_paths = [f"{PREFIX}.{self.fleet.name}.queue.{one}".encode() for one in counts]
        store.append(queue_paths, list(counts.values()), [now] * len(counts), now)

    def _measured(self, now: float, running: float) -> dict[QueueMetric, float]:
        oldest = min((at for _, at in self._queue if at > 0.0), default=now)
        return {
            QueueMetric.WAITING: float(len(self._queue)),
            QueueMetric.RUNNING: running,
            QueueMetric.SUBMITTED_TOTAL: float(self.submitted),
            QueueMetric.FINISHED_TOTAL: float(self._finished),
            QueueMetric.OLDEST_WAIT_SECONDS: now - oldest,
            QueueMetric.JOB_CORE_SECONDS: JOB_CORE_S,
        }
