"""What the ledger keeps of placement pools: head, inventory, hosts, reservations; and their decisions.

A pool is read whole and written by difference. Its head has a revision, so that two agents cannot both start from the
same state: the second one gets a Conflict, reads again and decides again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import select

from agent.kernel.store import DecisionStore, Record
from agent.kernel.transaction import Heads, Write, commit, numbered
from agent.ledger import Ledger, codec, journal, state
from agent.ledger.kept import StoredState
from agent.ledger.schema import journal as journal_table
from agent.placement.records import (
    COMPARISON,
    GIVEN_BACK,
    LIFETIME,
    MOVE,
    REQUEST,
    Cause,
    Comparison,
    Ended,
    HostRecord,
    MoveDecision,
    PlacementDecision,
    PoolHead,
    Reservation,
    given_back,
)
from domain.decisions import Event, Reason
from domain.rules.placement.lifetimes import LEAST_LEFT_S, first_sums, learn, ln_of

PLACEMENT: Final = "placement"
MOST_EVENTS: Final = 10**7
TEACHING: Final = 20_000
"""Events of ends from which lost sums are made: older ones have a weight below 0.9995^20000 = 5e-5."""
ENDED: Final = "ended"
"""Name of the containers that ended in the data of an event."""
HEADS: Final = Heads("placement.head", PoolHead)
_INVENTORY: Final = "placement.inventory"
_OVER_HTTP: Final = "placement.over-http"
_HOST: Final = "placement.host."
_RESERVATION: Final = "placement.reservation."

Made = PlacementDecision | MoveDecision | Comparison
_KINDS: Final[Mapping[str, type[Made]]] = {
    REQUEST: PlacementDecision,
    MOVE: MoveDecision,
    COMPARISON: Comparison,
}


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as the ledger has it. stored: its head as it is stored, None for a pool that was never written.

    inventory: the document in force, None before the first. over_http: those of its applications that came over HTTP.
    """

    head: PoolHead
    stored: bytes | None
    inventory: Mapping[str, Any] | None
    hosts: Mapping[str, HostRecord]
    reservations: Mapping[str, Reservation]
    over_http: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """What is written at once. head: None to leave it as it is. hosts, reservations: by name, None for one that ends.

    inventory: the new document, None to leave the one in force. over_http: which of its applications came over HTTP,
    None to leave them as they are. made: decisions; notes: events of the journal. open_hosts: after it, None for
    those of the book that it was made on.
    """

    head: PoolHead | None = None
    hosts: Mapping[str, HostRecord | None] = field(default_factory=dict)
    reservations: Mapping[str, Reservation | None] = field(default_factory=dict)
    inventory: Mapping[str, Any] | None = None
    over_http: frozenset[str] | None = None
    made: Sequence[Made] = ()
    notes: Sequence[Event] = ()
    open_hosts: int | None = None


class PlacementStore:
    """Reads and writes pools; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._decisions = DecisionStore(ledger.database)

    def read(self, pool: str) -> PoolState:
        """Return a pool, all of it as of one moment."""
        with self._database.read() as connection:
            stored = HEADS.stored(connection, pool)
            inventory = state.get(connection, pool, _INVENTORY)
            over_http = state.get(connection, pool, _OVER_HTTP)
            hosts = state.under(connection, pool, _HOST)
            held = state.under(connection, pool, _RESERVATION)
        records = (codec.decode(HostRecord, body) for body in hosts)
        reservations = (codec.decode(Reservation, body) for body in held)
        head = HEADS.decoded(stored)
        if stored is not None and not head.sums:
            # An earlier version that wrote the head dropped them.
            head = replace(head, sums=self._learnt(pool))
        return PoolState(
            replace(head, default_policy=LIFETIME) if stored is None else head,
            stored,
            None if inventory is None else codec.decode_mapping(inventory),
            {one.name: one for one in records},
            {one.request_id: one for one in reservations},
            frozenset() if over_http is None else frozenset(codec.decode_mapping(over_http)["applications"]),
        )

    def _learnt(self, pool: str) -> tuple[float, ...]:
        """Return the sums of the calibration by the recorded ends, empty without any that teaches."""
        sums, before = first_sums(), first_sums().tolist()
        for one in self.lives_between(pool, 0.0, math.inf, TEACHING)[0]:
            if one.cause is Cause.RELEASED and None not in (one.lifetime_s, one.began):
                life_s = one.ended - (one.began or 0.0)
                for _ in one.containers if life_s >= 0.0 else ():
                    learn(sums, ln_of(one.lifetime_s), math.log(max(life_s, LEAST_LEFT_S)))
        return () if sums.tolist() == before else tuple(sums.tolist())

    def stored_head(self, pool: str) -> bytes | None:
        """Return a pool's head as it is stored: another one than before says that the pool was written since."""
        with self._database.read() as connection:
            return HEADS.stored(connection, pool)

    def decision(self, pool: str, request_id: str) -> PlacementDecision | None:
        """Return what was decided on a request, None when it was never made."""
        found = self._decisions.answer(PLACEMENT, pool, request_id)
        return None if found is None else codec.decode(PlacementDecision, found.body)

    def newest(self, pool: str, limit: int = 20, kind: str | None = None, about: str | None = None) -> tuple[Made, ...]:
        """Return a pool's decisions, the newest first; of one kind, or on one application, where that is given."""
        found = self._decisions.newest(PLACEMENT, pool, limit=limit, kind=kind, about=about)
        return tuple(read_decision(record) for record in found)

    def requests_between(self, pool: str, since: float, until: float, most: int = 10_000) -> list[PlacementDecision]:
        """Return the decisions on requests with since <= at < until, oldest first; of more than `most` the newest."""
        found = self._decisions.newest(PLACEMENT, pool, limit=most, kind=REQUEST, since=since, until=until)
        return [codec.decode(PlacementDecision, record.body) for record in reversed(found)]

    def ended_between(self, pool: str, since: float, until: float) -> list[tuple[float, str, int, Cause]]:
        """Return the containers that ended with since <= at < until, oldest first: time, request, number and cause.

        Events of earlier versions have the number in their words, and omit containers that were lost with a host.
        """
        found = []
        for at, request, reason, body in self._events(pool, since, until):
            held = body.get("data", {}).get(ENDED)
            if held is not None:
                found += [(at, one["request_id"], len(one["containers"]), Cause(one["cause"])) for one in held]
            elif reason in GIVEN_BACK:
                found.append((at, request, given_back(str(body["detail"])), GIVEN_BACK[reason]))
        return found

    def lives_between(
        self, pool: str, since: float, until: float, most: int = MOST_EVENTS
    ) -> tuple[list[Ended], float]:
        """Return the containers that ended with since <= at < until, oldest first; earlier versions recorded none.

        Of more than `most` events the newest. The time is that from which on all are among them.
        """
        events = self._events(pool, since, until, most)
        found = (one for _, _, _, body in events for one in body.get("data", {}).get(ENDED, ()))
        ended = [codec.decode(Ended, codec.encode_mapping(one)) for one in found]
        return ended, since if len(events) < most else events[0][0]

    def _events(
        self, pool: str, since: float, until: float, most: int = MOST_EVENTS
    ) -> list[tuple[float, str, Reason, Mapping[str, Any]]]:
        """Return the events after which containers run no more: time, subject (`about`), reason and body."""
        reasons = (*GIVEN_BACK, Reason.HOST_FAILED, Reason.CONTAINERS_LOST)
        table = journal_table.c
        query = (
            select(table.at, table.ref, table.reason, table.body)
            .where(table.kind == journal.Kind.EVENT.value, table.decision.in_(["", PLACEMENT]), table.subject == pool)
            .where(table.reason.in_([reason.value for reason in reasons]))
            .where(table.at >= since, table.at < until)
            .order_by(table.seq.desc())
            .limit(most)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [
            (row.at, row.ref, Reason(row.reason), codec.decode_mapping(codec.unpack(row.body)))
            for row in reversed(rows)
        ]

    def write(
        self, pool: str, before: bytes | None, head: PoolHead, change: Change, *, epoch: int | None = None
    ) -> bytes:
        """Write a head, and a change, of a pool whose head is stored as `before`; return how it is stored now.

        Conflict when another process wrote meanwhile; Fenced when an `epoch` is given and over.
        """
        after = HEADS.encoded(head)
        put = [(pool, f"{_HOST}{name}", codec.encode(one)) for name, one in change.hosts.items() if one is not None]
        put += [
            (pool, f"{_RESERVATION}{name}", codec.encode(one))
            for name, one in change.reservations.items()
            if one is not None
        ]
        if change.inventory is not None:
            put.append((pool, _INVENTORY, codec.encode_mapping(change.inventory)))
        if change.over_http is not None:
            put.append((pool, _OVER_HTTP, codec.encode_mapping({"applications": sorted(change.over_http)})))
        gone = [(pool, f"{_HOST}{name}") for name, one in change.hosts.items() if one is None]
        gone += [(pool, f"{_RESERVATION}{name}") for name, one in change.reservations.items() if one is None]
        records = numbered([_record(one) for one in change.made], head.decisions)
        write = Write(put, gone, records, change.notes)
        commit(self._database, write, lambda c: HEADS.swap(c, pool, before, after), epoch=epoch)
        return after


def read_decision(record: Record) -> Made:
    """Return a pool's decision from its record."""
    return codec.decode(_KINDS[record.kind], record.body)


def _record(made: Made) -> Record:
    kind = next(name for name, type_of in _KINDS.items() if isinstance(made, type_of))
    request = made if isinstance(made, PlacementDecision) else None
    return Record(
        decision_id=made.decision_id,
        decision=PLACEMENT,
        subject=made.pool,
        at=made.at,
        body=codec.encode(made),
        kind=kind,
        request_id="" if request is None or request.advice else request.request_id,
        about="" if request is None else request.application,
        changed=request is not None and bool(request.containers) and not request.advice,
    )


KEPT: Final = StoredState(PLACEMENT, newest_number=HEADS.newest_number, number_from=HEADS.number_from)
