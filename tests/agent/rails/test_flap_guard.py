"""Rail 9 makes scale-in wait, spares young and busy VMs, stops a group that keeps turning; never holds scale-out."""

import math

import pytest

from agent.autoscaling.state import Change, LoopState
from agent.rails.flap_guard import RAIL, next_in_streak, reversals
from domain.decisions import Direction, Origin, Reason, Verdict
from tests.agent.rails.scenes import NOON, ask, fleet, passes, pinned, proposal, scene

OUT, IN = Direction.OUT, Direction.IN


def turns(*changes: tuple[Direction, float]) -> dict[str, object]:
    """The state with changes of workers_m so many seconds before noon, and a streak that is long enough."""
    return {"changes": tuple(Change("workers_m", direction, NOON - ago) for direction, ago in changes)}


def test_scale_in_waits_for_proposals_in_a_row():
    effect = ask(RAIL, proposal(3, 4, 4), scene(state={"in_streak": {"workers_m": 2}}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.NOT_YET_STABLE, (4, 4, 4))
    assert effect.detail == "workers_m 4 -> 3 held at 4: scale-in proposed 2 of 3 times in a row"
    assert passes(RAIL, proposal(3, 4, 4), scene(state={"in_streak": {"workers_m": 3}}))


def test_each_group_has_its_own_streak():
    context = scene(state={"in_streak": {"workers_m": 3, "workers_l": 1}})
    assert ask(RAIL, proposal(3, 3, 3), context).after == (3, 4, 4)


def test_the_streak_counts_this_proposal_and_ends_with_any_other():
    state = LoopState(in_streak={"workers_m": 2, "workers_l": 2, "workers_xl": 2})
    assert next_in_streak(state, proposal(3, 4, 5), scene().snapshot) == {
        "workers_m": 3,
        "workers_l": 0,
        "workers_xl": 0,
    }
    assert next_in_streak(LoopState(), proposal(3, 4, 5), scene().snapshot)["workers_m"] == 1


@pytest.mark.parametrize("desired", [(3,), (math.nan, math.nan, math.nan), ()])
def test_an_unreadable_proposal_ends_every_streak(desired):
    state = LoopState(in_streak={"workers_m": 2, "workers_l": 2, "workers_xl": 2})
    assert set(next_in_streak(state, proposal(*desired), scene().snapshot).values()) == {0}


def test_no_more_vms_go_than_are_old_enough():
    effect = ask(RAIL, proposal(0, 4, 4), scene(groups={"workers_m": {"mature": 1}}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.TOO_YOUNG, (3, 4, 4))
    assert effect.detail == "workers_m 4 -> 0 shrunk to 3: only 1 VM older than 300 s"
    assert ask(RAIL, proposal(3, 4, 4), scene(groups={"workers_m": {"mature": 0}})).after == (4, 4, 4)


def test_no_more_vms_go_than_may_be_removed():
    effect = ask(RAIL, proposal(0, 4, 4), scene(groups={"workers_m": {"removable": ("i-1", "i-2")}}))
    assert (effect.reason, effect.after) == (Reason.BUSY, (2, 4, 4))


def test_the_tightest_limit_gives_the_reason():
    young = {"workers_m": {"mature": 1, "removable": ("i-1", "i-2")}}
    assert ask(RAIL, proposal(0, 4, 4), scene(groups=young)).reason is Reason.TOO_YOUNG
    busy = {"workers_m": {"mature": 2, "removable": ("i-1",)}}
    assert ask(RAIL, proposal(0, 4, 4), scene(groups=busy)).reason is Reason.BUSY


def test_reversals_are_pairs_of_opposite_changes_within_the_hour_and_this_one():
    state = LoopState(**turns((OUT, 3000.0), (OUT, 2000.0), (IN, 1000.0), (OUT, 500.0)))
    assert reversals(state, "workers_m", NOON, IN) == 3
    assert reversals(state, "workers_m", NOON, OUT) == 2
    assert reversals(state, "workers_l", NOON, IN) == 0


def test_a_change_an_hour_ago_no_longer_counts():
    assert reversals(LoopState(**turns((OUT, 3600.0))), "workers_m", NOON, IN) == 0
    assert reversals(LoopState(**turns((OUT, 3599.9))), "workers_m", NOON, IN) == 1


def test_a_clock_set_back_does_not_refill_the_budget():
    assert reversals(LoopState(**turns((OUT, -1800.0))), "workers_m", NOON, IN) == 1


def test_replacements_are_no_reversals():
    state = LoopState(**turns((IN, 900.0), (Direction.REPLACE, 600.0), (IN, 300.0)))
    assert reversals(state, "workers_m", NOON, IN) == 0


def test_the_reversal_budget_holds_scale_in_and_never_scale_out():
    history = turns((IN, 2400.0), (OUT, 1800.0), (IN, 1200.0), (OUT, 600.0))
    exhausted = scene(state=history, limits={"max_reversals": 3})
    effect = ask(RAIL, proposal(3, 4, 4), exhausted)
    assert (effect.reason, effect.after) == (Reason.REVERSAL_BUDGET, (4, 4, 4))
    assert "4 changes of direction within an hour, at most 3" in effect.detail
    assert passes(RAIL, proposal(9, 4, 4), exhausted)
    assert passes(RAIL, proposal(3, 4, 4), scene(state=history, limits={"max_reversals": 4}))


def test_a_group_above_its_maximum_returns_to_it_without_a_streak_but_goes_no_further():
    context = scene((8, 4, 4), state={"in_streak": {}}, fleet=fleet(maximum=6))
    assert passes(RAIL, proposal(6, 4, 4), context)
    assert ask(RAIL, proposal(5, 4, 4), context).after == (6, 4, 4)


def test_a_pin_skips_streak_lifetime_and_reversals_but_takes_no_busy_vm():
    context = scene(
        groups={"workers_m": {"mature": 0, "removable": ("i-1", "i-2", "i-3")}},
        state={"in_streak": {}},
        controls=pinned({"workers_m": 0}),
    )
    effect = ask(RAIL, proposal(0, 4, 4, origin=Origin.PIN), context)
    assert (effect.reason, effect.after) == (Reason.BUSY, (1, 4, 4))
    assert passes(RAIL, proposal(1, 4, 4, origin=Origin.PIN), context)


def test_an_empty_fleet_has_nothing_to_guard():
    assert passes(RAIL, proposal(2, 0, 0), scene((0, 0, 0), state={"in_streak": {}}))
