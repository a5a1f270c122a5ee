"""Wall and monotonic time read as of one moment: a busy machine's wait between the two is no step of the clock."""

from __future__ import annotations

from domain.clock import JumpDetector, VirtualClock, read_both

BUSY_S = 6.0
"""A tenth of a second without the processor, on a clock that runs sixty times as fast as the wall."""


class BusyClock(VirtualClock):
    """A clock whose reader loses the processor for a while, each time after one of the listed readings."""

    def __init__(self, *waits: int) -> None:
        super().__init__(1_000_000.0)
        self._waits, self._readings = set(waits), 0

    def now(self) -> float:
        return self._read(super().now())

    def monotonic(self) -> float:
        return self._read(super().monotonic())

    def _read(self, value: float) -> float:
        if self._readings in self._waits:
            self.advance(BUSY_S)
        self._readings += 1
        return value


def jump(clock: BusyClock, *, step_s: float = 0.0) -> float:
    jumps = JumpDetector()
    for _ in range(2):
        times = read_both(clock)
        found = jumps.observe(times.now, times.monotonic, times.doubt_s)
        clock.advance(60.0)
        clock.step(step_s)
    return found


def test_a_wait_between_the_readings_is_read_again() -> None:
    clock = BusyClock(1)
    times = read_both(clock)
    assert (times.now - 1_000_000.0, times.doubt_s) == (times.monotonic, 0.0)


def test_a_machine_that_is_always_busy_shows_no_step() -> None:
    for waits in (range(1, 1_000), range(0, 1_000, 2), range(1, 1_000, 2), range(6, 1_000)):
        assert jump(BusyClock(*waits)) == 0.0


def test_a_step_is_seen_on_a_busy_machine_as_on_an_idle_one() -> None:
    assert jump(BusyClock(), step_s=-30.0) == -30.0
    assert jump(BusyClock(1, 4, 7), step_s=3_600.0) == 3_600.0
    assert abs(jump(BusyClock(*range(1_000)), step_s=-120.0) + 120.0) <= 2 * BUSY_S
