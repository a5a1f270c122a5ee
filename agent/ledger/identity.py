"""Which ledger this is and how far it has come: what tells it from another one and from an older copy of itself.

The generation grows with each transaction that writes, so a copy that was put in the place of a ledger shows by it.
`restore` leaps by INCARNATION, beyond whatever was written since the copy was made, so that every agent takes the
restored ledger for newer than what it remembers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, bindparam, func, insert, inspect, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from agent.ledger.schema import identity as table
from agent.ledger.schema import leader

INCARNATION: Final = 2**32
NUMBERS: Final = 1_000_000
"""Decisions are numbered anew from so many times the restores on, so that none of what a copy lacks comes again."""
_LOW: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """What SQLite keeps of an identity in the header of its file: `application_id` and `user_version`."""

    application: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """A ledger's random id, made with it, and its generation: how many transactions wrote to it."""

    ledger_id: str
    generation: int

    @property
    def incarnation(self) -> int:
        """How often it was restored."""
        return self.generation // INCARNATION

    @property
    def first_number(self) -> int:
        """The number above which decisions are numbered since the last restore, 0 before the first."""
        return self.incarnation * NUMBERS

    @property
    def mark(self) -> Mark:
        """What the header of a SQLite file shows once this generation was folded into it."""
        application = zlib.crc32(f"{self.ledger_id}:{self.incarnation}".encode()) & _LOW
        return Mark(application or 1, self.generation & _LOW)


@dataclass(frozen=True, slots=True)
class LedgerOwner:
    """Whose agents a ledger belongs to; account and region are None where nothing on AWS is managed."""

    account: str | None
    region: str | None
    deployment: str | None


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """What a process remembers of a ledger: its identity, and the newest epoch that it took and as which owner."""

    identity: Identity
    epoch: int = 0
    owner: str = ""


def read(connection: Connection) -> Identity | None:
    """Return the ledger's identity, None when it is older than identities are."""
    if not inspect(connection).has_table(table.name):
        return None
    row = connection.execute(select(table.c.ledger_id, table.c.generation)).first()
    return None if row is None else Identity(row.ledger_id, row.generation)


# Built once: every transaction that writes begins with it.
_ADVANCE: Final = (
    update(table).values(generation=table.c.generation + 1).returning(table.c.ledger_id, table.c.generation)
)


def advance(connection: Connection) -> Identity:
    """Count one more transaction that writes, and return the identity that it leads to."""
    row = connection.execute(_ADVANCE).one()
    return Identity(row.ledger_id, row.generation)


def put(connection: Connection, there: Identity) -> None:
    """Write the identity in the place of the one there."""
    if not connection.execute(update(table).values(ledger_id=there.ledger_id, generation=there.generation)).rowcount:
        connection.execute(insert(table), [{"ledger_id": there.ledger_id, "generation": there.generation}])


def stamp(connection: Connection, there: Identity) -> None:
    """Write the mark into the header of a SQLite file, so that every transaction's log holds it."""
    if connection.dialect.name == "sqlite":
        mark, cursor = there.mark, connection.connection.cursor()
        for pragma in (f"application_id = {mark.application}", f"user_version = {mark.version}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


# Asked before each call that changes something, and so kept compiled (`Database.fetch`).
_newest_of_all = select(func.max(leader.c.epoch)).where(leader.c.subject == "").scalar_subquery()
WITH_LEAD: Final = select(table.c.ledger_id, table.c.generation, leader.c.epoch, leader.c.owner).select_from(
    table.outerjoin(leader, leader.c.epoch == _newest_of_all)
)
# Of each of these epochs, its owner, its subject, and the newest epoch of that.
_newer = leader.alias("newer")
_newest_of_subject = select(func.max(_newer.c.epoch)).where(_newer.c.subject == leader.c.subject).scalar_subquery()
EPOCHS: Final = select(leader.c.epoch, leader.c.owner, leader.c.subject, _newest_of_subject).where(
    leader.c.epoch == func.any(bindparam("epochs", type_=ARRAY(BigInteger)))
)


def lead_of(rows: Sequence[tuple[Any, ...]]) -> tuple[Identity | None, int, str]:
    """Return identity, newest epoch of all subjects and its owner, by WITH_LEAD; None, 0 and "" where there is none."""
    if not rows:
        return None, 0, ""
    ledger_id, generation, epoch, owner = rows[0]
    return Identity(ledger_id, generation), epoch or 0, owner or ""


def owned_by(connection: Connection) -> LedgerOwner:
    """Return whom the ledger is bound to, with None for what it was never bound to."""
    row = connection.execute(select(table.c.account, table.c.region, table.c.deployment)).one()
    return LedgerOwner(row.account, row.region, row.deployment)


def bind(connection: Connection, owner: LedgerOwner) -> None:
    """Write whom the ledger is bound to."""
    values = {"account": owner.account, "region": owner.region, "deployment": owner.deployment}
    connection.execute(update(table).values(values))


def difference(known: KnownLedger, there: Identity | None, owner: str | None) -> str:
    """Return how a ledger differs from what is remembered of it, "" when it is that one or has gone on from there.

    owner: of the remembered epoch there; None when that was not looked up.
    """
    before = known.identity
    if there is None:
        return "it has no identity, as a new ledger or one of an older version"
    if there.ledger_id != before.ledger_id:
        return f"it is another ledger ({there.ledger_id[:8]}, not {before.ledger_id[:8]})"
    if there.generation < before.generation:
        return (
            f"it is an older copy: its generation is {there.generation}, this agent has already seen "
            f"{before.generation}"
        )
    if owner is not None and known.epoch and there.incarnation == before.incarnation and owner != known.owner:
        led = f"was led by {owner}" if owner else "had no leader"
        return f"it has another history: epoch {known.epoch} {led} there, not by {known.owner}"
    return ""


def owner_of(connection: Connection, epoch: int) -> str:
    """Return who took an epoch, "" when it was never taken."""
    return connection.execute(select(leader.c.owner).where(leader.c.epoch == epoch)).scalar() or ""
