"""What the ledger keeps of deferral pools: head, history and jobs; and their decisions.

A pool is read whole and written by difference. Its head has a revision, so that two agents cannot both start from the
same state: who comes second finds that the head moved, reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection, insert, select, update

from agent.decisions import store
from agent.decisions.store import DecisionStore, Record
from agent.deferral.records import COMPARISON, REFUSAL, STEP, Comparison, History, JobRecord, PoolHead, RefusedMessage
from agent.deferral.records import StepDecision as Step
from agent.ledger import Ledger, codec, journal, state
from agent.ledger.database import Clash
from agent.ledger.kept import Kept
from agent.ledger.schema import state as table
from domain.decisions import Event

DEFERRAL: Final = "deferral"
_HEAD: Final = "deferral.head"
_HISTORY: Final = "deferral.history"
_JOB: Final = "deferral.job."

Made = Step | Comparison | RefusedMessage
_KINDS: Final[Mapping[str, type[Made]]] = {STEP: Step, COMPARISON: Comparison, REFUSAL: RefusedMessage}


class Moved(Exception):
    """Another process changed the pool meanwhile: read it again, and decide again."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as the ledger has it. stored: its head as it is stored, None for a pool that was never written."""

    head: PoolHead
    stored: bytes | None
    history: History
    jobs: Mapping[str, JobRecord]


@dataclass(frozen=True, slots=True)
class Change:
    """What is written at once. jobs: by id, None for one that is forgotten. history: None to leave it.

    made: decisions, each with what it was made on, b"" for nothing. notes: events of the journal.
    """

    head: PoolHead
    jobs: Mapping[str, JobRecord | None] = field(default_factory=dict)
    history: History | None = None
    made: Sequence[tuple[Made, bytes]] = ()
    notes: Sequence[Event] = ()


class DeferralStore:
    """Reads and writes pools; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._decisions = DecisionStore(ledger.database)

    def read(self, pool: str) -> PoolState:
        """Return a pool, all of it as of one moment."""
        with self._database.read() as connection:
            stored = _stored_head(connection, pool)
            history = state.get(connection, pool, _HISTORY)
            jobs = [codec.decode(JobRecord, body) for body in state.under(connection, pool, _JOB)]
        head = PoolHead() if stored is None else head_of(stored)
        rows = History() if history is None else codec.decode(History, history)
        return PoolState(head, stored, rows, {job.job_id: job for job in jobs})

    def pools(self) -> tuple[str, ...]:
        """Return the names of the pools that were ever written."""
        with self._database.read() as connection:
            return tuple(name for name, _ in _heads(connection))

    def stored_head(self, pool: str) -> bytes | None:
        """Return a pool's head as it is stored: another one than before says that the pool was written since."""
        with self._database.read() as connection:
            return _stored_head(connection, pool)

    def newest(self, pool: str, limit: int = 20, kind: str | None = None) -> tuple[Made, ...]:
        """Return a pool's decisions, the newest first; of one kind where that is given."""
        found = self._decisions.newest(DEFERRAL, pool, limit=limit, kind=kind)
        return tuple(read_decision(record) for record in found)

    def steps(self, pool: str, since: float | None, until: float | None, most: int = 10_000) -> list[Record]:
        """Return the records of steps with since <= at < until, with what they were made on, oldest first."""
        found = self._decisions.newest(DEFERRAL, pool, limit=most, kind=STEP, since=since, until=until)
        return [self._decisions.get(record.decision_id) for record in reversed(found)]

    def write(self, pool: str, before: bytes | None, change: Change, *, epoch: int | None = None) -> bytes:
        """Write a change to a pool whose head is stored as `before`; return how it is stored now. All or nothing.

        Moved when another process wrote meanwhile; Fenced when an `epoch` is given and over.
        """
        # Encoded before any lock is taken.
        after = codec.pack(codec.encode(change.head))
        put = [(pool, f"{_JOB}{name}", codec.encode(one)) for name, one in change.jobs.items() if one is not None]
        if change.history is not None:
            put.append((pool, _HISTORY, codec.encode(change.history)))
        gone = [f"{_JOB}{name}" for name, one in change.jobs.items() if one is None]
        first = change.head.decisions - len(change.made) + 1
        records = [_record(one, inputs, first + k) for k, (one, inputs) in enumerate(change.made)]
        notes = [journal.event_row(note) for note in change.notes]
        try:
            with self._database.write() as connection:
                if epoch is not None:
                    state.check_epoch(connection, epoch)
                _advance(connection, pool, before, after)
                state.put(connection, put)
                for key in gone:
                    state.remove(connection, pool, key)
                store.add(connection, records)
                journal.add(connection, notes)
        except Clash as clash:
            raise Moved from clash
        return after


def head_of(stored: bytes) -> PoolHead:
    """Return a head from how it is stored."""
    return codec.decode(PoolHead, codec.unpack(stored))


def read_decision(record: Record) -> Made:
    """Return a pool's decision from its record."""
    return codec.decode(_KINDS[record.kind], record.body)


def _stored_head(connection: Connection, pool: str) -> bytes | None:
    found: bytes | None = connection.execute(
        select(table.c.body).where(table.c.fleet == pool, table.c.key == _HEAD)
    ).scalar()
    return found


def _advance(connection: Connection, pool: str, before: bytes | None, after: bytes) -> None:
    if before is None:
        connection.execute(insert(table), [{"fleet": pool, "key": _HEAD, "body": after}])
        return
    here = (table.c.fleet == pool) & (table.c.key == _HEAD) & (table.c.body == before)
    if connection.execute(update(table).where(here).values(body=after)).rowcount != 1:
        raise Moved


def _record(made: Made, inputs: bytes, number: int) -> Record:
    kind = next(name for name, type_of in _KINDS.items() if isinstance(made, type_of))
    return Record(
        decision_id=made.decision_id,
        decision=DEFERRAL,
        subject=made.pool,
        at=made.at,
        body=codec.encode(made),
        inputs=inputs,
        kind=kind,
        number=number,
        changed=isinstance(made, Step) and bool(made.starts) and not made.advice,
    )


def _heads(connection: Connection) -> list[tuple[str, PoolHead]]:
    rows = connection.execute(select(table.c.fleet, table.c.body).where(table.c.key == _HEAD)).all()
    return [(pool, head_of(body)) for pool, body in rows]


def _newest_number(connection: Connection) -> int:
    return max((head.decisions for _, head in _heads(connection)), default=0)


def _number_from(connection: Connection, first: int) -> None:
    for pool, head in _heads(connection):
        body = codec.encode(replace(head, decisions=first, revision=head.revision + 1))
        state.put(connection, [(pool, _HEAD, body)])


KEPT: Final = Kept(DEFERRAL, newest_number=_newest_number, number_from=_number_from)
