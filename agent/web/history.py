"""The last hour of each queue: read from the ledger once, then kept up from each decision that is looked at."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from agent.autoscaling.status import FleetStatus
from agent.ledger import Ledger
from domain.snapshot import QueueSnapshot

KEPT_S = 3600.0
_MOST_POINTS = 720


@dataclass(frozen=True, slots=True)
class QueuePoint:
    """The queue at `at` (epoch seconds): jobs waiting and running, None where they were not measured."""

    at: float
    waiting: int | None
    running: int | None


@dataclass(slots=True)
class _Known:
    """The points of one fleet, and the number of the decision that the last of them stands for."""

    points: deque[QueuePoint] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    number: int = -1


class QueueHistory:
    """Remembers what it was shown, so that the ledger is asked only for what was missed; safe for any thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def last_hour(self, status: FleetStatus, now: float) -> tuple[QueuePoint, ...]:
        """Return a fleet's queue at each decision of the last hour up to `status`, in order.

        LedgerUnavailable when what was missed cannot be read.
        """
        last = status.last_decision
        if last is None:
            return ()
        number = _number(last.id)
        with self._lock:
            known = self._known.setdefault(status.fleet, _Known())
            if number == known.number + 1 and known.points:
                known.points.append(_point(last.at, status.queue))
            elif number != known.number or number < 0:
                known.points.clear()
                for inputs, decision in self._ledger.inputs(status.fleet, since=now - KEPT_S):
                    queue = None if inputs.snapshot is None else inputs.snapshot.queue
                    known.points.append(_point(decision.at, queue))
                    number = max(number, _number(decision.decision_id))
            known.number = number
            while known.points and known.points[0].at < now - KEPT_S:
                known.points.popleft()
            return tuple(known.points)


def _point(at: float, queue: QueueSnapshot | None) -> QueuePoint:
    return QueuePoint(at, None, None) if queue is None else QueuePoint(at, queue.waiting, queue.running)


def _number(decision_id: str) -> int:
    """Return the number in a decision's id, which counts a fleet's decisions; -1 for an id without one."""
    number = decision_id.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
