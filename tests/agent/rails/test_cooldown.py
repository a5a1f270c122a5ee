"""Rail 7 lets a group rest after a change, per direction, by the clock, across restarts and clock steps."""

import pytest

from agent.autoscaling.state import Cooldown
from agent.rails.cooldown import RAIL
from domain.decisions import Direction, Origin, Reason
from tests.agent.rails.scenes import NOON, ask, passes, pinned, proposal, scene

OUT_AT_NOON = {"cooldowns": (Cooldown("workers_m", Direction.OUT, NOON + 300.0, 300.0),)}
IN_AT_NOON = {"cooldowns": (Cooldown("workers_m", Direction.IN, NOON + 300.0, 300.0),)}


def test_a_cool_down_of_300_s_holds_at_299_9_s_and_ends_at_300_s():
    effect = ask(RAIL, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON + 299.9))
    assert (effect.reason, effect.after) == (Reason.COOLING_DOWN, (4, 4, 4))
    assert passes(RAIL, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON + 300.0))


def test_the_seconds_left_are_named():
    effect = ask(RAIL, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON + 60.0))
    assert effect.detail == "workers_m 4 -> 5 held at 4: cooling down for another 240 s after the last scale-out"


def test_up_is_never_held_by_a_cool_down_of_down_nor_the_other_way_round():
    assert passes(RAIL, proposal(5, 4, 4), scene(state=IN_AT_NOON))
    assert passes(RAIL, proposal(3, 4, 4), scene(state=OUT_AT_NOON))
    assert not passes(RAIL, proposal(3, 4, 4), scene(state=IN_AT_NOON))


def test_only_the_group_that_changed_rests():
    assert ask(RAIL, proposal(5, 5, 3), scene(state=OUT_AT_NOON)).after == (4, 5, 3)


def test_the_longer_of_the_stored_and_the_snapshots_cool_down_counts():
    context = scene(groups={"workers_m": {"cooldown_out_s": 400.0}}, state=OUT_AT_NOON)
    assert "another 400 s" in ask(RAIL, proposal(5, 4, 4), context).detail
    assert not passes(RAIL, proposal(3, 4, 4), scene(groups={"workers_m": {"cooldown_in_s": 0.1}}))


def test_a_clock_set_back_an_hour_does_not_prolong_the_rest_beyond_its_length():
    effect = ask(RAIL, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON - 3600.0))
    assert "another 300 s" in effect.detail


def test_the_safe_floor_and_pinned_groups_are_not_held():
    assert passes(RAIL, proposal(5, 4, 4, origin=Origin.FLOOR), scene(state=OUT_AT_NOON))
    assert passes(
        RAIL, proposal(5, 4, 4, origin=Origin.PIN), scene(state=OUT_AT_NOON, controls=pinned({"workers_m": 5}))
    )


def test_a_pin_of_another_group_does_not_free_this_one():
    context = scene(state=OUT_AT_NOON, controls=pinned({"workers_l": 5}))
    assert ask(RAIL, proposal(5, 5, 4, origin=Origin.PIN), context).after == (4, 5, 4)


@pytest.mark.parametrize("desired", [(1, 0, 0), (0, 0, 0)])
def test_an_empty_fleet_without_cool_downs_passes(desired):
    assert passes(RAIL, proposal(*desired), scene((0, 0, 0)))
