"""Right before a changing call is sent, everything that may hold it is asked once more."""

from __future__ import annotations

import pytest

from actuators.base import Act, ChangingCall
from agent.kernel.guards import FRESH_S, late_refusal, refused_by_breaker, refused_by_pause, unmeasured_permit
from agent.rails.state import Breaker, LoopState
from domain.controls import Controls, Pause, PauseScope
from domain.decisions import Direction, Intent, Reason
from tests.agent.rails.scenes import NOON
from tests.golden import figures

OUT, IN, ALL = PauseScope.OUT, PauseScope.IN, PauseScope.ALL


class TwoClocks:
    """A wall clock and a monotonic one, each set by hand."""

    def __init__(self) -> None:
        self.wall, self.steady = 5000.0, 100.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a permit does not wait")


def paused(*scopes: PauseScope, until: float | None = None) -> Controls:
    return Controls(tuple(Pause(scope, "ben", "deploying", NOON - 300.0, until) for scope in scopes))


HELD_BY = {
    Act.LAUNCH: {ALL, OUT},
    Act.REMOVE: {ALL, IN},
    Act.REPLACE: {ALL, IN, OUT},
    Act.LOWER_DESIRED: {ALL},
    Act.HEARTBEAT: set(),
    Act.COMPLETE_HOOK: set(),
    Act.PROTECT: set(),
    Act.UNPROTECT: {ALL, IN},
    Act.MARK: {ALL, OUT},
    Act.PUBLISH: {ALL, OUT},
}


@pytest.mark.parametrize("act", list(Act))
@pytest.mark.parametrize("scope", list(PauseScope))
def test_a_pause_holds_the_acts_of_its_direction(act: Act, scope: PauseScope) -> None:
    refusal = refused_by_pause(act, paused(scope), NOON)
    assert (refusal is not None) is (scope in HELD_BY[act])
    if refusal is not None:
        assert refusal.reason is Reason.PAUSED
        assert "paused by ben" in refusal.detail


def test_giving_back_is_held_by_a_pause_of_everything_among_others() -> None:
    assert refused_by_pause(Act.LOWER_DESIRED, paused(IN, ALL), NOON) is not None
    assert refused_by_pause(Act.LOWER_DESIRED, paused(IN, OUT), NOON) is None


def test_an_open_breaker_refuses_its_group_alone() -> None:
    breakers = (Breaker("web", 3, NOON + 300.0, 300.0),)
    refusal = refused_by_breaker("web", breakers, NOON)
    assert refusal is not None
    assert refusal.reason is Reason.CIRCUIT_OPEN
    assert figures(refusal.detail) == [3, 12, 5, 0]
    assert refused_by_breaker("db", breakers, NOON) is None
    # A call is a trial already: failures alone do not hold it.
    assert refused_by_breaker("web", breakers, NOON + 300.0) is None


def a_call(act: Act = Act.LAUNCH, intent: Intent | None = None) -> ChangingCall:
    return ChangingCall(act, "pool", "web", intent)


def an_intent(deadline_at: float) -> Intent:
    return Intent("i7", "d7", "pool", "web", Direction.OUT, 1, 2, (), 1, NOON, deadline_at)


def test_a_call_in_time_that_nothing_holds_is_permitted() -> None:
    clock = TwoClocks()
    permit = unmeasured_permit(NOON, clock, lambda _: Controls(), lambda _: LoopState())
    assert permit(a_call()) is None
    clock.wall += FRESH_S
    clock.steady += FRESH_S
    assert permit(a_call()) is None


@pytest.mark.parametrize("name", ["wall", "steady"])
def test_a_call_that_comes_late_by_either_clock_waits_for_the_next_turn(name: str) -> None:
    clock = TwoClocks()
    permit = unmeasured_permit(NOON, clock, lambda _: Controls(), lambda _: LoopState())
    setattr(clock, name, getattr(clock, name) + FRESH_S + 1.0)
    refusal = permit(a_call())
    assert refusal == late_refusal(FRESH_S + 1.0)
    assert (refusal.reason, refusal.over) == (Reason.STALE_INPUT, False)
    assert "121 s" in refusal.detail


def test_a_launch_is_not_sent_from_its_deadline_on() -> None:
    clock = TwoClocks()
    permit = unmeasured_permit(NOON, clock, lambda _: Controls(), lambda _: LoopState())
    assert permit(a_call(intent=an_intent(NOON + 60.0))) is None
    refusal = permit(a_call(intent=an_intent(NOON)))
    assert refusal is not None
    assert (refusal.reason, refusal.over) == (Reason.OVERDUE, True)
    assert refusal.detail == "i7 was not sent before its deadline"
    # What is removed or given back does so after the deadline too.
    assert permit(a_call(Act.REMOVE, an_intent(NOON))) is None
    clock.steady += 60.0
    assert permit(a_call(intent=an_intent(NOON + 60.0))) is not None


def test_controls_and_breakers_are_read_at_each_call_of_the_calls_subject() -> None:
    clock = TwoClocks()
    asked: list[str] = []
    controls = {"pool": Controls()}
    memory = {"pool": LoopState()}

    def of(subject: str) -> Controls:
        asked.append(subject)
        return controls[subject]

    permit = unmeasured_permit(NOON, clock, of, memory.__getitem__)
    assert permit(a_call()) is None
    controls["pool"] = paused(OUT, until=NOON + 30.0)
    refusal = permit(a_call())
    assert refusal is not None
    assert (refusal.reason, refusal.over) == (Reason.PAUSED, False)
    clock.wall += 30.0
    assert permit(a_call()) is None
    memory["pool"] = LoopState(breakers=(Breaker("web", 3, NOON + 60.0, 60.0),))
    refusal = permit(a_call())
    assert refusal is not None
    assert (refusal.reason, refusal.over) == (Reason.CIRCUIT_OPEN, False)
    assert permit(a_call(Act.LOWER_DESIRED)) is None
    assert set(asked) == {"pool"}
