"""The one store of decisions: what any part decided is written, found, listed and numbered here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, Select, func, insert, literal_column, select

from agent.ledger import codec, dictionaries, identity
from agent.ledger.database import Database
from agent.ledger.journal import Kind
from agent.ledger.schema import decisions
from agent.ledger.schema import dictionaries as dictionaries_table
from agent.ledger.schema import journal as rows
from domain.errors import UnknownName

NOTHING: Final = b""
"""The inputs of a decision that keeps none."""

T = TypeVar("T")

_NEARBY: Final = 2
_JOURNALLED: Final = (rows.c.ref == decisions.c.decision_id) & (rows.c.kind == Kind.DECISION.value)
_COLUMNS: Final = [column for column in decisions.c if column.name not in ("body", "inputs")]


@dataclass(frozen=True, slots=True)
class Record:
    """A decision as it is stored, whoever made it.

    decision: the part that made it. subject: the fleet, cluster or pool. kind: such as hour or request, "" where the
    part makes one kind. number: counts the subject's decisions, None where they are not numbered. request_id: the
    request that it answers, "" for none. about: what within the subject it concerns. changed: whether it led to
    anything to do. body: the decision as canonical JSON, with its proposal, guards, effect, reason and sentence.
    inputs: what it was made on, as canonical JSON, empty for nothing.
    """

    decision_id: str
    decision: str
    subject: str
    at: float
    body: bytes
    inputs: bytes = NOTHING
    kind: str = ""
    number: int | None = None
    request_id: str = ""
    about: str = ""
    changed: bool = False

    def row(self) -> dict[str, Any]:
        """Return it as a row of the table; its bodies are packed."""
        return {
            "decision_id": self.decision_id,
            "decision": self.decision,
            "subject": self.subject,
            "at": self.at,
            "changed": int(self.changed),
            "inputs": codec.pack(self.inputs) if self.inputs else NOTHING,
            "kind": self.kind,
            "number": self.number,
            "request_id": self.request_id or None,
            "about": self.about,
            "body": codec.pack(self.body),
        }


def add(connection: Connection, made: Sequence[Record]) -> None:
    """Append decisions, in the caller's transaction; Clash when a number or a request id is taken."""
    if made:
        connection.execute(insert(decisions), [record.row() for record in made])


def newest_number(connection: Connection, decision: str, subject: str) -> int:
    """Return the number of a subject's newest decision, or the one that a restore lets it continue from."""
    query = select(func.max(decisions.c.number)).where(decisions.c.decision == decision, decisions.c.subject == subject)
    there = identity.read(connection)
    return max(connection.execute(query).scalar() or 0, there.first_number if there is not None else 0)


class DecisionStore:
    """Reads what was decided; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, decision_id: str) -> Record | None:
        """Return a decision of any part, None when there is none of that id."""
        found = self._records(_with_bodies().where(decisions.c.decision_id == decision_id))
        return found[0] if found else None

    def get(self, decision_id: str) -> Record:
        """Return a decision of any part; UnknownName lists the ids around one that is not there."""
        found = self.find(decision_id)
        if found is None:
            with self._database.read() as connection:
                raise UnknownName("decision", decision_id, nearby(connection, decision_id))
        return found

    def newest(
        self,
        decision: str | None = None,
        subject: str | None = None,
        *,
        limit: int = 20,
        kind: str | None = None,
        about: str | None = None,
        since: float | None = None,
        until: float | None = None,
        before: Record | None = None,
        changed_only: bool = False,
    ) -> tuple[Record, ...]:
        """Return decisions with since <= at < until, the newest first; of one part, subject, kind, or about one thing.

        before: only those that come after this one in such a list. Of one numbered subject they come in the order of
        their numbers, else in that of their times.
        """
        query = _with_bodies(with_inputs=False)
        for column, value in (
            (decisions.c.decision, decision),
            (decisions.c.subject, subject),
            (decisions.c.kind, kind),
            (decisions.c.about, about),
        ):
            if value is not None:
                query = query.where(column == value)
        if since is not None:
            query = query.where(decisions.c.at >= since)
        if until is not None:
            query = query.where(decisions.c.at < until)
        if before is not None:
            at, decision_id = decisions.c.at, decisions.c.decision_id
            query = query.where((at < before.at) | ((at == before.at) & (decision_id < before.decision_id)))
        if changed_only:
            query = query.where(decisions.c.changed == literal_column("1"))
        numbered = decision is not None and subject is not None and since is None and until is None and before is None
        by_time = (decisions.c.at.desc(), decisions.c.decision_id.desc())
        order = (decisions.c.number.desc(), *by_time) if numbered else by_time
        return self._records(query.order_by(*order).limit(limit))

    def answer(self, decision: str, subject: str, request_id: str) -> Record | None:
        """Return the decision that answered a request, None when it was never made."""
        query = _with_bodies(with_inputs=False).where(
            decisions.c.decision == decision,
            decisions.c.subject == subject,
            decisions.c.request_id == request_id,
        )
        found = self._records(query)
        return found[0] if found else None

    def newest_number(self, decision: str, subject: str) -> int:
        """Return the number of a subject's newest decision, or the one that a restore lets it continue from."""
        with self._database.read() as connection:
            return newest_number(connection, decision, subject)

    def first_at(self, decision: str, subject: str) -> float | None:
        """Return when the oldest decision that the ledger has of a subject was made, None where it has none."""
        query = select(func.min(decisions.c.at)).where(decisions.c.decision == decision, decisions.c.subject == subject)
        with self._database.read() as connection:
            at: float | None = connection.execute(query).scalar()
            return at

    def subjects(self, decision: str) -> tuple[str, ...]:
        """Return the subjects of which the ledger has a decision of this part, by name."""
        query = select(decisions.c.subject).where(decisions.c.decision == decision).distinct()
        with self._database.read() as connection:
            return tuple(sorted(connection.execute(query).scalars()))

    def _records(self, query: Select[Any]) -> tuple[Record, ...]:
        with self._database.read() as connection:
            return tuple(_record(row) for row in connection.execute(query))


def nearby(connection: Connection, decision_id: str) -> str:
    """Return what to say of an id that is not there: the ids around it."""
    column = decisions.c.decision_id
    below = connection.execute(
        select(column).where(column < decision_id).order_by(column.desc()).limit(_NEARBY)
    ).scalars()
    above = connection.execute(select(column).where(column > decision_id).order_by(column).limit(_NEARBY)).scalars()
    ids = [*reversed(below.all()), *above]
    if not ids:
        return "no decision is recorded yet"
    return f"no such decision is recorded, or it is older than the ledger keeps; near it are {', '.join(ids)}"


def decoded(kind: type[T], record: Record | None, decision_id: str, remedy: str) -> T:
    """Return the decision of a record as its part's type; UnknownName with the remedy when there is none."""
    if record is None:
        raise UnknownName("decision_id", decision_id, remedy)
    return codec.decode(kind, record.body)


def _with_bodies(*, with_inputs: bool = True) -> Select[Any]:
    # A fleet's decision is in the journal alone, every other one beside its row.
    body = func.coalesce(decisions.c.body, rows.c.body).label("body")
    joined = decisions.outerjoin(rows, _JOURNALLED)
    if not with_inputs:
        return select(*_COLUMNS, literal_column("''").label("inputs"), body).select_from(joined)
    joined = joined.outerjoin(dictionaries_table, dictionaries.OF_DECISION)
    return select(*_COLUMNS, decisions.c.inputs, dictionaries.DICTIONARY, body).select_from(joined)


def _record(row: Row[Any]) -> Record:
    return Record(
        decision_id=row.decision_id,
        decision=row.decision,
        subject=row.subject,
        at=row.at,
        body=codec.unpack(row.body),
        inputs=dictionaries.unpacked(row),
        kind=row.kind,
        number=row.number,
        request_id=row.request_id or "",
        about=row.about,
        changed=bool(row.changed),
    )
