"""Reading the ledger: one decision with all that came of it, lists, the journal from any point, inputs for replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, func, literal_column, select

from agent.autoscaling.decide import DecisionInputs
from agent.ledger import codec
from agent.ledger.database import Database
from agent.ledger.journal import OPEN
from agent.ledger.records import DecisionRecord, DecisionRow, IntentRecord, JournalEntry, Kind
from agent.ledger.schema import decisions, intents, journal
from domain.decisions import Decision, Outcome
from domain.errors import UnknownName

T = TypeVar("T")

_CHUNK: Final = 200
_NEARBY: Final = 2

_OF_DECISION: Final = (journal.c.ref == decisions.c.decision_id) & (journal.c.kind == Kind.DECISION.value)
_CHANGED: Final = decisions.c.changed == literal_column("1")


def decision(connection: Connection, decision_id: str) -> DecisionRecord:
    """Return everything about one decision; UnknownName lists the ids around one that is not there."""
    query = select(journal.c.seq, journal.c.body, decisions.c.inputs).join(decisions, _OF_DECISION)
    row = connection.execute(query.where(decisions.c.decision_id == decision_id)).first()
    if row is None:
        raise UnknownName("decision", decision_id, _nearby(connection, decision_id))
    made = _decoded(Decision, row.body)
    states: dict[str, str] = {
        i.intent_id: i.state
        for i in connection.execute(
            select(intents.c.intent_id, intents.c.state).where(intents.c.decision_id == decision_id)
        )
    }
    outcomes: dict[str, list[Outcome]] = {intent.intent_id: [] for intent in made.intents}
    query = select(journal.c.ref, journal.c.body).where(journal.c.kind == Kind.OUTCOME.value).order_by(journal.c.seq)
    for said in connection.execute(query.where(journal.c.ref.in_(list(outcomes)))) if outcomes else ():
        outcomes[said.ref].append(_decoded(Outcome, said.body))
    return DecisionRecord(
        seq=row.seq,
        inputs=_decoded(DecisionInputs, row.inputs),
        decision=made,
        intents=tuple(
            IntentRecord(i, tuple(outcomes[i.intent_id]), states.get(i.intent_id) == OPEN) for i in made.intents
        ),
    )


def _nearby(connection: Connection, decision_id: str) -> str:
    column = decisions.c.decision_id
    below = connection.execute(
        select(column).where(column < decision_id).order_by(column.desc()).limit(_NEARBY)
    ).scalars()
    above = connection.execute(select(column).where(column > decision_id).order_by(column).limit(_NEARBY)).scalars()
    ids = [*reversed(below.all()), *above]
    if not ids:
        return "no decision is recorded yet"
    return f"no such decision is recorded, or it is older than the ledger keeps; near it are {', '.join(ids)}"


def listing(
    connection: Connection,
    fleet: str | None,
    *,
    since: float | None,
    until: float | None,
    limit: int,
    newest_first: bool,
    changed_only: bool,
) -> list[DecisionRow]:
    """Return decisions with since <= at < until by time, without their inputs."""
    query = select(journal.c.seq, journal.c.body).join(decisions, _OF_DECISION).where(*_span(fleet, since, until))
    if changed_only:
        query = query.where(_CHANGED)
    by_time = (decisions.c.at, journal.c.seq)
    query = query.order_by(*(c.desc() for c in by_time)) if newest_first else query.order_by(*by_time)
    return [DecisionRow(row.seq, _decoded(Decision, row.body)) for row in connection.execute(query.limit(limit))]


def listing_before(
    connection: Connection, before_seq: int | None, fleet: str | None, *, limit: int, changed_only: bool
) -> list[DecisionRow]:
    """Return decisions whose journal number is below `before_seq` (None: all), the newest first."""
    query = select(journal.c.seq, journal.c.body).join(decisions, _OF_DECISION)
    if fleet is not None:
        query = query.where(journal.c.fleet == fleet)
    if before_seq is not None:
        query = query.where(journal.c.seq < before_seq)
    if changed_only:
        query = query.where(_CHANGED)
    query = query.order_by(journal.c.seq.desc()).limit(limit)
    return [DecisionRow(row.seq, _decoded(Decision, row.body)) for row in connection.execute(query)]


def _span(fleet: str | None, since: float | None, until: float | None) -> list[ColumnElement[bool]]:
    limits: list[ColumnElement[bool]] = []
    if fleet is not None:
        limits.append(decisions.c.fleet == fleet)
    if since is not None:
        limits.append(decisions.c.at >= since)
    if until is not None:
        limits.append(decisions.c.at < until)
    return limits


def inputs(
    database: Database, fleet: str, since: float | None, until: float | None
) -> Iterator[tuple[DecisionInputs, Decision]]:
    """Yield the inputs of each decision with since <= at < until, and the decision, in the order they were made in."""
    with database.read() as connection:
        numbers = select(journal.c.seq).join(decisions, _OF_DECISION).where(*_span(fleet, since, until))
        seqs = connection.execute(numbers.order_by(journal.c.seq)).scalars().all()
    query = select(journal.c.body, decisions.c.inputs).join(decisions, _OF_DECISION).order_by(journal.c.seq)
    for start in range(0, len(seqs), _CHUNK):
        # Each chunk reads on its own: a slow consumer must not hold back the checkpoint of the write-ahead log.
        with database.read() as connection:
            rows = connection.execute(query.where(journal.c.seq.in_(seqs[start : start + _CHUNK]))).all()
        for row in rows:
            yield _decoded(DecisionInputs, row.inputs), _decoded(Decision, row.body)


def entries(connection: Connection, since_seq: int, *, fleet: str | None, limit: int) -> list[JournalEntry]:
    """Return journal rows after `since_seq` in order, of one fleet or of all."""
    query: Select[Any] = select(journal).where(journal.c.seq > since_seq).order_by(journal.c.seq).limit(limit)
    if fleet is not None:
        query = query.where(journal.c.fleet == fleet)
    return [_entry(row) for row in connection.execute(query)]


def newest_seq(connection: Connection) -> int:
    """Return the number of the journal's newest row, 0 when it has none."""
    return connection.execute(select(func.max(journal.c.seq))).scalar() or 0


def latest(
    connection: Connection,
    kinds: Sequence[Kind],
    up_to_seq: int,
    *,
    fleets: Sequence[str] | None,
    limit: int,
    span: int,
) -> list[JournalEntry]:
    """Return the newest rows of these kinds among the last `span` numbers up to `up_to_seq`, the newest first."""
    query: Select[Any] = select(journal).where(
        journal.c.seq <= up_to_seq,
        journal.c.seq > up_to_seq - span,
        journal.c.kind.in_([kind.value for kind in kinds]),
    )
    if fleets is not None:
        query = query.where(journal.c.fleet.in_(list(fleets)))
    return [_entry(row) for row in connection.execute(query.order_by(journal.c.seq.desc()).limit(limit))]


def _entry(row: Row[Any]) -> JournalEntry:
    body = codec.decode_mapping(codec.unpack(row.body))
    return JournalEntry(row.seq, row.at, row.fleet, Kind(row.kind), row.ref, row.reason, body)


def _decoded(kind: type[T], stored: bytes) -> T:
    return codec.decode(kind, codec.unpack(stored))
