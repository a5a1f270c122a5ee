"""What the ledger keeps of pools whose CPU is oversold: their memory, and every decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from agent.kernel.effects import EffectStore
from agent.kernel.store import NOTHING, DecisionStore, Record
from agent.kernel.transaction import Write, commit
from agent.ledger import Ledger, codec, state
from agent.ledger.kept import StoredState
from agent.oversubscription import recorded_hours
from agent.oversubscription.choice import ChoiceInputs
from agent.oversubscription.memory import PoolMemory
from agent.oversubscription.records import HourDecision, Publication, RateDecision
from domain.decisions import Event
from domain.subject import AGENT

OVERSUBSCRIPTION: Final = "oversubscription"
HOUR, REQUEST = "hour", "request"
MEMORY: Final = "oversubscription.memory."
_ALL: Final = 2**31 - 1

KEPT: Final = StoredState(OVERSUBSCRIPTION)


def publications(ledger: Ledger) -> EffectStore[Publication]:
    """Return how far each pool's publication has come, by the pool's name."""
    return EffectStore(ledger, Publication, "oversubscription.publication.", (AGENT.name, "oversubscription.rails.{}"))


class OversubscriptionStore:
    """Reads and writes pools; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._decisions = DecisionStore(ledger.database)
        self._publications = publications(ledger)

    def publication(self, pool: str) -> Publication | None:
        """Return the latest publication of a pool."""
        return self._publications.latest(pool)

    def memory(self, pool: str) -> PoolMemory:
        """Return what a pool remembers, nothing for one that was never written."""
        with self._database.read() as connection:
            body = state.get(connection, AGENT.name, f"{MEMORY}{pool}")
        return PoolMemory() if body is None else codec.decode(PoolMemory, body)

    def newest_number(self, pool: str) -> int:
        """Return the number of a pool's newest decision, or what a restore lets them continue from, 0 before any."""
        return self._decisions.newest_number(OVERSUBSCRIPTION, pool)

    def inputs(self, decision_id: str) -> ChoiceInputs | None:
        """Return what an hour's rates rest on; None for a decision on a request."""
        found = self._decisions.find(decision_id)
        return None if found is None or not found.inputs else codec.decode(ChoiceInputs, found.inputs)

    def of_request(self, pool: str, request_id: str) -> RateDecision | None:
        """Return what was answered to a request, None when it was never made."""
        found = self._decisions.answer(OVERSUBSCRIPTION, pool, request_id)
        return None if found is None else codec.decode(RateDecision, found.body)

    def newest_hour(self, pool: str) -> HourDecision | None:
        """Return a pool's newest hourly decision."""
        found = [one for one in self.newest(pool, 1, HOUR) if isinstance(one, HourDecision)]
        return found[0] if found else None

    def newest(self, pool: str, limit: int = 20, kind: str | None = None) -> tuple[HourDecision | RateDecision, ...]:
        """Return a pool's decisions, the newest first; of one kind where that is given."""
        found = self._decisions.newest(OVERSUBSCRIPTION, pool, limit=limit, kind=kind)
        return tuple(read_decision(record) for record in found)

    def hours_since(self, pool: str, since: float) -> tuple[HourDecision, ...]:
        """Return the decisions on hours made since then, oldest first."""
        found = self._decisions.newest(OVERSUBSCRIPTION, pool, limit=_ALL, kind=HOUR, since=since)
        ordered = sorted(found, key=lambda record: record.number or 0)
        return tuple(codec.decode(HourDecision, record.body) for record in ordered)

    def requests_since(self, pool: str, since: float) -> tuple[RateDecision, ...]:
        """Return the answers to requests made since then, oldest first."""
        found = self._decisions.newest(OVERSUBSCRIPTION, pool, limit=_ALL, kind=REQUEST, since=since)
        ordered = sorted(found, key=lambda record: record.number or 0)
        return tuple(codec.decode(RateDecision, record.body) for record in ordered)

    def write_hour(
        self,
        number: int,
        memory: PoolMemory,
        decision: HourDecision,
        inputs: ChoiceInputs,
        events: Sequence[Event],
        *,
        epoch: int,
        learning: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an hour: decision, what it rests on, the memory after it and events, all or nothing.

        learning: the hour's row of `recorded_hours`.

        Fenced when `epoch` is over, Conflict when the number is taken.
        """
        made = _record(HOUR, number, decision, codec.encode(inputs))
        self._write(decision.pool, events, made, memory, epoch, learning)

    def write_request(self, number: int, decision: RateDecision, events: Sequence[Event] = ()) -> None:
        """Write the answer to a request before it is given; Conflict when number or request id are taken."""
        self._write(decision.pool, events, _record(REQUEST, number, decision))

    def write_memory(
        self, pool: str, memory: PoolMemory, events: Sequence[Event] = (), *, epoch: int | None = None
    ) -> None:
        """Write what a pool remembers between its hours; Fenced when an `epoch` is given and over."""
        self._write(pool, events, None, memory, epoch)

    def _write(
        self,
        pool: str,
        events: Sequence[Event],
        made: Record | None,
        memory: PoolMemory | None = None,
        epoch: int | None = None,
        learning: Mapping[str, Any] | None = None,
    ) -> None:
        put = [] if memory is None else [(AGENT.name, f"{MEMORY}{pool}", codec.encode(memory))]

        def learn(connection: Connection) -> None:
            if learning is not None:
                recorded_hours.append(connection, learning)

        commit(self._database, Write(put, (), () if made is None else (made,), events), learn, epoch=epoch)


def read_decision(record: Record) -> HourDecision | RateDecision:
    """Return a pool's decision from its record."""
    wanted: type[HourDecision] | type[RateDecision] = HourDecision if record.kind == HOUR else RateDecision
    return codec.decode(wanted, record.body)


def _record(kind: str, number: int, decision: HourDecision | RateDecision, inputs: bytes = NOTHING) -> Record:
    moved = isinstance(decision, HourDecision) and any(row.rate != row.previous_rate for row in decision.subscribers)
    return Record(
        decision_id=decision.decision_id,
        decision=OVERSUBSCRIPTION,
        subject=decision.pool,
        at=decision.at,
        body=codec.encode(decision),
        inputs=inputs,
        kind=kind,
        number=number,
        request_id=decision.request_id if isinstance(decision, RateDecision) else "",
        about=decision.subscriber if isinstance(decision, RateDecision) else "",
        changed=moved,
    )
