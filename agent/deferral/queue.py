"""The queues that jobs pass through on SQS: received from one, recorded, and then deleted; sent to another at a start.

| killed                               | finds                        | does                                          |
|--------------------------------------|------------------------------|-----------------------------------------------|
| after a receive                      | the message again, later     | records its job, deletes it                   |
| after the record, before the delete  | the message again, later     | finds its job recorded, counts it, deletes it |
| after a decision, before its send    | starts that may have been    | sends them                                    |
| after a send, before its outcome     | starts that may have been    | sends them again, with the same id            |
| after the outcome                    | jobs that run                | nothing                                       |

A start that is sent again has the job's id for its deduplication id. A FIFO queue drops it for five minutes after the
first; later, and on a standard queue at any time, its workers get it twice and must ignore an id that they have seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from actuators.base import Act, ChangingCall, Permit
from agent.deferral.pool import FromQueue
from agent.deferral.records import (
    VERSION,
    JobOrder,
    JobRecord,
)
from agent.deferral.settings import DeferralSettings
from collectors.aws import AwsSession
from domain.clock import Clock
from domain.errors import BadInput, CloudError, FailureClass

PER_CALL: Final = 10
"""Messages of one call of SQS."""
BYTES_PER_CALL: Final = 200_000
"""SQS takes 256 KiB in one call."""
MOST_RECEIVED: Final = 200
RECEIVE_FOR_S: Final = 10.0
VISIBILITY_S: Final = 120
"""A message that was received and not deleted comes again after so long."""
DEDUPLICATED_S: Final = 270.0
"""A FIFO queue drops a message whose id it has seen in five minutes; the call itself may take the rest of them."""
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Sending:
    """What became of starts that were sent, by job id: arrived; not, for certain, and why; perhaps, and why."""

    sent: tuple[str, ...] = ()
    unsent: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


class SubmitQueue:
    """Receives jobs, and deletes their messages once they are recorded."""

    def __init__(self, session: AwsSession, url: str, clock: Clock) -> None:
        self._session, self._url, self._clock = session, url, clock
        self._unread = self._undeleted = ""

    @property
    def problem(self) -> str:
        """What keeps it from receiving or deleting, "" for nothing."""
        return "; ".join(filter(None, (self._unread, self._undeleted)))

    def batches(self) -> Iterator[tuple[list[FromQueue], list[str]]]:
        """Yield messages with their receipts, by calls that do not wait for messages to come; Fenced.

        What cannot be received is left for the next turn, with `problem` saying why.
        """
        began, seen = self._clock.monotonic(), 0
        self._undeleted = ""
        while seen < MOST_RECEIVED and self._clock.monotonic() - began < RECEIVE_FOR_S:
            try:
                response = self._session.mutate(
                    "sqs",
                    "ReceiveMessage",
                    QueueUrl=self._url,
                    MaxNumberOfMessages=PER_CALL,
                    VisibilityTimeout=VISIBILITY_S,
                    WaitTimeSeconds=0,
                    AttributeNames=["SentTimestamp"],
                )
            except CloudError as error:
                self._unread = f"the submit queue cannot be read: {error}"
                return
            self._unread = ""
            messages = response.get("Messages", ())
            if not messages:
                return
            seen += len(messages)
            yield [received(one) for one in messages], [str(one.get("ReceiptHandle", "")) for one in messages]

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages whose jobs are recorded; one that cannot be deleted comes again, and is known then."""
        entries = [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(receipts)]
        try:
            answer = self._session.mutate("sqs", "DeleteMessageBatch", QueueUrl=self._url, Entries=entries)
            failed = [f"{one.get('Code')}: {one.get('Message', '')}" for one in answer.get("Failed", ())]
        except CloudError as error:
            failed = [str(error)]
        if failed:
            self._undeleted = f"messages of the submit queue cannot be deleted, they come again: {failed[0]}"


def received(message: Mapping[str, Any]) -> FromQueue:
    """Return a message as SQS hands it out; one that lacks a part, or has text that cannot be stored, is no job."""
    # A lone surrogate is no text that the ledger could keep.
    body = str(message.get("Body", "")).encode(errors="backslashreplace").decode()
    return FromQueue(str(message.get("MessageId", "")), body, job_of(body), _sent_at(message))


def _sent_at(message: Mapping[str, Any]) -> float | None:
    try:
        return int(message["Attributes"]["SentTimestamp"]) / 1000.0
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def job_of(body: str) -> Any:
    """Return the job that a message describes, or as a BadInput why it describes none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return BadInput("body", body[:_SHOWN], "send a job as a JSON object")
    if not isinstance(document, dict):
        return BadInput("body", body[:_SHOWN], "send a job as a JSON object")
    try:
        return JobOrder.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "body"
        value = document.get(name) if len(first["loc"]) == 1 else None
        return BadInput(name, value, first["msg"][:1].lower() + first["msg"][1:])


class ReadyQueue:
    """Sends starts; the message is `start_message`."""

    def __init__(self, session: AwsSession, pool: str, settings: DeferralSettings) -> None:
        assert settings.ready_queue_url is not None, "there is a queue"
        self._session, self._pool, self._settings = session, pool, settings
        self._url = settings.ready_queue_url
        self.fifo = self._url.endswith(".fifo")

    def send(self, jobs: Sequence[JobRecord], permit: Permit) -> Sending:
        """Send the starts of at most PER_CALL jobs in one call; Fenced, and then nothing was sent."""
        refusal = permit(ChangingCall(Act.LAUNCH, self._pool, "ready queue"))
        if refusal is not None:
            return Sending(unsent={job.job_id: refusal.detail for job in jobs})
        entries = [self._entry(number, job) for number, job in enumerate(jobs)]
        try:
            response = self._session.mutate("sqs", "SendMessageBatch", QueueUrl=self._url, Entries=entries)
        except CloudError as error:
            why = {job.job_id: str(error) for job in jobs}
            return Sending(unknown=why) if error.failure is FailureClass.UNKNOWN_OUTCOME else Sending(unsent=why)
        arrived = {one.get("Id") for one in response.get("Successful", ())}
        failed = {one.get("Id"): one for one in response.get("Failed", ())}
        sent, unsent, unknown = list[str](), dict[str, str](), dict[str, str]()
        for number, job in enumerate(jobs):
            if str(number) in arrived:
                sent.append(job.job_id)
            elif (one := failed.get(str(number))) is not None:
                # An error of SQS's own leaves open how far the message got, as it would for the whole call.
                why = unsent if one.get("SenderFault", True) else unknown
                why[job.job_id] = f"{one.get('Code')}: {one.get('Message', '')}"
            else:
                unknown[job.job_id] = "SQS returned no result for it"
        return Sending(tuple(sent), unsent, unknown)

    def _entry(self, number: int, job: JobRecord) -> dict[str, Any]:
        entry = {"Id": str(number), "MessageBody": json.dumps(start_message(self._pool, job, self._settings.step_s))}
        # A group of its own for each job: otherwise workers would get them one after the other.
        return {**entry, "MessageDeduplicationId": job.job_id, "MessageGroupId": job.job_id} if self.fifo else entry


def in_calls(jobs: Sequence[JobRecord]) -> Iterator[list[JobRecord]]:
    """Yield jobs in portions that SQS takes in one call."""
    portion: list[JobRecord] = []
    size = 0
    for job in jobs:
        # As it is sent: what is no ASCII, or a control character, takes six bytes.
        own = len(json.dumps(job.payload)) + 1000
        if portion and (len(portion) == PER_CALL or size + own > BYTES_PER_CALL):
            yield portion
            portion, size = [], 0
        portion.append(job)
        size += own
    if portion:
        yield portion


def start_message(pool: str, job: JobRecord, step_s: int) -> dict[str, Any]:
    """Return what is sent to the ready queue when a job starts."""
    assert job.start is not None, "it starts"
    return {
        "version": VERSION,
        "pool": pool,
        "job_id": job.job_id,
        "cores": job.cores,
        "duration_steps": job.duration,
        "start_at": job.start * step_s,
        "end_at": (job.start + job.duration) * step_s,
        "decision_id": job.decision_id,
        "payload": job.payload,
    }
