"""Rail 3 keeps the VMs of a fleet that looks sick."""

import pytest

from agent.rails.sickness import RAIL
from domain.decisions import Reason
from tests.agent.rails.scenes import ask, passes, proposal, scene


@pytest.mark.parametrize("symptom", ["unhealthy", "silent", "overdue"])
def test_no_scale_in_while_more_than_the_share_is_sick(symptom):
    context = scene((10, 0, 0), {"workers_m": {symptom: 5}})
    effect = ask(RAIL, proposal(8, 0, 0), context)
    assert (effect.reason, effect.after) == (Reason.FLEET_SICK, (10, 0, 0))
    assert "5 of 10 VMs are sick" in effect.detail


def test_the_kinds_of_sickness_add_up_over_groups():
    context = scene(
        (4, 4, 2), {"workers_m": {"silent": 2}, "workers_l": {"unhealthy": 2}, "workers_xl": {"overdue": 1}}
    )
    assert ask(RAIL, proposal(3, 4, 2), context).reason is Reason.FLEET_SICK


def test_the_share_itself_is_still_well():
    context = scene((20, 0, 0), {"workers_m": {"silent": 9}})
    assert passes(RAIL, proposal(8, 0, 0), context)
    assert not passes(RAIL, proposal(8, 0, 0), scene((20, 0, 0), {"workers_m": {"silent": 10}}))


def test_a_few_sick_vms_do_not_make_a_small_fleet_sick():
    assert passes(RAIL, proposal(1, 0, 0), scene((2, 0, 0), {"workers_m": {"silent": 2}}))
    assert not passes(RAIL, proposal(1, 0, 0), scene((3, 0, 0), {"workers_m": {"silent": 3}}))


def test_scale_out_of_a_sick_fleet_goes_on():
    context = scene((10, 4, 0), {"workers_m": {"silent": 10}})
    assert passes(RAIL, proposal(12, 4, 0), context)
    assert ask(RAIL, proposal(12, 3, 0), context).after == (12, 4, 0)


def test_an_empty_fleet_is_not_sick():
    assert passes(RAIL, proposal(0, 0, 0), scene((0, 0, 0), limits={"sick_count": 0, "sick_share": 0.0}))
