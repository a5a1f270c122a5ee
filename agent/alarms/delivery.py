"""Takes alarms to a webhook and an SNS topic, from a thread of its own that the loop never waits for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from agent.alarms.book import Alarm, AlarmBook
from agent.autoscaling.ports import TickReport
from agent.view.board import Standing
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

    def fault(self) -> str:
        """Return why no alarm can be delivered as things are, and what to do; "" when nothing speaks against it."""
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

    def fault(self) -> str:
        """Return that the topic is in another region than the agent, "" where it is not; AWS is not asked."""
        region = self._topic_arn.split(":")[3]
        if self._session.region in (None, region):
            return ""
        return (
            f"the topic is in {region}, the agent calls {self._session.region}: name a topic there by "
            "TRIMTAB_ALARMS__SNS_TOPIC_ARN"
        )

    def tell(self, alarm: Alarm) -> None:
        """Publish the alarm."""
        subject = f"Trimtab {alarm.sentence}"[:SNS_SUBJECT_CHARACTERS].encode("ascii", "replace").decode()
        self._session.mutate(
            "sns", "Publish", TopicArn=self._topic_arn, Subject=subject.replace("\n", " "), Message=alarm.sentence
        )


class Alarms:
    """Keeps the book and delivers; a full queue drops its oldest alarm and counts it.

    problem: called with a sentence when a channel is found not to deliver, at the start and later, and with "" when
    every channel does.
    """

    def __init__(
        self,
        book: AlarmBook,
        channels: Sequence[Channel],
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
        problem: Callable[[str], object] = lambda sentence: None,
    ) -> None:
        self.book = book
        self._channels = tuple(channels)
        self._wait, self._problem = wait, problem
        self._faults: dict[str, str] = {}
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
        for channel in self._channels:
            self._check(channel)
        while True:
            with self._ready:
                while not self._queue and not self._stopping.is_set():
                    self._ready.wait()
                if not self._queue:
                    return
                alarm = self._queue.popleft()
            for channel in self._channels:
                try:
                    self._deliver(channel, alarm)
                except Exception as error:
                    # Whatever it is: the next alarm, and the other channels, must not be lost with it.
                    log.error("alarm_not_delivered", channel=channel.name, error=_shown(error), **alarm_fields(alarm))

    def _check(self, channel: Channel) -> None:
        """Tell at the start when a channel cannot work: the first alarm is no time to learn it."""
        try:
            fault = channel.fault()
        except Exception as error:
            fault = _shown(error)
        if fault:
            log.error("alarm_channel_unusable", channel=channel.name, detail=fault)
        self._note(channel, fault)

    def _note(self, channel: Channel, fault: str) -> None:
        before = dict(self._faults)
        self._faults[channel.name] = fault
        if before.get(channel.name, "") != fault:
            found = [f"{name} delivers no alarm: {why}" for name, why in self._faults.items() if why]
            self._problem("; ".join(found))

    def _deliver(self, channel: Channel, alarm: Alarm) -> None:
        wait_s = FIRST_WAIT_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                channel.tell(alarm)
            except Exception as error:
                if attempt == ATTEMPTS or self._stopping.is_set():
                    self.failed[channel.name] += 1
                    log.error("alarm_not_delivered", channel=channel.name, error=_shown(error), **alarm_fields(alarm))
                    self._note(channel, _shown(error))
                    return
                self._wait(self._stopping, wait_s)
                wait_s *= 2.0
            else:
                self.delivered[channel.name] += 1
                self._note(channel, "")
                return


def _shown(error: Exception) -> str:
    """Return what may be shown of an error: of one that is not ours only its kind, as its text can hold an address."""
    return str(error) if isinstance(error, OSError | TrimtabError) else type(error).__name__


def alarm_fields(alarm: Alarm) -> Mapping[str, object]:
    """Return the alarm as fields of a log event."""
    return {"alarm": alarm.reason, "fleet": alarm.fleet, "subject": alarm.subject, "sentence": alarm.sentence}
