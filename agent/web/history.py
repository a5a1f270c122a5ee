"""The last hour of each queue, read from the ledger minute by minute and kept for the next look."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from agent.ledger import Ledger

KEPT_S = 3600.0
_MOST_POINTS = 720


@dataclass(frozen=True, slots=True)
class QueuePoint:
    """The queue at `at` (epoch seconds): jobs waiting and running, None where they were not measured."""

    at: float
    waiting: int | None
    running: int | None


class QueueHistory:
    """Remembers what it read, so that each decision is read from the ledger once; safe for any thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._points: dict[str, deque[QueuePoint]] = {}

    def last_hour(self, fleet: str, now: float) -> tuple[QueuePoint, ...]:
        """Return the queue at each decision of the last hour, in order; LedgerUnavailable when it cannot be read."""
        with self._lock:
            points = self._points.setdefault(fleet, deque(maxlen=_MOST_POINTS))
            if points and points[-1].at > now:
                points.clear()  # The clock was set back: what lies ahead is not the last hour.
            since = max(now - KEPT_S, points[-1].at if points else now - KEPT_S)
            for inputs, decision in self._ledger.inputs(fleet, since=since):
                if not points or decision.at > points[-1].at:
                    queue = None if inputs.snapshot is None else inputs.snapshot.queue
                    waiting, running = (None, None) if queue is None else (queue.waiting, queue.running)
                    points.append(QueuePoint(decision.at, waiting, running))
            while points and points[0].at < now - KEPT_S:
                points.popleft()
            return tuple(points)
