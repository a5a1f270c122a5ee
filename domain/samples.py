"""Measurements: a sample, and the grammar of its Graphite path and line.

A VM's series is `trimtab.<fleet>.<group>.<vm>.<metric>`, a queue's `trimtab.<fleet>.queue.<metric>`; the tagged forms
are `trimtab.<metric>;fleet=..;group=..;vm=..` and `trimtab.<metric>;fleet=..;queue=yes`. A signal of a fleet is
`trimtab.<fleet>.signal.<name>`, tagged `trimtab.signal.<name>;fleet=..`. Values of `*_percent` are 0..100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from domain.errors import RejectReason, SampleRejected

PREFIX = "trimtab"
QUEUE_SEGMENT = "queue"
SIGNAL_SEGMENT = "signal"
MAX_LINE_BYTES = 1024
MAX_MAGNITUDE = 1e15


class VmMetric(StrEnum):
    """The metrics of one VM."""

    CPU_PERCENT = "cpu_percent"
    RAM_PERCENT = "ram_percent"
    BUSY_CORES = "busy_cores"
    WORK_CORE_SECONDS = "work_core_seconds"


class QueueMetric(StrEnum):
    """The metrics of a job source.

    Those with `_total` only ever grow, except when their counter restarts; `finished_core_seconds_total` is the work of
    the finished jobs. `job_core_seconds` is the mean work of a job, with a suffix a quantile of recently finished jobs.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SUBMITTED_TOTAL = "submitted_total"
    FINISHED_TOTAL = "finished_total"
    FINISHED_CORE_SECONDS_TOTAL = "finished_core_seconds_total"
    OLDEST_WAIT_SECONDS = "oldest_wait_seconds"
    JOB_CORE_SECONDS = "job_core_seconds"
    JOB_CORE_SECONDS_P10 = "job_core_seconds_p10"
    JOB_CORE_SECONDS_P50 = "job_core_seconds_p50"
    JOB_CORE_SECONDS_P90 = "job_core_seconds_p90"
    JOB_CORE_SECONDS_P99 = "job_core_seconds_p99"


NEWEST_JOBS = 100
"""Of how many finished jobs a job source should report quantiles: few enough to follow a load that changes."""
VM_METRICS = {metric.value: metric for metric in VmMetric}
JOB_QUANTILES = {
    0.1: QueueMetric.JOB_CORE_SECONDS_P10,
    0.5: QueueMetric.JOB_CORE_SECONDS_P50,
    0.9: QueueMetric.JOB_CORE_SECONDS_P90,
    0.99: QueueMetric.JOB_CORE_SECONDS_P99,
}
"""The quantiles of job lengths that a job source may report, by share."""
QUEUE_METRICS = {metric.value: metric for metric in QueueMetric}


def job_quantiles(core_s: Sequence[float]) -> dict[QueueMetric, float]:
    """Return what a job source reports of the lengths of finished jobs (core-seconds): each quantile; at least one."""
    ordered = sorted(core_s)
    found = {}
    for share, metric in JOB_QUANTILES.items():
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found[metric] = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    return found


@dataclass(frozen=True, slots=True)
class VmSeries:
    """The series of one metric of one VM."""

    fleet: str
    group: str
    vm: str
    metric: VmMetric

    @property
    def path(self) -> str:
        """The dotted Graphite path."""
        return f"{PREFIX}.{self.fleet}.{self.group}.{self.vm}.{self.metric}"


@dataclass(frozen=True, slots=True)
class QueueSeries:
    """The series of one metric of one fleet's queue."""

    fleet: str
    metric: QueueMetric

    @property
    def path(self) -> str:
        """The dotted Graphite path."""
        return f"{PREFIX}.{self.fleet}.{QUEUE_SEGMENT}.{self.metric}"


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """The series of one of a fleet's own signals, such as its requests per second."""

    fleet: str
    name: str

    @property
    def metric(self) -> str:
        """What no metric of a VM or queue is called."""
        return f"{SIGNAL_SEGMENT}.{self.name}"

    @property
    def path(self) -> str:
        """The dotted Graphite path."""
        return f"{PREFIX}.{self.fleet}.{self.metric}"


Series = VmSeries | QueueSeries | SignalSeries


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading: its series, a finite value, and the time it was taken in seconds since the epoch."""

    series: Series
    value: float
    at: float


def parse_path(path: str) -> Series:
    """Return the series that a dotted or tagged Graphite path names.

    SampleRejected(FOREIGN_PATH) for any other path.
    """
    name, _, tags = path.partition(";")
    parts = name.split(".")
    if parts[0] == PREFIX and all(parts):
        if tags:
            return _parse_tagged(path, parts, tags)
        if len(parts) == 5 and parts[4] in VM_METRICS:
            return VmSeries(parts[1], parts[2], parts[3], VM_METRICS[parts[4]])
        if len(parts) == 4 and parts[2] == QUEUE_SEGMENT and parts[3] in QUEUE_METRICS:
            return QueueSeries(parts[1], QUEUE_METRICS[parts[3]])
        if len(parts) == 4 and parts[2] == SIGNAL_SEGMENT:
            return SignalSeries(parts[1], parts[3])
    raise _foreign(path)


def fleet_of(path: str) -> str:
    """Return the fleet, or pool, that a dotted or tagged Graphite path names, "" for any other path."""
    try:
        return parse_path(path).fleet
    except SampleRejected:
        return ""


def _parse_tagged(path: str, parts: list[str], text: str) -> Series:
    tags = dict(pair.split("=", 1) for pair in text.split(";") if "=" in pair)
    fleet, group, vm = tags.get("fleet"), tags.get("group"), tags.get("vm")
    if len(parts) == 2 and fleet:
        if group and vm and parts[1] in VM_METRICS:
            return VmSeries(fleet, group, vm, VM_METRICS[parts[1]])
        if QUEUE_SEGMENT in tags and parts[1] in QUEUE_METRICS:
            return QueueSeries(fleet, QUEUE_METRICS[parts[1]])
    if len(parts) == 3 and fleet and parts[1] == SIGNAL_SEGMENT:
        return SignalSeries(fleet, parts[2])
    raise _foreign(path)


def _foreign(path: str) -> SampleRejected:
    remedy = (
        f"use {PREFIX}.<fleet>.<group>.<vm>.<{'|'.join(VmMetric)}>, {PREFIX}.<fleet>.queue.<{'|'.join(QueueMetric)}> "
        f"or {PREFIX}.<fleet>.{SIGNAL_SEGMENT}.<name>"
    )
    return SampleRejected(RejectReason.FOREIGN_PATH, "metric path", path, remedy)
