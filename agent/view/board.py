"""What the running agent knows of itself: written by the loop, read by metrics, HTTP, page, alarms and the watchdog."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from agent.autoscaling.ports import TickReport
from domain.decisions import Decision, Event
from domain.snapshot import Snapshot

KEPT_EVENTS = 200

Listener = Callable[["Standing", TickReport], None]
"""Called after each turn, in the loop's thread, with the new standing; what it raises is logged and forgotten."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One moment of the agent's life.

    started_at, turned_at: epoch seconds; turned_at None before the first turn. turns, failed_turns, rescued_turns:
    counts since the start; last_duration_s: of the last turn. overran_turns: those that lasted beyond their deadline.
    leader: whether this process may act, under `epoch`. ready: whether turns can be made; False again while stopping.
    ledger_failure: why the last turn could execute nothing, "" when it could. snapshots: the newest per fleet.
    problems: by the name of what has one, a sentence each for a person to look into. last_decisions: by fleet.
    model: the SHA-256 of the learned model held ready, "" for none.
    """

    started_at: float
    turned_at: float | None = None
    turns: int = 0
    failed_turns: int = 0
    rescued_turns: int = 0
    last_duration_s: float = 0.0
    leader: bool = False
    epoch: int = 0
    overran_turns: int = 0
    ready: bool = False
    stopping: bool = False
    ledger_failure: str = ""
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
    last_decisions: dict[str, Decision] = field(default_factory=dict)
    model: str = ""


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

    def problem(self, name: str, sentence: str) -> None:
        """Say what is wrong with the part `name`, or with "" that nothing is any more."""
        with self._lock:
            others = {key: text for key, text in self._standing.problems.items() if key != name}
            problems = {**others, name: sentence} if sentence else others
            self._standing = replace(self._standing, problems=problems)

    def forget(self, fleets: Collection[str]) -> None:
        """Drop what is known of fleets that are no longer there."""
        with self._lock:
            self._standing = replace(
                self._standing,
                snapshots={k: v for k, v in self._standing.snapshots.items() if k not in fleets},
                last_decisions={k: v for k, v in self._standing.last_decisions.items() if k not in fleets},
            )

    def turned(self, report: TickReport, duration_s: float) -> tuple[Listener, ...]:
        """Take in a finished turn; return the listeners to call, with the standing as `read` then gives it."""
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
                last_decisions={**before.last_decisions, **{d.fleet: d for d in report.decisions}},
                events=tuple(self._events),
            )
            return tuple(self._listeners)
