"""What the ledger only ever adds to: decisions with their inputs, intents, outcomes, events.

Every function here runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, literal_column, select, update

from agent.autoscaling.decide import Decided, DecisionInputs
from agent.ledger import codec, state
from agent.ledger.records import Kind
from agent.ledger.schema import decisions, intents, journal
from domain.decisions import Decision, Event, Intent, Outcome, Reason
from domain.errors import BadInput, IntentConflict, LedgerError

OPEN: Final = "open"
CLOSED: Final = "closed"

# Written into the statement, not bound: only then does the planner know that the partial index answers it.
IS_OPEN: Final = intents.c.state == literal_column(f"'{OPEN}'")

_Values = dict[str, Any]


def _row(kind: Kind, at: float, fleet: str, ref: str, reason: str, body: bytes) -> _Values:
    return {"kind": kind.value, "at": at, "fleet": fleet, "ref": ref, "reason": reason, "body": codec.pack(body)}


def event_row(event: Event) -> _Values:
    """Return the journal row of an event."""
    return _row(Kind.EVENT, event.at, event.fleet, event.subject, event.reason, codec.encode(event))


def add(connection: Connection, rows: Sequence[_Values]) -> None:
    """Append journal rows in order."""
    if rows:
        connection.execute(insert(journal), list(rows))


def add_settings(connection: Connection, at: float, body: bytes, reason: Reason) -> None:
    """Append the settings in force from `at` on; the reason says whether they are the first or differ from the last."""
    add(connection, [_row(Kind.SETTINGS, at, state.AGENT, "", reason, body)])


class Batch:
    """Decisions and events encoded before any lock is taken, ready to be written by one statement per table."""

    def __init__(self, made: Sequence[tuple[DecisionInputs, Decided]], events: Sequence[Event]) -> None:
        self.opened: tuple[Intent, ...] = tuple(i for _, decided in made for i in decided.decision.intents)
        self._journal: list[_Values] = []
        self._decisions: list[_Values] = []
        self._intents: list[_Values] = []
        self._epochs: list[int] = []
        for inputs, decided in made:
            self._add_decision(inputs, decided.decision)
        self._journal.extend(event_row(event) for event in events)

    def _add_decision(self, inputs: DecisionInputs, decision: Decision) -> None:
        if inputs.decision_id != decision.decision_id:
            raise BadInput(
                "decision_id", decision.decision_id, f"record it with its own inputs, not those of {inputs.decision_id}"
            )
        self._epochs.append(inputs.epoch)
        self._journal.append(
            _row(
                Kind.DECISION,
                decision.at,
                decision.fleet,
                decision.decision_id,
                decision.reason,
                codec.encode(decision),
            )
        )
        self._decisions.append(
            {
                "decision_id": decision.decision_id,
                "fleet": decision.fleet,
                "at": decision.at,
                "changed": int(bool(decision.intents)),
                "inputs": codec.pack(codec.encode(inputs)),
            }
        )
        for intent in decision.intents:
            body = codec.encode(intent)
            self._journal.append(
                _row(Kind.INTENT, intent.created_at, intent.fleet, intent.intent_id, decision.reason, body)
            )
            self._intents.append(
                {
                    "intent_id": intent.intent_id,
                    "decision_id": decision.decision_id,
                    "fleet": intent.fleet,
                    "group_key": intent.group,
                    "state": OPEN,
                    "created_at": intent.created_at,
                    "intent": codec.pack(body),
                }
            )

    def write(self, connection: Connection) -> None:
        """Append everything.

        Fenced when a decision is of an older epoch, IntentConflict when an intent's group has an open one.
        """
        if self._epochs:
            state.check_epoch(connection, min(self._epochs))
        add(connection, self._journal)
        if self._decisions:
            connection.execute(insert(decisions), self._decisions)
        if self._intents:
            self._refuse_second_intents(connection)
            connection.execute(insert(intents), self._intents)

    def _refuse_second_intents(self, connection: Connection) -> None:
        there = {(intent.fleet, intent.group): intent.intent_id for intent in open_intents(connection, None)}
        for intent in self.opened:
            other = there.setdefault((intent.fleet, intent.group), intent.intent_id)
            if other != intent.intent_id:
                raise IntentConflict(
                    f"group {intent.group} of fleet {intent.fleet} already has the open intent {other}: "
                    f"follow it to its end before {intent.intent_id}"
                )


def open_intents(connection: Connection, fleet: str | None) -> tuple[Intent, ...]:
    """Return the open intents, of one fleet or of all, oldest first."""
    query = select(intents.c.intent).where(IS_OPEN).order_by(intents.c.created_at, intents.c.intent_id)
    if fleet is not None:
        query = query.where(intents.c.fleet == fleet)
    return tuple(codec.decode(Intent, codec.unpack(body)) for body in connection.execute(query).scalars())


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
            rows.append(_row(Kind.OUTCOME, outcome.at, intent.fleet, intent_id, outcome.reason, body))
        if intent_id in closed:
            continue
        last[intent_id] = outcome
        final = outcome.status.final
        changes[intent_id] = {
            "of": intent_id,
            "to": CLOSED if final else OPEN,
            "ended": outcome.at if final else None,
            "said": codec.pack(body),
        }
        if final:
            closed.add(intent_id)
    add(connection, rows)
    if changes:
        connection.execute(
            update(intents)
            .where(intents.c.intent_id == bindparam("of"))
            .values(state=bindparam("to"), closed_at=bindparam("ended"), outcome=bindparam("said")),
            list(changes.values()),
        )


def _said(outcome: Outcome) -> tuple[object, ...]:
    # Time and wording change with every look; these are what makes an outcome another one.
    return outcome.status, outcome.reason, outcome.asked, outcome.achieved, outcome.failure, outcome.shortages


def states_after(made: Sequence[tuple[DecisionInputs, Decided]], states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loop state to store per fleet: that of its last decision, unless the caller names a later one."""
    return {decided.decision.fleet: decided.state for _, decided in made} | dict(states)
