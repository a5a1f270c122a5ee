"""What the running agent knows of itself: written by the loop, read by metrics, HTTP, page, alarms and the watchdog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agent.kernel.turn import TurnReport

Listener = Callable[["ServiceState", TurnReport], None]
"""Called after each turn, in the loop's thread, with the new state; what it raises is logged and forgotten."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One moment of the agent's life.

    started_at, last_turn_at: epoch seconds; last_turn_at None before the first turn. turns, failed_turns, rescued_turns
    and overran_turns (those that lasted beyond their deadline): counts since the start. leader: whether this process
    leads any subject, `epoch` the newest under which it does. leaders: on a shared ledger, by the path of each subject,
    the agent that leads it. ledger_failure: why the last turn could execute nothing, "" when it could.
    problems: by name, a sentence each for an operator. latest: the newest decision in a sentence.
    """

    started_at: float
    last_turn_at: float | None = None
    turns: int = 0
    failed_turns: int = 0
    rescued_turns: int = 0
    last_turn_duration_s: float = 0.0
    leader: bool = False
    epoch: int = 0
    leaders: Mapping[str, str] = field(default_factory=dict)
    overran_turns: int = 0
    stopping: bool = False
    ledger_failure: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    latest: str = ""


class ServiceBoard:
    """Holds the newest state; safe to read from any thread, written by the loop only."""

    def __init__(self, started_at: float) -> None:
        self._lock = threading.Lock()
        self._state = ServiceState(started_at)
        self._listeners: list[Listener] = []

    def read(self) -> ServiceState:
        """Return the newest state."""
        return self._state

    def listen(self, listener: Listener) -> None:
        """Have `listener` called after each turn."""
        self._listeners.append(listener)

    def change(self, **fields: object) -> None:
        """Change fields outside a turn, such as `stopping` or `leader`."""
        with self._lock:
            self._state = replace(self._state, **fields)  # type: ignore[arg-type]

    def problem(self, name: str, sentence: str) -> None:
        """Say what is wrong with the part `name`, or with "" that nothing is any more."""
        with self._lock:
            others = {key: text for key, text in self._state.problems.items() if key != name}
            problems = {**others, name: sentence} if sentence else others
            self._state = replace(self._state, problems=problems)

    def turned(self, report: TurnReport, duration_s: float) -> tuple[Listener, ...]:
        """Take in a finished turn; return the listeners to call, with the state as `read` then gives it."""
        with self._lock:
            before = self._state
            self._state = replace(
                before,
                last_turn_at=report.at,
                turns=before.turns + 1,
                failed_turns=before.failed_turns + bool(report.failure),
                last_turn_duration_s=duration_s,
                ledger_failure=report.failure or "",
                latest=report.latest or before.latest,
            )
            return tuple(self._listeners)
