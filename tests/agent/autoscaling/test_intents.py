"""From sizes to intents, and what beginning one starts: cool-downs, changes, and the memory of what is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.autoscaling.intents import (
    drained_now,
    plan_intents,
    state_after_intents,
    state_after_nothing_done,
    with_open_targets,
)
from agent.rails.base import RailLimits
from agent.rails.state import CapacityMark, Change, Cooldown, LoopState
from domain.capacity_units import CapacityUnits
from domain.decisions import Direction, Intent, Outcome, Reason, Status
from domain.observed import GroupObserved, Observed
from tests.agent.rails.scenes import NOON, fleet, scene

LIMITS = RailLimits(cooldown_out_s=120.0, cooldown_in_s=240.0, boot_deadline_s=300.0, stop_deadline_s=180.0, spares=10)
M, L, XL = "workers_m", "workers_l", "workers_xl"


def plan(
    desired: tuple[int, ...], interrupted: Any = (), in_flight: tuple[str, ...] = (), booting: tuple[str, ...] = ()
) -> tuple[Intent, ...]:
    context = scene()
    return plan_intents(
        "web-9", context.fleet, context.snapshot, desired, interrupted, {}, LIMITS, in_flight, booting, 3, NOON
    )


def begun(direction: Direction, group: str = M, victims: tuple[str, ...] = (), at: float = NOON) -> Intent:
    target = {Direction.OUT: 6, Direction.IN: 3, Direction.REPLACE: 4}[direction]
    return Intent(f"web-9.{group}", "web-9", "web", group, direction, 4, target, victims, 3, at, at + 300.0)


def ended(intent: Intent, status: Status, achieved: int = 0, reason: Reason = Reason.DONE) -> Outcome:
    return Outcome(intent.intent_id, status, reason, 2, achieved, NOON + 60.0)


def test_nothing_to_do_is_no_intent() -> None:
    assert plan((4, 4, 4)) == ()


def test_out_is_an_absolute_target_with_the_boot_deadline() -> None:
    (intent,) = plan((6, 4, 4))
    assert intent == Intent("web-9.workers_m", "web-9", "web", M, Direction.OUT, 4, 6, (), 3, NOON, NOON + 300.0)


def test_in_names_the_first_removable_vms_with_the_stop_deadline() -> None:
    (intent,) = plan((4, 2, 4))
    assert intent.candidates == scene().snapshot.groups[1].removable
    assert (intent.group, intent.target, intent.victims) == (L, 2, ("workers_l-0", "workers_l-1"))
    assert intent.deadline_at == NOON + 180.0


def test_fewer_removable_vms_make_a_smaller_scale_in_and_none_makes_none() -> None:
    context = scene(groups={M: {"removable": ("i-1",)}, L: {"removable": ()}})
    intents = plan_intents("web-9", context.fleet, context.snapshot, (1, 1, 4), (), {}, LIMITS, (), (), 3, NOON)
    assert [(intent.group, intent.target, intent.victims) for intent in intents] == [(M, 3, ("i-1",))]


def test_a_group_with_an_open_intent_gets_none() -> None:
    assert [intent.group for intent in plan((6, 6, 6), in_flight=(M, XL))] == [L]


def test_replacements_are_capped_per_group_and_keep_the_size() -> None:
    (intent,) = plan((4, 4, 4), [(L, f"i-{n}") for n in range(9)])
    assert (intent.direction, intent.victims, intent.target) == (Direction.REPLACE, ("i-0", "i-1", "i-2"), 4)


@pytest.mark.parametrize(
    ("age_s", "percent", "drained"),
    [(0.0, 50.0, 5), (29.9, 50.0, 5), (30.1, 50.0, 8), (30.1, 0.0, 3), (0.0, 10.0, 3)],
)
def test_as_many_are_drained_as_the_share_allows_and_all_whose_notice_ends_before_the_next_minute(
    age_s: float, percent: float, drained: int
) -> None:
    limits = replace(LIMITS, max_replacements_percent=percent)
    vms = [f"i-{n}" for n in range(8)]
    assert drained_now(vms, dict.fromkeys(vms, NOON - age_s), 10, limits, NOON) == tuple(vms[:drained])


def test_the_notice_that_ends_first_is_drained_first() -> None:
    notices = {"i-0": NOON - 10.0, "i-1": NOON - 20.0, "i-2": NOON - 100.0}
    assert drained_now(list(notices), notices, 1, replace(LIMITS, max_replacements=1), NOON) == ("i-2",)


@pytest.mark.parametrize(("direction", "length_s"), [(Direction.OUT, 120.0), (Direction.IN, 240.0)])
def test_a_change_begins_the_rest_of_its_direction_and_counts_for_reversals(
    direction: Direction, length_s: float
) -> None:
    other = Cooldown(M, Direction.IN if direction is Direction.OUT else Direction.OUT, NOON + 10.0, 60.0)
    running = Cooldown(M, direction, NOON + 5.0, 60.0)
    before = LoopState(cooldowns=(other, running), changes=(Change(M, Direction.IN, NOON - 100.0),))
    after = state_after_intents(before, (begun(direction),), LIMITS, NOON)
    assert after.cooldowns == (other, Cooldown(M, direction, NOON + length_s, length_s))
    assert after.changes == (*before.changes, Change(M, direction, NOON))


def test_a_replacement_begins_no_rest_and_moves_its_vms_from_waiting_to_seen() -> None:
    before = LoopState(interrupted={"i-1": NOON - 30.0, "i-2": NOON - 20.0}, seen_interruptions={"i-0": NOON - 99.0})
    after = state_after_intents(before, (begun(Direction.REPLACE, victims=("i-1",)),), LIMITS, NOON)
    assert (after.cooldowns, after.changes) == ((), ())
    assert after.interrupted == {"i-2": NOON - 20.0}
    assert after.seen_interruptions == {"i-0": NOON - 99.0, "i-1": NOON - 30.0}


def test_what_is_over_is_forgotten() -> None:
    before = LoopState(
        cooldowns=(Cooldown(M, Direction.OUT, NOON, 60.0),),
        changes=(Change(M, Direction.OUT, NOON - 3600.0), Change(M, Direction.OUT, NOON - 3599.0)),
        capacity=(CapacityMark("m5a.large", "", NOON, 600.0), CapacityMark("m5a.large", "b", NOON + 1.0, 600.0)),
        interrupted={"i-old": NOON - 600.0, "i-new": NOON - 599.0},
        seen_interruptions={"i-gone": NOON - 3600.0, "i-late": NOON - 3599.0},
    )
    after = state_after_intents(before, (), LIMITS, NOON)
    assert after == LoopState(
        changes=before.changes[1:],
        capacity=before.capacity[1:],
        interrupted={"i-new": NOON - 599.0},
        seen_interruptions={"i-late": NOON - 3599.0},
    )


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.FAILED])
def test_an_intent_that_changed_nothing_takes_its_rest_and_its_change_back(status: Status) -> None:
    other = (Cooldown(L, Direction.OUT, NOON + 10.0, 60.0), Cooldown(M, Direction.IN, NOON + 10.0, 60.0))
    before = LoopState(cooldowns=other, changes=(Change(M, Direction.OUT, NOON - 100.0),))
    intent = begun(Direction.OUT)
    state = state_after_intents(before, (intent,), LIMITS, NOON)
    after = state_after_nothing_done(state, intent, ended(intent, status))
    assert (after.cooldowns, after.changes) == (before.cooldowns, before.changes)


@pytest.mark.parametrize(
    ("status", "achieved"), [(Status.DONE, 2), (Status.PARTIAL, 1), (Status.FAILED, 1), (Status.UNKNOWN, 0)]
)
def test_an_intent_that_did_something_or_may_have_keeps_them(status: Status, achieved: int) -> None:
    intent = begun(Direction.OUT)
    state = state_after_intents(LoopState(), (intent,), LIMITS, NOON)
    assert state_after_nothing_done(state, intent, ended(intent, status, achieved)) == state


def seen(desired: int, maximum: int = 10) -> Observed:
    return Observed(NOON, {"web-workers_m": GroupObserved("web-workers_m", desired, 0, maximum)})


@pytest.mark.parametrize(("desired", "maximum", "coming"), [(4, 10, 6), (7, 10, 7), (4, 5, 5)])
def test_a_scale_out_under_way_counts_as_requested_up_to_the_maximum(desired: int, maximum: int, coming: int) -> None:
    observed = with_open_targets(fleet(), seen(desired, maximum), {M: begun(Direction.OUT)})
    assert observed.groups["web-workers_m"].desired == coming


def test_a_scale_out_under_way_counts_in_units_as_well() -> None:
    units = CapacityUnits(8, 0, 20, 8, 4, weight=2, heaviest=2)
    group = GroupObserved("web-workers_m", 4, 0, 10, units=units)
    coming = with_open_targets(fleet(), Observed(NOON, {group.name: group}), {M: begun(Direction.OUT)})
    assert coming.groups[group.name] == replace(group, desired=6, units=replace(units, desired=12))


def test_other_intents_and_groups_that_were_not_read_are_left_as_they_are() -> None:
    observed = seen(4)
    for open_intents in ({M: begun(Direction.IN)}, {M: begun(Direction.REPLACE)}, {L: begun(Direction.OUT, L)}, {}):
        assert with_open_targets(fleet(), observed, open_intents) == replace(observed)
