"""What must hold in every world: what each rail may do, and what may leave the last of them."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rails.base import Power, RailContext
from agent.rails.budget import dollars_per_hour
from agent.rails.inputs import input_fault
from agent.rails.order import RAILS, apply_rails
from agent.rails.permissions import active_pin
from domain.decisions import Mode, Origin, Proposal, Verdict
from tests.agent.rails.scenes import ask, pinned
from tests.agent.rails.worlds import worlds

World = tuple[RailContext, Proposal]
MANY = settings(max_examples=120)
BY_NAME = {rail.name: rail for rail in RAILS}


def between(value: int, one: int, other: int) -> bool:
    return min(one, other) <= value <= max(one, other)


@MANY
@given(world=worlds())
def test_no_rail_raises_and_each_keeps_to_its_power(world: World):
    context, wanted = world
    for rail in RAILS:
        effect = ask(rail, wanted, context)
        assert effect.before == wanted.desired
        for current, asked, allowed in zip(context.snapshot.requested, wanted.desired, effect.after, strict=True):
            assert allowed >= 0
            if rail.power is Power.VETO:
                assert allowed in (asked, current), rail.name
            elif rail.power is Power.SHRINK:
                assert between(allowed, asked, current), rail.name


@MANY
@given(world=worlds())
def test_a_rail_applied_twice_is_a_rail_applied_once(world: World):
    context, wanted = world
    for rail in RAILS:
        once, _ = rail.apply(wanted, context)
        if rail.name == "capacity_memory":  # moves one group per call
            for _ in context.fleet.groups:
                once, _ = rail.apply(once, context)
        assert rail.apply(once, context)[0] == once, rail.name


@MANY
@given(world=worlds())
def test_all_rails_applied_twice_are_all_rails_applied_once(world: World):
    context, wanted = world
    once, _ = apply_rails(wanted, context)
    twice, _ = apply_rails(once, context)
    assert twice == once


@MANY
@given(world=worlds())
def test_every_rail_speaks_in_order_and_takes_up_where_the_one_before_left_off(world: World):
    context, wanted = world
    final, effects = apply_rails(wanted, context)
    assert effects[0].before == wanted.desired
    assert effects[-1].after == final.desired
    for earlier, later in pairwise(effects):
        assert later.before == earlier.after
    moves = [effect for effect in effects if effect.verdict is Verdict.MOVED]
    names = [rail.name for rail in RAILS if context.windows or rail.name != "schedule"]
    first = "schedule" if context.windows else "bounds"
    sizing = names[names.index(first) : names.index("capacity_memory") + 1]
    before, after = names[: names.index(first)], names[names.index("capacity_memory") + 1 :]
    assert [e.rail for e in effects] == before + sizing * (1 + len(moves)) + after
    assert len(moves) <= len(context.fleet.groups)


@MANY
@given(world=worlds())
def test_the_result_is_the_current_size_or_within_awss_bounds(world: World):
    context, wanted = world
    final, _ = apply_rails(wanted, context)
    for group, size in zip(context.snapshot.groups, final.desired, strict=True):
        assert size == group.requested or group.minimum <= size <= group.maximum


@MANY
@given(world=worlds(), minutes=st.integers(1, 9))
def test_no_group_is_scaled_in_on_absent_input_unless_a_person_pinned_it(world: World, minutes: int):
    context, wanted = world
    context = replace(context, snapshot=replace(context.snapshot, absent=("queue",), stale_bins=minutes))
    pin = active_pin(context)
    final, _ = apply_rails(wanted, context)
    for group, size in zip(context.snapshot.groups, final.desired, strict=True):
        assert size >= group.requested or (pin is not None and group.key in pin.desired)


@MANY
@given(world=worlds())
def test_observe_mode_and_followers_change_nothing(world: World):
    context, wanted = world
    for idle in (replace(context, mode=Mode.OBSERVE), replace(context, leader=False)):
        assert apply_rails(wanted, idle)[0].desired == context.snapshot.requested


@MANY
@given(world=worlds())
def test_observe_mode_shows_what_act_mode_would_do(world: World):
    context, wanted = world
    _, watched = apply_rails(wanted, replace(context, mode=Mode.OBSERVE))
    done, _ = apply_rails(wanted, replace(context, mode=Mode.ACT))
    assert watched[-1].before == done.desired


@MANY
@given(world=worlds(), per_hour=st.floats(0.0, 8.0), per_day=st.floats(0.0, 100.0))
def test_a_budget_causes_no_scale_in_and_lets_the_bill_rise_no_further(world: World, per_hour: float, per_day: float):
    context, wanted = world
    free = replace(context, limits=replace(context.limits, budget_per_hour=None, budget_per_day=None))
    tight = replace(context, limits=replace(context.limits, budget_per_hour=per_hour, budget_per_day=per_day))
    before = context.snapshot.requested
    with_budget = apply_rails(wanted, tight)[0].desired
    effect = ask(BY_NAME["budget"], wanted, tight)
    for current, asked, allowed in zip(before, wanted.desired, effect.after, strict=True):
        assert allowed == asked if asked <= current else allowed >= current
    shrinks = [size < current for current, size in zip(before, apply_rails(wanted, free)[0].desired, strict=True)]
    capacity_is_known = not context.state.capacity  # a move onto a group may undo that group's scale-in
    for current, size, shrank in zip(before, with_budget, shrinks, strict=True):
        assert size >= current or shrank or not capacity_is_known
    bill, now = dollars_per_hour(context.fleet, with_budget), dollars_per_hour(context.fleet, before)
    assert bill <= max(per_hour, now) + 1e-6


@MANY
@given(world=worlds())
def test_a_group_with_an_open_intent_does_not_move(world: World):
    context, wanted = world
    context = replace(context, in_flight=tuple(group.key for group in context.fleet.groups))
    assert apply_rails(wanted, context)[0].desired == context.snapshot.requested


@MANY
@given(world=worlds())
def test_the_safe_floor_and_pins_are_exempt_only_where_it_is_documented(world: World):
    context, wanted = world
    everything = {g.key: size for g, size in zip(context.fleet.groups, wanted.desired, strict=True)}
    context = replace(context, controls=replace(context.controls, pin=pinned(everything).pin), in_flight=())
    for rail in RAILS:
        as_policy, as_pin, as_floor = (
            rail.apply(replace(wanted, origin=origin, counts_pending=False), context)[0].desired
            for origin in (Origin.POLICY, Origin.PIN, Origin.FLOOR)
        )
        assert as_pin == as_floor, rail.name
        if rail.name in ("cooldown", "warmup"):
            assert as_pin == wanted.desired, rail.name
        elif rail.name == "flap_guard":
            for group, asked, allowed in zip(context.snapshot.groups, wanted.desired, as_pin, strict=True):
                fewest = group.requested - len(group.removable)
                assert allowed == (max(asked, fewest) if asked < group.requested else asked)
        else:
            assert as_pin == as_policy, rail.name


@MANY
@given(world=worlds(), junk=st.lists(st.floats() | st.integers(-5, 5) | st.booleans() | st.none(), max_size=4))
def test_a_proposal_of_anything_at_all_never_raises_and_ends_within_reason(world: World, junk: list[object]):
    context, wanted = world
    final, _ = apply_rails(replace(wanted, desired=tuple(junk)), context)
    assert len(final.desired) == len(context.fleet.groups)
    assert all(type(size) is int and size >= 0 for size in final.desired)


@MANY
@given(world=worlds())
def test_stale_input_is_left_only_upwards(world: World):
    context, wanted = world
    if input_fault(context.snapshot, context.limits) is None:
        return
    effect = ask(BY_NAME["staleness_and_coverage"], wanted, context)
    assert all(size >= current for size, current in zip(effect.after, context.snapshot.requested, strict=True))
