"""Rail 5 keeps sizes within ours and AWS's bounds; it corrects a fleet outside them unless that direction is held."""

import pytest

from agent.autoscaling.state import PauseScope
from agent.rails.bounds import RAIL
from domain.decisions import Reason, Verdict
from tests.agent.rails.scenes import ask, fleet, passes, paused, proposal, scene


def test_a_size_on_either_bound_passes():
    context = scene(fleet=fleet(minimum=1, maximum=8))
    assert passes(RAIL, proposal(1, 8, 4), context)


def test_below_the_minimum_is_raised_and_above_the_maximum_is_lowered():
    effect = ask(RAIL, proposal(0, 4, 4), scene(fleet=fleet(minimum=1, maximum=8)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.RAISED, Reason.BELOW_MINIMUM, (1, 4, 4))
    effect = ask(RAIL, proposal(4, 4, 9), scene(fleet=fleet(minimum=1, maximum=8)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.ABOVE_MAXIMUM, (4, 4, 8))
    assert effect.detail == "workers_xl 4 -> 9 lowered to 8: the maximum is 8 (ours 8, AWS 20)"


def test_the_tighter_of_our_bounds_and_aws_counts():
    aws = {"workers_m": {"minimum": 3, "maximum": 6}}
    context = scene(groups=aws, fleet=fleet(minimum=1, maximum=8))
    assert ask(RAIL, proposal(1, 4, 4), context).after == (3, 4, 4)
    assert ask(RAIL, proposal(8, 4, 4), context).after == (6, 4, 4)


@pytest.mark.parametrize(("aws", "after"), [((5, 9), 5), ((0, 1), 1)])
def test_where_bounds_do_not_overlap_aws_wins_at_the_end_nearest_to_ours(aws, after):
    groups = {"workers_m": {"minimum": aws[0], "maximum": aws[1]}}
    effect = ask(RAIL, proposal(2, 4, 4), scene((2, 4, 4), groups, fleet=fleet(minimum=2, maximum=4)))
    assert effect.after == (after, 4, 4)
    assert f"AWS's bounds {aws[0]}..{aws[1]} lie outside ours 2..4 and win" in effect.detail


def test_a_fleet_outside_its_bounds_moves_towards_them():
    context = scene((0, 12, 4), fleet=fleet(minimum=1, maximum=10))
    assert ask(RAIL, proposal(0, 12, 4), context).after == (1, 10, 4)


def test_a_correction_downwards_is_not_made_on_stale_input_on_a_sick_fleet_or_while_paused():
    of = fleet(maximum=10)
    assert passes(RAIL, proposal(12, 4, 4), scene((12, 4, 4), fleet=of, snapshot={"stale_bins": 1}))
    assert passes(RAIL, proposal(12, 4, 4), scene((12, 4, 4), {"workers_m": {"silent": 12}}, fleet=of))
    assert passes(RAIL, proposal(12, 4, 4), scene((12, 4, 4), fleet=of, controls=paused(PauseScope.IN)))
    assert not passes(RAIL, proposal(12, 4, 4), scene((12, 4, 4), fleet=of, controls=paused(PauseScope.OUT)))


def test_an_increase_above_the_maximum_on_a_paused_fleet_goes_no_lower_than_current():
    context = scene((12, 4, 4), fleet=fleet(maximum=10), controls=paused(PauseScope.IN))
    assert ask(RAIL, proposal(15, 4, 4), context).after == (12, 4, 4)


def test_a_correction_upwards_is_not_made_while_scale_out_is_paused():
    context = scene((0, 4, 4), fleet=fleet(minimum=1), controls=paused(PauseScope.OUT))
    assert passes(RAIL, proposal(0, 4, 4), context)


def test_an_empty_fleet_with_a_minimum_is_raised_even_on_stale_input():
    context = scene((0, 0, 0), fleet=fleet(minimum=1), snapshot={"stale_bins": 9})
    assert ask(RAIL, proposal(0, 0, 0), context).after == (1, 1, 1)
