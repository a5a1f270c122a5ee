"""Reads how many messages of an SQS queue wait and how many are being worked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from domain.errors import BadInput
from domain.fleet import Fleet
from domain.samples import QueueMetric, QueueSeries, Sample

_WAITING = "ApproximateNumberOfMessages"
_RUNNING = "ApproximateNumberOfMessagesNotVisible"


class SqsClient(Protocol):
    """The one call needed of a boto3 SQS client."""

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Sequence[Any]) -> Mapping[str, Any]:
        """Return the queue's attributes."""
        ...


class QueueDepthCollector:
    """The depth of one fleet's queue: visible messages wait, messages in flight run.

    SQS counts approximately and knows no total of messages ever sent, so `submitted` is left to the job source. A
    failed call raises the client's error: the poller counts it and asks again at the next turn.
    """

    def __init__(self, fleet: Fleet, client: SqsClient, interval_s: float = 15.0, timeout_s: float = 15.0) -> None:
        if fleet.queue_url is None:
            raise BadInput(f"fleet {fleet.name}: queue_url", None, "give the URL of its SQS queue, or collect no depth")
        self._fleet = fleet.name
        self._queue_url = fleet.queue_url
        self._client = client
        self._interval_s = interval_s
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        """`queue:` and the fleet's name."""
        return f"queue:{self._fleet}"

    @property
    def interval_s(self) -> float:
        """Several times a minute, so that no minute is left without a reading."""
        return self._interval_s

    @property
    def timeout_s(self) -> float:
        """Longest expected duration of the call."""
        return self._timeout_s

    def collect(self, now: float) -> tuple[Sample, ...]:
        """Return one sample of waiting and one of running."""
        answer = self._client.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=[_WAITING, _RUNNING])
        attributes = answer.get("Attributes", {})
        return tuple(
            Sample(QueueSeries(self._fleet, metric), float(attributes[name]), now)
            for metric, name in ((QueueMetric.WAITING, _WAITING), (QueueMetric.RUNNING, _RUNNING))
        )
