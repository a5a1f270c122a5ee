"""A step of the clock moves every remembered time along, so that what is left of each stays what it was."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot.group_fold import GroupRoster, Seats
from agent.rails.circuit_breaker import is_open
from agent.rails.state import (
    Breaker,
    CapacityMark,
    Change,
    Cooldown,
    FormerCall,
    LoopState,
    RefusalMark,
    Spend,
    late_s,
    not_ahead,
    on_this_clock,
    puts_back,
    shifted,
)
from domain.clock import BothTimes
from domain.decisions import Direction, Intent, Reason
from tests.agent.rails.scenes import NOON
from tests.agent.rails.worlds import MEMORIES

STEPS = st.integers(-100_000, 100_000).map(float)
INTENT = Intent("web-1.m", "web-1", "web", "m", Direction.OUT, 1, 4, (), 1, NOON - 60.0, NOON + 240.0)
FULL = LoopState(
    decisions=5,
    cooldowns=(Cooldown("m", Direction.OUT, NOON + 100.0, 300.0),),
    in_streak={"m": 2},
    changes=(Change("m", Direction.OUT, NOON - 200.0),),
    capacity=(CapacityMark("m5a.large", "a", NOON + 50.0, 600.0),),
    breakers=(Breaker("m", 3, NOON + 30.0, 300.0), Breaker("l", 1)),
    spend=Spend(NOON - 43_200.0, 9.0, NOON - 60.0),
    stale_bins=1,
    interrupted={"i-1": NOON - 10.0},
    seen_interruptions={"i-2": NOON - 20.0},
    known_desired={"m": 4},
    protected=("i-3",),
    busy=("i-4",),
    submitted_seen=7.0,
    submitted_in_episode=3.0,
    last_busy_at=NOON - 70.0,
    last_bin_end=NOON - 5.0,
    vm_reported_at=NOON - 15.0,
    intent_times={},
    former_calls=(FormerCall("m", "web-0.m", 1, 4, (), NOON - 80.0),),
    put_back={"m": 2},
    memory={"h": (1.0,)},
    shadow_memories={"q": {"h": (2.0,)}},
    policy="p",
    refusals=(RefusalMark("i-4", Reason.REMOVAL_REFUSED, 2, NOON + 90.0, 240.0),),
)
TIMELESS = {
    "decisions",
    "in_streak",
    "stale_bins",
    "known_desired",
    "protected",
    "busy",
    "submitted_seen",
    "submitted_in_episode",
    "memory",
    "shadow_memories",
    "unsupported",
    "identities",
    "put_back",
    "policy",
}


def left(state: LoopState, now: float) -> list[object]:
    """Everything the rails ask of remembered times."""
    return [
        [c.remaining_s(now) for c in state.cooldowns],
        [m.active(now) for m in state.capacity],
        [is_open(b, now) for b in state.breakers],
        [now - c.at for c in state.changes],
        [now - call.at for call in state.former_calls],
        [now - at for at in (*state.interrupted.values(), *state.seen_interruptions.values())],
    ]


@given(MEMORIES, STEPS)
def test_what_is_left_of_everything_stays_what_it_was(state: LoopState, step: float) -> None:
    assert left(shifted(state, step), NOON + step) == left(state, NOON)


@given(STEPS)
def test_what_is_no_time_stays_and_every_field_is_one_or_the_other(step: float) -> None:
    moved = shifted(FULL, step, [INTENT])
    assert {f.name for f in fields(FULL) if getattr(moved, f.name) == getattr(FULL, f.name)} >= TIMELESS
    if step:
        assert {f.name for f in fields(FULL) if getattr(moved, f.name) != getattr(FULL, f.name)} == {
            f.name for f in fields(FULL)
        } - TIMELESS
    assert (moved.last_bin_end, moved.spend.day_start) == (None, FULL.spend.day_start)
    assert moved.breakers[1] == FULL.breakers[1]


@given(STEPS, STEPS)
def test_there_and_back_is_as_if_nothing_had_been(step: float, other: float) -> None:
    there = shifted(shifted(FULL, step, [INTENT]), other, [INTENT])
    assert left(shifted(there, -step - other, [INTENT]), NOON) == left(FULL, NOON)
    assert on_this_clock(INTENT, there).created_at == INTENT.created_at + step + other
    assert on_this_clock(INTENT, there).deadline_at == INTENT.deadline_at + step + other


def test_an_intent_opened_after_the_step_is_as_it_was_opened() -> None:
    later = replace(INTENT, intent_id="web-2.m")
    assert on_this_clock(later, shifted(FULL, 3600.0, [INTENT])) == later


@given(MEMORIES)
def test_a_state_that_lies_behind_the_clock_is_left_as_it_is(state: LoopState) -> None:
    late = NOON + 50_000.0
    assert not_ahead(state, [INTENT], late) == state
    assert not_ahead(FULL, [INTENT], NOON) == FULL


@given(MEMORIES, st.integers(0, 100_000).map(float))
def test_nothing_lasts_longer_than_its_length_after_a_step_that_nobody_saw(state: LoopState, back: float) -> None:
    now = NOON - back
    bounded = not_ahead(state, [INTENT], now)
    for cooldown in bounded.cooldowns:
        assert cooldown.until - now <= cooldown.length_s
    for mark in bounded.capacity:
        assert mark.until - now <= mark.length_s
    for breaker in bounded.breakers:
        assert breaker.open_until - now <= breaker.length_s
    assert all(change.at <= now for change in bounded.changes)
    intent = on_this_clock(INTENT, bounded)
    assert intent.deadline_at - max(now, intent.created_at) <= 300.0
    assert intent.deadline_at - intent.created_at == 300.0
    assert not_ahead(bounded, [INTENT], now) == bounded


def test_a_rest_goes_on_shrinking_after_a_step_that_nobody_saw() -> None:
    now = NOON - 3600.0
    bounded = not_ahead(FULL, [], now)
    assert [c.remaining_s(now) for c in bounded.cooldowns] == [300.0]
    assert [c.remaining_s(now + 290.0) for c in not_ahead(bounded, [], now + 290.0).cooldowns] == [10.0]


# VMs remembered in memory


def seats_of(*vms: str, now: float, before: float | None = None) -> tuple[GroupRoster, Seats, np.ndarray]:
    seats = Seats()
    roster = GroupRoster(seats)
    if before is not None:
        roster.seat([], before)
    return roster, seats, np.array(roster.seat(vms, now))


@pytest.mark.parametrize(
    ("launched", "since"),
    [
        (NOON - 20.0, NOON - 20.0),  # as AWS says
        (NOON - 3600.0, NOON - 60.0),  # it was not there a minute ago, whatever AWS's clock says
        (NOON + 3600.0, NOON),  # it is there now
        (float("nan"), NOON),  # AWS does not say: since it was first seen
    ],
)
def test_a_vm_is_as_old_as_aws_says_within_what_was_seen(launched: float, since: float) -> None:
    _, seats, taken = seats_of("i-1", now=NOON, before=NOON - 60.0)
    assert seats.since(taken, np.array([launched])) == [since]


def test_what_was_there_when_the_agent_started_is_as_old_as_aws_says() -> None:
    _, seats, taken = seats_of("i-1", now=NOON)
    assert seats.since(taken, np.array([NOON - 86_400.0])) == [NOON - 86_400.0]


@given(STEPS)
def test_a_roster_moves_with_the_clock(step: float) -> None:
    roster, seats, taken = seats_of("i-1", now=NOON, before=NOON - 60.0)
    seats.warmed(taken, np.array([NOON - 5.0]))
    seats.idle_since(taken, np.array([False]), np.array([True]), NOON - 50.0)
    roster.missing_since(2, NOON)
    seats.clock_stepped(step)
    roster.clock_stepped(step)
    assert seats.since(taken, np.array([np.nan])) == [NOON + step]
    assert seats.warm_since(taken) == [NOON - 5.0 + step]
    assert seats.idle_since(taken, np.array([False]), np.array([True]), NOON + step) == [NOON - 50.0 + step]
    assert roster.missing_since(2, NOON + step) == [NOON + step] * 2
    assert seats.since(taken, np.array([NOON + step - 9000.0])) == [NOON - 60.0 + step]
    (late,) = roster.seat(["i-1", "i-2"], NOON + step + 60.0)[1:]
    assert seats.since(np.array([late]), np.array([NOON + step - 9000.0])) == [NOON + step]


@pytest.mark.parametrize(
    ("now", "monotonic", "late"),
    [(1060.0, 510.0, 60.0), (1010.0, 560.0, 60.0), (400.0, 500.0, 0.0), (400.0, 530.0, 30.0), (1000.0, 500.0, 0.0)],
)
def test_a_turn_is_as_late_as_the_clock_says_that_shows_more(now: float, monotonic: float, late: float) -> None:
    assert late_s(BothTimes(1000.0, 500.0), now, monotonic) == late


def test_a_fleet_that_was_never_seen_has_no_past() -> None:
    fresh = LoopState()
    assert fresh.spend == Spend(0.0, 0.0, 0.0)
    assert not [each.name for each in fields(fresh) if each.name != "spend" and getattr(fresh, each.name)]


@pytest.mark.parametrize(
    ("current", "asked", "back"),
    [(6, 5, True), (6, 4, True), (6, 3, False), (6, 6, True), (6, 7, False), (2, 3, True), (2, 4, True), (2, 5, False)],
)
def test_a_change_puts_back_what_a_late_call_did_up_to_the_size_before_it(current: int, asked: int, back: bool) -> None:
    assert puts_back({"web": 4}, "web", current, asked) is back
    assert not puts_back({"web": 4}, "db", current, asked)


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e4), st.floats(-1e6, 1e6))
def test_what_is_left_of_a_cool_down_is_between_nothing_and_its_length(until: float, length: float, now: float) -> None:
    left = Cooldown("web", Direction.OUT, until, length).remaining_s(now)
    assert 0.0 <= left <= length
    assert left in (0.0, length, until - now)


def test_a_shortage_holds_for_its_length_at_most_and_not_at_its_end() -> None:
    mark = CapacityMark("m5a.large", "", 100.0, 30.0)
    assert [mark.active(now) for now in (69.9, 70.0, 99.9, 100.0)] == [False, True, True, False]
