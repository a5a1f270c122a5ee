"""Whose ledger it is: leads only where account, region and deployment are those that the ledger is bound to.

Two agents of one region or account on the ledger of another would carry out its intents on groups of the same name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from agent.ledger import Ledger, LedgerOwner
from agent.service.leader import Leadership
from agent.settings import Settings
from collectors.aws import AwsSession
from domain.decisions import Reason
from domain.errors import CloudError, Fenced, LedgerError, LedgerForeign

log = structlog.get_logger(__name__)


class BoundLeader:
    """A leadership that is taken up once the AWS account is known and the ledger belongs to it.

    Until then this process leads nowhere and nothing is sent; `look` tries again. made: makes the leadership proper,
    which on SQLite takes the lead at once. account: asks AWS for the account; None where nothing on AWS is managed.
    owner: whose the ledger must be, by account; asked with None while that is not known.
    """

    def __init__(
        self,
        ledger: Ledger,
        account: Callable[[], str] | None,
        owner: Callable[[str | None], LedgerOwner],
        made: Callable[[], Leadership],
    ) -> None:
        self._ledger, self._account, self._owner, self._made = ledger, account, owner, made
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
        if self._leader is not None or self._closed.is_set():
            return
        self.failure = self.foreign = ""
        try:
            account = None if self._account is None else self._account()
            self._ledger.bind(self._owner(account))
            leader = self._made()
            leader.start()
            self._leader = leader
        except LedgerForeign as error:
            self.failure = self.foreign = str(error)
            self.failure_reason = Reason.LEDGER_FOREIGN
        except CloudError as error:
            self.failure = (
                f"the AWS account is not known ({error}), so nothing is executed: let the host reach STS, or name the "
                "account in TRIMTAB_AWS__ACCOUNT"
            )
            self.failure_reason = Reason.CLOUD_UNREADABLE
        except LedgerError as error:
            self.failure = str(error)
            self.failure_reason = Reason.LEDGER_UNAVAILABLE
        if self.failure:
            log.warning("not_leading_yet", detail=self.failure)

    def epoch(self) -> int | None:
        """Return the epoch under which this process leads right now, None while it does not."""
        return None if self._leader is None else self._leader.epoch()

    def led_by(self) -> str:
        """Return who leads as far as this process knows, "" for nobody."""
        return "" if self._leader is None else self._leader.led_by()

    def fence(self, epoch: int) -> None:
        """Raise Fenced unless this process leads under `epoch`."""
        if self._leader is None:
            raise Fenced(self.failure or "it is not known yet whose the ledger is")
        self._leader.fence(epoch)

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


def account_of(settings: Settings, session: Callable[[], AwsSession]) -> Callable[[], str] | None:
    """Return what finds the AWS account: the settings, else STS; None where nothing on AWS is managed."""
    if not manages_aws(settings):
        return None
    if settings.aws.account is not None:
        named = settings.aws.account
        return lambda: named
    return lambda: str(session().read("sts", "GetCallerIdentity")["Account"])


def region_of(settings: Settings, session: AwsSession) -> str | None:
    """Return the region to which the ledger is bound, None where nothing on AWS is managed."""
    return session.region if manages_aws(settings) else None


def manages_aws(settings: Settings) -> bool:
    """Return whether the settings describe something on AWS to look for."""
    gates = any(cluster.tagged_groups for cluster in settings.clusters.values())
    publishes = any(pool.parameter for pool in settings.pools.values())
    return bool(settings.fleets or settings.discovery.enabled or gates or publishes)
