"""What operators switch, from any process: pauses and pins, each with an event that says who did it."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection

from agent.autoscaling.state import Pause, PauseScope, Pin
from agent.ledger import codec, journal, state
from domain.decisions import Event, Reason

_HELD = {PauseScope.ALL: "all changes", PauseScope.IN: "scaling in", PauseScope.OUT: "scaling out"}


def pause(connection: Connection, fleet: str, pause: Pause) -> None:
    """Store a pause in place of an earlier one of its scope."""
    key = state.pause_key(pause.scope)
    state.put(connection, [(fleet, key, codec.encode(pause))])
    until = "until resumed" if pause.until is None else f"until {_utc(pause.until)}"
    _note(connection, fleet, pause.since, key, f"{pause.owner} paused {_HELD[pause.scope]} {until}: {pause.reason}")


def resume(connection: Connection, fleet: str, scope: PauseScope, *, at: float, owner: str) -> bool:
    """Remove the pause of this scope (ALL: every pause) and say whether there was one."""
    scopes = tuple(PauseScope) if scope is PauseScope.ALL else (scope,)
    lifted = [each for each in scopes if state.remove(connection, fleet, state.pause_key(each))]
    for each in lifted:
        _note(connection, fleet, at, state.pause_key(each), f"{owner} resumed {_HELD[each]}")
    return bool(lifted)


def pin(connection: Connection, fleet: str, pin: Pin) -> None:
    """Store a pin in place of an earlier one."""
    state.put(connection, [(fleet, state.PIN, codec.encode(pin))])
    size = ", ".join(f"{group} at {count}" for group, count in sorted(pin.desired.items()))
    _note(connection, fleet, pin.since, state.PIN, f"{pin.owner} pinned {size} until {_utc(pin.until)}: {pin.reason}")


def unpin(connection: Connection, fleet: str, *, at: float, owner: str) -> bool:
    """Remove the pin and say whether there was one."""
    lifted = state.remove(connection, fleet, state.PIN)
    if lifted:
        _note(connection, fleet, at, state.PIN, f"{owner} lifted the pin")
    return lifted


def _note(connection: Connection, fleet: str, at: float, subject: str, detail: str) -> None:
    journal.add(connection, [journal.event_row(Event(fleet, at, Reason.OPERATOR, detail, subject))])


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
