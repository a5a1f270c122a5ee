"""The interruption queue: spot and rebalance notices and state changes that EventBridge puts on an SQS queue.

Receiving hides messages from other readers, so in observe mode nothing is received. A message is deleted only after the
caller has recorded what it said (`acknowledge`); until then it comes again, and duplicates and disorder are the
caller's to ignore by VM id. A message that cannot be read is counted, its beginning kept for the log, and deleted at
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
_SHOWN = 200


class InterruptionKind(StrEnum):
    """What a notice says: the VM is taken back in two minutes, is at risk, or has begun to stop."""

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
    """One notice about a VM; `at` is when AWS gave it (epoch seconds), `receipt` is what deletes the message."""

    vm: str
    kind: InterruptionKind
    at: float
    message_id: str
    receipt: str


def parse_event(body: str, message_id: str, receipt: str) -> Interruption | None:
    """Return the notice in an EventBridge event; None for an event of ours to ignore, such as a VM that starts.

    Raises BadInput for what is no event, or a notice without a VM id or time.
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
    minutes after a notice the VM is gone.
    `counts` says how many messages were notices, ignored, malformed or could not be deleted; `last_problem` why.
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
        self.counts = {"notices": 0, "ignored": 0, "malformed": 0, "undeleted": 0, "failed_calls": 0}
        self.last_problem = ""

    def receive(self, now: float) -> Sequence[Interruption]:
        """Return the notices waiting now, as they came: duplicates and disorder included. Never raises."""
        if self._session.read_only:
            return ()
        notices: list[Interruption] = []
        unwanted: list[str] = []
        seen, began = 0, self._clock.monotonic()
        while seen < self._most_messages and self._clock.monotonic() - began < self._timeout_s:
            messages = self._ask()
            for message in messages:
                try:
                    notice = parse_event(message["Body"], message["MessageId"], message["ReceiptHandle"])
                except BadInput as problem:
                    self.counts["malformed"] += 1
                    self.last_problem = str(problem)
                    unwanted.append(message["ReceiptHandle"])
                    continue
                self.counts["ignored" if notice is None else "notices"] += 1
                if notice is None:
                    unwanted.append(message["ReceiptHandle"])
                else:
                    notices.append(notice)
            seen += len(messages)
            if not messages:
                break
        self._delete(unwanted)
        return tuple(notices)

    def acknowledge(self, notices: Sequence[Interruption]) -> None:
        """Delete the messages of notices that are recorded; one that cannot be deleted comes again. Never raises."""
        self._delete([notice.receipt for notice in notices])

    def _ask(self) -> list[dict[str, Any]]:
        answer = self._call(
            "ReceiveMessage",
            MaxNumberOfMessages=MESSAGES_PER_CALL,
            VisibilityTimeout=self._visibility_s,
            WaitTimeSeconds=0,
        )
        return list(answer.get("Messages", ()))

    def _delete(self, receipts: Sequence[str]) -> None:
        for start in range(0, len(receipts), MESSAGES_PER_CALL):
            chunk = receipts[start : start + MESSAGES_PER_CALL]
            entries = [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(chunk)]
            answer = self._call("DeleteMessageBatch", Entries=entries)
            self.counts["undeleted"] += len(chunk) - len(answer.get("Successful", ()))

    def _call(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        try:
            return self._session.mutate("sqs", operation, QueueUrl=self._queue_url, **parameters)
        except TrimtabError as error:
            self.counts["failed_calls"] += 1
            self.last_problem = str(error)
            return {}


def _moment(time: object) -> float:
    try:
        moment = datetime.fromisoformat(str(time))
    except ValueError:
        raise _malformed("time", time, "send the event unchanged") from None
    if moment.tzinfo is None:
        raise _malformed("time", time, "give a time with its zone, such as 2026-11-20T12:00:00Z")
    return moment.timestamp()


def _malformed(field: str, value: object, remedy: str) -> BadInput:
    shown = value[:_SHOWN] if isinstance(value, str) else value
    return BadInput(f"interruption queue: {field}", shown, remedy)
