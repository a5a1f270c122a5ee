"""What is due when: state changes in the order of their times, run lazily whenever somebody asks for the state."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Agenda:
    """A queue of (time, action); `settle` runs each action due at its own time, so no background thread is needed."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def schedule(self, at: float, action: Callable[[float], None]) -> None:
        """Run `action(at)` at the first `settle` for `at` or later; equal times run in the order scheduled."""
        heapq.heappush(self._due, (at, next(self._order), action))

    def settle(self, now: float) -> None:
        """Run what is due by `now`, earliest first, including what the actions themselves schedule by then."""
        while self._due and self._due[0][0] <= now:
            at, _, action = heapq.heappop(self._due)
            action(at)

    @property
    def next_at(self) -> float | None:
        """Return when the next action is due, None when nothing is."""
        return self._due[0][0] if self._due else None
