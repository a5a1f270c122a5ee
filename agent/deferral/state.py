"""What the ledger keeps of deferral pools: head, history and jobs; and their decisions.

A pool is read whole and written by difference. Its head has a revision, so that two agents cannot both start from the
same state: the second one gets a Conflict, reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent.deferral.records import COMPARISON, REFUSAL, STEP, Comparison, History, JobRecord, PoolHead, RefusedMessage
from agent.deferral.records import StepDecision as Step
from agent.kernel.store import DecisionStore, Record
from agent.kernel.transaction import Heads, Write, commit, numbered
from agent.ledger import Ledger, codec, state
from agent.ledger.kept import StoredState
from domain.decisions import Event

DEFERRAL: Final = "deferral"
HEADS: Final = Heads("deferral.head", PoolHead)
_HISTORY: Final = "deferral.history"
_JOB: Final = "deferral.job."

Made = Step | Comparison | RefusedMessage
_KINDS: Final[Mapping[str, type[Made]]] = {STEP: Step, COMPARISON: Comparison, REFUSAL: RefusedMessage}


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
            stored = HEADS.stored(connection, pool)
            history = state.get(connection, pool, _HISTORY)
            jobs = [codec.decode(JobRecord, body) for body in state.under(connection, pool, _JOB)]
        rows = History() if history is None else codec.decode(History, history)
        return PoolState(HEADS.decoded(stored), stored, rows, {job.job_id: job for job in jobs})

    def pools(self) -> tuple[str, ...]:
        """Return the names of the pools that were ever written."""
        with self._database.read() as connection:
            return tuple(name for name, _ in HEADS.all(connection))

    def stored_head(self, pool: str) -> bytes | None:
        """Return a pool's head as it is stored: another one than before says that the pool was written since."""
        with self._database.read() as connection:
            return HEADS.stored(connection, pool)

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

        Conflict when another process wrote meanwhile; Fenced when an `epoch` is given and over.
        """
        after = HEADS.encoded(change.head)
        put = [(pool, f"{_JOB}{name}", codec.encode(one)) for name, one in change.jobs.items() if one is not None]
        if change.history is not None:
            put.append((pool, _HISTORY, codec.encode(change.history)))
        gone = [(pool, f"{_JOB}{name}") for name, one in change.jobs.items() if one is None]
        records = numbered([_record(one, inputs) for one, inputs in change.made], change.head.decisions)
        write = Write(put, gone, records, change.notes)
        commit(self._database, write, lambda c: HEADS.swap(c, pool, before, after), epoch=epoch)
        return after


def read_decision(record: Record) -> Made:
    """Return a pool's decision from its record."""
    return codec.decode(_KINDS[record.kind], record.body)


def _record(made: Made, inputs: bytes) -> Record:
    kind = next(name for name, type_of in _KINDS.items() if isinstance(made, type_of))
    return Record(
        decision_id=made.decision_id,
        decision=DEFERRAL,
        subject=made.pool,
        at=made.at,
        body=codec.encode(made),
        inputs=inputs,
        kind=kind,
        changed=isinstance(made, Step) and bool(made.starts) and not made.advice,
    )


KEPT: Final = StoredState(DEFERRAL, newest_number=HEADS.newest_number, number_from=HEADS.number_from)
