"""Rail 11 remembers what AWS did not have and asks for the next type instead."""

import pytest

from agent.rails.base import RailLimits
from agent.rails.capacity_memory import capacity_memory, record_shortage
from agent.rails.state import CapacityMark
from domain.decisions import CapacityShortage, Origin, Reason, Verdict
from domain.fleet import Fleet, Group, VmType
from tests.agent.rails.scenes import NOON, TYPES, ask, fleet, passes, pinned, proposal, scene

ONE_ZONE = {"zones": ("us-east-1b",)}


def short(*marks: tuple[str, str], until: float = NOON + 270.0) -> dict[str, object]:
    return {"capacity": tuple(CapacityMark(vm_type, zone, until, 600.0) for vm_type, zone in marks)}


def test_the_next_type_is_tried_with_the_same_cores():
    context = scene(groups={"workers_m": ONE_ZONE}, state=short(("m5a.large", "us-east-1b")))
    effect = ask(capacity_memory, proposal(7, 4, 4), context)
    # 3 VMs of 2 cores are 6 cores: two of 4 cores.
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.MOVED, Reason.CAPACITY_FALLBACK, (4, 6, 4))


def test_a_type_that_some_zone_of_the_group_still_has_is_asked_for():
    assert passes(capacity_memory, proposal(7, 4, 4), scene(state=short(("m5a.large", "us-east-1b"))))
    assert not passes(
        capacity_memory, proposal(7, 4, 4), scene(state=short(("m5a.large", "us-east-1a"), ("m5a.large", "us-east-1b")))
    )


def test_a_mark_without_a_zone_covers_all_zones():
    effect = ask(capacity_memory, proposal(5, 4, 4), scene(state=short(("m5a.large", ""))))
    assert effect.after == (4, 5, 4)
    assert "us-east-1a, us-east-1b" in effect.detail


def test_the_next_attempt_is_when_the_first_zone_becomes_free():
    marks = (
        CapacityMark("m5a.large", "us-east-1a", NOON + 500.0, 600.0),
        CapacityMark("m5a.large", "us-east-1b", NOON + 90.0, 600.0),
    )
    assert "12:01:30 UTC" in ask(capacity_memory, proposal(5, 4, 4), scene(state={"capacity": marks})).detail


def test_a_mark_ends_at_its_time_and_a_clock_set_back_does_not_prolong_it():
    state = short(("m5a.large", ""))
    assert not passes(capacity_memory, proposal(5, 4, 4), scene(state=state, now=NOON + 269.9))
    assert passes(capacity_memory, proposal(5, 4, 4), scene(state=state, now=NOON + 270.0))
    assert passes(capacity_memory, proposal(5, 4, 4), scene(state=state, now=NOON - 3600.0))


def test_a_short_type_is_skipped_as_the_next_one():
    effect = ask(capacity_memory, proposal(5, 4, 4), scene(state=short(("m5a.large", ""), ("m5a.xlarge", ""))))
    assert effect.after == (4, 4, 5)
    assert "trying m5a.2xlarge" in effect.detail


def test_the_cheapest_type_per_core_comes_next_then_the_nearest_in_cores():
    dear = VmType("c5.xlarge", 4, 8.0, 0.2)
    of = Fleet("web", tuple(Group(t.name, t.name, t, 0, 20) for t in (TYPES[1], dear, TYPES[2], TYPES[0])))
    effect = ask(capacity_memory, proposal(2, 1, 1, 1), scene((1, 1, 1, 1), fleet=of, state=short(("m5a.xlarge", ""))))
    assert effect.after == (1, 1, 1, 3)
    assert "trying m5a.large" in effect.detail


@pytest.mark.parametrize(
    "obstacle",
    [
        {"groups": {"workers_l": {"suspended": ("Launch",)}}},
        {"groups": {"workers_l": {"maximum": 4}}},
        {"in_flight": ("workers_l",)},
        {"controls": pinned({"workers_l": 4})},
    ],
)
def test_a_group_that_cannot_take_it_is_skipped(obstacle):
    effect = ask(capacity_memory, proposal(5, 4, 4), scene(state=short(("m5a.large", "")), **obstacle))
    assert effect.after == (4, 4, 5)


def test_no_more_moves_than_there_is_room_for():
    context = scene(groups={"workers_l": {"maximum": 5}}, state=short(("m5a.large", "")))
    assert ask(capacity_memory, proposal(14, 4, 4), context).after == (4, 5, 4)


def test_without_another_type_the_increase_is_held_until_the_next_attempt():
    context = scene((4,), state=short(("m5a.large", "")))
    effect = ask(capacity_memory, proposal(7), context)
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.NO_CAPACITY, (4,))


def test_a_pinned_size_is_held_and_not_moved():
    context = scene(state=short(("m5a.large", "")), controls=pinned({"workers_m": 7}))
    effect = ask(capacity_memory, proposal(7, 4, 4), context)
    assert (effect.reason, effect.after) == (Reason.NO_CAPACITY, (4, 4, 4))


def test_what_only_the_minimum_asks_for_is_held_lest_another_type_grow_every_minute():
    context = scene((0, 4, 4), state=short(("m5a.large", "")), fleet=fleet(minimum=2))
    effect = ask(capacity_memory, proposal(2, 4, 4), context)
    assert (effect.reason, effect.after) == (Reason.NO_CAPACITY, (0, 4, 4))
    # Of four VMs two are for the minimum; the other two are one m5a.xlarge.
    assert ask(capacity_memory, proposal(4, 4, 4), context).after == (0, 5, 4)


def test_a_safe_floor_moves_only_while_the_fleet_lacks_its_cores():
    floor = {"safe_floor": (4, 1, 0)}  # 12 cores
    lacking = scene((0, 1, 0), state=short(("m5a.large", "")), limits=floor)
    assert ask(capacity_memory, proposal(4, 1, 0, origin=Origin.FLOOR), lacking).after == (0, 3, 0)
    covered = scene((0, 3, 0), state=short(("m5a.large", "")), limits=floor)
    effect = ask(capacity_memory, proposal(4, 3, 0, origin=Origin.FLOOR), covered)
    assert (effect.reason, effect.after) == (Reason.NO_CAPACITY, (0, 3, 0))


def test_scale_in_of_a_short_type_passes():
    assert passes(capacity_memory, proposal(3, 4, 4), scene(state=short(("m5a.large", ""))))


def test_it_moves_from_zero():
    context = scene((0, 0, 0), state=short(("m5a.large", "")))
    assert ask(capacity_memory, proposal(1, 0, 0), context).after == (0, 1, 0)


def test_one_call_moves_one_group():
    effect = ask(capacity_memory, proposal(5, 5, 4), scene(state=short(("m5a.large", ""), ("m5a.xlarge", ""))))
    assert effect.after == (4, 5, 5)


def test_a_shortage_is_remembered_for_its_time_and_refreshed_by_the_next():
    limits = RailLimits(capacity_memory_s=600.0)
    first = record_shortage((), [CapacityShortage("m5a.large", "us-east-1b")], NOON, limits)
    assert first == (CapacityMark("m5a.large", "us-east-1b", NOON + 600.0, 600.0),)
    again = record_shortage(first, [CapacityShortage("m5a.large", "us-east-1b")], NOON + 300.0, limits)
    assert again == (CapacityMark("m5a.large", "us-east-1b", NOON + 900.0, 600.0),)


def test_expired_marks_are_forgotten_and_others_kept():
    limits = RailLimits(capacity_memory_s=600.0)
    marks = record_shortage((), [CapacityShortage("m5a.large", "a"), CapacityShortage("m5a.xlarge", "")], NOON, limits)
    assert record_shortage(marks, (), NOON + 599.9, limits) == marks
    assert record_shortage(marks, (), NOON + 600.0, limits) == ()


def test_of_two_types_as_near_and_as_cheap_the_larger_is_tried():
    sizes = {"workers_m": 4, "workers_l": 2, "workers_xl": 6}
    groups = tuple(
        Group(key, key, VmType(f"t{cores}", cores, 8.0, 0.05 * cores), 0, 20) for key, cores in sizes.items()
    )
    context = scene(fleet=Fleet("web", groups), state=short(("t4", "")))
    assert ask(capacity_memory, proposal(7, 4, 4), context).after == (4, 4, 6)
