"""What the ledger overwrites: the loop's memory, the operators' switches, and who leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Insert, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from agent.autoscaling.state import Controls, LoopState, Pause, PauseScope, Pin
from agent.ledger import codec
from agent.ledger.schema import leader, state
from domain.errors import Fenced

T = TypeVar("T")

LOOP: Final = "loop"
PIN: Final = "pin"
SETTINGS: Final = "settings"
PROBE: Final = "probe"
_PROBE_BYTES: Final = 2**16

AGENT: Final = ""
"""The fleet under which the agent's own state stands."""


def pause_key(scope: PauseScope) -> str:
    """Return the state key of a pause."""
    return f"pause.{scope}"


@cache
def _insert_or_update(dialect: str) -> Insert:
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(state)
    upsert: Insert = statement.on_conflict_do_update(
        index_elements=["fleet", "key"], set_={"body": statement.excluded["body"]}
    )
    return upsert


def put(connection: Connection, rows: Sequence[tuple[str, str, bytes]]) -> None:
    """Write (fleet, key, canonical JSON) rows over whatever stood there."""
    if rows:
        statement = _insert_or_update(connection.dialect.name)
        connection.execute(statement, [{"fleet": f, "key": k, "body": codec.pack(body)} for f, k, body in rows])


def get(connection: Connection, fleet: str, key: str) -> bytes | None:
    """Return the canonical JSON under a key, None when there is none."""
    found = connection.execute(select(state.c.body).where(state.c.fleet == fleet, state.c.key == key)).scalar()
    return None if found is None else codec.unpack(found)


def remove(connection: Connection, fleet: str, key: str) -> bool:
    """Remove a key and say whether it was there."""
    return connection.execute(delete(state).where(state.c.fleet == fleet, state.c.key == key)).rowcount > 0


def put_probe(connection: Connection) -> None:
    """Write something larger than a minute's decisions, to see whether it goes."""
    statement = _insert_or_update(connection.dialect.name)
    connection.execute(statement, [{"fleet": AGENT, "key": PROBE, "body": b"{" + bytes(_PROBE_BYTES)}])


def put_loop_states(connection: Connection, states: Mapping[str, LoopState]) -> None:
    """Write the loop's memory of each fleet."""
    put(connection, [(fleet, LOOP, codec.encode(memory)) for fleet, memory in states.items()])


def loop_state(connection: Connection, fleet: str) -> LoopState:
    """Return the loop's memory of a fleet, an empty one when there is none."""
    return _decoded(LoopState, get(connection, fleet, LOOP)) or LoopState()


def loop_states(connection: Connection, fleets: Sequence[str]) -> dict[str, LoopState]:
    """Return the loop's memory of each of these fleets, an empty one where there is none."""
    query = select(state.c.fleet, state.c.body).where(state.c.fleet.in_(fleets), state.c.key == LOOP)
    found = {row.fleet: codec.decode(LoopState, codec.unpack(row.body)) for row in connection.execute(query)}
    return {fleet: found.get(fleet) or LoopState() for fleet in fleets}


def controls(connection: Connection, fleets: Sequence[str]) -> dict[str, Controls]:
    """Return what operators have switched for each of these fleets, expired switches included."""
    query = select(state.c.fleet, state.c.key, state.c.body).where(state.c.fleet.in_(fleets), state.c.key != LOOP)
    switched: dict[str, dict[str, bytes]] = {fleet: {} for fleet in fleets}
    for row in connection.execute(query):
        switched[row.fleet][row.key] = codec.unpack(row.body)
    return {fleet: _controls(bodies) for fleet, bodies in switched.items()}


def _controls(switched: Mapping[str, bytes]) -> Controls:
    pauses = (_decoded(Pause, switched.get(pause_key(scope))) for scope in PauseScope)
    return Controls(tuple(p for p in pauses if p is not None), _decoded(Pin, switched.get(PIN)))


def _decoded(kind: type[T], body: bytes | None) -> T | None:
    return None if body is None else codec.decode(kind, body)


def fleets(connection: Connection) -> tuple[str, ...]:
    """Return the fleets for which anything was ever decided, by name."""
    return tuple(connection.execute(select(state.c.fleet).where(state.c.key == LOOP).order_by(state.c.fleet)).scalars())


def newest_epoch(connection: Connection) -> int:
    """Return the newest leader's epoch, 0 before the first."""
    return connection.execute(select(func.max(leader.c.epoch))).scalar() or 0


def add_epoch(connection: Connection, owner: str, at: float, at_least: int = 0) -> int:
    """Make `owner` the leader and return its epoch, one above the last and not below `at_least`."""
    epoch = max(newest_epoch(connection) + 1, at_least)
    connection.execute(insert(leader), [{"epoch": epoch, "owner": owner, "since": at}])
    return epoch


def check_epoch(connection: Connection, epoch: int) -> None:
    """Raise Fenced when a newer leader exists."""
    newest = connection.execute(select(leader.c.epoch, leader.c.owner).order_by(leader.c.epoch.desc()).limit(1)).first()
    if newest is not None and newest.epoch > epoch:
        raise Fenced(
            f"leader epoch {epoch} is over: {newest.owner} leads since epoch {newest.epoch}; this process must not act"
        )


def settings_body(connection: Connection, body: Mapping[str, Any]) -> bytes | None:
    """Return the canonical JSON of settings after remembering them, None when they are the same as the last."""
    text = codec.encode_mapping(body)
    if get(connection, AGENT, SETTINGS) == text:
        return None
    put(connection, [(AGENT, SETTINGS, text)])
    return text
