"""What an outcome changes: capacity marks, the breaker, the rest taken back, and whose size the next reading is."""

from __future__ import annotations

from typing import Any

import pytest

from agent.autoscaling.intents import state_after_intents, state_after_outcome, with_cause
from agent.rails.base import RailLimits
from agent.rails.state import Breaker, CapacityMark, LoopState
from domain.decisions import CapacityShortage, Direction, Intent, Outcome, Reason, Status
from domain.errors import FailureClass
from tests.agent.rails.scenes import NOON

LIMITS = RailLimits(breaker_failures=2, breaker_open_s=300.0, capacity_memory_s=600.0)


def intent(direction: Direction = Direction.OUT) -> Intent:
    target = {Direction.OUT: 6, Direction.IN: 2, Direction.REPLACE: 4}[direction]
    victims = () if direction is Direction.OUT else ("i-1", "i-2")
    return Intent("web-1.m", "web-1", "web", "m", direction, 4, target, victims, 1, NOON, NOON + 300.0)


def outcome(status: Status, reason: Reason = Reason.DONE, achieved: int = 0, **more: Any) -> Outcome:
    return Outcome("web-1.m", status, reason, 2, achieved, NOON + 60.0, **more)


def after(result: Outcome, direction: Direction = Direction.OUT, **before: Any) -> LoopState:
    state = state_after_intents(LoopState(**before), (intent(direction),), LIMITS, NOON)
    return state_after_outcome(state, intent(direction), result, LIMITS, NOON + 60.0)


@pytest.mark.parametrize("status", [Status.IN_PROGRESS, Status.UNKNOWN])
def test_what_is_not_over_changes_nothing(status: Status) -> None:
    state = state_after_intents(LoopState(intent_times={"web-1.m": (1.0, 2.0)}), (intent(),), LIMITS, NOON)
    result = outcome(status, Reason.THROTTLED, failure=FailureClass.THROTTLE)
    assert state_after_outcome(state, intent(), result, LIMITS, NOON) is state


@pytest.mark.parametrize(
    ("direction", "status", "reason", "achieved", "known"),
    [
        (Direction.OUT, Status.DONE, Reason.DONE, 2, 6),
        (Direction.OUT, Status.SKIPPED, Reason.NOTHING_TO_DO, 0, 4),
        (Direction.OUT, Status.FAILED, Reason.CREDENTIALS, 0, 4),
        (Direction.OUT, Status.PARTIAL, Reason.NO_CAPACITY, 1, 5),
        (Direction.OUT, Status.FAILED, Reason.SUPERSEDED, 0, 4),
        (Direction.OUT, Status.FAILED, Reason.OVERDUE, 0, None),
        (Direction.OUT, Status.PARTIAL, Reason.OVERDUE, 1, None),
        (Direction.IN, Status.DONE, Reason.DONE, 2, 2),
        (Direction.IN, Status.PARTIAL, Reason.PROTECTED, 1, 3),
        (Direction.IN, Status.FAILED, Reason.OVERDUE, 0, None),
    ],
)
def test_ours_is_what_was_achieved_and_open_after_an_overdue_change(
    direction: Direction, status: Status, reason: Reason, achieved: int, known: int | None
) -> None:
    assert after(outcome(status, reason, achieved), direction).known_desired.get("m") == known


def test_a_replacement_leaves_the_known_size_alone() -> None:
    state = after(outcome(Status.FAILED, Reason.OVERDUE), Direction.REPLACE, known_desired={"m": 4, "l": 9})
    assert state.known_desired == {"m": 4, "l": 9}


def test_shortages_become_marks() -> None:
    short = (CapacityShortage("m5a.large", "a"), CapacityShortage("m5a.large", "b"))
    state = after(outcome(Status.FAILED, Reason.NO_CAPACITY, failure=FailureClass.CAPACITY, shortages=short))
    assert state.capacity == tuple(CapacityMark("m5a.large", zone, NOON + 660.0, 600.0) for zone in ("a", "b"))
    assert state.breakers == ()


def test_failures_in_a_row_open_the_breaker_and_one_success_closes_it() -> None:
    denied = outcome(Status.FAILED, Reason.CREDENTIALS, failure=FailureClass.CREDENTIALS)
    once = after(denied)
    assert once.breakers == (Breaker("m", 1),)
    twice = after(denied, breakers=once.breakers)
    assert twice.breakers == (Breaker("m", 2, NOON + 360.0, 300.0),)
    assert after(outcome(Status.DONE, achieved=2), breakers=twice.breakers).breakers == ()


def test_other_groups_breakers_stay() -> None:
    other = Breaker("l", 1)
    assert after(outcome(Status.DONE, achieved=2), breakers=(other,)).breakers == (other,)


def test_an_ended_intent_has_no_times_any_more() -> None:
    times = {"web-1.m": (1.0, 2.0), "web-2.l": (3.0, 4.0)}
    assert after(outcome(Status.DONE, achieved=2), intent_times=times).intent_times == {"web-2.l": (3.0, 4.0)}


@pytest.mark.parametrize(
    "failure", [FailureClass.THROTTLE, FailureClass.UNAVAILABLE, FailureClass.UNKNOWN_OUTCOME, FailureClass.CAPACITY]
)
def test_an_overdue_change_that_aws_kept_from_happening_counts_for_no_breaker(failure: FailureClass) -> None:
    overdue = outcome(Status.FAILED, Reason.OVERDUE, detail="too late")
    last = outcome(Status.IN_PROGRESS, Reason.THROTTLED, failure=failure, detail="Rate exceeded")
    told = with_cause(overdue, last)
    assert (told.failure, "Rate exceeded" in told.detail) == (failure, True)
    assert after(told).breakers == ()
    assert after(overdue).breakers == (Breaker("m", 1),)


def test_only_an_overdue_change_without_its_own_cause_takes_the_last_ones() -> None:
    last = outcome(Status.IN_PROGRESS, Reason.THROTTLED, failure=FailureClass.THROTTLE)
    overdue = outcome(Status.FAILED, Reason.OVERDUE)
    denied = outcome(Status.FAILED, Reason.CREDENTIALS, failure=FailureClass.CREDENTIALS)
    accepted = outcome(Status.IN_PROGRESS, Reason.ACCEPTED)
    assert with_cause(denied, last) == denied
    assert with_cause(overdue, accepted) == with_cause(overdue, None) == overdue
