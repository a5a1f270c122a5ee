"""One clock for several processes: the process that runs the loop paces it and can hold it, the others follow it.

The time is in a small file that all of them map into memory. Between two instants of the loop it runs at most
`speed` times as fast as the wall. It stops while the loop turns, and at each instant at which a thread of an awaited
process has something to do, until that thread has done it and waits again. So neither a call that takes long nor a
machine that is too busy for the speed costs simulated time: the run takes longer, and no event in it is another one.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

STEP_WALL_S = 0.001
LONGEST_STEP_WALL_S = 0.05
"""A pace that came later than this was kept from the processor, and so were the others: the time is not made up."""
MADE_UP_WALL_S = 1.0
"""Of the wall time that passes while others hold the clock, at most so much is made up afterwards."""
PATIENCE_WALL_S = 30.0
"""An awaited process that does nothing for so long is left behind, as a VM that hangs would be."""
SHORTEST_NAP_S, LONGEST_NAP_S = 0.001, 0.1
_NOW, _SPEED, _NEXT, _SENT = range(4)
_SIZE = 4 * 8


class Stop(Protocol):
    """A signal that ends a wait, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether to stop."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait so many wall seconds, less when stopped; return whether to stop."""
        ...


class Call(Stop, Protocol):
    """A signal that another thread can give."""

    def set(self) -> None:
        """Give it."""
        ...


def _mapped(path: Path) -> memoryview[float]:
    """Return the file's numbers; each is read and written in one piece, as it is an aligned double."""
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size != _SIZE:
            raise ValueError(f"{path} is not the clock of a dry run: it must hold {_SIZE} bytes")
        return memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("d")


class FollowedClock:
    """The clock of a process that reads the time from the file at `path`.

    awaited: the clock waits for this process: a thread that sleeps on it has done everything before the time at which
    it wants to wake, and holds the time from then on until it sleeps again or leaves. Raises OSError or ValueError for
    what is no clock.
    """

    def __init__(self, path: Path, *, awaited: bool = False) -> None:
        self._numbers = _mapped(path)
        self._awaited = awaited
        self._lock = threading.Lock()
        self._next: dict[threading.Thread, float] = {}

    def now(self) -> float:
        """Return simulated seconds since the epoch."""
        return self._numbers[_NOW]

    def monotonic(self) -> float:
        """Return simulated seconds on a scale that never steps: this clock only goes forward."""
        return self._numbers[_NOW]

    def sleep(self, seconds: float, stop: Stop | None = None) -> None:
        """Wait until `seconds` of simulated time have passed, less when stopped."""
        until, speed = self.now() + seconds, self._numbers[_SPEED]
        with self._lock:
            # One that was woken meanwhile goes on holding the time.
            if stop is None or not stop.is_set():
                self._awaits(threading.current_thread(), until)
        while (left_s := until - self.now()) > 0.0 and not (stop is not None and stop.is_set()):
            nap_s = min(LONGEST_NAP_S, max(SHORTEST_NAP_S, left_s / speed))
            time.sleep(nap_s) if stop is None else stop.wait(nap_s)

    def attend(self, thread: threading.Thread) -> None:
        """Hold the time for a thread that is about to start, until it sleeps for the first time."""
        with self._lock:
            self._awaits(thread, self.now())

    def wake(self, thread: threading.Thread, call: Call) -> None:
        """End the sleep of a thread that sleeps with `call`, and hold the time until it sleeps again."""
        with self._lock:
            call.set()
            if thread in self._next:
                self._awaits(thread, self.now())

    def leave(self) -> None:
        """Let the time pass whatever the calling thread does: it ends."""
        with self._lock:
            self._next.pop(threading.current_thread(), None)
            self._write_next()

    def count_sent(self, messages: int) -> None:
        """Tell the pacing process that so many more messages are on their way to it; one process only may do so."""
        with self._lock:
            self._numbers[_SENT] += messages

    def _awaits(self, thread: threading.Thread, at: float) -> None:
        if self._awaited:
            self._next[thread] = at
            self._write_next()

    def _write_next(self) -> None:
        if self._awaited:
            self._numbers[_NEXT] = min(self._next.values(), default=math.inf)


class PacedClock(FollowedClock):
    """The clock of the process that lets the time pass, by `pace`, and in no other way."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path)
        self.path = path
        self._wall = wall
        self._moved_at = wall()
        self._unspent_s = 0.0

    @property
    def sent(self) -> int:
        """The messages that a follower has sent to this process so far."""
        return int(self._numbers[_SENT])

    def skip_to(self, at: float) -> None:
        """Show a later time at once, before anyone has slept on the clock."""
        self._numbers[_NOW] = max(at, self.now())

    @property
    def speed(self) -> float:
        """The simulated seconds that pass in a wall second at most."""
        return self._numbers[_SPEED]

    def pace(self, until: float, stop: Stop) -> bool:
        """Let the time pass up to `until` and hold it there; return False when stopped before."""
        before = self._moved_at = self._wall()
        while (now := self.now()) < until:
            if stop.wait(STEP_WALL_S):
                return False
            wall = self._wall()
            passed_s = self._unspent_s + min(wall - before, LONGEST_STEP_WALL_S)
            before = wall
            to = max(now, min(until, now + passed_s * self.speed, self._allowed(wall)))
            # What is left of the step belongs to what follows, or many short paces would add up to a delay, and so
            # would many short waits for others.
            self._unspent_s = min(MADE_UP_WALL_S, max(0.0, passed_s - (to - now) / self.speed))
            self._numbers[_NOW] = to
        return not stop.is_set()

    def _allowed(self, wall: float) -> float:
        """Return how far the time may go, for the sake of what an awaited process has still to do."""
        limit = self._numbers[_NEXT]
        if limit > self.now():
            self._moved_at = wall
        return limit if wall - self._moved_at <= PATIENCE_WALL_S else math.inf


@contextmanager
def paced_clock(directory: Path, now: float, speed: float) -> Iterator[PacedClock]:
    """Make a clock that shows `now`, with its file in `directory`; the file is gone when the block ends.

    It may be removed before, once every process has opened it.
    """
    if not speed > 0.0:
        raise ValueError(f"speed is {speed}: give a number above 0 (60 runs an hour in a minute)")
    handle, name = tempfile.mkstemp(prefix="clock-", dir=directory)
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(memoryview(bytearray(_SIZE)))
        numbers = _mapped(path)
        numbers[_NOW], numbers[_SPEED], numbers[_NEXT] = now, speed, math.inf
        yield PacedClock(path)
    finally:
        path.unlink(missing_ok=True)
