"""The journal, which the ledger only ever adds to: decisions, intents, outcomes, events; and reading it from any point.

Every function here runs inside the caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from agent.ledger import codec
from agent.ledger.schema import intents, journal
from domain.decisions import Event, Intent, Outcome, Reason
from domain.errors import LedgerError
from domain.subject import AGENT, AUTOSCALING, Subject, fleet_subject

OPEN: Final = "open"
CLOSED: Final = "closed"

# Written into the statement, not bound: only then does the planner know that the partial index answers it.
IS_OPEN: Final = intents.c.state == literal_column(f"'{OPEN}'")
OPEN_INTENTS: Final = select(intents.c.intent).where(IS_OPEN).order_by(intents.c.created_at, intents.c.intent_id)

_Values = dict[str, Any]


class Kind(StrEnum):
    """What a journal row records."""

    DECISION = "decision"
    INTENT = "intent"
    OUTCOME = "outcome"
    EVENT = "event"
    SETTINGS = "settings"


_OF_FLEETS: Final = (Kind.DECISION, Kind.INTENT, Kind.OUTCOME)
"""Kinds of rows that only fleets have."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One row of the journal; a reader that has seen `seq` goes on from there.

    ref: a decision's or an intent's id, or an event's `about`.
    """

    seq: int
    at: float
    subject: Subject
    kind: Kind
    ref: str
    reason: str
    body: Mapping[str, Any]


def row(kind: Kind, at: float, subject: Subject, ref: str, reason: str, body: bytes) -> _Values:
    """Return a journal row."""
    return {
        "kind": kind.value,
        "at": at,
        "decision": subject.decision,
        "subject": subject.name,
        "ref": ref,
        "reason": reason,
        "body": codec.pack(body),
    }


def event_row(event: Event) -> _Values:
    """Return the journal row of an event."""
    fields = event.subject.fields()
    body: dict[str, object] = {
        **fields,
        "at": event.at,
        "reason": event.reason,
        "detail": event.detail,
        "about": event.about,
    }
    if event.data:
        body["data"] = {name: json.loads(text) for name, text in event.data.items()}
    return row(Kind.EVENT, event.at, event.subject, event.about, event.reason, codec.encode_mapping(body))


def add(connection: Connection, rows: Sequence[_Values]) -> None:
    """Append journal rows in order."""
    if rows:
        connection.execute(insert(journal), list(rows))


def add_settings(connection: Connection, at: float, body: bytes, reason: Reason) -> None:
    """Append the settings in force from `at` on; the reason says whether they are the first or differ from the last."""
    add(connection, [row(Kind.SETTINGS, at, AGENT, "", reason, body)])


def open_intents(connection: Connection, fleet: str | None) -> tuple[Intent, ...]:
    """Return the open intents, of one fleet or of all, oldest first."""
    query = OPEN_INTENTS if fleet is None else OPEN_INTENTS.where(intents.c.fleet == fleet)
    return intents_of(connection.execute(query))


def intents_of(rows: Iterable[Sequence[Any]]) -> tuple[Intent, ...]:
    """Return the intents of rows that OPEN_INTENTS finds."""
    return tuple(codec.decode(Intent, codec.unpack(body)) for (body,) in rows)


def last_outcome(connection: Connection, intent_id: str) -> Outcome | None:
    """Return the newest outcome of an intent, None while there is none."""
    _, outcome = _stored(connection, [intent_id]).get(intent_id, (CLOSED, None))
    return outcome


def _stored(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[str, Outcome | None]]:
    query = select(intents.c.intent_id, intents.c.state, intents.c.outcome).where(intents.c.intent_id.in_(ids))
    return {
        row.intent_id: (row.state, None if row.outcome is None else codec.decode(Outcome, codec.unpack(row.outcome)))
        for row in connection.execute(query)
    }


def add_outcomes(connection: Connection, outcomes: Sequence[tuple[Intent, Outcome]]) -> None:
    """Bring intents up to date, and append a journal row for each outcome that says something new.

    A final status closes the intent; a closed one stays closed. LedgerError for an intent that was never recorded.
    """
    if not outcomes:
        return
    stored = _stored(connection, [intent.intent_id for intent, _ in outcomes])
    last = {intent_id: outcome for intent_id, (_, outcome) in stored.items()}
    closed = {intent_id for intent_id, (where, _) in stored.items() if where == CLOSED}
    rows: list[_Values] = []
    changes: dict[str, _Values] = {}
    for intent, outcome in outcomes:
        intent_id = intent.intent_id
        if intent_id not in stored:
            raise LedgerError(
                f"intent {intent_id} has an outcome but was never recorded: record a decision before acting on it"
            )
        body = codec.encode(outcome)
        before = last[intent_id]
        if before is None or _said(before) != _said(outcome):
            rows.append(row(Kind.OUTCOME, outcome.at, fleet_subject(intent.fleet), intent_id, outcome.reason, body))
        if intent_id in closed:
            continue
        last[intent_id] = outcome
        final = outcome.status.final
        changes[intent_id] = {
            "of": intent_id,
            "to": CLOSED if final else OPEN,
            "ended": outcome.at if final else None,
            "result": codec.pack(body),
        }
        if final:
            closed.add(intent_id)
    add(connection, rows)
    if changes:
        connection.execute(
            update(intents)
            .where(intents.c.intent_id == bindparam("of"))
            .values(state=bindparam("to"), closed_at=bindparam("ended"), outcome=bindparam("result")),
            list(changes.values()),
        )


def _said(outcome: Outcome) -> tuple[object, ...]:
    # Time and wording change with every look; these are what makes an outcome another one.
    return outcome.status, outcome.reason, outcome.asked, outcome.achieved, outcome.failure, outcome.shortages


def entries(
    connection: Connection, since_seq: int, *, decision: str | None, subject: str | None, limit: int
) -> list[JournalEntry]:
    """Return journal rows after `since_seq` in order, of one decision, of subjects of one name, or of all."""
    query: Select[Any] = select(journal).where(journal.c.seq > since_seq).order_by(journal.c.seq).limit(limit)
    if decision is not None:
        query = query.where(_of_decision(decision))
    if subject is not None:
        query = query.where(journal.c.subject == subject)
    return [_entry(row) for row in connection.execute(query)]


def newest_seq(connection: Connection) -> int:
    """Return the number of the journal's newest row, 0 when it has none."""
    return connection.execute(select(func.max(journal.c.seq))).scalar() or 0


def latest(
    connection: Connection,
    kinds: Sequence[Kind],
    up_to_seq: int,
    *,
    subject: Subject | None,
    limit: int,
    span: int,
) -> list[JournalEntry]:
    """Return the newest rows of these kinds among the last `span` numbers up to `up_to_seq`, the newest first.

    subject: only its own rows and those of the agent.
    """
    query: Select[Any] = select(journal).where(
        journal.c.seq <= up_to_seq,
        journal.c.seq > up_to_seq - span,
        journal.c.kind.in_([kind.value for kind in kinds]),
    )
    if subject is not None:
        query = query.where(
            journal.c.decision.in_([subject.decision, AGENT.decision]),
            journal.c.subject.in_([subject.name, AGENT.name]),
        )
    return [_entry(row) for row in connection.execute(query.order_by(journal.c.seq.desc()).limit(limit))]


def _of_decision(decision: str) -> ColumnElement[bool]:
    """Return whether a row is of a decision; one from before schema 0012 may be of any."""
    return or_(journal.c.decision == decision, and_(journal.c.decision == "", journal.c.subject != AGENT.name))


def _entry(row: Row[Any]) -> JournalEntry:
    body = codec.decode_mapping(codec.unpack(row.body))
    decision = row.decision or (AUTOSCALING if row.kind in _OF_FLEETS else "")
    return JournalEntry(row.seq, row.at, Subject(decision, row.subject), Kind(row.kind), row.ref, row.reason, body)
