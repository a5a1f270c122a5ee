"""The interruption queue: spot warnings, rebalance recommendations and state changes from EventBridge through SQS.

Receiving hides messages from other readers, so in observe mode nothing is received. A message is deleted only after the
caller has recorded it (`acknowledge`); until then it is received again. The caller ignores duplicates and disorder
by VM id. A message that cannot be read is counted, its beginning kept for the log, and deleted at
once: it would come again in every minute of its days on the queue, and not every queue has a dead-letter queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from collectors.aws import AwsSession
from domain.clock import Clock
from domain.errors import BadInput, TrimtabError

MESSAGES_PER_CALL = 10
_VM = re.compile(r"i-[0-9a-f]{8,17}")
_LEAVING = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
_LEAP_SECOND = re.compile(r"(T\d\d:59):60")
_SHOWN = 200


class InterruptionKind(StrEnum):
    """The kind of an interruption: the VM is reclaimed in two minutes, is at risk, or has begun to stop."""

    SPOT = "spot"
    REBALANCE = "rebalance"
    STATE_CHANGE = "state_change"


_KINDS = {
    "EC2 Spot Instance Interruption Warning": InterruptionKind.SPOT,
    "EC2 Instance Rebalance Recommendation": InterruptionKind.REBALANCE,
    "EC2 Instance State-change Notification": InterruptionKind.STATE_CHANGE,
}


@dataclass(frozen=True, slots=True)
class Interruption:
    """One event about a VM; `at` is AWS's time of it (epoch seconds), `receipt` deletes the message."""

    vm: str
    kind: InterruptionKind
    at: float
    message_id: str
    receipt: str


def parse_event(body: str, message_id: str, receipt: str) -> Interruption | None:
    """Return the interruption in an EventBridge event; None for an event to ignore, such as a VM that starts.

    Raises BadInput for a text that is no event, and for an interruption without a VM id or time.
    """
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise _malformed("body", body, "send EventBridge events as JSON") from None
    if not isinstance(event, dict) or not isinstance(event.get("detail-type"), str):
        raise _malformed("detail-type", body, "send EventBridge events unchanged: no input transformer, no SNS between")
    kind = _KINDS.get(event["detail-type"])
    if kind is None:
        return None
    detail = event.get("detail")
    if not isinstance(detail, dict):
        raise _malformed("detail", detail, "send the event unchanged")
    vm = detail.get("instance-id")
    if not isinstance(vm, str) or _VM.fullmatch(vm) is None:
        raise _malformed("detail.instance-id", vm, "send the event unchanged")
    if kind is InterruptionKind.STATE_CHANGE and detail.get("state") not in _LEAVING:
        return None
    return Interruption(vm, kind, _moment(event.get("time")), message_id, receipt)


class InterruptionQueue:
    """Reads one SQS queue: up to `most_messages` a tick, by calls that do not wait for messages to come.

    `timeout_s` bounds the time spent asking; the call under way then is bounded by the session's own timeouts.
    visibility_s: how long a message that was received and not acknowledged stays hidden. Longer than the asking, so
    that it does not come twice in one tick, and shorter than a minute, so that it comes again at the next one: two
    minutes after a spot warning the VM is gone.
    counts: messages that were interruptions, ignored, malformed or not deleted; last_problem: the latest reason.
    """

    def __init__(
        self,
        session: AwsSession,
        queue_url: str,
        clock: Clock,
        *,
        most_messages: int = 500,
        visibility_s: int = 45,
        timeout_s: float = 10.0,
    ) -> None:
        self._session, self._queue_url, self._clock = session, queue_url, clock
        self._most_messages, self._visibility_s, self._timeout_s = most_messages, visibility_s, timeout_s
        self.counts = {"interruptions": 0, "ignored": 0, "malformed": 0, "undeleted": 0, "failed_calls": 0}
        self.last_problem = ""

    def receive(self, now: float) -> Sequence[Interruption]:
        """Return the interruptions on the queue, as received: duplicates and disorder included. Never raises."""
        if self._session.read_only:
            return ()
        found: list[Interruption] = []
        unwanted: list[str] = []
        seen, began = 0, self._clock.monotonic()
        while seen < self._most_messages and self._clock.monotonic() - began < self._timeout_s:
            messages = self._ask()
            for message in messages:
                try:
                    interruption = parse_event(message["Body"], message["MessageId"], message["ReceiptHandle"])
                except BadInput as problem:
                    self.counts["malformed"] += 1
                    self.last_problem = str(problem)
                    unwanted.append(message["ReceiptHandle"])
                    continue
                self.counts["ignored" if interruption is None else "interruptions"] += 1
                if interruption is None:
                    unwanted.append(message["ReceiptHandle"])
                else:
                    found.append(interruption)
            seen += len(messages)
            if not messages:
                break
        self._delete(unwanted)
        return tuple(found)

    def acknowledge(self, interruptions: Sequence[Interruption]) -> None:
        """Delete the messages of recorded interruptions; one that cannot be deleted is received again. Never raises."""
        self._delete([interruption.receipt for interruption in interruptions])

    def _ask(self) -> list[dict[str, Any]]:
        response = self._call(
            "ReceiveMessage",
            MaxNumberOfMessages=MESSAGES_PER_CALL,
            VisibilityTimeout=self._visibility_s,
            WaitTimeSeconds=0,
        )
        return list(response.get("Messages", ()))

    def _delete(self, receipts: Sequence[str]) -> None:
        for start in range(0, len(receipts), MESSAGES_PER_CALL):
            chunk = receipts[start : start + MESSAGES_PER_CALL]
            entries = [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(chunk)]
            response = self._call("DeleteMessageBatch", Entries=entries)
            self.counts["undeleted"] += len(chunk) - len(response.get("Successful", ()))

    def _call(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        try:
            return self._session.mutate("sqs", operation, QueueUrl=self._queue_url, **parameters)
        except TrimtabError as error:
            self.counts["failed_calls"] += 1
            self.last_problem = str(error)
            return {}


def _moment(time: object) -> float:
    # Python has no leap second: it is the first one of the next minute.
    text, leap_s = _LEAP_SECOND.subn(r"\1:59", str(time), count=1)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _malformed("time", time, "send the event unchanged") from None
    if moment.tzinfo is None:
        raise _malformed("time", time, "give a time with its zone, such as 2026-11-20T12:00:00Z")
    return moment.timestamp() + leap_s


def _malformed(field: str, value: object, remedy: str) -> BadInput:
    shown = value[:_SHOWN] if isinstance(value, str) else value
    return BadInput(f"interruption queue: {field}", shown, remedy)
