"""A proposal passes all rails in one order; a move to another type passes the sizing rails once more."""

import pytest

from agent.rails.order import RAILS, apply_rails, replaceable
from agent.rails.state import Breaker, CapacityMark, Cooldown
from domain.controls import PauseScope
from domain.decisions import Direction, Mode, Origin, Reason, Verdict
from tests.agent.rails.scenes import NOON, fleet, group, paused, pinned, proposal, scene

SHORT = (CapacityMark("m5a.large", "", NOON + 270.0, 600.0),)


def told(effects):
    """Rail and reason of every effect that changed something."""
    return [(effect.rail, effect.reason) for effect in effects if effect.verdict is not Verdict.PASSED]


def test_the_order_is_fixed():
    assert [rail.name for rail in RAILS] == [
        "finite_and_schema",
        "staleness_and_coverage",
        "sickness",
        "pause_and_pin",
        "schedule",
        "bounds",
        "step_limit",
        "cooldown",
        "warmup",
        "flap_guard",
        "budget",
        "capacity_memory",
        "group_state",
        "circuit_breaker",
        "leader_epoch",
        "mode",
    ]


def test_a_calm_change_passes_all_rails_unchanged():
    final, effects = apply_rails(proposal(5, 3, 4), scene())
    assert final.desired == (5, 3, 4)
    # The schedule is asked where there are windows.
    assert [effect.rail for effect in effects] == [rail.name for rail in RAILS if rail.name != "schedule"]
    assert told(effects) == []


def test_several_rails_each_say_their_word():
    context = scene(limits={"max_step_out": 2, "budget_per_hour": 2.408 + 0.086}, mode=Mode.OBSERVE)
    final, effects = apply_rails(proposal(30, 4, 4), context)
    assert final.desired == (4, 4, 4)
    assert told(effects) == [
        ("bounds", Reason.ABOVE_MAXIMUM),
        ("step_limit", Reason.STEP_LIMIT),
        ("budget", Reason.OVER_BUDGET),
        ("mode", Reason.OBSERVE_MODE),
    ]
    assert effects[-1].before == (5, 4, 4)


def test_a_move_passes_the_sizing_rails_again_and_says_so():
    state = {"capacity": SHORT, "cooldowns": (Cooldown("workers_l", Direction.OUT, NOON + 100.0, 300.0),)}
    final, effects = apply_rails(proposal(6, 4, 4), scene(state=state))
    assert final.desired == (4, 4, 4)
    assert told(effects) == [("capacity_memory", Reason.CAPACITY_FALLBACK), ("cooldown", Reason.COOLING_DOWN)]


def test_a_move_is_held_to_the_budget():
    limits = {"budget_per_hour": 2.408 + 0.1}
    _, effects = apply_rails(proposal(5, 4, 4), scene(state={"capacity": SHORT}, limits=limits))
    assert told(effects) == [("capacity_memory", Reason.CAPACITY_FALLBACK), ("budget", Reason.OVER_BUDGET)]


def test_several_short_groups_move_one_after_the_other():
    marks = (*SHORT, CapacityMark("m5a.xlarge", "", NOON + 270.0, 600.0))
    final, effects = apply_rails(proposal(6, 6, 4), scene(state={"capacity": marks}))
    assert final.desired == (4, 4, 6)
    assert [reason for _, reason in told(effects)] == [Reason.CAPACITY_FALLBACK] * 2
    assert len(effects) == len(RAILS) - 1 + 2 * 7


def test_pending_vms_of_the_type_moved_to_count_once_for_a_policy_that_had_not_counted_them():
    # A minute ago the fallback asked for one m5a.xlarge; it boots, the load is still high, nothing more is needed.
    context = scene(groups={"workers_l": {"booting": 1}}, state={"capacity": SHORT})
    final, effects = apply_rails(proposal(6, 4, 4, counts_pending=False), context)
    assert final.desired == (4, 4, 4)
    assert told(effects) == [("capacity_memory", Reason.CAPACITY_FALLBACK), ("warmup", Reason.WARMING_UP)]
    assert apply_rails(proposal(6, 4, 4, counts_pending=True), context)[0].desired == (4, 5, 4)


def test_pending_vms_already_taken_off_are_not_taken_off_again_after_a_move():
    context = scene(groups={"workers_l": {"booting": 1}}, state={"capacity": SHORT})
    final, _ = apply_rails(proposal(6, 6, 4, counts_pending=False), context)
    assert final.desired == (4, 6, 4)


def test_a_pin_overrides_stale_input_and_cool_down_but_walks_in_steps():
    context = scene(
        snapshot={"absent": ("cpu",), "stale_bins": 2},
        state={"cooldowns": (Cooldown("workers_m", Direction.OUT, NOON + 100.0, 300.0),)},
        limits={"max_step_out": 3},
        controls=pinned({"workers_m": 9}),
    )
    final, effects = apply_rails(proposal(0, 0, 0), context)
    assert (final.desired, final.origin) == ((7, 4, 4), Origin.PIN)
    assert told(effects) == [
        ("staleness_and_coverage", Reason.STALE_INPUT),
        ("pause_and_pin", Reason.PINNED),
        ("step_limit", Reason.STEP_LIMIT),
    ]


def test_the_safe_floor_is_not_held_by_a_cool_down():
    context = scene(
        (0, 0, 0),
        snapshot={"absent": ("queue",), "stale_bins": 4},
        state={"cooldowns": (Cooldown("workers_m", Direction.OUT, NOON + 100.0, 300.0),)},
        limits={"safe_floor": (2, 0, 0)},
    )
    final, _ = apply_rails(proposal(0, 0, 0), context)
    assert (final.desired, final.origin) == ((2, 0, 0), Origin.FLOOR)


def test_a_paused_floor_stays_down_because_a_person_said_so():
    context = scene(
        (0, 0, 0),
        snapshot={"absent": ("queue",), "stale_bins": 4},
        limits={"safe_floor": (2, 0, 0)},
        controls=paused(PauseScope.ALL),
    )
    assert apply_rails(proposal(0, 0, 0), context)[0].desired == (0, 0, 0)


def test_an_unreadable_proposal_still_leaves_operators_their_pin():
    final, _ = apply_rails(proposal(float("nan"), 1, 1), scene(controls=pinned({"workers_m": 5})))
    assert final.desired == (5, 4, 4)


def test_a_snapshot_of_other_groups_stops_at_the_first_rail():
    context = scene(fleet=fleet(), snapshot={"groups": (group("other", 7),)})
    final, effects = apply_rails(proposal(1, 2, 3), context)
    assert final.desired == (7,)
    assert told(effects) == [("finite_and_schema", Reason.SCHEMA_MISMATCH)]
    assert len(effects) == 1


def test_a_group_that_takes_over_what_aws_did_not_have_waits_for_no_cool_down_from_before_the_shortage():
    shortage = CapacityMark("m5a.large", "", NOON + 600.0, 600.0)
    before = Cooldown("workers_l", Direction.OUT, NOON + 240.0, 300.0)
    final, effects = apply_rails(proposal(6, 4, 4), scene(state={"capacity": (shortage,), "cooldowns": (before,)}))
    assert final.desired == (4, 5, 4)
    assert told(effects) == [("capacity_memory", Reason.CAPACITY_FALLBACK)]


def test_a_shortage_excuses_one_change_of_a_group_and_not_one_every_minute():
    shortage = CapacityMark("m5a.large", "", NOON + 540.0, 600.0)
    since = Cooldown("workers_l", Direction.OUT, NOON + 240.0, 300.0)
    final, effects = apply_rails(proposal(6, 4, 4), scene(state={"capacity": (shortage,), "cooldowns": (since,)}))
    assert final.desired == (4, 4, 4)
    assert told(effects)[-1] == ("cooldown", Reason.COOLING_DOWN)


def test_what_the_policy_itself_asks_of_a_cooling_group_is_held_during_a_shortage_too():
    shortage = CapacityMark("m5a.large", "", NOON + 600.0, 600.0)
    before = Cooldown("workers_l", Direction.OUT, NOON + 240.0, 300.0)
    final, _ = apply_rails(proposal(6, 9, 4), scene(state={"capacity": (shortage,), "cooldowns": (before,)}))
    assert final.desired == (4, 5, 4)


SPOT = (("workers_m", "i-1"), ("workers_m", "i-2"), ("workers_l", "i-3"))


def test_interrupted_vms_are_replaced_when_nothing_holds_their_group():
    assert replaceable(SPOT, scene()) == (SPOT, ())
    assert replaceable((), scene(controls=paused(PauseScope.ALL))) == ((), ())


@pytest.mark.parametrize("scope", list(PauseScope))
def test_a_pause_of_either_direction_holds_replacements(scope):
    allowed, waiting = replaceable(SPOT, scene(controls=paused(scope)))
    assert allowed == ()
    assert [text.split(":")[0] for text in waiting] == ["workers_m", "workers_l"]


def test_a_group_whose_breaker_is_open_waits_and_a_half_open_one_has_a_single_vm_replaced():
    breakers = {"breakers": (Breaker("workers_m", 3, NOON + 300.0, 300.0),)}
    for now, expected in (
        (NOON, (("workers_l", "i-3"),)),
        (NOON + 300.0, (("workers_m", "i-1"), ("workers_l", "i-3"))),
    ):
        allowed, waiting = replaceable(SPOT, scene(state=breakers, now=now))
        assert (allowed, [text.split(":")[0] for text in waiting]) == (expected, ["workers_m"])
    assert replaceable(SPOT, scene(state={"breakers": (Breaker("workers_m", 2),)})) == (SPOT, ())
    assert replaceable(SPOT, scene(state={"breakers": (Breaker("workers_xl", 3, NOON + 300.0, 300.0),)})) == (SPOT, ())
