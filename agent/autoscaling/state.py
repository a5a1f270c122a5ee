"""What the ledger keeps of fleets: each minute's decision, what it was made on, its intents, and the loop's memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, bindparam, insert, literal_column, select

from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.autoscaling.minutes import MinuteMeasurements, Rows, minute_of
from agent.kernel.store import nearby
from agent.ledger import Ledger, codec, dictionaries, journal, state
from agent.ledger.database import Clash
from agent.ledger.dictionaries import DICTIONARY, Dictionaries
from agent.ledger.journal import Kind
from agent.ledger.kept import StoredState
from agent.ledger.schema import decisions, intents
from agent.ledger.schema import dictionaries as dictionaries_table
from agent.ledger.schema import journal as rows
from agent.ledger.schema import state as states_table
from agent.rails.state import LoopState
from collectors.interruptions import Interruption, InterruptionKind
from domain.decisions import Decision, Event, Intent, Outcome, Reason
from domain.errors import BadInput, IntentConflict, LedgerError, UnknownName
from domain.subject import AGENT, AUTOSCALING, fleet_subject

LOOP: Final = "loop"
"""The key of the loop's memory of a fleet."""

T = TypeVar("T")
_Values = dict[str, Any]
_CHUNK: Final = 200
_NO_STATES: Final[Mapping[str, LoopState]] = {}
_NOTHING_MEASURED: Final[Mapping[str, MinuteMeasurements]] = {}
_OF_DECISION: Final = (rows.c.ref == decisions.c.decision_id) & (rows.c.kind == Kind.DECISION.value)
_INPUTS: Final = (decisions.c.decision_id, decisions.c.inputs, decisions.c.dictionary, DICTIONARY)
_WITH_INPUTS: Final = (
    select(rows.c.seq, rows.c.subject, rows.c.body, *_INPUTS)
    .join(decisions, _OF_DECISION)
    .outerjoin(dictionaries_table, dictionaries.OF_DECISION)
)
_KEPT: Final = select(states_table.c.owner, states_table.c.body).where(states_table.c.key == bindparam("key"))
"""What is kept of every fleet under a key: asked each minute for all that are configured, which are nearly all."""
_CHANGED: Final = decisions.c.changed == literal_column("1")


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """An intent, what it went through in order, and whether it is still open."""

    intent: Intent
    outcomes: tuple[Outcome, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Everything about one decision: its journal number, what it was made on, itself, and what came of its intents."""

    seq: int
    inputs: DecisionInputs
    decision: Decision
    intents: tuple[IntentRecord, ...]


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision in a list, without its inputs."""

    seq: int
    decision: Decision

    @property
    def changed(self) -> bool:
        """Whether it led to anything to do."""
        return bool(self.decision.intents)


NOTICE_KEPT_S: Final = 600.0
"""A spot notice is over two minutes after it was given; a group may be unreadable for a while."""
_NOTICE: Final = "notice."


class FleetStore:
    """Reads and writes fleets; each method raises LedgerUnavailable when the ledger cannot be used now.

    What a method writes is on disk when it returns, none of it when it raises. One process has one: it remembers by
    fleet the decision last written or read (what an id names never changes), and which contexts of minutes are stored.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._database = ledger.database
        self._newest: dict[str, tuple[DecisionInputs, Decision]] = {}
        self._contexts: set[int] = set()
        self._dictionaries = Dictionaries()

    def loop_state(self, fleet: str) -> LoopState:
        """Return the loop's memory of a fleet, an empty one when there is none."""
        return self.loop_states([fleet])[fleet]

    def loop_states(self, fleets: Sequence[str]) -> dict[str, LoopState]:
        """Return the loop's memory of each of these fleets, an empty one where there is none, all at one moment."""
        return self.under(fleets, LOOP, LoopState)

    def under(self, fleets: Sequence[str], key: str, kind: type[T]) -> dict[str, T]:
        """Return what is kept of each of these fleets under a key, an empty one where nothing is, all at one moment."""
        wanted = set(fleets)
        found = {name: body for name, body in self._database.fetch(_KEPT, key=key) if name in wanted}
        return {fleet: _decoded(kind, found[fleet]) if fleet in found else kind() for fleet in fleets}

    def change(self, fleet: str, key: str, kind: type[T], change: Callable[[T], tuple[T, str]], at: float) -> T:
        """Change what operators keep of a fleet under a key, and return it as it then is.

        change: of what is there (an empty one where nothing is), what shall be there and how the journal says so;
        where it returns what it was given, nothing is written.
        """
        with self._database.write() as connection:
            body = state.get(connection, fleet, key)
            before = kind() if body is None else codec.decode(kind, body)
            after, detail = change(before)
            if after is not before:
                state.put(connection, [(fleet, key, codec.encode(after))])
                journal.add(
                    connection, [journal.event_row(Event(fleet_subject(fleet), at, Reason.OPERATOR, detail, key))]
                )
        return after

    def record(
        self,
        made: Sequence[tuple[DecisionInputs, DecisionResult]],
        events: Sequence[Event] = (),
        states: Mapping[str, LoopState] = _NO_STATES,
        epochs: Collection[int] = (),
        measured: Mapping[str, MinuteMeasurements] = _NOTHING_MEASURED,
        outcomes: Sequence[tuple[Intent, Outcome]] = (),
    ) -> None:
        """Write outcomes, decisions with their inputs, open intents and the states that follow, events: all or nothing.

        outcomes: a final status closes its intent, before those of these decisions are opened; one that says the same
        as the last one adds no journal row. measured: by fleet, what its row for learning holds beside the inputs. A
        state in `states` takes the place of the one that its fleet's decision gave. IntentConflict when a group has an
        open intent, LedgerError when a decision has the id of another. Fenced when the epoch of a decision, or one of
        `epochs`, is over: a deposed leader must not write its memory over the new one's.
        """
        after = {decided.decision.fleet: decided.state for _, decided in made} | dict(states)
        with self._dictionaries.writing():
            batch = _Batch(made, events, measured, self._dictionaries)
            with _intent_conflicts(batch.opened), self._database.write() as connection:
                state.check_epoch(connection, *epochs, *batch.epochs)
                journal.add_outcomes(connection, outcomes)
                batch.write(connection)
                batch.minutes.write(connection, self._contexts)
                _put_states(connection, after)
        self._contexts |= batch.minutes.contexts
        self._newest.update({inputs.fleet.name: (inputs, decided.decision) for inputs, decided in made})

    def hand_over(self, notices: Sequence[Interruption], now: float) -> None:
        """Let the other agents see spot notices of VMs that no group here shows; those of long ago are removed."""
        spot = [one for one in notices if one.kind is InterruptionKind.SPOT]
        if not spot:
            return
        with self._database.write() as connection:
            for there in _notices(connection):
                if now - there.at >= NOTICE_KEPT_S:
                    state.remove(connection, AGENT.name, f"{_NOTICE}{there.vm}")
            bodies = [(f"{_NOTICE}{one.vm}", codec.encode(replace(one, receipt=""))) for one in spot]
            state.put(connection, [(AGENT.name, key, body) for key, body in bodies])

    def handed_over(self) -> tuple[Interruption, ...]:
        """Return the notices that other agents received, without receipts."""
        with self._database.read() as connection:
            return _notices(connection)

    def last_outcome(self, intent_id: str) -> Outcome | None:
        """Return the newest outcome of an intent, None while there is none."""
        with self._database.read() as connection:
            return journal.last_outcome(connection, intent_id)

    def fleets(self) -> tuple[str, ...]:
        """Return the fleets for which anything was ever decided, by name."""
        query = select(states_table.c.owner).where(states_table.c.key == LOOP).order_by(states_table.c.owner)
        with self._database.read() as connection:
            return tuple(connection.execute(query).scalars())

    def decision(self, decision_id: str) -> DecisionRecord:
        """Return everything about one decision; UnknownName lists the ids around one that is not there."""
        with self._database.read() as connection:
            row = connection.execute(_WITH_INPUTS.where(decisions.c.decision_id == decision_id)).first()
            if row is None:
                raise UnknownName("decision", decision_id, nearby(connection, decision_id))
            made = _decoded(Decision, row.body)
            intents_of = select(intents.c.intent_id, intents.c.state).where(intents.c.decision_id == decision_id)
            where: dict[str, str] = {one.intent_id: one.state for one in connection.execute(intents_of)}
            outcomes: dict[str, list[Outcome]] = {intent.intent_id: [] for intent in made.intents}
            if outcomes:
                of_intents = select(rows.c.ref, rows.c.body).where(
                    rows.c.kind == Kind.OUTCOME.value, rows.c.ref.in_(list(outcomes))
                )
                for one in connection.execute(of_intents.order_by(rows.c.seq)):
                    outcomes[one.ref].append(_decoded(Outcome, one.body))
        known = (
            IntentRecord(one, tuple(outcomes[one.intent_id]), where.get(one.intent_id) == journal.OPEN)
            for one in made.intents
        )
        return DecisionRecord(row.seq, _inputs(row), made, tuple(known))

    def newest(self, fleet: str) -> DecisionRecord | None:
        """Return everything about a fleet's newest decision, None before the first."""
        rows = self.decisions(fleet, limit=1)
        return self.decision(rows[0].decision.decision_id) if rows else None

    def inputs_of(self, decision_ids: Sequence[str]) -> dict[str, DecisionInputs]:
        """Return what each of these decisions was made on, by its id; no more than a page of them.

        Those whose inputs are damaged are left out.
        """
        query = select(*_INPUTS).select_from(decisions.outerjoin(dictionaries_table, dictionaries.OF_DECISION))
        with self._database.read() as connection:
            found = connection.execute(query.where(decisions.c.decision_id.in_(decision_ids)))
            read = ((row.decision_id, _inputs_if_whole(row)) for row in found)
            return {decision_id: inputs for decision_id, inputs in read if inputs is not None}

    def newest_of(self, fleets: Sequence[str]) -> dict[str, tuple[DecisionInputs, Decision]]:
        """Return the newest decision of each of these fleets and what it was made on.

        A fleet without one is left out, as is one whose inputs are damaged.

        Which one is the newest is read from the ledger; it is itself, unless it was written or read here before.
        """
        of_fleet = (decisions.c.decision == AUTOSCALING) & (decisions.c.subject == states_table.c.owner)
        newest = (decisions.c.at.desc(), decisions.c.number.desc())
        one = select(decisions.c.decision_id).where(of_fleet).order_by(*newest).limit(1)
        ids = select(one.correlate(states_table).scalar_subquery()).where(states_table.c.key == LOOP)
        found: dict[str, tuple[DecisionInputs, Decision]] = {}
        for start in range(0, len(fleets), _CHUNK):
            with self._database.read() as connection:
                wanted = connection.execute(ids.where(states_table.c.owner.in_(fleets[start : start + _CHUNK])))
                named = [decision_id for decision_id in wanted.scalars() if decision_id is not None]
                known = {made.decision_id: (inputs, made) for inputs, made in list(self._newest.values())}
                found |= {known[one][1].fleet: known[one] for one in named if one in known}
                if others := [one for one in named if one not in known]:
                    for row in connection.execute(_WITH_INPUTS.where(decisions.c.decision_id.in_(others))):
                        if (inputs := _inputs_if_whole(row)) is not None:
                            found[row.subject] = inputs, _decoded(Decision, row.body)
        self._newest.update(found)
        return found

    def decisions(
        self,
        fleet: str | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        limit: int = 50,
        newest_first: bool = True,
        changed_only: bool = False,
    ) -> list[DecisionRow]:
        """Return decisions with since <= at < until by time, without inputs; changed_only: those with intents."""
        query = select(rows.c.seq, rows.c.body).join(decisions, _OF_DECISION).where(*_span(fleet, since, until))
        if changed_only:
            query = query.where(_CHANGED)
        by_time = (decisions.c.at, rows.c.seq)
        query = query.order_by(*(c.desc() for c in by_time)) if newest_first else query.order_by(*by_time)
        return self._listed(query.limit(limit))

    def decisions_before(
        self, before_seq: int | None = None, *, fleet: str | None = None, limit: int = 50, changed_only: bool = False
    ) -> list[DecisionRow]:
        """Return decisions numbered below `before_seq` (None: all), the newest first, without inputs: for paging."""
        query = select(rows.c.seq, rows.c.body).join(decisions, _OF_DECISION)
        if fleet is not None:
            query = query.where(rows.c.subject == fleet)
        if before_seq is not None:
            query = query.where(rows.c.seq < before_seq)
        if changed_only:
            query = query.where(_CHANGED)
        return self._listed(query.order_by(rows.c.seq.desc()).limit(limit))

    def _listed(self, query: Any) -> list[DecisionRow]:
        with self._database.read() as connection:
            return [DecisionRow(row.seq, _decoded(Decision, row.body)) for row in connection.execute(query)]

    def inputs(
        self,
        fleet: str,
        since: float | None = None,
        until: float | None = None,
        most: int | None = None,
        skip_damaged: bool = False,
    ) -> Iterator[tuple[DecisionInputs, Decision]]:
        """Yield inputs and decisions with since <= at < until in the order in which they were made, for replay.

        most: of more than these, the newest and every second, third or further one before it. skip_damaged: leave out
        those whose inputs are damaged, in place of LedgerError.
        """
        read = _inputs_if_whole if skip_damaged else _inputs
        with self._database.read() as connection:
            numbers = select(rows.c.seq).join(decisions, _OF_DECISION).where(*_span(fleet, since, until))
            seqs = connection.execute(numbers.order_by(rows.c.seq)).scalars().all()
        if most is not None:
            seqs = seqs[:: -max(1, math.ceil(len(seqs) / most))][::-1]
        for start in range(0, len(seqs), _CHUNK):
            for row in self._with_inputs(seqs[start : start + _CHUNK]):
                if (inputs := read(row)) is not None:
                    yield inputs, _decoded(Decision, row.body)

    def inputs_since(self, fleets: Sequence[str], since: float) -> Iterator[tuple[DecisionInputs, Decision]]:
        """Yield inputs and decisions of these fleets from a time on, each fleet's in the order in which they were made.

        Those whose inputs are damaged are left out. The ledger lists them; a decision that was the last one written or
        read here is not read again.
        """
        known = {made.decision_id: (inputs, made) for inputs, made in list(self._newest.values())}
        for first in range(0, len(fleets), _CHUNK):
            of_fleets = (decisions.c.decision == AUTOSCALING) & decisions.c.subject.in_(fleets[first : first + _CHUNK])
            numbers = select(rows.c.seq, decisions.c.decision_id).join(decisions, _OF_DECISION)
            with self._database.read() as connection:
                query = numbers.where(of_fleets, decisions.c.at >= since).order_by(rows.c.seq)
                found = connection.execute(query).all()
            for start in range(0, len(found), _CHUNK):
                part = found[start : start + _CHUNK]
                unknown = [one.seq for one in part if one.decision_id not in known]
                bodies = {row.seq: row for row in self._with_inputs(unknown)} if unknown else {}
                for one in part:
                    if one.decision_id in known:
                        yield known[one.decision_id]
                    elif one.seq in bodies and (inputs := _inputs_if_whole(bodies[one.seq])) is not None:
                        yield inputs, _decoded(Decision, bodies[one.seq].body)

    def _with_inputs(self, seqs: Sequence[int]) -> Sequence[Any]:
        """Return the rows of these decisions in order.

        Each chunk reads on its own: a slow consumer must not hold back the checkpoint of the write-ahead log.
        """
        with self._database.read() as connection:
            return connection.execute(_WITH_INPUTS.where(rows.c.seq.in_(seqs)).order_by(rows.c.seq)).all()


class _Batch:
    """Decisions and events encoded before any lock is taken, ready to be written by one statement per table."""

    def __init__(
        self,
        made: Sequence[tuple[DecisionInputs, DecisionResult]],
        events: Sequence[Event],
        measured: Mapping[str, MinuteMeasurements],
        shared: Dictionaries,
    ) -> None:
        self.opened: tuple[Intent, ...] = tuple(i for _, decided in made for i in decided.decision.intents)
        self._journal: list[_Values] = []
        self._decisions: list[_Values] = []
        self._intents: list[_Values] = []
        self.epochs = {inputs.epoch for inputs, _ in made}
        self._packed = [shared.pack(inputs.fleet.name, inputs.now, codec.encode(inputs)) for inputs, _ in made]
        for (inputs, decided), (packed, _) in zip(made, self._packed, strict=True):
            self._add_decision(inputs, decided.decision, packed)
        self._journal.extend(journal.event_row(event) for event in events)
        self.minutes = Rows(
            minute_of(inputs, decided.decision, measured.get(inputs.fleet.name)) for inputs, decided in made
        )

    def _add_decision(self, inputs: DecisionInputs, made: Decision, packed: bytes) -> None:
        if inputs.decision_id != made.decision_id:
            raise BadInput(
                "decision_id", made.decision_id, f"record it with its own inputs, not those of {inputs.decision_id}"
            )
        body = codec.encode(made)
        self._journal.append(
            journal.row(Kind.DECISION, made.at, fleet_subject(made.fleet), made.decision_id, made.reason, body)
        )
        self._decisions.append(
            {
                "decision_id": made.decision_id,
                "decision": AUTOSCALING,
                "subject": made.fleet,
                "at": made.at,
                "changed": int(bool(made.intents)),
                "inputs": packed,
            }
        )
        for intent in made.intents:
            body = codec.encode(intent)
            self._journal.append(
                journal.row(
                    Kind.INTENT, intent.created_at, fleet_subject(intent.fleet), intent.intent_id, made.reason, body
                )
            )
            self._intents.append(
                {
                    "intent_id": intent.intent_id,
                    "decision_id": made.decision_id,
                    "fleet": intent.fleet,
                    "group_key": intent.group,
                    "state": journal.OPEN,
                    "created_at": intent.created_at,
                    "intent": codec.pack(body),
                }
            )

    def write(self, connection: Connection) -> None:
        """Append everything; IntentConflict when an intent's group has an open one."""
        journal.add(connection, self._journal)
        if self._decisions:
            used = dictionaries.write(connection, [one for _, one in self._packed])
            of_each = zip(self._decisions, used, strict=True)
            connection.execute(insert(decisions), [{**values, "dictionary": one} for values, one in of_each])
        if self._intents:
            self._refuse_second_intents(connection)
            connection.execute(insert(intents), self._intents)

    def _refuse_second_intents(self, connection: Connection) -> None:
        there = {(one.fleet, one.group): one.intent_id for one in journal.open_intents(connection, None)}
        for intent in self.opened:
            other = there.setdefault((intent.fleet, intent.group), intent.intent_id)
            if other != intent.intent_id:
                raise IntentConflict(
                    f"group {intent.group} of fleet {intent.fleet} already has the open intent {other}: "
                    f"follow it to its end before {intent.intent_id}"
                )


@contextlib.contextmanager
def _intent_conflicts(opened: Sequence[Intent]) -> Iterator[None]:
    try:
        yield
    except Clash as clash:
        # Where writers run side by side the index speaks, after the look that found the group free.
        if "one_open_intent_per_group" in clash.names or "intents.group_key" in clash.names:
            groups = ", ".join(f"{intent.fleet}/{intent.group}" for intent in opened)
            raise IntentConflict(
                f"one of the groups {groups} already has an open intent: follow it to its end first"
            ) from clash
        raise


def _notices(connection: Connection) -> tuple[Interruption, ...]:
    return tuple(codec.decode(Interruption, body) for body in state.under(connection, AGENT.name, _NOTICE))


def _put_states(connection: Connection, states: Mapping[str, LoopState]) -> None:
    state.put(connection, [(fleet, LOOP, codec.encode(memory)) for fleet, memory in states.items()])


def _span(fleet: str | None, since: float | None, until: float | None) -> list[ColumnElement[bool]]:
    limits: list[ColumnElement[bool]] = []
    if fleet is not None:
        limits += [decisions.c.decision == AUTOSCALING, decisions.c.subject == fleet]
    if since is not None:
        limits.append(decisions.c.at >= since)
    if until is not None:
        limits.append(decisions.c.at < until)
    return limits


def _decoded(kind: type[T], stored: bytes) -> T:
    return codec.decode(kind, codec.unpack(stored))


def _inputs(row: Any) -> DecisionInputs:
    text = dictionaries.unpacked(row)
    try:
        return codec.decode(DecisionInputs, text)
    except LedgerError as error:
        raise LedgerError(f"the inputs of decision {row.decision_id} cannot be read: {error}") from error


def _inputs_if_whole(row: Any) -> DecisionInputs | None:
    try:
        return _inputs(row)
    except LedgerError:
        return None


def _newest_number(connection: Connection) -> int:
    bodies = connection.execute(select(states_table.c.body).where(states_table.c.key == LOOP)).scalars()
    return max((_decoded(LoopState, body).decisions for body in bodies), default=0)


def _number_from(connection: Connection, first: int) -> None:
    query = select(states_table.c.owner, states_table.c.body).where(states_table.c.key == LOOP)
    found = {row.owner: _decoded(LoopState, row.body) for row in connection.execute(query).all()}
    _put_states(connection, {fleet: replace(memory, decisions=first) for fleet, memory in found.items()})


KEPT: Final = StoredState(AUTOSCALING, newest_number=_newest_number, number_from=_number_from)
