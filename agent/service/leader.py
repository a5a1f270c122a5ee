"""Who may act: the one agent on a SQLite ledger, or the holder of the lease when two share a PostgreSQL ledger."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from agent.kernel.turn import TurnReport
from agent.ledger import Ledger, LedgerOwner
from agent.ledger.postgresql import OtherLease
from agent.settings import Settings
from agent.settings.subjects import described_subjects
from collectors.aws import AwsSession
from collectors.aws_account import FOREIGN, AccountCheck
from domain.clock import Clock, since_boot
from domain.decisions import Reason
from domain.errors import CloudError, Fenced, LedgerError, LedgerForeign

log = structlog.get_logger(__name__)

UNUSED_SHARE: Final = 0.1
"""The last part of a lease is not used: a call that leaves in time should also arrive in time."""
STAND_BACK_LEASES: Final = 3.0
UNDECIDED_S: Final = 300.0
LONGEST_PATIENCE_S: Final = 3600.0
_RETRY_S: Final = 1.0
_MOMENT_S: Final = 0.05
COMPARED_EVERY_S: Final = 300.0
"""AWS is asked for the account after so long without an answer that carries it."""


class Leadership(Protocol):
    """Says whether this process may act, and under which epoch."""

    def start(self) -> None:
        """Begin to try to become, and to stay, the leader; returns after the first attempt."""
        ...

    def epoch(self) -> int | None:
        """Return the epoch under which this process leads right now, None while it does not."""
        ...

    def led_by(self) -> str:
        """Return the leader as far as this process knows, "" for none."""
        ...

    def fence(self, epoch: int) -> None:
        """Raise Fenced unless this process still leads under `epoch`; LedgerUnavailable when that cannot be known."""
        ...

    def stand_back(self) -> None:
        """Give the lead to another agent, where there can be one, and ask for none until that had the time to take it.

        For a leader that cannot decide.
        """
        ...

    def close(self) -> None:
        """Let nothing more be done from here on: `fence` raises, whatever else holds."""
        ...

    def stop(self) -> None:
        """Give up the lead, so that another may take it at once."""
        ...


class SoleLeader:
    """The lead on a SQLite ledger: taken at the start, kept until a newer epoch appears."""

    def __init__(self, ledger: Ledger, owner: str, at: float) -> None:
        self._ledger, self._owner = ledger, owner
        self._epoch = ledger.take_epoch(owner, at)
        self._closed, self._lost = threading.Event(), threading.Event()

    def start(self) -> None:
        """Do nothing: the lead was taken when this was made."""

    def epoch(self) -> int | None:
        """Return the epoch taken at the start, None once it was closed or a newer one was met."""
        return None if self._closed.is_set() or self._lost.is_set() else self._epoch

    def led_by(self) -> str:
        """Return this process while it leads: on a SQLite ledger there is no other agent."""
        return "" if self.epoch() is None else self._owner

    def fence(self, epoch: int) -> None:
        """Raise Fenced when a newer leader exists or this process is stopping."""
        refuse_if(self._closed)
        try:
            self._ledger.check_epoch(epoch)
        except Fenced:
            self._lost.set()
            raise

    def stand_back(self) -> None:
        """Do nothing: there is no other agent."""

    def close(self) -> None:
        """Let nothing more be done."""
        self._closed.set()

    def stop(self) -> None:
        """Do nothing more: the next agent takes a newer epoch without asking."""
        self._closed.set()


@dataclass(frozen=True, slots=True)
class _Lead:
    """The lead under an epoch, until a time since boot at which the lease has certainly not run out yet."""

    epoch: int
    until: float


class LeaseLeader:
    """The lead on a ledger that several agents share: held by a lease that is renewed in a thread of its own.

    The lease runs by the database's clock, so agents' clocks do not matter. This process counts its own part of it on
    the host's clock since boot from BEFORE it asked, and stops acting a tenth earlier: cut off from the database, or
    suspended, it has stopped before another can take over. A lead that was lost is only taken again under a newer
    epoch.
    """

    def __init__(self, ledger: Ledger, owner: str, clock: Clock, lease_s: float, renew_s: float) -> None:
        self._ledger, self._owner, self._clock = ledger, owner, clock
        self._lease_s, self._renew_s = lease_s, renew_s
        self._lead: _Lead | None = None
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._first_wait_s = 0.0
        self._rival_until = 0.0
        self._back_until = 0.0
        self.rival = ""
        """Who had the lease when it was last asked for, "" when that was this process."""
        self.failure = ""
        """Why the database could not be asked the last time, "" when it could."""

    def start(self) -> None:
        """Try to take the lease once, then go on in the background."""
        self._first_wait_s = self._beat()
        self._thread.start()

    def epoch(self) -> int | None:
        """Return the epoch under which this process leads right now, None while it does not."""
        lead, now = self._lead, since_boot()
        leads = lead is not None and self._back_until <= now < lead.until and not self._closed.is_set()
        return lead.epoch if lead is not None and leads else None

    def led_by(self) -> str:
        """Return who holds the lease, "" when it has run out as far as this process knows."""
        if self.epoch() is not None:
            return self._owner
        return self.rival if since_boot() < self._rival_until else ""

    def fence(self, epoch: int) -> None:
        """Raise Fenced unless this process still leads under `epoch`; LedgerUnavailable when the ledger cannot say."""
        refuse_if(self._closed)
        self._refuse_unless_held(epoch)
        self._ledger.check_epoch(epoch)
        # The answer may have taken its time.
        self._refuse_unless_held(epoch)

    def stand_back(self) -> None:
        """Lead no more from now on, give the lease up with the next beat, and ask for none for some leases."""
        self._back_until = since_boot() + STAND_BACK_LEASES * self._lease_s

    def close(self) -> None:
        """Let nothing more be done; the lease is kept until `stop`."""
        self._closed.set()

    def stop(self) -> None:
        """Give the lease up, so that another agent takes over at once."""
        self._closed.set()
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(2.0 * self._renew_s)
        lead, self._lead = self._lead, None
        if lead is not None:
            try:
                self._ledger.give_up_lease(lead.epoch)
            except LedgerError as error:
                log.warning("lease_not_given_up", epoch=lead.epoch, detail=f"it runs out by itself: {error}")

    def _refuse_unless_held(self, epoch: int) -> None:
        if self.epoch() != epoch:
            raise Fenced(f"the lease under epoch {epoch} is over: this process must not act until it leads again")

    def _run(self) -> None:
        wait_s = self._first_wait_s
        while not self._ended.wait(wait_s):
            wait_s = self._beat()

    def _beat(self) -> float:
        """Renew the lease or try to take it; return after how many seconds to come back. Never raises."""
        lead = self._lead
        try:
            if since_boot() < self._back_until:
                if lead is not None:
                    self._lose(lead, "it was given away")
                    self._ledger.give_up_lease(lead.epoch)
                return self._renew_s
            if lead is not None:
                return self._renew(lead)
            return self._take()
        except LedgerError as error:
            if not self.failure:
                log.warning("lease_not_asked", detail=str(error))
            self.failure = str(error)
        except Exception as error:
            log.exception("lease_failed")
            self.failure = f"{type(error).__name__}: {error}"
        if lead is not None and since_boot() >= lead.until:
            # Never renewed after that: another may have led meanwhile, and a newer epoch says so to every call.
            self._lose(lead, self.failure)
        return min(_RETRY_S, self._renew_s)

    def _renew(self, lead: _Lead) -> float:
        asked_at = since_boot()
        if asked_at >= lead.until:
            self._lose(lead, "it was not renewed in time")
            return self._take()
        if not self._ledger.renew_lease(lead.epoch, self._lease_s):
            self._lose(lead, "another agent has taken over")
            return self._take()
        self.failure = ""
        # Only now: while the answer was on its way the lead may have run out, and been seen to.
        if since_boot() < lead.until:
            self._lead = _Lead(lead.epoch, self._until(asked_at))
            return self._renew_s
        self._lose(lead, "the database answered too late")
        return self._take()

    def _take(self) -> float:
        asked_at = since_boot()
        answer = self._ledger.take_lease(self._owner, self._lease_s, self._clock.now())
        self.failure = ""
        if isinstance(answer, OtherLease):
            if self.rival != answer.owner:
                log.info("standing_by", leader=answer.owner, remaining_s=round(answer.remaining_s, 3))
            self.rival = answer.owner
            self._rival_until = asked_at + answer.remaining_s
            return min(self._renew_s, answer.remaining_s + _MOMENT_S)
        self.rival = ""
        self._lead = _Lead(answer.epoch, self._until(asked_at))
        log.info("leading", epoch=answer.epoch, lease_s=self._lease_s)
        return self._renew_s

    def _lose(self, lead: _Lead, why: str) -> None:
        self._lead = None
        log.warning("lead_lost", epoch=lead.epoch, detail=why)

    def _until(self, asked_at: float) -> float:
        return asked_at + (1.0 - UNUSED_SHARE) * self._lease_s


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

    def epoch(self) -> int | None:
        """Return the epoch under which this process leads right now, None while it does not."""
        return None if self._leader is None else self._leader.epoch()

    def led_by(self) -> str:
        """Return the leader as far as this process knows, "" for none."""
        return "" if self._leader is None else self._leader.led_by()

    def fence(self, epoch: int) -> None:
        """Raise Fenced unless this process leads under `epoch`."""
        if self._leader is None:
            raise Fenced(self.failure or "it is not known yet whose the ledger is")
        self._leader.fence(epoch)

    def stand_back(self) -> None:
        """Give the lead to another agent, where there can be one."""
        if self._leader is not None:
            self._leader.stand_back()

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
        if not difference:
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
