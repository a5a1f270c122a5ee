"""Rails 1 to 3: sizes that are numbers, input that is fresh, and a fleet whose load can be judged."""

import math

import numpy as np
import pytest

from agent.rails.inputs import finite_and_schema, sickness, staleness_and_coverage
from domain.decisions import Origin, Reason, Verdict
from tests.agent.rails.scenes import ask, fleet, group, passes, proposal, scene


def test_one_whole_number_per_group_passes():
    assert passes(finite_and_schema, proposal(5, 4, 0), scene())


@pytest.mark.parametrize("number", [3.0, np.int64(3), np.float32(3.0)])
def test_whole_numbers_of_other_types_become_int(number):
    after, _ = finite_and_schema.apply(proposal(number, 4, 4), scene())
    assert after.desired == (3, 4, 4)
    assert type(after.desired[0]) is int


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_a_number_that_is_not_finite_holds_all_groups(number):
    effect = ask(finite_and_schema, proposal(9, number, 9), scene((1, 2, 3)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.NOT_FINITE, (1, 2, 3))
    assert "workers_l" in effect.detail


@pytest.mark.parametrize("value", [-1, 2.5, True, "4", None])
def test_a_value_that_is_no_size_holds_all_groups(value):
    effect = ask(finite_and_schema, proposal(9, value, 9), scene((1, 2, 3)))
    assert (effect.reason, effect.after) == (Reason.SCHEMA_MISMATCH, (1, 2, 3))


@pytest.mark.parametrize("desired", [(), (1, 2), (1, 2, 3, 4)])
def test_another_number_of_sizes_than_groups_holds(desired):
    effect = ask(finite_and_schema, proposal(*desired), scene((1, 2, 3)))
    assert (effect.reason, effect.after) == (Reason.SCHEMA_MISMATCH, (1, 2, 3))


def test_a_proposal_for_another_fleet_holds():
    wanted = proposal(9, 9, 9)
    other = type(wanted)("batch", wanted.policy, wanted.desired, wanted.reason)
    assert ask(finite_and_schema, other, scene()).reason is Reason.SCHEMA_MISMATCH


def test_a_snapshot_of_other_groups_holds_what_the_snapshot_shows():
    context = scene(fleet=fleet(size=3), snapshot={"groups": (group("workers_m", 7),)})
    effect = ask(finite_and_schema, proposal(1, 2, 3), context)
    assert (effect.reason, effect.after) == (Reason.SCHEMA_MISMATCH, (7,))


def test_fresh_input_passes():
    assert passes(staleness_and_coverage, proposal(9, 0, 4), scene())


@pytest.mark.parametrize("desired", [(9, 4, 4), (0, 0, 0)])
def test_an_absent_input_holds_both_directions(desired):
    effect = ask(
        staleness_and_coverage, proposal(*desired), scene(snapshot={"absent": ("queue.waiting",), "stale_bins": 1})
    )
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.STALE_INPUT, (4, 4, 4))
    assert "absent: queue.waiting" in effect.detail


def test_a_sample_may_be_as_old_as_the_limit_and_no_older():
    assert passes(staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"age_s": 150.0}))
    effect = ask(staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"age_s": 150.1}))
    assert effect.reason is Reason.STALE_INPUT


@pytest.mark.parametrize("age_s", [None, math.nan])
def test_an_unknown_age_is_stale_while_warm_vms_exist(age_s):
    assert ask(staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"age_s": age_s})).reason is Reason.STALE_INPUT


def test_coverage_may_be_as_low_as_the_limit_and_no_lower():
    assert passes(staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"coverage": 0.5}))
    effect = ask(staleness_and_coverage, proposal(2, 4, 4), scene(snapshot={"coverage": 0.49}))
    assert (effect.reason, effect.after) == (Reason.LOW_COVERAGE, (4, 4, 4))


def test_a_fleet_at_zero_has_nobody_to_report_and_may_grow():
    assert passes(staleness_and_coverage, proposal(1, 0, 0), scene((0, 0, 0), snapshot={"age_s": 7200.0}))
    assert passes(staleness_and_coverage, proposal(1, 0, 0), scene((0, 0, 0), snapshot={"age_s": None}))


def test_the_safe_floor_waits_for_more_than_the_hold_minutes():
    floor = {"safe_floor": (6, 2, 0), "hold_bins": 3}
    third = scene(limits=floor, snapshot={"absent": ("cpu",), "stale_bins": 3})
    assert ask(staleness_and_coverage, proposal(9, 9, 9), third).after == (4, 4, 4)
    fourth = scene(limits=floor, snapshot={"absent": ("cpu",), "stale_bins": 4})
    effect = ask(staleness_and_coverage, proposal(4, 4, 4), fourth)
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.RAISED, Reason.SAFE_FLOOR, (6, 4, 4))


def test_the_safe_floor_works_from_zero_and_marks_its_origin():
    context = scene((0, 0, 0), limits={"safe_floor": (2, 1, 0)}, snapshot={"absent": ("queue",), "stale_bins": 9})
    after, _ = staleness_and_coverage.apply(proposal(0, 0, 0, counts_pending=False), context)
    assert (after.desired, after.origin, after.reason) == ((2, 1, 0), Origin.FLOOR, Reason.SAFE_FLOOR)
    assert after.counts_pending


def test_minutes_of_low_coverage_lead_to_the_floor_too():
    context = scene(limits={"safe_floor": (6, 6, 6)}, snapshot={"coverage": 0.1, "stale_bins": 4})
    assert ask(staleness_and_coverage, proposal(4, 4, 4), context).after == (6, 6, 6)


def test_an_absent_input_that_is_not_needed_holds_nothing():
    assert passes(staleness_and_coverage, proposal(9, 0, 4), scene(snapshot={"absent": ("ram",), "stale_bins": 0}))


def test_a_minute_counted_stale_is_held_even_if_nothing_is_named():
    assert (
        ask(staleness_and_coverage, proposal(9, 0, 4), scene(snapshot={"stale_bins": 1})).reason is Reason.STALE_INPUT
    )


SILENT = {"absent": ("cpu", "ram"), "due": 0, "reported": 0}


def test_a_fleet_without_reports_grows_and_its_scale_in_waits():
    effect = ask(staleness_and_coverage, proposal(9, 0, 3), scene(snapshot=SILENT))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.NO_VM_REPORTS, (9, 4, 4))
    assert passes(staleness_and_coverage, proposal(9, 4, 5), scene(snapshot=SILENT))


def test_vms_that_reported_within_a_day_are_due_to_report():
    assert passes(staleness_and_coverage, proposal(9, 0, 3), scene(snapshot=SILENT | {"vm_age_s": 86_400.0}))
    later = scene(snapshot=SILENT | {"vm_age_s": 86_401.0})
    assert ask(staleness_and_coverage, proposal(9, 0, 3), later).reason is Reason.NO_VM_REPORTS


def test_without_a_floor_the_current_sizes_stay():
    context = scene(snapshot={"absent": ("cpu",), "stale_bins": 9})
    assert ask(staleness_and_coverage, proposal(0, 9, 4), context).after == (4, 4, 4)


@pytest.mark.parametrize("symptom", ["unhealthy", "silent", "overdue"])
def test_no_scale_in_while_more_than_the_share_is_sick(symptom):
    context = scene((10, 0, 0), {"workers_m": {symptom: 5}})
    effect = ask(sickness, proposal(8, 0, 0), context)
    assert (effect.reason, effect.after) == (Reason.FLEET_SICK, (10, 0, 0))
    assert "5 of 10 VMs are sick" in effect.detail


def test_the_kinds_of_sickness_add_up_over_groups():
    context = scene(
        (4, 4, 2), {"workers_m": {"silent": 2}, "workers_l": {"unhealthy": 2}, "workers_xl": {"overdue": 1}}
    )
    assert ask(sickness, proposal(3, 4, 2), context).reason is Reason.FLEET_SICK


def test_the_share_itself_is_still_well():
    context = scene((20, 0, 0), {"workers_m": {"silent": 9}})
    assert passes(sickness, proposal(8, 0, 0), context)
    assert not passes(sickness, proposal(8, 0, 0), scene((20, 0, 0), {"workers_m": {"silent": 10}}))


def test_a_few_sick_vms_do_not_make_a_small_fleet_sick():
    assert passes(sickness, proposal(1, 0, 0), scene((2, 0, 0), {"workers_m": {"silent": 2}}))
    assert not passes(sickness, proposal(1, 0, 0), scene((3, 0, 0), {"workers_m": {"silent": 3}}))


def test_scale_out_of_a_sick_fleet_goes_on():
    context = scene((10, 4, 0), {"workers_m": {"silent": 10}})
    assert passes(sickness, proposal(12, 4, 0), context)
    assert ask(sickness, proposal(12, 3, 0), context).after == (12, 4, 0)


def test_an_empty_fleet_is_not_sick():
    assert passes(sickness, proposal(0, 0, 0), scene((0, 0, 0), limits={"sick_count": 0, "sick_share": 0.0}))
