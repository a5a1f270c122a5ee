"""What is due to happen in the reference simulator, in order of time (autoscaler specification §2.2)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

JOB_END, VM_READY, ARRIVAL, JOB_START, NOTICE, TAKEN_BACK = range(6)
"""Kinds of events; at one instant they happen in this order, those of a kind in that of their making."""


class Event(NamedTuple):
    """One event: of a job by its index, or of a VM by its number."""

    time: float
    kind: int
    sequence: int
    item: int


@dataclass(slots=True)
class Events:
    """The events to come; `sequence` is the number of the one made last."""

    sequence: int = 0
    _heap: list[Event] = field(default_factory=list)

    def push(self, time: float, kind: int, item: int) -> int:
        """Add an event and return its number."""
        self.sequence += 1
        heapq.heappush(self._heap, Event(time, kind, self.sequence, item))
        return self.sequence

    def push_release(self, time: float, job: int) -> None:
        """Add the arrival of a released job; at one instant these come in order of their jobs."""
        heapq.heappush(self._heap, Event(time, ARRIVAL, job, job))

    def next_time(self, stale: Callable[[Event], bool]) -> float:
        """Drop what has become stale and return the time of the first event left, inf when there is none."""
        while self._heap and stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0].time if self._heap else math.inf

    def pop(self) -> Event:
        """Take the first event."""
        return heapq.heappop(self._heap)
