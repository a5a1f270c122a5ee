"""The tick's schedule on the real APScheduler: aligned, one at a time, and alive after the clock was set."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import time_machine

from agent.service.schedule import TICK, Job, Schedule
from tests.waiting import until

INTERVAL_S = 0.4
SHORT_S = 0.1
"""Where nothing depends on how late a turn is."""


@contextmanager
def running(
    turns: list[float], *, fail: bool = False, last: float = 0.0, interval_s: float = INTERVAL_S
) -> Iterator[Job]:
    def turn() -> None:
        turns.append(time.monotonic())
        if last:
            time.sleep(last)
        if fail:
            raise RuntimeError("a turn went wrong")

    schedule = Schedule()
    tick = schedule.add(TICK, turn, interval_s)
    schedule.start()
    try:
        yield tick
    finally:
        schedule.stop()


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0], ids=["back an hour", "forward an hour"])
def test_turns_go_on_after_the_clock_was_set(jump_s: float) -> None:
    turns: list[float] = []
    with running(turns):
        until(lambda: len(turns) >= 2)
        with time_machine.travel(time.time() + jump_s, tick=True):
            before = len(turns)
            # Two turns, so that the schedule keeps its beat and is not merely rescued once.
            until(lambda: len(turns) >= before + 2)


def test_a_failing_turn_does_not_end_the_schedule() -> None:
    turns: list[float] = []
    with running(turns, fail=True, interval_s=SHORT_S) as tick:
        until(lambda: len(turns) >= 3)
    assert tick.failures >= 3
    assert tick.turns == 0


def test_a_slow_turn_is_never_doubled() -> None:
    turns: list[float] = []
    with running(turns, last=1.5 * SHORT_S, interval_s=SHORT_S):
        until(lambda: len(turns) >= 3)
    gaps = [b - a for a, b in itertools.pairwise(turns)]
    assert min(gaps) >= 1.5 * SHORT_S - 0.01


def test_no_watchdog_rescue_happens_on_a_steady_clock() -> None:
    turns: list[float] = []
    with running(turns, interval_s=2.0) as tick:
        until(lambda: len(turns) >= 2)
        assert tick.rescued == 0
