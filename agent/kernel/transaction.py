"""The transaction of a decision: read a subject's stored state, work on it, write it under the head that was read.

read the head --> work --> write: epoch current? head unchanged? --> done
^                         |
+------- Conflict --------+ another process wrote the subject
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, insert, select, update

from agent.kernel import store
from agent.kernel.store import Record
from agent.ledger import codec, journal, state
from agent.ledger.database import Clash, Database
from agent.ledger.schema import state as table
from domain.decisions import Event
from domain.errors import LedgerUnavailable

MAX_RETRIES: Final = 50
"""Attempts on concurrent updates; each takes some milliseconds."""

T = TypeVar("T")
H = TypeVar("H")


class Conflict(Exception):
    """Another process changed the subject meanwhile: read it again, and decide again."""


def retried(subject: str, attempt: Callable[[], T]) -> T:
    """Return the result of an attempt, made again on each Conflict; LedgerUnavailable after too many in a row.

    subject: with its word, such as "pool web".
    """
    for _ in range(MAX_RETRIES):
        with contextlib.suppress(Conflict):
            return attempt()
    raise LedgerUnavailable(f"{subject}: {MAX_RETRIES} concurrent updates in a row; retry the request")


@dataclass(frozen=True, slots=True)
class Write:
    """The rows of one transaction. put: (owner, key, canonical JSON) of states; removed: (owner, key) of states.

    records: decisions; notes: events of the journal.
    """

    put: Sequence[tuple[str, str, bytes]] = ()
    removed: Sequence[tuple[str, str]] = ()
    records: Sequence[Record] = ()
    notes: Sequence[Event] = ()


def _nothing(connection: Connection) -> None:
    """Write no other rows."""


def commit(
    database: Database, write: Write, other: Callable[[Connection], None] = _nothing, *, epoch: int | None = None
) -> None:
    """Write rows, all or nothing. other: writes first, such as the head or rows of other tables.

    Conflict when another process wrote meanwhile, Fenced when an `epoch` is given and over, LedgerUnavailable.
    """
    # Encoded before any lock is taken.
    notes = [journal.event_row(note) for note in write.notes]
    try:
        with database.write() as connection:
            if epoch is not None:
                state.check_epoch(connection, epoch)
            other(connection)
            state.put(connection, write.put)
            for owner, key in write.removed:
                state.remove(connection, owner, key)
            store.add(connection, write.records)
            journal.add(connection, notes)
    except Clash as clash:
        # Two with one number or request id at the same moment: the second gets the error here.
        raise Conflict from clash


def numbered(records: Sequence[Record], last: int) -> list[Record]:
    """Return records with the numbers that end at `last`."""
    first = last - len(records) + 1
    return [replace(record, number=first + k) for k, record in enumerate(records)]


@dataclass(frozen=True, slots=True)
class Heads(Generic[H]):
    """The heads of a decision's subjects: a state under `key`, of the type `kind`, replaced by compare-and-swap.

    A head counts its subject's decisions in `decisions`, and its writes in `revision` where it has one.
    """

    key: str
    kind: type[H]

    def stored(self, connection: Connection, subject: str) -> bytes | None:
        """Return a head as stored, None before the first write; another value than before is another write."""
        query = select(table.c.body).where(table.c.owner == subject, table.c.key == self.key)
        found: bytes | None = connection.execute(query).scalar()
        return found

    def decoded(self, stored: bytes | None) -> H:
        """Return a stored head, an empty one for None."""
        return self.kind() if stored is None else codec.decode(self.kind, codec.unpack(stored))

    def encoded(self, head: H) -> bytes:
        """Return a head as it is stored."""
        return codec.pack(codec.encode(head))

    def swap(self, connection: Connection, subject: str, before: bytes | None, after: bytes) -> None:
        """Replace the stored head `before` by `after`; Conflict when it is another one."""
        if before is None:
            connection.execute(insert(table), [{"owner": subject, "key": self.key, "body": after}])
            return
        here = (table.c.owner == subject) & (table.c.key == self.key) & (table.c.body == before)
        if connection.execute(update(table).where(here).values(body=after)).rowcount != 1:
            raise Conflict

    def all(self, connection: Connection) -> list[tuple[str, H]]:
        """Return every subject with its head."""
        rows = connection.execute(select(table.c.owner, table.c.body).where(table.c.key == self.key)).all()
        return [(subject, self.decoded(body)) for subject, body in rows]

    def newest_number(self, connection: Connection) -> int:
        """Return the largest number of a decision, 0 before the first."""
        heads: list[tuple[str, Any]] = list(self.all(connection))
        return max((head.decisions for _, head in heads), default=0)

    def number_from(self, connection: Connection, first: int) -> None:
        """Let the numbers of decisions continue above `first`."""
        heads: list[tuple[str, Any]] = list(self.all(connection))
        for subject, head in heads:
            revised = {"revision": head.revision + 1} if hasattr(head, "revision") else {}
            body = codec.encode(replace(head, decisions=first, **revised))
            state.put(connection, [(subject, self.key, body)])
