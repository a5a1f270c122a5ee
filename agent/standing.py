"""What the running agent knows of itself: written by the loop, read by metrics, HTTP, page, alarms and the watchdog."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agent.tick import TickReport
from domain.decisions import Event
from domain.snapshot import Snapshot

KEPT_EVENTS = 200

Listener = Callable[["Standing", TickReport], None]
"""Called after each turn, in the loop's thread, with the new standing; what it raises is logged and forgotten."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One moment of the agent's life.

    started_at, turned_at: epoch seconds; turned_at None before the first turn. turns, failed_turns, rescued_turns:
    counts since the start; last_duration_s: of the last turn. leader: whether this process may act, under `epoch`.
    ledger_failure: why the last turn could execute nothing, "" when it could. snapshots: the newest per fleet.
    """

    started_at: float
    turned_at: float | None = None
    turns: int = 0
    failed_turns: int = 0
    rescued_turns: int = 0
    last_duration_s: float = 0.0
    leader: bool = False
    epoch: int = 0
    stopping: bool = False
    ledger_failure: str = ""
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    events: tuple[Event, ...] = ()


class StandingBoard:
    """Holds the newest standing; safe to read from any thread, written by the loop only."""

    def __init__(self, started_at: float) -> None:
        self._lock = threading.Lock()
        self._standing = Standing(started_at)
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._listeners: list[Listener] = []

    def read(self) -> Standing:
        """Return the newest standing."""
        return self._standing

    def listen(self, listener: Listener) -> None:
        """Have `listener` called after each turn."""
        self._listeners.append(listener)

    def change(self, **fields: object) -> Standing:
        """Change fields outside a turn, such as `stopping` or `leader`; return the new standing."""
        with self._lock:
            self._standing = replace(self._standing, **fields)  # type: ignore[arg-type]
            return self._standing

    def turned(self, report: TickReport, duration_s: float) -> tuple[Listener, ...]:
        """Take in a finished turn; return the listeners to call."""
        with self._lock:
            before = self._standing
            self._events.extend(report.events)
            self._standing = replace(
                before,
                turned_at=report.at,
                turns=before.turns + 1,
                failed_turns=before.failed_turns + bool(report.failure),
                last_duration_s=duration_s,
                ledger_failure=report.failure or "",
                snapshots={**before.snapshots, **{s.fleet: s for s in report.snapshots}},
                events=tuple(self._events),
            )
            return tuple(self._listeners)
