"""Rail 2 holds on unusable input and raises to the safe floor after some minutes; it never lowers a fleet."""

import math

import pytest

from agent.rails.staleness_and_coverage import RAIL
from domain.decisions import Origin, Reason, Verdict
from tests.agent.rails.scenes import ask, passes, proposal, scene


def test_fresh_input_passes():
    assert passes(RAIL, proposal(9, 0, 4), scene())


@pytest.mark.parametrize("desired", [(9, 4, 4), (0, 0, 0)])
def test_an_absent_input_holds_both_directions(desired):
    effect = ask(RAIL, proposal(*desired), scene(snapshot={"absent": ("queue.waiting",), "stale_bins": 1}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.STALE_INPUT, (4, 4, 4))
    assert "absent: queue.waiting" in effect.detail


def test_a_sample_may_be_as_old_as_the_limit_and_no_older():
    assert passes(RAIL, proposal(9, 4, 4), scene(snapshot={"age_s": 150.0}))
    effect = ask(RAIL, proposal(9, 4, 4), scene(snapshot={"age_s": 150.1}))
    assert effect.reason is Reason.STALE_INPUT
    assert effect.detail == "workers_m 4 -> 9 held at 4: the newest sample is 150 s old, at most 150 s"


@pytest.mark.parametrize("age_s", [None, math.nan])
def test_an_unknown_age_is_stale_while_warm_vms_exist(age_s):
    assert ask(RAIL, proposal(9, 4, 4), scene(snapshot={"age_s": age_s})).reason is Reason.STALE_INPUT


def test_coverage_may_be_as_low_as_the_limit_and_no_lower():
    assert passes(RAIL, proposal(9, 4, 4), scene(snapshot={"coverage": 0.5}))
    effect = ask(RAIL, proposal(2, 4, 4), scene(snapshot={"coverage": 0.49}))
    assert (effect.reason, effect.after) == (Reason.LOW_COVERAGE, (4, 4, 4))
    assert "49% of the warm VMs report, at least 50% must" in effect.detail


def test_a_fleet_at_zero_has_nobody_to_report_and_may_grow():
    assert passes(RAIL, proposal(1, 0, 0), scene((0, 0, 0), snapshot={"age_s": 7200.0}))
    assert passes(RAIL, proposal(1, 0, 0), scene((0, 0, 0), snapshot={"age_s": None}))


def test_the_safe_floor_waits_for_more_than_the_hold_minutes():
    floor = {"safe_floor": (6, 2, 0), "hold_bins": 3}
    third = scene(limits=floor, snapshot={"absent": ("cpu",), "stale_bins": 3})
    assert ask(RAIL, proposal(9, 9, 9), third).after == (4, 4, 4)
    fourth = scene(limits=floor, snapshot={"absent": ("cpu",), "stale_bins": 4})
    effect = ask(RAIL, proposal(4, 4, 4), fourth)
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.RAISED, Reason.SAFE_FLOOR, (6, 4, 4))
    assert effect.detail == "workers_m 4 -> 4 raised to 6: absent: cpu, for 4 minutes; the safe floor applies"


def test_the_safe_floor_works_from_zero_and_marks_its_origin():
    context = scene((0, 0, 0), limits={"safe_floor": (2, 1, 0)}, snapshot={"absent": ("queue",), "stale_bins": 9})
    after, _ = RAIL.apply(proposal(0, 0, 0, counts_pending=False), context)
    assert (after.desired, after.origin, after.reason) == ((2, 1, 0), Origin.FLOOR, Reason.SAFE_FLOOR)
    assert after.counts_pending


def test_minutes_of_low_coverage_lead_to_the_floor_too():
    context = scene(limits={"safe_floor": (6, 6, 6)}, snapshot={"coverage": 0.1, "stale_bins": 4})
    assert ask(RAIL, proposal(4, 4, 4), context).after == (6, 6, 6)


def test_an_absent_input_that_is_not_needed_holds_nothing():
    assert passes(RAIL, proposal(9, 0, 4), scene(snapshot={"absent": ("ram",), "stale_bins": 0}))


def test_a_minute_counted_stale_is_held_even_if_nothing_is_named():
    assert ask(RAIL, proposal(9, 0, 4), scene(snapshot={"stale_bins": 1})).reason is Reason.STALE_INPUT


def test_without_a_floor_the_current_sizes_stay():
    context = scene(snapshot={"absent": ("cpu",), "stale_bins": 9})
    assert ask(RAIL, proposal(0, 9, 4), context).after == (4, 4, 4)
