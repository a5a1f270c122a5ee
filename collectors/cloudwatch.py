"""Collects from CloudWatch and SQS: the CPU of VMs without a collector, the depth of a queue, and the jobs sent to it.

CloudWatch publishes minutes late, when the minute that a reading belongs to has long been decided on. What is known is
therefore stamped with the time of asking: a fleet that depends on it reacts so much later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from collectors.aws import AwsSession
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries

QUERIES_PER_CALL = 500
NAMES_PER_CALL = 100
QUEUE_PERIOD_S = 60
COUNTED_BACK_S = 900.0
"""A minute's count may still grow for so long after it; SQS has been seen to publish that late."""


@dataclass(frozen=True, slots=True)
class CloudWatchOptions:
    """The settings of CloudWatch queries.

    ask_every_s: AWS charges by the queried metric. emit_every_s: how often the known value is handed on, as a VM would
    report it. period_s: EC2's, 60 with detailed monitoring, else 300.
    """

    ask_every_s: float = 60.0
    emit_every_s: float = 10.0
    period_s: int = 60
    timeout_s: float = 30.0

    @property
    def longest_age_s(self) -> float:
        """A reading whose period ended longer ago is no longer handed on."""
        return 2.0 * self.period_s + 240.0


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """One metric with its one dimension, and how its values within a period are put together."""

    namespace: str
    name: str
    dimension: str
    value: str
    period_s: int
    statistic: str


def metric_values(
    session: AwsSession, queries: Sequence[MetricQuery], start: float, end: float
) -> list[dict[float, float]]:
    """Return for each query its values by the start of their period (epoch seconds); CloudError when a call fails."""
    found: list[dict[float, float]] = [{} for _ in queries]
    for first in range(0, len(queries), QUERIES_PER_CALL):
        some = queries[first : first + QUERIES_PER_CALL]
        pages = session.pages(
            "cloudwatch",
            "GetMetricData",
            MetricDataQueries=[_query(f"q{position}", query) for position, query in enumerate(some, first)],
            StartTime=datetime.fromtimestamp(start, UTC),
            EndTime=datetime.fromtimestamp(end, UTC),
            ScanBy="TimestampAscending",
        )
        for result in (result for page in pages for result in page.get("MetricDataResults", [])):
            values = found[int(result["Id"][1:])]
            for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                values[at.timestamp()] = float(value)
    return found


class CloudWatchCpu:
    """The CPU of each VM in service of one fleet, from EC2's own measurements."""

    def __init__(self, fleet: Fleet, session: AwsSession, options: CloudWatchOptions) -> None:
        self._fleet = fleet
        self._session = session
        self._options = options
        self._read_at: float | None = None
        self._newest: dict[VmSeries, tuple[float, float]] = {}
        self.name = f"cloudwatch-cpu:{self._fleet.name}"
        self.interval_s = self._options.emit_every_s
        self.timeout_s = self._options.timeout_s

    def collect(self, now: float) -> list[Sample]:
        """Return the newest known CPU of each VM, stamped `now`; a VM whose newest is too old is left out."""
        if self._read_at is None or not 0.0 <= now - self._read_at < self._options.ask_every_s:
            self._read(now)
            self._read_at = now
        oldest = now - self._options.longest_age_s
        return [Sample(series, value, now) for series, (ended, value) in self._newest.items() if ended >= oldest]

    def _read(self, now: float) -> None:
        period_s = self._options.period_s
        vms = list(self._vms())
        queries = [
            MetricQuery("AWS/EC2", "CPUUtilization", "InstanceId", series.vm, period_s, "Average") for series in vms
        ]
        found = metric_values(self._session, queries, now - self._options.longest_age_s - period_s, now)
        self._newest = {
            series: (max(values) + period_s, values[max(values)])
            for series, values in zip(vms, found, strict=True)
            if values
        }

    def _vms(self) -> Iterator[VmSeries]:
        key_of = {group.name: group.key for group in self._fleet.groups}
        names = list(key_of)
        for first in range(0, len(names), NAMES_PER_CALL):
            some = names[first : first + NAMES_PER_CALL]
            for page in self._session.pages("autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=some):
                for group in page["AutoScalingGroups"]:
                    key = key_of[group["AutoScalingGroupName"]]
                    for instance in group["Instances"]:
                        if instance["LifecycleState"] == "InService":
                            yield VmSeries(self._fleet.name, key, instance["InstanceId"], VmMetric.CPU_PERCENT)


class CloudWatchSubmitted:
    """The messages sent to one fleet's queue since this collector's first turn, as a growing count.

    It lags by minutes and does not count earlier messages; a fleet that uses it counts `submitted` as late.
    """

    def __init__(self, fleet: Fleet, session: AwsSession, options: CloudWatchOptions) -> None:
        if fleet.queue_url is None:
            raise BadInput(f"fleet {fleet.name}: queue_url", None, "give the URL of its SQS queue")
        self._fleet = fleet.name
        queue = fleet.queue_url.rstrip("/").rpartition("/")[2]
        self._query = MetricQuery("AWS/SQS", "NumberOfMessagesSent", "QueueName", queue, QUEUE_PERIOD_S, "Sum")
        self._session = session
        self._options = options
        self._first: float | None = None
        self._counted: dict[float, float] = {}
        self._total = 0.0
        self.name = f"cloudwatch-submitted:{self._fleet}"
        self.interval_s = self._options.ask_every_s
        self.timeout_s = self._options.timeout_s

    def collect(self, now: float) -> tuple[Sample, ...]:
        """Return the count so far, stamped `now`; a minute's messages count once CloudWatch has them."""
        minute = now // QUEUE_PERIOD_S * QUEUE_PERIOD_S
        if self._first is None or self._first > minute:
            self._first = minute
        start = max(self._first, minute - COUNTED_BACK_S)
        (values,) = metric_values(self._session, [self._query], start, minute + QUEUE_PERIOD_S)
        for at, count in values.items():
            self._total += max(0.0, count - self._counted.get(at, 0.0))
            self._counted[at] = max(count, self._counted.get(at, 0.0))
        self._counted = {at: count for at, count in self._counted.items() if at >= start}
        return (Sample(QueueSeries(self._fleet, QueueMetric.SUBMITTED_TOTAL), self._total, now),)


def _query(identity: str, query: MetricQuery) -> dict[str, Any]:
    return {
        "Id": identity,
        "MetricStat": {
            "Metric": {
                "Namespace": query.namespace,
                "MetricName": query.name,
                "Dimensions": [{"Name": query.dimension, "Value": query.value}],
            },
            "Period": query.period_s,
            "Stat": query.statistic,
        },
        "ReturnData": True,
    }


_WAITING = "ApproximateNumberOfMessages"
_RUNNING = "ApproximateNumberOfMessagesNotVisible"


class QueueDepthCollector:
    """The depth of one fleet's queue: visible messages wait, messages in flight run.

    SQS counts approximately: a first reading, and one of more than twice the waiting messages of the reading before, is
    followed by another, and the lower one counts. A fall counts at once. SQS knows no total of messages ever sent, so
    `submitted` is left to the job source.
    client: boto3's of SQS; a failed call raises its error, which the poller counts, and polls again at the next turn.
    """

    def __init__(self, fleet: Fleet, client: Any, interval_s: float = 15.0, timeout_s: float = 15.0) -> None:
        if fleet.queue_url is None:
            raise BadInput(f"fleet {fleet.name}: queue_url", None, "give the URL of its SQS queue, or collect no depth")
        self._fleet = fleet.name
        self._queue_url = fleet.queue_url
        self._client = client
        self._waited = 0.0
        self.name = f"queue:{self._fleet}"
        self.interval_s = interval_s
        self.timeout_s = timeout_s

    def collect(self, now: float) -> tuple[Sample, ...]:
        """Return one sample of waiting and one of running."""
        depth = self._read()
        if depth[QueueMetric.WAITING] > 2.0 * self._waited + 1.0:
            depth = min(depth, self._read(), key=lambda one: one[QueueMetric.WAITING])
        self._waited = depth[QueueMetric.WAITING]
        return tuple(Sample(QueueSeries(self._fleet, metric), value, now) for metric, value in depth.items())

    def _read(self) -> dict[QueueMetric, float]:
        response = self._client.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=[_WAITING, _RUNNING])
        attributes = response.get("Attributes", {})
        return {
            QueueMetric.WAITING: float(attributes[_WAITING]),
            QueueMetric.RUNNING: float(attributes[_RUNNING]),
        }
