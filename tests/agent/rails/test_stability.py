"""Rails 7 to 9: the cool-down, booting VMs and open intents, and the flap guard."""

import math

import pytest

from agent.rails.stability import cooldown, flap_guard, next_in_streak, reversals, warmup
from agent.rails.state import Change, Cooldown, LoopState
from domain.decisions import Direction, Origin, Reason, Verdict
from tests.agent.rails.scenes import NOON, ask, fleet, passes, pinned, proposal, scene

OUT_AT_NOON = {"cooldowns": (Cooldown("workers_m", Direction.OUT, NOON + 300.0, 300.0),)}
IN_AT_NOON = {"cooldowns": (Cooldown("workers_m", Direction.IN, NOON + 300.0, 300.0),)}


def test_a_cool_down_of_300_s_holds_at_299_9_s_and_ends_at_300_s():
    effect = ask(cooldown, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON + 299.9))
    assert (effect.reason, effect.after) == (Reason.COOLING_DOWN, (4, 4, 4))
    assert passes(cooldown, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON + 300.0))


def test_up_is_never_held_by_a_cool_down_of_down_nor_the_other_way_round():
    assert passes(cooldown, proposal(5, 4, 4), scene(state=IN_AT_NOON))
    assert passes(cooldown, proposal(3, 4, 4), scene(state=OUT_AT_NOON))
    assert not passes(cooldown, proposal(3, 4, 4), scene(state=IN_AT_NOON))


def test_only_the_group_that_changed_rests():
    assert ask(cooldown, proposal(5, 5, 3), scene(state=OUT_AT_NOON)).after == (4, 5, 3)


def test_the_longer_of_the_stored_and_the_snapshots_cool_down_counts():
    context = scene(groups={"workers_m": {"cooldown_out_s": 400.0}}, state=OUT_AT_NOON)
    assert "another 400 s" in ask(cooldown, proposal(5, 4, 4), context).detail
    assert not passes(cooldown, proposal(3, 4, 4), scene(groups={"workers_m": {"cooldown_in_s": 0.1}}))


def test_a_clock_set_back_an_hour_does_not_prolong_the_rest_beyond_its_length():
    effect = ask(cooldown, proposal(5, 4, 4), scene(state=OUT_AT_NOON, now=NOON - 3600.0))
    assert "another 300 s" in effect.detail


def test_the_safe_floor_and_pinned_groups_are_not_held():
    assert passes(cooldown, proposal(5, 4, 4, origin=Origin.FLOOR), scene(state=OUT_AT_NOON))
    assert passes(
        cooldown, proposal(5, 4, 4, origin=Origin.PIN), scene(state=OUT_AT_NOON, controls=pinned({"workers_m": 5}))
    )


def test_a_pin_of_another_group_does_not_free_this_one():
    context = scene(state=OUT_AT_NOON, controls=pinned({"workers_l": 5}))
    assert ask(cooldown, proposal(5, 5, 4, origin=Origin.PIN), context).after == (4, 5, 4)


@pytest.mark.parametrize("desired", [(1, 0, 0), (0, 0, 0)])
def test_an_empty_fleet_without_cool_downs_passes(desired):
    assert passes(cooldown, proposal(*desired), scene((0, 0, 0)))


def test_booting_vms_are_taken_off_an_increase_that_had_not_counted_them():
    effect = ask(warmup, proposal(7, 4, 4, counts_pending=False), scene(groups={"workers_m": {"booting": 2}}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.WARMING_UP, (5, 4, 4))


def test_an_increase_is_never_shrunk_below_the_current_size():
    effect = ask(warmup, proposal(5, 4, 4, counts_pending=False), scene(groups={"workers_m": {"booting": 3}}))
    assert (effect.verdict, effect.after) == (Verdict.VETOED, (4, 4, 4))


def test_the_minimum_includes_booting_vms_and_is_not_reduced():
    context = scene((1, 4, 4), {"workers_m": {"booting": 2}}, fleet=fleet(minimum=3))
    assert passes(warmup, proposal(3, 4, 4, counts_pending=False), context)
    assert ask(warmup, proposal(4, 4, 4, counts_pending=False), context).after == (3, 4, 4)


def test_a_proposer_that_counts_pending_capacity_is_not_corrected():
    assert passes(warmup, proposal(7, 4, 4, counts_pending=True), scene(groups={"workers_m": {"booting": 2}}))


def test_the_count_can_be_switched_off():
    context = scene(groups={"workers_m": {"booting": 2}}, limits={"count_booting": False})
    assert passes(warmup, proposal(7, 4, 4, counts_pending=False), context)


def test_pending_capacity_is_taken_off_only_once():
    context = scene(groups={"workers_m": {"booting": 2}})
    once, _ = warmup.apply(proposal(9, 4, 4, counts_pending=False), context)
    twice, _ = warmup.apply(once, context)
    assert once.desired == twice.desired == (7, 4, 4)


def test_overdue_vms_do_not_count():
    assert passes(warmup, proposal(7, 4, 4, counts_pending=False), scene(groups={"workers_m": {"overdue": 2}}))


def test_scale_in_beside_booting_vms_is_the_policys_affair():
    assert passes(warmup, proposal(3, 4, 4, counts_pending=False), scene(groups={"workers_m": {"booting": 2}}))


@pytest.mark.parametrize("origin", list(Origin))
def test_a_group_whose_scale_out_boots_grows_and_does_not_shrink(origin):
    context = scene(booting=("workers_m",), controls=pinned({"workers_m": 3}))
    effect = ask(warmup, proposal(3, 5, 4, origin=origin), context)
    assert (effect.reason, effect.after) == (Reason.IN_FLIGHT, (4, 5, 4))
    assert passes(warmup, proposal(5, 5, 4, origin=origin), context)


@pytest.mark.parametrize("desired", [(3, 5, 4), (5, 5, 4)])
@pytest.mark.parametrize("origin", list(Origin))
def test_a_group_with_an_open_intent_is_held_whoever_asks(desired, origin):
    context = scene(in_flight=("workers_m",), controls=pinned({"workers_m": desired[0]}))
    effect = ask(warmup, proposal(*desired, origin=origin), context)
    assert (effect.reason, effect.after) == (Reason.IN_FLIGHT, (4, 5, 4))


def test_the_safe_floor_and_pinned_groups_are_not_corrected_for_booting_vms():
    booting = {"workers_m": {"booting": 2}}
    assert passes(warmup, proposal(7, 4, 4, counts_pending=False, origin=Origin.FLOOR), scene(groups=booting))
    context = scene(groups=booting, controls=pinned({"workers_m": 7}))
    assert passes(warmup, proposal(7, 4, 4, counts_pending=False, origin=Origin.PIN), context)


OUT, IN = Direction.OUT, Direction.IN


def turns(*changes: tuple[Direction, float]) -> dict[str, object]:
    """The state with changes of workers_m so many seconds before noon, and a streak that is long enough."""
    return {"changes": tuple(Change("workers_m", direction, NOON - ago) for direction, ago in changes)}


def test_scale_in_waits_for_proposals_in_a_row():
    effect = ask(flap_guard, proposal(3, 4, 4), scene(state={"in_streak": {"workers_m": 2}}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.NOT_YET_STABLE, (4, 4, 4))
    assert passes(flap_guard, proposal(3, 4, 4), scene(state={"in_streak": {"workers_m": 3}}))


def test_each_group_has_its_own_streak():
    context = scene(state={"in_streak": {"workers_m": 3, "workers_l": 1}})
    assert ask(flap_guard, proposal(3, 3, 3), context).after == (3, 4, 4)


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
    effect = ask(flap_guard, proposal(0, 4, 4), scene(groups={"workers_m": {"mature": 1}}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.TOO_YOUNG, (3, 4, 4))
    assert ask(flap_guard, proposal(3, 4, 4), scene(groups={"workers_m": {"mature": 0}})).after == (4, 4, 4)


def test_no_more_vms_go_than_may_be_removed():
    effect = ask(flap_guard, proposal(0, 4, 4), scene(groups={"workers_m": {"removable": ("i-1", "i-2")}}))
    assert (effect.reason, effect.after) == (Reason.BUSY, (2, 4, 4))


def test_the_tightest_limit_gives_the_reason():
    young = {"workers_m": {"mature": 1, "removable": ("i-1", "i-2")}}
    assert ask(flap_guard, proposal(0, 4, 4), scene(groups=young)).reason is Reason.TOO_YOUNG
    busy = {"workers_m": {"mature": 2, "removable": ("i-1",)}}
    assert ask(flap_guard, proposal(0, 4, 4), scene(groups=busy)).reason is Reason.BUSY


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
    effect = ask(flap_guard, proposal(3, 4, 4), exhausted)
    assert (effect.reason, effect.after) == (Reason.REVERSAL_BUDGET, (4, 4, 4))
    assert passes(flap_guard, proposal(9, 4, 4), exhausted)
    assert passes(flap_guard, proposal(3, 4, 4), scene(state=history, limits={"max_reversals": 4}))


def test_a_group_above_its_maximum_returns_to_it_without_a_streak_but_goes_no_further():
    context = scene((8, 4, 4), state={"in_streak": {}}, fleet=fleet(maximum=6))
    assert passes(flap_guard, proposal(6, 4, 4), context)
    assert ask(flap_guard, proposal(5, 4, 4), context).after == (6, 4, 4)


def test_a_pin_skips_streak_lifetime_and_reversals_but_takes_no_busy_vm():
    context = scene(
        groups={"workers_m": {"mature": 0, "removable": ("i-1", "i-2", "i-3")}},
        state={"in_streak": {}},
        controls=pinned({"workers_m": 0}),
    )
    effect = ask(flap_guard, proposal(0, 4, 4, origin=Origin.PIN), context)
    assert (effect.reason, effect.after) == (Reason.BUSY, (1, 4, 4))
    assert passes(flap_guard, proposal(1, 4, 4, origin=Origin.PIN), context)


def test_an_empty_fleet_has_nothing_to_guard():
    assert passes(flap_guard, proposal(2, 0, 0), scene((0, 0, 0), state={"in_streak": {}}))


def test_a_group_of_which_nothing_is_remembered_begins_its_streak_at_none():
    effect = ask(flap_guard, proposal(3, 4, 4), scene(state={"in_streak": {}}))
    assert (effect.reason, "0 of 3" in effect.detail) == (Reason.NOT_YET_STABLE, True)
