"""Rails 5, 6 and 12: bounds, steps, and what the group would not carry out."""

import pytest

from agent.rails.limits import aws_accepts, bounds, group_state, largest_step, step_limit
from domain.controls import PauseScope
from domain.decisions import Origin, Reason, Verdict
from tests.agent.rails.scenes import ask, fleet, passes, paused, proposal, scene


def test_a_size_on_either_bound_passes():
    context = scene(fleet=fleet(minimum=1, maximum=8))
    assert passes(bounds, proposal(1, 8, 4), context)


def test_below_the_minimum_is_raised_and_above_the_maximum_is_lowered():
    effect = ask(bounds, proposal(0, 4, 4), scene(fleet=fleet(minimum=1, maximum=8)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.RAISED, Reason.BELOW_MINIMUM, (1, 4, 4))
    effect = ask(bounds, proposal(4, 4, 9), scene(fleet=fleet(minimum=1, maximum=8)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.ABOVE_MAXIMUM, (4, 4, 8))


def test_the_tighter_of_our_bounds_and_aws_counts():
    aws = {"workers_m": {"minimum": 3, "maximum": 6}}
    context = scene(groups=aws, fleet=fleet(minimum=1, maximum=8))
    assert ask(bounds, proposal(1, 4, 4), context).after == (3, 4, 4)
    assert ask(bounds, proposal(8, 4, 4), context).after == (6, 4, 4)


@pytest.mark.parametrize(("aws", "after"), [((5, 9), 5), ((0, 1), 1)])
def test_where_bounds_do_not_overlap_aws_wins_at_the_end_nearest_to_ours(aws, after):
    groups = {"workers_m": {"minimum": aws[0], "maximum": aws[1]}}
    context = scene((2, 4, 4), groups, fleet=fleet(minimum=2, maximum=4))
    assert ask(bounds, proposal(2, 4, 4), context).after == (after, 4, 4)


def test_a_fleet_outside_its_bounds_moves_towards_them():
    context = scene((0, 12, 4), fleet=fleet(minimum=1, maximum=10))
    assert ask(bounds, proposal(0, 12, 4), context).after == (1, 10, 4)


def test_a_correction_downwards_is_not_made_on_stale_input_on_a_sick_fleet_or_while_paused():
    of = fleet(maximum=10)
    assert passes(bounds, proposal(12, 4, 4), scene((12, 4, 4), fleet=of, snapshot={"stale_bins": 1}))
    assert passes(bounds, proposal(12, 4, 4), scene((12, 4, 4), {"workers_m": {"silent": 12}}, fleet=of))
    assert passes(bounds, proposal(12, 4, 4), scene((12, 4, 4), fleet=of, controls=paused(PauseScope.IN)))
    assert not passes(bounds, proposal(12, 4, 4), scene((12, 4, 4), fleet=of, controls=paused(PauseScope.OUT)))


def test_an_increase_above_the_maximum_on_a_paused_fleet_goes_no_lower_than_current():
    context = scene((12, 4, 4), fleet=fleet(maximum=10), controls=paused(PauseScope.IN))
    assert ask(bounds, proposal(15, 4, 4), context).after == (12, 4, 4)


def test_a_correction_upwards_is_not_made_while_scale_out_is_paused():
    context = scene((0, 4, 4), fleet=fleet(minimum=1), controls=paused(PauseScope.OUT))
    assert passes(bounds, proposal(0, 4, 4), context)


def test_an_empty_fleet_with_a_minimum_is_raised_even_on_stale_input():
    context = scene((0, 0, 0), fleet=fleet(minimum=1), snapshot={"stale_bins": 9})
    assert ask(bounds, proposal(0, 0, 0), context).after == (1, 1, 1)


def test_a_step_beyond_the_limit_is_shrunk_to_it():
    effect = ask(step_limit, proposal(4, 0, 0), scene((2, 0, 0), limits={"max_step_out": 1}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.STEP_LIMIT, (3, 0, 0))


def test_each_direction_has_its_own_limit():
    context = scene((10, 10, 10), limits={"max_step_out": 5, "max_step_in": 2})
    assert passes(step_limit, proposal(15, 8, 10), context)
    assert ask(step_limit, proposal(16, 7, 10), context).after == (15, 8, 10)


@pytest.mark.parametrize(
    ("current", "percent", "step"),
    [(10, 50.0, 5), (11, 50.0, 5), (10, 10.0, 2), (0, 50.0, 2), (10, 0.0, 2), (3, 100.0, 3)],
)
def test_the_larger_of_absolute_and_percent_allows(current, percent, step):
    assert largest_step(current, 2, percent) == step


def test_percent_is_of_the_current_size():
    limits = {"max_step_out": 1, "max_step_out_percent": 50.0, "max_step_in": 1, "max_step_in_percent": 20.0}
    assert ask(step_limit, proposal(20, 0, 4), scene((10, 10, 4), limits=limits)).after == (15, 8, 4)


def test_growth_from_zero_uses_the_absolute_limit():
    limits = {"max_step_out": 2, "max_step_out_percent": 100.0}
    assert ask(step_limit, proposal(9, 0, 0), scene((0, 0, 0), limits=limits)).after == (2, 0, 0)


def test_a_limit_of_zero_holds_the_direction():
    effect = ask(step_limit, proposal(5, 4, 4), scene(limits={"max_step_out": 0}))
    assert (effect.verdict, effect.after) == (Verdict.VETOED, (4, 4, 4))


@pytest.mark.parametrize("origin", [Origin.PIN, Origin.FLOOR])
def test_pins_and_the_safe_floor_walk_in_steps_too(origin):
    assert ask(step_limit, proposal(9, 4, 4, origin=origin), scene(limits={"max_step_out": 2})).after == (6, 4, 4)


def test_a_group_outside_awss_bounds_may_return_to_them_at_once():
    high = scene((12, 4, 4), {"workers_m": {"maximum": 8}}, limits={"max_step_in": 1})
    assert passes(step_limit, proposal(8, 4, 4), high)
    assert ask(step_limit, proposal(6, 4, 4), high).after == (8, 4, 4)
    low = scene((0, 4, 4), {"workers_m": {"minimum": 3}}, limits={"max_step_out": 1})
    assert ask(step_limit, proposal(5, 4, 4), low).after == (3, 4, 4)


def test_no_increase_while_launch_is_suspended():
    context = scene(groups={"workers_m": {"suspended": ("AZRebalance", "Launch")}})
    effect = ask(group_state, proposal(5, 5, 4), context)
    assert (effect.reason, effect.after) == (Reason.LAUNCH_SUSPENDED, (4, 5, 4))
    assert passes(group_state, proposal(3, 4, 4), context)


def test_no_drain_while_terminate_is_suspended():
    context = scene(groups={"workers_m": {"suspended": ("Terminate",)}})
    effect = ask(group_state, proposal(3, 3, 4), context)
    assert (effect.reason, effect.after) == (Reason.TERMINATE_SUSPENDED, (4, 3, 4))
    assert passes(group_state, proposal(5, 4, 4), context)


def test_no_drain_while_instances_are_refreshed():
    context = scene(groups={"workers_m": {"refreshing": True}})
    effect = ask(group_state, proposal(3, 4, 4), context)
    assert (effect.reason, effect.after) == (Reason.REFRESH_IN_PROGRESS, (4, 4, 4))
    assert passes(group_state, proposal(5, 4, 4), context)


def test_other_suspended_processes_do_not_matter():
    context = scene(groups={"workers_m": {"suspended": ("AlarmNotification", "ScheduledActions")}})
    assert passes(group_state, proposal(5, 3, 4), context)


def test_a_size_that_aws_would_refuse_is_not_asked_for():
    high = scene((12, 4, 4), {"workers_m": {"maximum": 8}})
    effect = ask(group_state, proposal(10, 4, 4), high)
    assert (effect.reason, effect.after) == (Reason.ABOVE_MAXIMUM, (12, 4, 4))
    low = scene((0, 4, 4), {"workers_m": {"minimum": 3}})
    assert ask(group_state, proposal(1, 4, 4), low).reason is Reason.BELOW_MINIMUM


@pytest.mark.parametrize(("size", "fits"), [(2, False), (3, True), (8, True), (9, False)])
def test_aws_accepts_the_sizes_from_its_minimum_to_its_maximum(size, fits):
    context = scene((5, 4, 4), {"workers_m": {"minimum": 3, "maximum": 8}})
    assert aws_accepts(context, 0, size) is fits
    assert passes(group_state, proposal(size, 4, 4), context) is fits


def test_a_group_that_is_told_to_stay_is_asked_nothing():
    outside = scene((12, 4, 4), {"workers_m": {"maximum": 8, "suspended": ("Launch", "Terminate")}})
    assert passes(group_state, proposal(12, 4, 4), outside)
