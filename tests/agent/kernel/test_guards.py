"""Pause, circuit breaker and mode hold a change of any decision, and say why."""

from __future__ import annotations

import pytest

from agent.kernel.guards import Held, held_by_breaker, held_by_mode, held_by_pause
from agent.rails.state import Breaker
from domain.controls import Controls, Pause, PauseScope
from domain.decisions import Direction, Mode, Reason
from tests.agent.rails.scenes import NOON

BREAKER = Breaker("level", 3, NOON + 300.0, 300.0)


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        (PauseScope.ALL, {Direction.OUT, Direction.IN}),
        (PauseScope.OUT, {Direction.OUT}),
        (PauseScope.IN, {Direction.IN}),
    ],
)
def test_a_pause_holds_its_direction(scope: PauseScope, held: set[Direction]) -> None:
    controls = Controls((Pause(scope, "ben", "deploying", NOON - 300.0, NOON + 60.0),))
    for direction in (Direction.OUT, Direction.IN):
        found = held_by_pause(controls, (direction,), NOON)
        assert (found is not None) is (direction in held)
        if found is not None:
            assert (found.guard, found.reason) == ("pause", Reason.PAUSED)
            assert all(one in found.detail for one in ("by ben", "11:55:00 UTC", "12:01:00 UTC", "(deploying)"))
    assert held_by_pause(controls, (Direction.OUT, Direction.IN), NOON) is not None
    assert held_by_pause(controls, (Direction.OUT, Direction.IN), NOON + 60.0) is None
    assert held_by_pause(controls, (), NOON) is None


def test_an_open_breaker_holds_its_thing_until_the_probe() -> None:
    held = held_by_breaker("level", (Breaker("size"), BREAKER), NOON)
    why = "circuit open after 3 failures in a row; next probe 12:05:00 UTC"
    assert held == Held("circuit_breaker", Reason.CIRCUIT_OPEN, why)
    assert held_by_breaker("size", (Breaker("size"), BREAKER), NOON) is None
    assert held_by_breaker("level", (), NOON) is None
    assert held_by_breaker("level", (BREAKER,), NOON + 300.0) is None


def test_from_a_number_of_failures_on_a_change_must_be_a_trial() -> None:
    at = NOON + 300.0
    why = "after 3 failures in a row one VM is tried first"
    assert held_by_breaker("level", (BREAKER,), at, trials=3) == Held("circuit_breaker", Reason.CIRCUIT_OPEN, why)
    assert held_by_breaker("level", (BREAKER,), at, trials=4) is None
    assert held_by_breaker("size", (BREAKER,), at, trials=0) is None
    assert held_by_breaker("level", (Breaker("level", 0),), at, trials=0) is not None


def test_observe_mode_holds_and_act_mode_does_not() -> None:
    assert held_by_mode(Mode.ACT) is None
    held = held_by_mode(Mode.OBSERVE)
    assert held is not None
    assert (held.guard, held.reason) == ("mode", Reason.OBSERVE_MODE)
