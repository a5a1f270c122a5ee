"""Which process may act: the one agent on a SQLite ledger, or on PostgreSQL for each subject the one with its lease."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, Protocol

import structlog

from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger, LedgerOwner
from agent.ledger.leases import AgentRecord, Moves, Roster
from agent.service.shares import Managed, Shares, has_successor, owner, plan, waits
from agent.settings import Settings
from agent.settings.subjects import described_subjects
from collectors.aws import AwsSession
from collectors.aws_account import FOREIGN, AccountCheck
from collectors.forwarding import Peer
from domain.clock import Clock, since_boot
from domain.decisions import Reason
from domain.errors import CloudError, Fenced, LedgerError, LedgerForeign
from domain.subject import Subject

log = structlog.get_logger(__name__)

UNUSED_SHARE: Final = 0.1
"""The last part of a lease is not used: a call that leaves in time should also arrive in time."""
MOVED_WITHIN: Final = 1.0 / 3.0
"""A subject moves to another agent in this first part of the interval between two turns."""
STAND_BACK_LEASES: Final = 3.0
UNDECIDED_S: Final = 300.0
LONGEST_PATIENCE_S: Final = 3600.0
_RETRY_S: Final = 1.0
_MOMENT_S: Final = 0.05
COMPARED_EVERY_S: Final = 300.0
"""AWS is asked for the account after so long without an answer that carries it."""


class Leadership(Protocol):
    """Which subjects this process leads, and under which epochs."""

    def start(self) -> None:
        """Begin to take subjects, and to stay their leader; returns after the first attempt."""
        ...

    def leads(self) -> Leads:
        """Return the subjects that this process leads right now, with their epochs."""
        ...

    def leaders(self) -> Mapping[Subject, str]:
        """Return the agent that leads each subject, as far as this process knows."""
        ...

    def elsewhere(self) -> Mapping[Subject, Peer]:
        """Return where lines of the subjects of other agents are forwarded; another mapping only after a change."""
        ...

    def is_elsewhere(self, subject: Subject) -> bool:
        """Return whether a subject that this process does not lead may be another agent's."""
        ...

    def fence(self, epochs: Collection[int]) -> None:
        """Raise Fenced unless this process still leads under these epochs; LedgerUnavailable when that is not known."""
        ...

    def turning(self) -> AbstractContextManager[object]:
        """Return a block in which no subject is given to another agent."""
        ...

    def stand_back(self) -> bool:
        """Give all subjects to other agents and take none until those had the time; return whether there is one.

        For a leader that cannot decide.
        """
        ...

    def close(self) -> None:
        """Let nothing more be done from here on: `fence` raises, whatever else holds."""
        ...

    def stop(self) -> None:
        """Give up all subjects, so that others may lead them at once."""
        ...


class SoleLeader:
    """The lead on a SQLite ledger: taken at the start for all subjects, until a newer epoch appears."""

    def __init__(self, ledger: Ledger, owner: str, at: float) -> None:
        self._ledger, self._owner = ledger, owner
        self._epoch = ledger.take_epoch(owner, at)
        self._closed, self._lost = threading.Event(), threading.Event()

    def start(self) -> None:
        """Do nothing: the lead was taken when this was made."""

    def leads(self) -> Leads:
        """Return the epoch taken at the start, nothing once it was closed or a newer one was met."""
        return Leads() if self._closed.is_set() or self._lost.is_set() else Leads(every=self._epoch)

    def leaders(self) -> Mapping[Subject, str]:
        """Return nothing: on a SQLite ledger there is no other agent."""
        return {}

    def elsewhere(self) -> Mapping[Subject, Peer]:
        """Return nothing: there is no other agent."""
        return {}

    def is_elsewhere(self, subject: Subject) -> bool:
        """Return False: there is no other agent."""
        return False

    def fence(self, epochs: Collection[int]) -> None:
        """Raise Fenced when a newer leader exists or this process is stopping."""
        refuse_if(self._closed)
        try:
            self._ledger.check_epoch(*epochs)
        except Fenced:
            self._lost.set()
            raise

    def turning(self) -> AbstractContextManager[object]:
        """Return an empty block."""
        return contextlib.nullcontext()

    def stand_back(self) -> bool:
        """Do nothing: there is no other agent."""
        return False

    def close(self) -> None:
        """Let nothing more be done."""
        self._closed.set()

    def stop(self) -> None:
        """Do nothing more: the next agent takes a newer epoch without asking."""
        self._closed.set()


class LeaseLeader:
    """An agent's share of the subjects of a ledger that several agents share, held by a heartbeat in a thread.

    Leases run by the database's clock, so agents' clocks do not matter. This process counts its own part of its
    heartbeat on the host's clock since boot from BEFORE it asked, and stops acting a tenth earlier: cut off from the
    database, or suspended, it has stopped before another can take over. A subject that was lost is only led again under
    a newer epoch. managed: the subjects that this agent can decide for.
    """

    def __init__(
        self,
        ledger: Ledger,
        me: AgentRecord,
        clock: Clock,
        lease_s: float,
        renew_s: float,
        managed: Callable[[], Managed],
    ) -> None:
        self._ledger, self._me, self._clock, self._managed = ledger, me, clock, managed
        self._lease_s, self._renew_s = lease_s, renew_s
        self._leads, self._until = Leads(), 0.0
        self._roster, self._roster_until = Roster(), 0.0
        self._shares = Shares()
        self._closed, self._ended = threading.Event(), threading.Event()
        self._between_turns = threading.Lock()
        self._turned_at = self._interval_s = 0.0
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._first_wait_s = self._back_until = 0.0
        self._elsewhere: Mapping[Subject, Peer] = {}
        self.failure = ""
        """Why this agent leads nothing or the database could not be asked the last time, "" where all is in order."""

    def start(self) -> None:
        """Announce this agent once, then continue in the background."""
        self._first_wait_s = self._beat()
        self._thread.start()

    def leads(self) -> Leads:
        """Return the subjects that this process leads right now, with their epochs."""
        leads, now = self._leads, since_boot()
        is_led = self._back_until <= now < self._until and not self._closed.is_set()
        return leads if is_led else Leads(others=leads.others)

    def leaders(self) -> Mapping[Subject, str]:
        """Return the name of the agent that leads each subject; nothing where no answer of the last lease has it."""
        others = self._roster if since_boot() < self._roster_until else Roster()
        mine = dict.fromkeys(self.leads().epochs, self._me.name)
        return {subject: one.agent for subject, one in others.leases.items() if one.agent != self._me.name} | mine

    def elsewhere(self) -> Mapping[Subject, Peer]:
        """Return the port for forwarded lines of each subject's leader by the last answer, of other agents' subjects.

        Between two leases of a subject it is that of the former leader. Nothing where this agent has no such port: it
        is sent every line then. Another mapping only after a change.
        """
        return self._elsewhere

    def differences(self) -> Mapping[Subject, str]:
        """Return the subjects without a leader because their settings differ between agents, with both sides."""
        return self._shares.differences if since_boot() < self._roster_until else {}

    def is_elsewhere(self, subject: Subject) -> bool:
        """Return whether an agent has a subject in its settings, or it is another one's share without.

        That of an agent which acts lasts beyond its end, for one that restarts follows its open intents.
        """
        roster = self._roster
        if subject in roster.ended:
            return True
        # One that leads nothing takes no turn.
        leading = {lease.agent for lease in roster.leases.values()}
        return any(subject in one.settings for one in roster.agents.values()) or (
            owner(frozenset({subject}), leading) != self._me.name
        )

    def fence(self, epochs: Collection[int]) -> None:
        """Raise Fenced unless this process still leads under these epochs; LedgerUnavailable when that is not known."""
        refuse_if(self._closed)
        self._refuse_unless_led(epochs)
        self._ledger.check_epoch(*epochs)
        # The answer may have taken its time.
        self._refuse_unless_led(epochs)

    @contextlib.contextmanager
    def turning(self) -> Iterator[None]:
        """Open a block in which no subject is given to another agent."""
        with self._between_turns:
            yield
        before, self._turned_at = self._turned_at, since_boot()
        self._interval_s = self._turned_at - before

    def _may_move(self) -> bool:
        """Return whether a turn has just ended: then the next leader of a subject decides its next minute in time."""
        return not self._turned_at or since_boot() - self._turned_at <= MOVED_WITHIN * self._interval_s

    def stand_back(self) -> bool:
        """Lead nothing from now on, give everything up with the next beat, and take nothing for some leases."""
        may = self._has_successor()
        if may:
            self._back_until = since_boot() + STAND_BACK_LEASES * self._lease_s
        return may

    def _has_successor(self) -> bool:
        agents = self._roster.agents
        return self._me.name in agents and has_successor(agents[self._me.name], agents.values())

    def close(self) -> None:
        """Let nothing more be done; the heartbeat continues until `stop`."""
        self._closed.set()

    def stop(self) -> None:
        """Give everything up, so that other agents take over at once."""
        self._closed.set()
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(2.0 * self._renew_s)
        if self._until:
            self._leads, self._until = Leads(), 0.0
            try:
                self._ledger.give_up(self._me.process)
            except LedgerError as error:
                log.warning("leases_not_given_up", detail=f"they run out by themselves: {error}")

    def _refuse_unless_led(self, epochs: Collection[int]) -> None:
        led = self.leads().numbers
        if not epochs or not set(epochs).issubset(led):
            over = ", ".join(str(epoch) for epoch in sorted(set(epochs).difference(led))) or "(none)"
            raise Fenced(f"the lease under epoch {over} is over: this process must not act until it leads again")

    def _run(self) -> None:
        wait_s = self._first_wait_s
        while not self._ended.wait(wait_s):
            wait_s = self._beat()

    def _beat(self) -> float:
        """Renew the heartbeat, take and give up subjects; return after how many seconds to come back. Never raises."""
        may_give = self._between_turns.acquire(blocking=False)
        try:
            managed = self._managed()
            pending = False

            def moves(roster: Roster) -> Moves:
                nonlocal pending
                may_move = self._may_move()
                shares = self._shares(managed.units, roster)
                found = plan(self._me.name, shares, roster, may_give=may_give, may_move=may_move)
                pending = found.pending
                # Before another can take them, and whether the ledger's answer comes or not.
                self._forget(found.give)
                return found

            self._ask(managed, moves)
            why = waits(self._me.name, self._roster)
            if why and why != self.failure:
                log.warning("lead_refused", detail=why)
            self.failure = why
            if pending or not managed.units:
                return min(_RETRY_S, self._renew_s)
            others = [s for name, s in self._roster.ends_in_s.items() if name != self._me.name]
            return min(self._renew_s, min(others, default=self._renew_s) + _MOMENT_S)
        except LedgerError as error:
            if not self.failure:
                log.warning("lease_not_asked", detail=str(error))
            self.failure = str(error)
        except Exception as error:
            log.exception("lease_failed")
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            if may_give:
                self._between_turns.release()
        if self._until and since_boot() >= self._until:
            # Never renewed after that: another may have led meanwhile, and a newer epoch says so to every call.
            self._lose(self.failure)
        return min(_RETRY_S, self._renew_s)

    def _ask(self, managed: Managed, moves: Callable[[Roster], Moves]) -> None:
        before = self._leads.epochs.keys()
        for _ in range(2):
            asked_at = since_boot()
            if self._until and asked_at >= self._until:
                self._lose("the heartbeat was not renewed in time")
            me = replace(self._me, ready=asked_at >= self._back_until, settings=managed.settings)
            roster = self._ledger.beat(me, self._leads.numbers, self._lease_s, self._clock.now(), moves)
            # Only now: while the answer was on its way the leases may have run out, and been seen to.
            if not self._until or since_boot() < self._until:
                break
            self._lose("the database answered too late")
        epochs = {subject: one.epoch for subject, one in roster.leases.items() if one.process == me.process}
        gained, lost = epochs.keys() - before, before - epochs.keys()
        self._leads = Leads(epochs, others=roster.leases.keys() - epochs.keys())
        self._until = asked_at + (1.0 - UNUSED_SHARE) * self._lease_s
        self._roster, self._roster_until = roster, asked_at + self._lease_s
        if me.relay and self._elsewhere != (peers := _peers(me, roster, self._elsewhere)):
            self._elsewhere = peers
        if gained or lost:
            log.info("leading", subjects=len(epochs), gained=_named(gained), given_up=_named(lost))
        if not me.ready and not self._has_successor():
            # The agents that were to take over have gone.
            self._back_until = 0.0

    def _forget(self, subjects: Collection[Subject]) -> None:
        if subjects:
            epochs = {one: epoch for one, epoch in self._leads.epochs.items() if one not in subjects}
            self._leads = replace(self._leads, epochs=epochs)

    def _lose(self, why: str) -> None:
        if self._leads.epochs:
            log.warning("lead_lost", subjects=_named(self._leads.epochs), detail=why)
        self._leads, self._until = Leads(others=self._leads.others), 0.0


def _peers(me: AgentRecord, roster: Roster, before: Mapping[Subject, Peer]) -> dict[Subject, Peer]:
    """Return the leaders of the subjects of others; before: the last ones, where lines wait between two leases."""
    of_agent = {}
    for name, agent in roster.agents.items():
        host, _, port = agent.relay.rpartition(":")
        # At an address that is this agent's as well they would come back here, and reach no leader.
        of_agent[name] = Peer(name, host, int(port or 0)) if agent.relay != me.relay else Peer(name)
    between = {subject: peer for subject, peer in before.items() if subject not in roster.leases}
    return between | {subject: of_agent[one.agent] for subject, one in roster.leases.items() if one.agent != me.name}


def _named(subjects: Collection[Subject]) -> str:
    return ", ".join(sorted(subject.path for subject in subjects))


def refuse_if(closed: threading.Event) -> None:
    """Raise Fenced when the lead was closed."""
    if closed.is_set():
        raise Fenced("this process is stopping: no new change is begun, the next start completes open intents")


class BoundLeader:
    """A leadership that is taken up once the AWS account is known and the ledger belongs to it.

    Two agents of one region or account on the ledger of another would carry out its intents on groups of the same name.
    Until then this process leads nowhere and nothing is sent; `look` tries again. An answer of another account takes
    the lead away, and `look` takes it up again when AWS answers for the right one. made: makes the leadership proper,
    which on SQLite takes the lead at once. account: asks AWS for the account; None where nothing on AWS is managed.
    owner: whose the ledger must be, by account; asked with None while that is not known. seen: what answers carried.
    """

    def __init__(
        self,
        ledger: Ledger,
        account: Callable[[], str] | None,
        owner: Callable[[str | None], LedgerOwner],
        made: Callable[[], Leadership],
        seen: Callable[[], AccountCheck] | None = None,
    ) -> None:
        self._ledger, self._account, self._owner, self._made, self._seen = ledger, account, owner, made, seen
        self._leader: Leadership | None = None
        self._closed = threading.Event()
        self.foreign = ""
        """Why the ledger is not this agent's, "" when it is or that is not known."""
        self.failure = ""
        """Why this process does not try to lead yet, "" when it does."""
        self.failure_reason = Reason.LEDGER_UNAVAILABLE

    def start(self) -> None:
        """Try once. LedgerForeign when the ledger belongs to others: then the agent must not start."""
        self._ledger.refuse_unless_owned(self._owner(None))
        self.look()
        if self.foreign:
            raise LedgerForeign(self.foreign)

    def look(self) -> None:
        """Take up the leadership as soon as it is known whose the ledger is; never raises."""
        if self._closed.is_set():
            return
        if self._leader is not None:
            if not self._leads_elsewhere():
                return
            # Given up, so that an agent with the right credentials may lead meanwhile.
            self._leader.stop()
            self._leader = None
        self.failure = self.foreign = ""
        try:
            account = None if self._account is None else self._account()
            self._ledger.bind(self._owner(account))
            if self._seen is not None:
                self._seen().expected = account
            leader = self._made()
            leader.start()
            self._leader = leader
        except LedgerForeign as error:
            self.failure = self.foreign = str(error)
            self.failure_reason = Reason.LEDGER_FOREIGN
        except CloudError as error:
            if error.code == FOREIGN:
                self.failure, self.failure_reason = str(error), Reason.ACCOUNT_FOREIGN
            else:
                self.failure_reason = Reason.CLOUD_UNREADABLE
                self.failure = (
                    f"the AWS account is not known ({error}), so nothing is executed: let the host reach STS, or name "
                    "the account in TRIMTAB_AWS__ACCOUNT"
                )
        except LedgerError as error:
            self.failure = str(error)
            self.failure_reason = Reason.LEDGER_UNAVAILABLE
        if self.failure:
            log.warning("not_leading_yet", detail=self.failure)

    def _leads_elsewhere(self) -> bool:
        """Return whether AWS answers for another account; asks it where no answer carried one for long."""
        if self._account is None or self._seen is None:
            return False
        seen = self._seen()
        if not seen.difference and seen.silent_s() > COMPARED_EVERY_S:
            seen.asked()
            # Without an answer the account is as it was: each reading compares it.
            with contextlib.suppress(CloudError):
                self._account()
        return bool(seen.difference)

    def leads(self) -> Leads:
        """Return the subjects that this process leads right now, with their epochs."""
        return Leads() if self._leader is None else self._leader.leads()

    def leaders(self) -> Mapping[Subject, str]:
        """Return the agent that leads each subject, as far as this process knows."""
        return {} if self._leader is None else self._leader.leaders()

    def trouble(self) -> str:
        """Return why this process leads nothing, "" where that is in order."""
        return self.failure or (self._leader.failure if isinstance(self._leader, LeaseLeader) else "")

    def differences(self) -> Mapping[Subject, str]:
        """Return the subjects without a leader because their settings differ between agents, with both sides."""
        return self._leader.differences() if isinstance(self._leader, LeaseLeader) else {}

    def elsewhere(self) -> Mapping[Subject, Peer]:
        """Return where lines of the subjects of other agents are forwarded."""
        return {} if self._leader is None else self._leader.elsewhere()

    def is_elsewhere(self, subject: Subject) -> bool:
        """Return whether a subject that this process does not lead may be another agent's."""
        return self._leader is not None and self._leader.is_elsewhere(subject)

    def fence(self, epochs: Collection[int]) -> None:
        """Raise Fenced unless this process leads under these epochs."""
        if self._leader is None:
            raise Fenced(self.failure or "it is not known yet whose the ledger is")
        self._leader.fence(epochs)

    def turning(self) -> AbstractContextManager[object]:
        """Return a block in which no subject is given to another agent."""
        return contextlib.nullcontext() if self._leader is None else self._leader.turning()

    def stand_back(self) -> bool:
        """Give all subjects to other agents, where there are some."""
        return self._leader is not None and self._leader.stand_back()

    def close(self) -> None:
        """Let nothing more be done."""
        self._closed.set()
        if self._leader is not None:
            self._leader.close()

    def stop(self) -> None:
        """Give up the lead."""
        self._closed.set()
        if self._leader is not None:
            self._leader.stop()


class Incapacity:
    """How long a leader whose clock is wrong has decided nothing; called by the loop.

    Each lead that it gives away doubles its patience, until its clock is right: two agents with wrong clocks pass the
    lead to each other ever more rarely.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._patience_s = UNDECIDED_S

    def ends_lead(self, report: TurnReport, difference: str, monotonic: float) -> bool:
        """Return whether the lead is to be given away after this turn.

        difference: how the clock differs from AWS's, "" where it agrees.
        """
        if not difference and report.latest:
            # Without a decision nothing was read of AWS: the agent leads nothing, having given all away.
            self._patience_s = UNDECIDED_S
        if not difference or not report.blind:
            self._since = None
            return False
        self._since = monotonic if self._since is None else self._since
        if monotonic - self._since < self._patience_s:
            return False
        self._since, self._patience_s = None, min(2.0 * self._patience_s, LONGEST_PATIENCE_S)
        return True


def account_of(settings: Settings, session: Callable[[], AwsSession]) -> Callable[[], str] | None:
    """Return what asks AWS for the account; None where nothing on AWS is managed.

    An account that the settings name is compared with what AWS answers, and stands alone only while AWS gives no answer
    that carries one. The call raises CloudError: FOREIGN for another account.
    """
    if not manages_aws(settings):
        return None
    named = settings.aws.account

    def ask() -> str:
        aws = session()
        if named is None:
            return str(aws.read("sts", "GetCallerIdentity")["Account"])
        aws.account.expected = named
        shown = False
        # First what the agent needs anyway: the host may not reach STS, and the role may not read groups.
        with _unless_foreign():
            shown = bool(aws.read("autoscaling", "DescribeAutoScalingGroups", MaxRecords=1)["AutoScalingGroups"])
        if not shown:
            with _unless_foreign():
                aws.read("sts", "GetCallerIdentity")
        return named

    return ask


@contextlib.contextmanager
def _unless_foreign() -> Iterator[None]:
    """Let a call fail, unless what failed is that another account answers."""
    try:
        yield
    except CloudError as error:
        if error.code == FOREIGN:
            raise


def region_of(settings: Settings, session: AwsSession) -> str | None:
    """Return the region to which the ledger is bound, None where nothing on AWS is managed."""
    return session.region if manages_aws(settings) else None


def manages_aws(settings: Settings) -> bool:
    """Return whether the settings describe something on AWS to look for."""
    others = (one.on_aws(each) for one in described_subjects() for each in one.of(settings).values())
    return bool(settings.fleets or settings.discovery.enabled or any(others))
