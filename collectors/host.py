"""What a VM measures of itself: the share of its CPU and of its memory in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from domain.samples import VmMetric


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """One core's counters since boot, in seconds: idle, waiting for input and output included, and all of it."""

    idle: float
    total: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes there are, and bytes that programs could still get."""

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
    """Read how much memory there is and how much of it is available."""
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
        self,
        read_cores: Callable[[], tuple[CoreTimes, ...]] = core_times,
        read_memory: Callable[[], Memory] = memory,
    ) -> None:
        self._read_cores, self._read_memory = read_cores, read_memory
        self._before: tuple[CoreTimes, ...] = read_cores()

    def sample(self) -> dict[VmMetric, float]:
        """Return what can be told now; a reading that makes no sense is left out."""
        cores = self._read_cores()
        readings = {
            VmMetric.CPU_PERCENT: cpu_percent(self._before, cores),
            VmMetric.RAM_PERCENT: ram_percent(self._read_memory()),
        }
        self._before = cores
        return {metric: value for metric, value in readings.items() if value is not None}
