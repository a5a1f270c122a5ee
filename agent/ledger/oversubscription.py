"""What the ledger keeps of pools whose CPU is oversold: their memory, every decision, and what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from agent.autoscaling.state import LoopState
from agent.ledger import codec, identity, journal, state
from agent.ledger.database import Clash, Database
from agent.ledger.schema import oversubscription_decisions as decisions
from agent.oversubscription.choice import ChoiceInputs
from agent.oversubscription.memory import PoolMemory
from agent.oversubscription.publication import Publication
from agent.oversubscription.records import HourDecision, RateDecision
from domain.decisions import Event
from domain.errors import UnknownName

HOUR, REQUEST = "hour", "request"
MEMORY: Final = "oversubscription.memory."
PUBLICATION: Final = "oversubscription.publication."
RAILS: Final = "oversubscription.rails."

T = TypeVar("T")


class AlreadyDecided(Exception):
    """Another process took the number or answered the request meanwhile: look again."""


class OversubscriptionStore:
    """Reads and writes pools; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def memory(self, pool: str) -> PoolMemory:
        """Return what a pool remembers, nothing for one that was never written."""
        return self._state(PoolMemory, f"{MEMORY}{pool}") or PoolMemory()

    def publication(self, pool: str) -> Publication | None:
        """Return the latest publication of a pool."""
        return self._state(Publication, f"{PUBLICATION}{pool}")

    def rails(self, pool: str) -> LoopState:
        """Return what the rails remember of a pool's publications."""
        return self._state(LoopState, f"{RAILS}{pool}") or LoopState()

    def _state(self, kind: type[T], key: str) -> T | None:
        with self._database.read() as connection:
            body = state.get(connection, state.AGENT, key)
        return None if body is None else codec.decode(kind, body)

    def newest_number(self, pool: str) -> int:
        """Return the number of a pool's newest decision, or what a restore lets them go on from, 0 before the first."""
        with self._database.read() as connection:
            query = select(func.max(decisions.c.number)).where(decisions.c.pool == pool)
            there = identity.read(connection)
            return max(connection.execute(query).scalar() or 0, there.first_number if there is not None else 0)

    def find(self, decision_id: str) -> HourDecision | RateDecision | None:
        """Return a decision, None when there is none of that id."""
        query = select(decisions.c.kind, decisions.c.body).where(decisions.c.decision_id == decision_id)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else _decoded(row.kind, row.body)

    def decision(self, decision_id: str) -> HourDecision | RateDecision:
        """Return a decision; UnknownName when there is none of that id."""
        found = self.find(decision_id)
        if found is None:
            raise UnknownName("decision_id", decision_id, "no rate was decided under it; see the newest ones")
        return found

    def inputs(self, decision_id: str) -> ChoiceInputs | None:
        """Return what an hour's rates rest on; None for a decision on a request."""
        query = select(decisions.c.inputs).where(decisions.c.decision_id == decision_id)
        with self._database.read() as connection:
            body = connection.execute(query).scalar()
        return None if body is None else codec.decode(ChoiceInputs, codec.unpack(body))

    def of_request(self, pool: str, request_id: str) -> RateDecision | None:
        """Return what was answered to a request, None when it was never made."""
        query = select(decisions.c.body).where(decisions.c.pool == pool, decisions.c.request_id == request_id)
        with self._database.read() as connection:
            body = connection.execute(query).scalar()
        return None if body is None else codec.decode(RateDecision, codec.unpack(body))

    def newest_hour(self, pool: str) -> HourDecision | None:
        """Return a pool's newest hourly decision."""
        found = [one for one in self.newest(pool, 1, HOUR) if isinstance(one, HourDecision)]
        return found[0] if found else None

    def newest(self, pool: str, limit: int = 20, kind: str | None = None) -> tuple[HourDecision | RateDecision, ...]:
        """Return a pool's decisions, the newest first; of one kind where that is given."""
        query = select(decisions.c.kind, decisions.c.body).where(decisions.c.pool == pool)
        if kind is not None:
            query = query.where(decisions.c.kind == kind)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(decisions.c.number.desc()).limit(limit))
            return tuple(_decoded(row.kind, row.body) for row in rows)

    def requests_since(self, pool: str, since: float) -> tuple[RateDecision, ...]:
        """Return the answers to requests made since then, oldest first."""
        query = select(decisions.c.body).where(
            decisions.c.pool == pool, decisions.c.kind == REQUEST, decisions.c.at >= since
        )
        with self._database.read() as connection:
            bodies = connection.execute(query.order_by(decisions.c.number)).scalars()
            return tuple(codec.decode(RateDecision, codec.unpack(body)) for body in bodies)

    def write_hour(
        self,
        number: int,
        memory: PoolMemory,
        decision: HourDecision,
        inputs: ChoiceInputs,
        events: Sequence[Event],
        *,
        epoch: int,
    ) -> None:
        """Write an hour: decision, what it rests on, the memory after it and events, all or nothing.

        Fenced when `epoch` is over, AlreadyDecided when the number is taken.
        """
        row = _row(number, HOUR, decision.decision_id, decision.pool, decision.at, codec.encode(decision))
        row["inputs"] = codec.pack(codec.encode(inputs))
        body, told = codec.encode(memory), [journal.event_row(event) for event in events]
        try:
            with self._database.write() as connection:
                state.check_epoch(connection, epoch)
                state.put(connection, [(state.AGENT, f"{MEMORY}{decision.pool}", body)])
                connection.execute(insert(decisions), [row])
                journal.add(connection, told)
        except Clash as clash:
            raise AlreadyDecided from clash

    def write_request(self, number: int, decision: RateDecision, events: Sequence[Event] = ()) -> None:
        """Write the answer to a request before it is given; AlreadyDecided when number or request id are taken."""
        row = _row(number, REQUEST, decision.decision_id, decision.pool, decision.at, codec.encode(decision))
        row["request_id"] = decision.request_id or None
        told = [journal.event_row(event) for event in events]
        try:
            with self._database.write() as connection:
                connection.execute(insert(decisions), [row])
                journal.add(connection, told)
        except Clash as clash:
            raise AlreadyDecided from clash

    def write_memory(
        self, pool: str, memory: PoolMemory, events: Sequence[Event] = (), *, epoch: int | None = None
    ) -> None:
        """Write what a pool remembers between its hours; Fenced when an `epoch` is given and over."""
        body, told = codec.encode(memory), [journal.event_row(event) for event in events]
        with self._database.write() as connection:
            if epoch is not None:
                state.check_epoch(connection, epoch)
            state.put(connection, [(state.AGENT, f"{MEMORY}{pool}", body)])
            journal.add(connection, told)

    def write_publication(
        self, publication: Publication | None, events: Sequence[Event], rails: Mapping[str, LoopState], *, epoch: int
    ) -> None:
        """Write how far a publication has come, and what the rails shall remember of it, by pool; Fenced as above."""
        rows = [(state.AGENT, f"{RAILS}{pool}", codec.encode(memory)) for pool, memory in rails.items()]
        if publication is not None:
            rows.append((state.AGENT, f"{PUBLICATION}{publication.pool}", codec.encode(publication)))
        told = [journal.event_row(event) for event in events]
        with self._database.write() as connection:
            state.check_epoch(connection, epoch)
            state.put(connection, rows)
            journal.add(connection, told)


def _row(number: int, kind: str, decision_id: str, pool: str, at: float, body: bytes) -> dict[str, Any]:
    return {
        "decision_id": decision_id,
        "pool": pool,
        "number": number,
        "kind": kind,
        "request_id": None,
        "at": at,
        "body": codec.pack(body),
        "inputs": None,
    }


def _decoded(kind: str, body: bytes) -> HourDecision | RateDecision:
    wanted: type[HourDecision] | type[RateDecision] = HourDecision if kind == HOUR else RateDecision
    return codec.decode(wanted, codec.unpack(body))


def forget(connection: Connection, before: float, most: int) -> int:
    """Remove up to `most` decisions older than `before`; return how many there were."""
    query = select(decisions.c.decision_id).where(decisions.c.at < before).order_by(decisions.c.at).limit(most)
    due = [{"gone": found} for found in connection.execute(query).scalars()]
    if due:
        connection.execute(delete(decisions).where(decisions.c.decision_id == bindparam("gone")), due)
    return len(due)
