"""What the ledger overwrites: the loop's memory, the operators' switches, and who leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, Table, bindparam, delete, func, insert, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from agent.ledger import codec
from agent.ledger.schema import leader, state
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.errors import Fenced
from domain.subject import AGENT

T = TypeVar("T")

SETTINGS: Final = "settings"
PROBE: Final = "probe"
_PROBE_BYTES: Final = 2**16


def pause_key(decision: str, scope: PauseScope) -> str:
    """Return the state key of a pause of one decision's subject."""
    return f"pause.{decision}.{scope}"


def pin_key(decision: str) -> str:
    """Return the state key of a pin of one decision's subject."""
    return f"pin.{decision}"


def upsert(connection: Connection, table: Table) -> Insert:
    """Return the statement that writes rows of a table over those with the same primary key."""
    return _upsert(connection.dialect.name, table)


@cache
def _upsert(dialect: str, table: Table) -> Insert:
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    keys = [column.name for column in table.primary_key]
    others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    found: Insert = statement.on_conflict_do_update(index_elements=keys, set_=others)
    return found


def put(connection: Connection, rows: Sequence[tuple[str, str, bytes]]) -> None:
    """Write (owner, key, canonical JSON) rows over whatever stood there."""
    if rows:
        rows_of = [{"owner": o, "key": k, "body": codec.pack(body)} for o, k, body in rows]
        connection.execute(upsert(connection, state), rows_of)


def get(connection: Connection, owner: str, key: str) -> bytes | None:
    """Return the canonical JSON under a key, None when there is none."""
    found = connection.execute(select(state.c.body).where(state.c.owner == owner, state.c.key == key)).scalar()
    return None if found is None else codec.unpack(found)


def remove(connection: Connection, owner: str, key: str) -> bool:
    """Remove a key and say whether it was there."""
    return connection.execute(delete(state).where(state.c.owner == owner, state.c.key == key)).rowcount > 0


def under(connection: Connection, owner: str, prefix: str) -> list[bytes]:
    """Return the canonical JSON under every key that begins so, in the order of the keys."""
    found = connection.execute(select(state.c.key, state.c.body).where(*_under(owner, prefix)))
    return [codec.unpack(row.body) for row in sorted(found, key=lambda row: str(row.key))]


def _under(owner: str, prefix: str) -> tuple[ColumnElement[bool], ...]:
    return state.c.owner == owner, state.c.key.startswith(prefix, autoescape=True)


def put_probe(connection: Connection) -> None:
    """Write something larger than a minute's decisions, to see whether it goes."""
    connection.execute(
        upsert(connection, state), [{"owner": AGENT.name, "key": PROBE, "body": b"{" + bytes(_PROBE_BYTES)}]
    )


# Each changing call asks it anew, right before it is sent.
_KEYS: Final = (*(f"pause_{scope}" for scope in PauseScope), "pin")
_IS_SWITCH: Final = or_(*(state.c.key == bindparam(name) for name in _KEYS))
CONTROLS: Final = select(state.c.key, state.c.body).where(state.c.owner == bindparam("owner"), _IS_SWITCH)
# Of every subject of a decision: there are as many rows as switches that are set, which are few.
ALL_CONTROLS: Final = select(state.c.owner, state.c.key, state.c.body).where(_IS_SWITCH)


def switches(decision: str) -> dict[str, str]:
    """Return the values by which CONTROLS and ALL_CONTROLS find the controls of a decision's subjects."""
    keys = (*(pause_key(decision, scope) for scope in PauseScope), pin_key(decision))
    return dict(zip(_KEYS, keys, strict=True))


def controls_of(rows: Iterable[tuple[str, bytes]]) -> Controls:
    """Return what operators have switched, from the rows that CONTROLS finds for one subject, expired ones included."""
    return _controls({key: codec.unpack(body) for key, body in rows})


def all_controls_of(rows: Iterable[Sequence[Any]], subjects: Sequence[str]) -> dict[str, Controls]:
    """Return the same for each of these subjects of one decision, from the rows that ALL_CONTROLS finds."""
    switched: dict[str, dict[str, bytes]] = {subject: {} for subject in subjects}
    for subject, key, body in rows:
        if subject in switched:
            switched[subject][key] = codec.unpack(body)
    return {subject: _controls(bodies) for subject, bodies in switched.items()}


def every_control(connection: Connection) -> dict[tuple[str, str], Controls]:
    """Return what operators have switched for each (decision, subject), expired switches included."""
    query = select(state.c.owner, state.c.key, state.c.body)
    is_switch = or_(state.c.key.startswith("pause."), state.c.key.startswith("pin."))
    switched: dict[tuple[str, str], dict[str, bytes]] = {}
    for subject, key, body in connection.execute(query.where(is_switch)):
        kind, _, rest = key.partition(".")
        decision = rest if kind == "pin" else rest.rpartition(".")[0]
        # Those of a name alone, which a schema before wrote, hold nothing.
        if decision:
            switched.setdefault((decision, subject), {})[key] = codec.unpack(body)
    return {of: _controls(bodies) for of, bodies in switched.items()}


def _controls(switched: Mapping[str, bytes]) -> Controls:
    of_scope = {key.rpartition(".")[2]: body for key, body in switched.items() if key.startswith("pause.")}
    pin = next((body for key, body in switched.items() if key.startswith("pin")), None)
    pauses = (_decoded(Pause, of_scope.get(scope)) for scope in PauseScope)
    return Controls(tuple(p for p in pauses if p is not None), _decoded(Pin, pin))


def _decoded(kind: type[T], body: bytes | None) -> T | None:
    return None if body is None else codec.decode(kind, body)


def newest_epoch(connection: Connection) -> int:
    """Return the newest leader's epoch, 0 before the first."""
    return connection.execute(select(func.max(leader.c.epoch))).scalar() or 0


def add_epoch(connection: Connection, owner: str, at: float, at_least: int = 0) -> int:
    """Make `owner` the leader of all subjects and return its epoch, one above the last and not below `at_least`."""
    epoch = max(newest_epoch(connection) + 1, at_least)
    connection.execute(insert(leader), [{"epoch": epoch, "owner": owner, "since": at}])
    return epoch


_EVERY: Final = select(leader.c.epoch, leader.c.owner).where(leader.c.subject == "").order_by(leader.c.epoch.desc())
_newer: Final = leader.alias("newer")
# The newest epoch of the subject of each of these epochs.
_NEWEST_OF: Final = (
    select(leader.c.epoch, leader.c.subject, _newer.c.epoch.label("newest"), _newer.c.owner)
    .join(_newer, (_newer.c.subject == leader.c.subject) & (_newer.c.epoch > leader.c.epoch))
    .order_by(_newer.c.epoch.desc())
    .limit(1)
)


def check_epoch(connection: Connection, *epochs: int) -> None:
    """Raise Fenced when the subject of one of these epochs, or every subject, has a newer leader."""
    if not epochs:
        return
    newest = connection.execute(_EVERY.limit(1)).first()
    if newest is not None and newest.epoch > min(epochs):
        raise Fenced(deposed(min(epochs), newest.epoch, newest.owner))
    if connection.dialect.name != "sqlite":
        found = connection.execute(_NEWEST_OF.where(leader.c.epoch.in_(epochs))).first()
        if found is not None:
            raise Fenced(deposed(found.epoch, found.newest, found.owner, found.subject))


def deposed(epoch: int, newest: int, owner: str, subject: str = "") -> str:
    """Return the sentence of a leader whose epoch is over."""
    whose = f" of {subject}" if subject else ""
    return f"leader epoch {epoch}{whose} is over: {owner} leads since epoch {newest}; this process must not act"


def settings_body(connection: Connection, body: Mapping[str, Any]) -> bytes | None:
    """Return the canonical JSON of settings after remembering them, None when they are the same as the last."""
    text = codec.encode_mapping(body)
    if get(connection, AGENT.name, SETTINGS) == text:
        return None
    put(connection, [(AGENT.name, SETTINGS, text)])
    return text
