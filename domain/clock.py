"""Wall, scaled and virtual time behind one protocol, and a detector of clock steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


def since_boot() -> float:
    """Return seconds on a scale that never steps and that goes on while the host is suspended, where it can tell.

    Leases and send deadlines are counted on it: `time.monotonic` stops in a suspended Linux host, so that an
    expired lease would look fresh after the host resumes.
    """
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


CLOSE_S = 0.01
"""Wall and monotonic time read within this need not be read again."""


class Clock(Protocol):
    """A source of time that can wait; code that needs time takes one of these."""

    def now(self) -> float:
        """Return the time as seconds since the epoch; may step when the operator or NTP sets the clock."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a scale that never steps (same rate as `now`), for measuring durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of this clock's time; a value of zero or less returns at once."""
        ...


class WallClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Return the system time in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return the system's monotonic time in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        if seconds > 0.0:
            time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class ScaledClock:
    """A clock that runs `speed` times as fast as the wall.

    It reads `origin` (simulated epoch seconds) at wall time `wall_origin`. Two processes with the same three numbers
    agree on the time to within one reading of the machine's clock.
    """

    origin: float
    wall_origin: float
    speed: float

    def __post_init__(self) -> None:
        if not self.speed > 0.0:
            raise ValueError(f"speed is {self.speed}: give a number above 0 (60 runs an hour in a minute)")

    def now(self) -> float:
        """Return simulated seconds since the epoch."""
        return self.origin + (time.time() - self.wall_origin) * self.speed

    def monotonic(self) -> float:
        """Return simulated seconds on a scale that never steps."""
        return time.monotonic() * self.speed

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of simulated time."""
        if seconds > 0.0:
            time.sleep(seconds / self.speed)


class VirtualClock:
    """A clock that moves only by `advance`, `sleep` and `step`.

    `step` sets the wall reading without any time passing, as a clock correction does.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> float:
        """Return the virtual time in seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return the virtual seconds that have passed since creation."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        if seconds > 0.0:
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` (>= 0) pass."""
        if seconds < 0.0:
            raise ValueError(f"cannot advance by {seconds} s: time passes forward; use step() for a clock correction")
        self._now += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Set the clock forward or back by `seconds` without any time passing."""
        self._now += seconds


@dataclass(frozen=True, slots=True)
class BothTimes:
    """Wall and monotonic time as of one moment, known to within `doubt_s`."""

    now: float
    monotonic: float
    doubt_s: float = 0.0


def read_both(clock: Clock, *, attempts: int = 5) -> BothTimes:
    """Read the wall time between two monotonic times, the closest pair of `attempts`.

    A process that loses the processor between two readings would take the wait for a step of the wall clock, the more
    so on a scaled clock: 0.1 s are 6 s at speed 60. `doubt_s` is the remaining uncertainty.
    """
    best: BothTimes | None = None
    for _ in range(attempts):
        before, now, after = clock.monotonic(), clock.now(), clock.monotonic()
        doubt_s = (after - before) / 2.0
        if best is None or doubt_s < best.doubt_s:
            best = BothTimes(now, before + doubt_s, doubt_s)
        if doubt_s < CLOSE_S:
            break
    assert best is not None
    return best


class JumpDetector:
    """Compares wall with monotonic time between calls and reports the difference when it exceeds the tolerance."""

    def __init__(self, tolerance_s: float = 5.0) -> None:
        self._tolerance_s = tolerance_s
        self._last: BothTimes | None = None

    def observe(self, now: float, monotonic: float, doubt_s: float = 0.0) -> float:
        """Return by how many seconds the wall clock stepped since the last call.

        0.0 for the first call, and within the tolerance. doubt_s: uncertainty that the two times are of one moment; a
        smaller difference is not reported.
        """
        last, self._last = self._last, BothTimes(now, monotonic, doubt_s)
        if last is None:
            return 0.0
        step = (now - last.now) - (monotonic - last.monotonic)
        return step if abs(step) > self._tolerance_s + doubt_s + last.doubt_s else 0.0
