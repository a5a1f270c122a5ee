"""Forgetting: removes what is older than the agent keeps, in short transactions, and gives back the space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select

from agent.ledger import dictionaries
from agent.ledger.database import Database
from agent.ledger.journal import CLOSED, Kind
from agent.ledger.kept import StoredState
from agent.ledger.schema import decisions, intents, journal
from domain.errors import BadInput

BATCH: Final = 1000
_PAGES_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Compaction:
    """What retention removed: journal rows, bytes given back to the disk, and whether nothing more is due."""

    rows: int
    bytes: int
    finished: bool


def compact(
    database: Database,
    now: float,
    keep_s: float,
    kept: Sequence[StoredState],
    *,
    longer_s: Mapping[str, float],
    batch: int,
    batches: int | None,
) -> Compaction:
    """Remove rows older than `keep_s` seconds before `now`, oldest first; see Ledger.compact."""
    if not keep_s > 0.0:
        raise BadInput("keep_s", keep_s, "give how many seconds of history to keep, more than 0")
    if batch < 1:
        raise BadInput("batch", batch, "give how many rows to remove at a time, at least 1")
    size_before = _size(database)
    removed = unused_removed = done = 0
    finished = False
    while not finished and (batches is None or done < batches):
        with database.write() as connection:
            rows = _forget(connection, now - keep_s, batch)
            if rows < batch:
                rows += _forget_decisions(connection, now - keep_s, batch - rows)
            for each in kept:
                if rows < batch:
                    rows += each.forget(connection, now - longer_s.get(each.name, keep_s), batch - rows)
            # Last: by then no decision that is due uses one.
            unused = dictionaries.forget(connection, now - keep_s, batch - rows) if rows < batch else 0
        removed += rows
        unused_removed += unused
        done += 1
        finished = rows + unused < batch
    if removed or unused_removed:
        _give_back(database)
    return Compaction(removed, max(0, size_before - _size(database)), finished)


def _forget(connection: Connection, before: float, batch: int) -> int:
    # Closed intents go first: what is then still referred to by an intent stays, however old.
    connection.execute(delete(intents).where(intents.c.state == CLOSED, intents.c.closed_at < before))
    last_settings = select(func.max(journal.c.seq)).where(journal.c.kind == Kind.SETTINGS.value).scalar_subquery()
    held = exists().where((intents.c.intent_id == journal.c.ref) | (intents.c.decision_id == journal.c.ref))
    due = connection.execute(
        select(journal.c.seq, journal.c.kind, journal.c.ref)
        .where(journal.c.at < before, ~held, func.coalesce(last_settings, 0) != journal.c.seq)
        .order_by(journal.c.at)
        .limit(batch)
    ).all()
    if due:
        # One row at a time by one statement: a list of another length is another statement each time, and each of those
        # stays in the connection's cache with as many parameters.
        gone = [{"gone": row.ref} for row in due if row.kind == Kind.DECISION]
        if gone:
            connection.execute(delete(decisions).where(decisions.c.decision_id == bindparam("gone")), gone)
        connection.execute(delete(journal).where(journal.c.seq == bindparam("gone")), [{"gone": r.seq} for r in due])
    return len(due)


def _forget_decisions(connection: Connection, before: float, most: int) -> int:
    """Remove decisions whose body stands with them; one whose body is in the journal goes with its journal row."""
    open_or_kept = exists().where(intents.c.decision_id == decisions.c.decision_id)
    query = select(decisions.c.decision_id).where(decisions.c.at < before, decisions.c.body.is_not(None), ~open_or_kept)
    due = [{"gone": found} for found in connection.execute(query.order_by(decisions.c.at).limit(most)).scalars()]
    if due:
        connection.execute(delete(decisions).where(decisions.c.decision_id == bindparam("gone")), due)
    return len(due)


def _give_back(database: Database) -> None:
    # PostgreSQL reuses the space by itself.
    if not database.sqlite:
        return
    free, free_before = _free_pages(database), None
    # A file that was not made by us may not shrink: it reuses its free pages, and asking again would never end.
    while free and (free_before is None or free < free_before):
        database.pragma(f"incremental_vacuum({_PAGES_AT_ONCE})")
        # Folds the write-ahead log back each time: otherwise it would grow by as much as the file shrinks.
        database.pragma("wal_checkpoint(TRUNCATE)")
        free, free_before = _free_pages(database), free


def _free_pages(database: Database) -> int:
    return int(database.pragma("freelist_count")[0][0])


def _size(database: Database) -> int:
    if database.path is None:
        return 0
    files = (database.path, database.path.with_name(database.path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
