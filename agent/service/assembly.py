"""Puts an agent together from its settings: ledger, inputs, cloud and policies, started and stopped as one."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from agent.kernel.decision import Host, Part, Turn
from agent.kernel.leads import Leads
from agent.kernel.parts import Parts, parts_of
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger, LedgerOwner, lock_directory, lock_ledger, sqlite_path
from agent.ledger.leases import AgentRecord
from agent.ledger.postgresql import LedgerRefused
from agent.ledger.schema import REVISIONS
from agent.service.leader import (
    BoundLeader,
    Incapacity,
    Leadership,
    LeaseLeader,
    SoleLeader,
    account_of,
    manages_aws,
    region_of,
)
from agent.service.refusals import RejectedInputEvents
from agent.service.shares import Managed, managed_by
from agent.settings import Settings
from agent.settings.kinds import networks_of
from agent.settings.names import effective
from collectors.aws import AwsOptions, AwsSession
from collectors.base import Refusal, SampleSink
from collectors.forwarding import ForwardingSink
from collectors.intake import Conflict, RefusedClaim
from collectors.listener import GraphiteListener, ListenerLimits
from collectors.polling import Poller
from collectors.vm_names import UnknownVms
from domain.clock import BothTimes, Clock, read_both
from domain.decisions import Event, Mode, Reason
from domain.errors import (
    BadInput,
    ConfigurationError,
    Fenced,
    LedgerError,
    LedgerUnavailable,
    Mistake,
    TrimtabError,
)
from domain.samples import Sample
from domain.subject import AGENT, Subject

log = structlog.get_logger(__name__)

TURN_SHARE = 0.7
"""The share of the interval after which a turn begins no further call to AWS."""
LEDGER_PATIENCE_S = 60.0
LEDGER_RETRY_S = 3.0
REFUSED_RETRY_S = 20.0


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """A key pair for a look-alike; with AWS itself, credentials come from its own chain."""

    access_key_id: str
    secret_access_key: str


P = TypeVar("P", bound=Part)


class Acting(threading.local):
    """The epochs under which this thread sends: of the subject at hand, else of all that its turn began with.

    A thread without a turn, such as that of the alarms, sends under all that the process leads: None.
    """

    epochs: Collection[int] | None = None

    @contextmanager
    def under(self, *epochs: int) -> Iterator[None]:
        """Send under these epochs alone until the block ends."""
        before, self.epochs = self.epochs, epochs
        try:
            yield
        finally:
            self.epochs = before


class NullSink:
    """Takes readings that no part wants."""

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings by path and drop them."""
        return ()

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take samples and drop them."""
        return ()


@dataclass(slots=True)
class Agent:
    """A running agent, but for the schedule that calls `turn`."""

    settings: Settings
    ledger: Ledger
    leadership: BoundLeader
    parts: Parts
    listener: GraphiteListener
    poller: Poller
    session: AwsSession
    clock: Clock
    acting: Acting = field(default_factory=Acting)
    incapacity: Incapacity = field(default_factory=Incapacity)
    refusals: RejectedInputEvents = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = RejectedInputEvents(
            lambda: self.listener.counters,
            self.refused_claims,
            self.unknown_vms,
            self.conflicts,
            self.session.clock_check,
        )

    def part(self, kind: type[P]) -> P:
        """Return the part of this class."""
        return next(part for part in self.parts if isinstance(part, kind))

    def unknown_vms(self) -> dict[tuple[Subject, str], UnknownVms]:
        """Return by subject and group key what was reported under names that no inventory shows."""
        return {
            (Subject(part.name, name), group): found
            for part in self.parts
            for (name, group), found in part.unknown_vms().items()
        }

    def refused_claims(self) -> dict[tuple[Subject, str, str], RefusedClaim]:
        """Return by subject, group key and metric the readings that were not believed."""
        return {
            (Subject(part.name, name), group, metric): found
            for part in self.parts
            for (name, group, metric), found in part.refused_claims().items()
        }

    def conflicts(self) -> dict[tuple[Subject, str, str], Conflict]:
        """Return by subject, group key and metric the readings that contradict others."""
        return {
            (Subject(part.name, name), group, metric): found
            for part in self.parts
            for (name, group, metric), found in part.conflicts().items()
        }

    def turn(self) -> TurnReport:
        """Let every part take its turn, now; an agent that leads nothing only measures subjects without a leader."""
        times = read_both(self.clock)
        # What AWS keeps waiting must not run into the next turn, nor look as if the loop stood still.
        with self.session.within(TURN_SHARE * self.settings.tick_interval_s):
            self.leadership.look()
            return self._turn(times)

    def _turn(self, times: BothTimes) -> TurnReport:
        with self.leadership.turning():
            leads = self.leadership.leads()
            if not leads.numbers:
                report = TurnReport(times.now)
                for part in self.parts:
                    report = part.measure(report)
                why = self.leadership.failure
                return replace(report, failure=why, failure_reason=self.leadership.failure_reason) if why else report
            with self.acting.under(*leads.numbers):
                return turned(self.parts, times, leads)

    def adopt(self, settings: Settings) -> None:
        """Work by these settings from now on: the fleets that a part manages have changed."""
        self.settings = settings
        self.poller.replace([collector for part in self.parts for collector in part.collectors()])
        if self.leadership.leads().numbers:
            record_settings(self.ledger, settings, self.clock.now())

    def note(self, reason: Reason, detail: str, subject: Subject = AGENT, about: str = "") -> None:
        """Record an event of the agent itself, or of a subject; without a ledger it is only logged."""
        self.note_all([Event(subject, self.clock.now(), reason, detail, about)])

    def note_all(self, events: Sequence[Event]) -> None:
        """Record events at once; without a ledger they are only logged."""
        for one in events:
            log.info("event", reason=one.reason, detail=one.detail, **one.subject.fields())
        try:
            self.ledger.record_events(events)
        except TrimtabError as error:
            log.error("event_not_recorded", reason=", ".join({one.reason for one in events}), detail=str(error))


def turned(parts: Iterable[Part], times: BothTimes, leads: Leads) -> TurnReport:
    """Let parts take their turns in order and return the report of all; one that fails stops those after it.

    A part that fails is reported by an event, and the others go on.
    """
    report = TurnReport(times.now)
    for part in parts:
        if report.failure is not None:
            break
        try:
            report = part.turn(Turn(times.now, times, leads, report))
        except (LedgerError, Fenced) as error:
            log.error("part_stopped", part=part.name, detail=str(error))
            report = replace(report, failure=str(error))
        except Exception as error:
            log.exception("part_failed", part=part.name)
            detail = f"{part.name}: its turn was cut short: {type(error).__name__}: {error}"
            event = Event(AGENT, times.now, Reason.INTERNAL_ERROR, detail, part.name)
            report = replace(report, events=(*report.events, event))
    return report


@contextmanager
def assembled(
    settings: Settings,
    clock: Clock,
    keys: AwsKeys | None = None,
    wait: Callable[[float], object] | None = None,
    problem: Callable[[str, str], None] = lambda name, sentence: None,
) -> Iterator[Agent]:
    """Start everything an agent needs and stop it when the block ends.

    wait: waits so many seconds between attempts to reach a ledger on PostgreSQL, and returns something true when that
    is to be given up; without it there is one attempt. problem: takes what a person should look into, by a short name.
    Raises LedgerError when the ledger or the state directory cannot be used, BadInput when the listener's port cannot
    be listened on, ConfigurationError when no AWS region is known.
    """
    agent: Agent | None = None
    acting = Acting()
    with ExitStack() as stack:
        stack.enter_context(lock_directory(Path(settings.state_directory)))
        if (file := sqlite_path(settings.ledger_url.get_secret_value())) is not None:
            stack.enter_context(lock_ledger(file))
        ledger = stack.enter_context(opened_ledger(settings, wait))

        def managed() -> Managed:
            return Managed() if agent is None else managed_by(agent.parts, agent.settings)

        def fence() -> None:
            leadership.fence(leadership.leads().numbers if acting.epochs is None else acting.epochs)

        leadership = BoundLeader(
            ledger,
            account_of(settings, lambda: session),
            lambda account: LedgerOwner(
                account or settings.aws.account, region_of(settings, session), settings.deployment
            ),
            lambda: leadership_of(settings, ledger, clock, managed),
            lambda: session.account,
        )
        # First of all, so that the lead is given up last but before the ledger closes.
        stack.callback(leadership.stop)
        session = aws_session(settings, clock, keys, fence)
        stack.callback(session.close)
        session.account.queue_accounts = settings.aws.queue_accounts.split(",")
        check_region(settings, session)
        leadership.start()

        def note(reason: Reason, detail: str, subject: Subject) -> None:
            if agent is not None:
                agent.note(reason, detail, subject)

        def adopt(changed: Settings) -> None:
            if agent is not None:
                agent.adopt(changed)

        host = Host(
            ledger,
            settings,
            clock,
            session=session,
            fence=leadership.fence,
            leads=leadership.leads,
            acting=acting.under,
            is_elsewhere=leadership.is_elsewhere,
            note=note,
            problem=problem,
            adopt=adopt,
        )
        parts = parts_of(host)
        for part in parts:
            part.start(stack)
        sink = sink_of(parts)
        if settings.listener.relay_host is not None:
            sink = ForwardingSink(sink, partial(subject_of, parts), leadership.elsewhere)
        listener = started_listener(settings, sink, clock)
        stack.callback(listener.stop)
        poller = Poller([collector for part in parts for collector in part.collectors()], sink, clock)
        poller.start()
        stack.callback(poller.stop)
        agent = Agent(settings, ledger, leadership, parts, listener, poller, session, clock, acting)
        yield agent


def sink_of(parts: Iterable[Part]) -> SampleSink:
    """Return where readings go: to each part what is its own, and what is no part's to the one that takes the rest."""
    sink: SampleSink = NullSink()
    for part in sorted(parts, key=lambda part: not part.takes_rest):
        sink = part.sink(sink)
    return sink


def subject_of(parts: Iterable[Part], path: bytes) -> Subject | None:
    """Return the subject that a Graphite path has a reading of; None for none of any part."""
    found = (part.subject_of(path) for part in sorted(parts, key=lambda part: part.takes_rest))
    return next((subject for subject in found if subject is not None), None)


def opened_ledger(settings: Settings, wait: Callable[[float], object] | None) -> Ledger:
    """Return the ledger, opened; one on PostgreSQL is waited for, as at a boot it may come up after this agent.

    One that refuses the agent is asked again less often, as a password may be mended on the server. A SQLite file that
    cannot be used needs a person: the error is raised at once.
    """
    url = settings.ledger_url.get_secret_value()
    give_up_at = time.monotonic() + LEDGER_PATIENCE_S
    while True:
        try:
            return _sound(Ledger.open(url, witness_in=Path(settings.state_directory)))
        except LedgerUnavailable as error:
            if url.startswith("sqlite") or wait is None or time.monotonic() >= give_up_at:
                raise
            if isinstance(error, LedgerRefused):
                retry_s = REFUSED_RETRY_S
                log.error("ledger_refused", detail=str(error), again_in_s=retry_s)
            else:
                retry_s = LEDGER_RETRY_S
                log.warning("ledger_not_there_yet", detail=str(error), again_in_s=retry_s)
            if wait(retry_s):
                raise


def _sound(ledger: Ledger) -> Ledger:
    """Return a ledger whose file is not damaged; LedgerUnavailable, with it closed, when it is."""
    try:
        if damage := ledger.damage():
            raise LedgerUnavailable(
                f"ledger {ledger.place} is damaged ({damage}): run `trimtab ledger restore FILE` with a copy of it"
            )
    except BaseException:
        ledger.close()
        raise
    return ledger


def leadership_of(settings: Settings, ledger: Ledger, clock: Clock, managed: Callable[[], Managed]) -> Leadership:
    """Return the leadership of this agent: of all subjects on SQLite, of its share where several share a ledger."""
    # Process numbers come back, on the next boot or in containers, where every agent is process 1.
    process = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    if not ledger.shared:
        return SoleLeader(ledger, process, clock.now())
    name = settings.leader.name or f"{socket.gethostname()}:{Path(settings.state_directory).absolute()}"
    listens = settings.listener
    relay = "" if listens.relay_host is None else f"{listens.relay_host}:{listens.relay_port}"
    me = AgentRecord(name, process, REVISIONS[-1], relay=relay)
    return LeaseLeader(ledger, me, clock, settings.leader.lease_s, settings.leader.renew_s, managed)


def check_region(settings: Settings, session: AwsSession) -> None:
    """Raise ConfigurationError when there is something to manage and no region to look for it."""
    if manages_aws(settings) and session.region is None:
        remedy = "give the AWS region of the fleets, such as eu-west-1; neither it nor the AWS chain names one"
        raise ConfigurationError([Mistake("TRIMTAB_AWS__REGION", "(not set)", remedy)])


def started_listener(settings: Settings, store: SampleSink, clock: Clock) -> GraphiteListener:
    """Return a listener that listens; BadInput says what to do when the port cannot be had."""
    listens = settings.listener
    limits = ListenerLimits(
        networks=networks_of(listens.networks),
        max_connections=listens.max_connections,
        per_peer=listens.connections_per_peer,
    )
    listener = GraphiteListener(
        store,
        clock.now,
        listens.host,
        listens.port,
        limits,
        tcp=listens.tcp,
        udp=listens.udp,
        relay_port=listens.relay_port,
    )
    try:
        listener.start()
    except OSError as error:
        ports = [str(listens.port)] if listens.relay_host is None else [str(listens.port), str(listens.relay_port)]
        remedy = (
            f"{listens.host}:{' or '.join(ports)} is not available for listening ({error.strerror or error}): stop "
            f"the process that uses it (`ss -ltnup | grep -E ':({'|'.join(ports)})'` shows it), or choose another host "
            "or port"
        )
        raise BadInput("TRIMTAB_LISTENER__PORT", listens.port, remedy) from error
    return listener


def aws_session(settings: Settings, clock: Clock, keys: AwsKeys | None, fence: Callable[[], None]) -> AwsSession:
    """Return the session through which every AWS call goes; in observe mode it refuses whatever changes something."""
    options = AwsOptions(
        region=settings.aws.region,
        endpoint_url=settings.aws.endpoint_url,
        connect_timeout_s=settings.aws.connect_timeout_s,
        read_timeout_s=settings.aws.read_timeout_s,
        calls_per_minute=settings.aws.calls_per_minute,
        access_key_id=keys.access_key_id if keys else None,
        secret_access_key=keys.secret_access_key if keys else None,
    )
    return AwsSession(options, clock, read_only=settings.mode is Mode.OBSERVE, fence=fence)


def record_settings(ledger: Ledger, settings: Settings, at: float) -> None:
    """Write the settings in force to the journal, without secrets, unless they are the last ones written."""
    try:
        ledger.record_settings(at, effective(settings))
    except TrimtabError as error:
        log.warning("settings_not_recorded", detail=str(error))
