"""Sends alarms to a webhook and an SNS topic, from a thread of its own that never delays the loop."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog

from agent.alarms.book import Alarm, AlarmBook
from agent.kernel.turn import TurnReport
from agent.settings import Settings
from agent.view.board import ServiceBoard, ServiceState
from collectors.aws import AwsSession
from domain.decisions import Mode
from domain.errors import TrimtabError

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

QUEUE_LENGTH = 200
ATTEMPTS = 4
FIRST_WAIT_S = 1.0
SNS_SUBJECT_CHARACTERS = 100
WEBHOOK_TIMEOUT_S = 5.0


class Channel(Protocol):
    """One receiver of alarms."""

    @property
    def name(self) -> str:
        """Its name in logs; holds no secret."""
        ...

    def fault(self) -> str:
        """Return why no alarm can be delivered at present, and what to do; "" when no obstacle is known."""
        ...

    def send(self, alarm: Alarm) -> None:
        """Deliver one alarm; raises when it did not arrive."""
        ...


class SnsTopic:
    """Publishes to an SNS topic; not used in observe mode, in which the session refuses such a call."""

    def __init__(self, session: AwsSession, topic_arn: str) -> None:
        self._session, self._topic_arn = session, topic_arn

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"sns {self._topic_arn.rpartition(':')[2]}"

    def fault(self) -> str:
        """Return that the topic is in another region than the agent, "" where it is not; makes no request."""
        region = self._topic_arn.split(":")[3]
        if self._session.region in (None, region):
            return ""
        return (
            f"the topic is in {region}, the agent calls {self._session.region}: name a topic there by "
            "TRIMTAB_ALARMS__SNS_TOPIC_ARN"
        )

    def send(self, alarm: Alarm) -> None:
        """Publish the alarm."""
        subject = f"Trimtab {alarm.sentence}"[:SNS_SUBJECT_CHARACTERS].encode("ascii", "replace").decode()
        self._session.mutate(
            "sns", "Publish", TopicArn=self._topic_arn, Subject=subject.replace("\n", " "), Message=alarm.sentence
        )


class Webhook:
    """Posts `{"text": sentence, "alarm": {...}}`; chat services show `text`. Only 2xx counts as delivered."""

    def __init__(self, url: str, client: httpx.Client | None = None) -> None:
        # The HTTP client takes 5 MB and is loaded only for a webhook.
        import httpx

        self._url = url
        self._client = client or httpx.Client(timeout=WEBHOOK_TIMEOUT_S, follow_redirects=False)

    @property
    def name(self) -> str:
        """The host without the path, which is a secret."""
        return f"webhook {urlsplit(self._url).hostname}"

    def fault(self) -> str:
        """Return why nothing can be delivered at present, "" where the host accepts connections; posts nothing."""
        import httpx

        try:
            url = httpx.URL(self._url)
            port = url.port or (443 if url.scheme == "https" else 80)
            with socket.create_connection((url.host, port), WEBHOOK_TIMEOUT_S):
                return ""
        except Exception as error:
            return f"{type(error).__name__}: correct TRIMTAB_ALARMS__WEBHOOK_URL, or let the agent reach that host"

    def send(self, alarm: Alarm) -> None:
        """Post the alarm; ConnectionError, without the address, when it did not arrive."""
        try:
            response = self._client.post(
                self._url, json={"text": alarm.sentence, "alarm": {**asdict(alarm), **alarm.subject.fields()}}
            )
        except Exception as error:
            # The error's own text can hold the address, which is a secret. Not all of httpx's
            # errors are HTTPError: an invalid address raises another.
            raise ConnectionError(type(error).__name__) from None
        if not response.is_success:
            raise ConnectionError(f"the response has status {response.status_code}")


class Alarms:
    """Updates the active alarms and delivers; a full queue drops its oldest alarm and counts it.

    problem: called with a sentence when a channel does not deliver, at the start and later, and with "" when
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

    def on_turn(self, state: ServiceState, report: TurnReport) -> None:
        """Update from a turn; a listener for `ServiceBoard.listen`."""
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
                    # No error of one alarm may end the delivery of the next, or that of the other channels.
                    log.error("alarm_not_delivered", channel=channel.name, error=_shown(error), **alarm_fields(alarm))

    def _check(self, channel: Channel) -> None:
        """Report at the start that a channel cannot work, before the first alarm needs it."""
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
                channel.send(alarm)
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
    """Return an error for logs: of a foreign error only its type, as its text can hold a secret address."""
    return str(error) if isinstance(error, OSError | TrimtabError) else type(error).__name__


def alarm_fields(alarm: Alarm) -> Mapping[str, object]:
    """Return the alarm as fields of a log event."""
    return {"alarm": alarm.reason, **alarm.subject.fields(), "about": alarm.about, "sentence": alarm.sentence}


def start_alarms(settings: Settings, session: AwsSession, board: ServiceBoard) -> Alarms:
    """Start alarms for the turns that the board announces; the caller stops them."""
    chosen = settings.alarms
    channels: list[Channel] = []
    if chosen.webhook_url is not None:
        channels.append(Webhook(chosen.webhook_url.get_secret_value()))
    if chosen.sns_topic_arn is not None and settings.mode is Mode.ACT:
        channels.append(SnsTopic(session, chosen.sns_topic_arn))
    book = AlarmBook(chosen.repeat_s, chosen.quiet_s)
    alarms = Alarms(book, channels, problem=lambda sentence: board.problem("alarms", sentence))
    alarms.start()
    board.listen(alarms.on_turn)
    return alarms
