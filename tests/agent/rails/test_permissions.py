"""Rails 4, 14 and 15: pauses and pins, the leader, and observe mode."""

import pytest

from agent.rails.permissions import leader_epoch, mode, pause_and_pin
from domain.controls import Controls, PauseScope, Pin
from domain.decisions import Mode, Origin, Reason, Verdict
from tests.agent.rails.scenes import NOON, ask, passes, paused, pinned, proposal, scene


@pytest.mark.parametrize(
    ("scope", "after"),
    [(PauseScope.ALL, (4, 4, 4)), (PauseScope.IN, (6, 4, 4)), (PauseScope.OUT, (4, 2, 4))],
)
def test_a_pause_holds_its_direction_only(scope, after):
    effect = ask(pause_and_pin, proposal(6, 2, 4), scene(controls=paused(scope)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.PAUSED, after)


def test_a_pause_ends_at_its_time():
    controls = paused(PauseScope.ALL, until=NOON + 60.0)
    assert not passes(pause_and_pin, proposal(6, 4, 4), scene(controls=controls, now=NOON + 59.9))
    assert passes(pause_and_pin, proposal(6, 4, 4), scene(controls=controls, now=NOON + 60.0))


def test_a_pin_replaces_the_size_of_its_groups_and_marks_the_origin():
    after, effect = pause_and_pin.apply(proposal(6, 2, 4), scene(controls=pinned({"workers_m": 9, "workers_l": 1})))
    assert (after.desired, after.origin, after.reason) == ((9, 1, 4), Origin.PIN, Reason.PINNED)
    assert (effect.verdict, effect.reason) == (Verdict.RAISED, Reason.PINNED)


def test_a_pin_that_agrees_with_the_policy_changes_no_size_but_is_the_origin():
    after, effect = pause_and_pin.apply(proposal(6, 4, 4), scene(controls=pinned({"workers_m": 6})))
    assert (effect.verdict, after.origin) == (Verdict.PASSED, Origin.PIN)


def test_a_pin_ends_by_itself():
    controls = pinned({"workers_m": 9}, minutes=60.0)
    assert ask(pause_and_pin, proposal(4, 4, 4), scene(controls=controls, now=NOON + 3599.9)).after == (9, 4, 4)
    assert passes(pause_and_pin, proposal(4, 4, 4), scene(controls=controls, now=NOON + 3600.0))


def test_a_pin_on_unknown_groups_changes_nothing():
    after, _ = pause_and_pin.apply(proposal(6, 4, 4), scene(controls=pinned({"gone": 9})))
    assert (after.desired, after.origin) == ((6, 4, 4), Origin.POLICY)


def test_a_pin_to_zero_and_from_zero_works():
    assert ask(pause_and_pin, proposal(4, 4, 4), scene(controls=pinned({"workers_m": 0}))).after == (0, 4, 4)
    assert ask(pause_and_pin, proposal(0, 0, 0), scene((0, 0, 0), controls=pinned({"workers_m": 3}))).after == (3, 0, 0)


@pytest.mark.parametrize("pinned_at", [NOON - 600.0, NOON - 1.0])
def test_a_pause_beats_a_pin_whichever_came_first(pinned_at):
    pin = Pin({"workers_m": 9, "workers_l": 2}, "ana", "load test", pinned_at, NOON + 3600.0)
    effect = ask(pause_and_pin, proposal(4, 4, 4), scene(controls=paused(PauseScope.OUT, pin=pin)))
    assert effect.after == (4, 2, 4)
    held = ask(pause_and_pin, proposal(5, 4, 4), scene(controls=paused(PauseScope.OUT, pin=pin)))
    assert held.after == (4, 2, 4)


def test_a_partial_pin_leaves_the_safe_floor_in_force_elsewhere():
    after, _ = pause_and_pin.apply(proposal(6, 6, 6, origin=Origin.FLOOR), scene(controls=pinned({"workers_m": 2})))
    assert (after.desired, after.origin) == ((2, 6, 6), Origin.FLOOR)


def test_no_controls_change_nothing():
    assert passes(pause_and_pin, proposal(6, 2, 4), scene(controls=Controls()))


def test_the_leader_acts():
    assert passes(leader_epoch, proposal(5, 3, 4), scene(leader=True))


def test_anybody_else_holds_whoever_asks():
    for origin in Origin:
        effect = ask(leader_epoch, proposal(5, 3, 4, origin=origin), scene(leader=False))
        assert (effect.reason, effect.after) == (Reason.NOT_LEADER, (4, 4, 4))


def test_act_mode_passes():
    assert passes(mode, proposal(5, 3, 4), scene(mode=Mode.ACT))


def test_observe_mode_shows_what_would_be_done_and_holds_it():
    effect = ask(mode, proposal(5, 3, 4), scene(mode=Mode.OBSERVE))
    assert (effect.verdict, effect.reason) == (Verdict.VETOED, Reason.OBSERVE_MODE)
    assert (effect.before, effect.after) == ((5, 3, 4), (4, 4, 4))


def test_observe_mode_of_a_fleet_that_stays_as_it_is_says_nothing():
    assert passes(mode, proposal(0, 0, 0), scene((0, 0, 0), mode=Mode.OBSERVE))
