"""The lease on the lead among agents that share a PostgreSQL ledger: taken, renewed and given up in its own time.

Every time here is the database's: agents' clocks may differ by any amount. Each function runs in a write transaction,
of which there is one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from agent.ledger import state
from agent.ledger.postgresql import database_now
from agent.ledger.schema import lease


@dataclass(frozen=True, slots=True)
class Taken:
    """The lease is ours, under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Held:
    """Another has the lease, for so many more seconds unless it renews it."""

    owner: str
    remaining_s: float


def take(connection: Connection, owner: str, lease_s: float, at: float) -> Taken | Held:
    """Take the lease for `lease_s` if nobody has it, under a new epoch; `at`, our own time, is for people to read."""
    there = holder(connection)
    if there is not None and there.owner != owner:
        return there
    now = database_now(connection)
    epoch = state.add_epoch(connection, owner, at)
    connection.execute(delete(lease))
    connection.execute(insert(lease), [{"epoch": epoch, "owner": owner, "expires_at": now + lease_s}])
    return Taken(epoch)


def holder(connection: Connection) -> Held | None:
    """Return who has the lease now, None when nobody does."""
    now = database_now(connection)
    there = connection.execute(select(lease)).first()
    return None if there is None or there.expires_at <= now else Held(there.owner, there.expires_at - now)


def renew(connection: Connection, epoch: int, lease_s: float) -> bool:
    """Hold the lease for `lease_s` from now on and say whether it was still ours."""
    if state.newest_epoch(connection) != epoch:
        return False
    expires_at = database_now(connection) + lease_s
    renewed = connection.execute(update(lease).where(lease.c.epoch == epoch).values(expires_at=expires_at))
    return renewed.rowcount > 0


def give_up(connection: Connection, epoch: int) -> None:
    """Let another take the lease at once."""
    connection.execute(delete(lease).where(lease.c.epoch == epoch))
