"""One clock for the processes of a dry run: it never outruns the loop, nor a process that has still something to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.paced_clock import (
    LONGEST_STEP_WALL_S,
    MADE_UP_WALL_S,
    PATIENCE_WALL_S,
    STEP_WALL_S,
    FollowedClock,
    PacedClock,
    paced_clock,
)
from tests.simulator.aws.world import START

SPEED = 60.0
FIRST_MINUTE = START + 60.0


class Wall:
    """Wall time that passes only during waits; each wait takes `late_s` longer than requested. Never stopped."""

    def __init__(self) -> None:
        self.at, self.late_s, self.steps = 1000.0, 0.0, 0

    def __call__(self) -> float:
        return self.at

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float) -> bool:
        self.at += timeout + self.late_s
        self.steps += 1
        return False


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def clock(tmp_path: Path, wall: Wall) -> Iterator[PacedClock]:
    with paced_clock(tmp_path, START, SPEED) as made:
        yield PacedClock(made.path, wall)


def test_time_passes_at_the_given_speed_up_to_the_instant_and_no_further(clock: PacedClock, wall: Wall) -> None:
    assert clock.pace(FIRST_MINUTE, wall)
    assert clock.now() == clock.monotonic() == FIRST_MINUTE
    assert wall.at == pytest.approx(1000.0 + 60.0 / SPEED, abs=STEP_WALL_S)


def test_it_is_held_while_the_loop_turns_however_long_that_takes(clock: PacedClock, wall: Wall) -> None:
    clock.pace(FIRST_MINUTE, wall)
    wall.at += 300.0
    assert clock.now() == FIRST_MINUTE
    began = wall.at
    clock.pace(FIRST_MINUTE + 60.0, wall)
    assert wall.at - began == pytest.approx(60.0 / SPEED, abs=2.0 * STEP_WALL_S)


def test_many_short_paces_take_no_longer_than_one(clock: PacedClock, wall: Wall) -> None:
    for at in range(1, 601):
        clock.pace(START + 0.7 * at, wall)
    assert wall.at == pytest.approx(1000.0 + 420.0 / SPEED, abs=2.0 * STEP_WALL_S)


def test_on_a_busy_machine_time_passes_more_slowly_and_never_in_leaps(clock: PacedClock, wall: Wall) -> None:
    wall.late_s = 3.0
    clock.pace(FIRST_MINUTE, wall)
    assert wall.steps == pytest.approx(60.0 / (LONGEST_STEP_WALL_S * SPEED), abs=1)
    assert clock.now() == FIRST_MINUTE


def test_a_stop_ends_the_pace_where_it_is(clock: PacedClock) -> None:
    stop = threading.Event()
    stop.set()
    assert not clock.pace(FIRST_MINUTE, stop)
    assert clock.now() == START


def test_every_follower_reads_the_same_time(clock: PacedClock, wall: Wall) -> None:
    followed = FollowedClock(clock.path)
    clock.pace(FIRST_MINUTE, wall)
    assert followed.now() == followed.monotonic() == FIRST_MINUTE


def test_a_sleeper_wakes_when_its_time_has_come_and_not_before(clock: PacedClock, wall: Wall) -> None:
    followed, woke = FollowedClock(clock.path), []
    sleeper = threading.Thread(target=lambda: (followed.sleep(60.0), woke.append(followed.now())), daemon=True)
    sleeper.start()
    clock.pace(FIRST_MINUTE - 0.01, wall)
    sleeper.join(0.2)
    assert sleeper.is_alive()
    clock.pace(FIRST_MINUTE + 1.0, wall)
    sleeper.join(60.0)
    assert woke == [FIRST_MINUTE + 1.0]


def test_a_sleeper_can_be_stopped_while_the_clock_is_held(clock: PacedClock) -> None:
    stop = threading.Event()
    sleeper = threading.Thread(target=FollowedClock(clock.path).sleep, args=[60.0, stop], daemon=True)
    sleeper.start()
    stop.set()
    sleeper.join(60.0)
    assert not sleeper.is_alive()


class AtOnce:
    """A stop that comes as soon as a sleep has begun."""

    def __init__(self) -> None:
        self._asked = 0

    def is_set(self) -> bool:
        self._asked += 1
        return self._asked > 1

    def wait(self, timeout: float) -> bool:
        return True


class Due:
    """An awaited process's thread that has to do something at `at` and is kept from the processor until `catch_up`."""

    def __init__(self, clock: PacedClock, at: float) -> None:
        self._followed = FollowedClock(clock.path, awaited=True)
        self.catch_up(at)

    def catch_up(self, next_at: float) -> None:
        self._followed.sleep(next_at - self._followed.now(), AtOnce())


def test_it_does_not_run_away_from_an_awaited_process(clock: PacedClock, wall: Wall) -> None:
    due = Due(clock, START + 20.0)
    pacing = threading.Thread(target=clock.pace, args=[FIRST_MINUTE, Waits(wall, PATIENCE_WALL_S)], daemon=True)
    pacing.start()
    pacing.join(60.0)
    assert clock.now() == START + 20.0
    due.catch_up(FIRST_MINUTE)
    assert clock.pace(FIRST_MINUTE, wall)
    assert clock.now() == FIRST_MINUTE


class Waits(Wall):
    """A stop that comes after this many wall seconds."""

    def __init__(self, wall: Wall, seconds: float) -> None:
        super().__init__()
        self._wall, self._until = wall, wall.at + seconds

    def wait(self, timeout: float) -> bool:
        self._wall.at += timeout
        return self._wall.at >= self._until


def test_a_process_that_does_nothing_for_long_is_left_behind(clock: PacedClock, wall: Wall) -> None:
    Due(clock, START + 20.0)
    assert clock.pace(FIRST_MINUTE, wall)
    assert wall.at == pytest.approx(1000.0 + 20.0 / SPEED + PATIENCE_WALL_S, abs=2.0 * LONGEST_STEP_WALL_S)


def test_a_thread_that_has_ended_is_not_waited_for(clock: PacedClock, wall: Wall) -> None:
    followed = FollowedClock(clock.path, awaited=True)
    ended = threading.Thread(target=lambda: (followed.sleep(1.0, AtOnce()), followed.leave()))
    ended.start()
    ended.join()
    followed.sleep(120.0, AtOnce())
    clock.pace(FIRST_MINUTE, wall)
    assert wall.at < 1000.0 + PATIENCE_WALL_S


class Attending:
    """A thread of an awaited process that sleeps a minute, or until it is called, and works until it is let go."""

    def __init__(self, clock: PacedClock) -> None:
        self.followed = FollowedClock(clock.path, awaited=True)
        self.called, self.working, self.let_go = (threading.Event() for _ in range(3))
        self.woke: list[float] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.followed.attend(self.thread)

    def _run(self) -> None:
        self.followed.sleep(60.0, self.called)
        self.woke.append(self.followed.now())
        self.working.set()
        self.let_go.wait(10.0)
        self.followed.leave()


def test_time_stands_still_for_a_thread_that_is_about_to_start(clock: PacedClock, wall: Wall) -> None:
    Attending(clock)
    assert not clock.pace(FIRST_MINUTE, Waits(wall, 10.0))
    assert clock.now() == START


def test_a_thread_that_is_called_holds_the_time_until_it_has_done_its_work(clock: PacedClock, wall: Wall) -> None:
    one = Attending(clock)
    one.thread.start()
    while one.followed._next[one.thread] == START:
        one.thread.join(0.001)
    assert clock.pace(START + 30.0, wall)
    one.followed.wake(one.thread, one.called)
    assert one.working.wait(60.0)
    assert not clock.pace(FIRST_MINUTE, Waits(wall, 10.0))
    assert (clock.now(), one.woke) == (START + 30.0, [START + 30.0])
    one.let_go.set()
    one.thread.join(60.0)
    assert clock.pace(FIRST_MINUTE, wall)


def test_time_lost_to_others_is_made_up_but_not_all_of_it(clock: PacedClock, wall: Wall) -> None:
    due = Due(clock, START)
    assert not clock.pace(FIRST_MINUTE, Waits(wall, 20.0))
    due.catch_up(FIRST_MINUTE + 600.0)
    began = wall.at
    assert clock.pace(START + 600.0, wall)
    assert wall.at - began == pytest.approx(600.0 / SPEED - MADE_UP_WALL_S, abs=LONGEST_STEP_WALL_S)


def test_messages_are_counted_across_processes(clock: PacedClock) -> None:
    followed = FollowedClock(clock.path, awaited=True)
    followed.count_sent(3)
    followed.count_sent(4)
    assert clock.sent == 7


def test_a_later_time_can_be_shown_at_once_and_an_earlier_one_never(clock: PacedClock) -> None:
    clock.skip_to(FIRST_MINUTE)
    clock.skip_to(START)
    assert clock.now() == FIRST_MINUTE


def test_its_file_is_gone_afterwards(tmp_path: Path) -> None:
    with paced_clock(tmp_path, START, SPEED) as clock:
        assert clock.path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_clock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("12:00")
    with pytest.raises(ValueError, match=r"other is not the clock .* 32 bytes"):
        FollowedClock(tmp_path / "other")


def test_a_clock_that_would_stand_still_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speed is 0"), paced_clock(tmp_path, START, 0.0):
        pytest.fail("a speed of 0 was taken")
