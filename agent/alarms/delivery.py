"""Takes alarms to a webhook and an SNS topic, from a thread of its own that the loop never waits for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from agent.alarms.book import Alarm, AlarmBook
from agent.ports import TickReport
from agent.standing import Standing
from collectors.aws import AwsSession
from domain.errors import TrimtabError

log = structlog.get_logger(__name__)

QUEUE_LENGTH = 200
ATTEMPTS = 4
FIRST_WAIT_S = 1.0
SNS_SUBJECT_CHARACTERS = 100


class Channel(Protocol):
    """One way to reach people."""

    @property
    def name(self) -> str:
        """Its name in logs; holds no secret."""
        ...

    def tell(self, alarm: Alarm) -> None:
        """Deliver one alarm; raises when it did not arrive."""
        ...


class SnsTopic:
    """Publishes to an SNS topic. In observe mode the session lets no such call out, so there it is not used."""

    def __init__(self, session: AwsSession, topic_arn: str) -> None:
        self._session, self._topic_arn = session, topic_arn

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"sns {self._topic_arn.rpartition(':')[2]}"

    def tell(self, alarm: Alarm) -> None:
        """Publish the alarm."""
        subject = f"Trimtab {alarm.sentence}"[:SNS_SUBJECT_CHARACTERS].encode("ascii", "replace").decode()
        self._session.mutate(
            "sns", "Publish", TopicArn=self._topic_arn, Subject=subject.replace("\n", " "), Message=alarm.sentence
        )


class Alarms:
    """Keeps the book and delivers; a full queue drops its oldest alarm and counts it."""

    def __init__(
        self,
        book: AlarmBook,
        channels: Sequence[Channel],
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self.book = book
        self._channels = tuple(channels)
        self._wait = wait
        self._queue: deque[Alarm] = deque()
        self._ready = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
        self.delivered: dict[str, int] = {channel.name: 0 for channel in self._channels}
        self.failed: dict[str, int] = {channel.name: 0 for channel in self._channels}
        self.dropped = 0

    def start(self) -> None:
        """Begin delivering."""
        self._thread.start()

    def stop(self, timeout_s: float = 3.0) -> None:
        """Deliver what is queued if that is quick, and end."""
        self._stopping.set()
        with self._ready:
            self._ready.notify_all()
        self._thread.join(timeout_s)

    def on_turn(self, standing: Standing, report: TickReport) -> None:
        """Take in a turn: for `StandingBoard.listen`."""
        for alarm in self.book.turn(report):
            log.warning("alarm", **alarm_fields(alarm))
            self._enqueue(alarm)

    def _enqueue(self, alarm: Alarm) -> None:
        if not self._channels:
            return
        with self._ready:
            if len(self._queue) >= QUEUE_LENGTH:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(alarm)
            self._ready.notify_all()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._stopping.is_set():
                    self._ready.wait()
                if not self._queue:
                    return
                alarm = self._queue.popleft()
            for channel in self._channels:
                self._deliver(channel, alarm)

    def _deliver(self, channel: Channel, alarm: Alarm) -> None:
        wait_s = FIRST_WAIT_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                channel.tell(alarm)
            except (OSError, TrimtabError) as error:
                if attempt == ATTEMPTS or self._stopping.is_set():
                    self.failed[channel.name] += 1
                    log.error("alarm_not_delivered", channel=channel.name, error=str(error), **alarm_fields(alarm))
                    return
                self._wait(self._stopping, wait_s)
                wait_s *= 2.0
            else:
                self.delivered[channel.name] += 1
                return


def alarm_fields(alarm: Alarm) -> Mapping[str, object]:
    """Return the alarm as fields of a log event."""
    return {"alarm": alarm.reason, "fleet": alarm.fleet, "subject": alarm.subject, "sentence": alarm.sentence}
