"""Rail 8 counts capacity on its way once, and leaves groups with an open intent alone."""

import pytest

from agent.rails.warmup import RAIL
from domain.decisions import Origin, Reason, Verdict
from tests.agent.rails.scenes import ask, fleet, passes, pinned, proposal, scene


def test_booting_vms_are_taken_off_an_increase_that_had_not_counted_them():
    effect = ask(RAIL, proposal(7, 4, 4, counts_pending=False), scene(groups={"workers_m": {"booting": 2}}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.WARMING_UP, (5, 4, 4))
    assert effect.detail == "workers_m 4 -> 7 shrunk to 5: 2 VMs booting already"


def test_an_increase_is_never_shrunk_below_the_current_size():
    effect = ask(RAIL, proposal(5, 4, 4, counts_pending=False), scene(groups={"workers_m": {"booting": 3}}))
    assert (effect.verdict, effect.after) == (Verdict.VETOED, (4, 4, 4))


def test_the_minimum_includes_booting_vms_and_is_not_reduced():
    context = scene((1, 4, 4), {"workers_m": {"booting": 2}}, fleet=fleet(minimum=3))
    assert passes(RAIL, proposal(3, 4, 4, counts_pending=False), context)
    assert ask(RAIL, proposal(4, 4, 4, counts_pending=False), context).after == (3, 4, 4)


def test_a_proposer_that_counts_pending_capacity_is_not_corrected():
    assert passes(RAIL, proposal(7, 4, 4, counts_pending=True), scene(groups={"workers_m": {"booting": 2}}))


def test_the_count_can_be_switched_off():
    context = scene(groups={"workers_m": {"booting": 2}}, limits={"count_booting": False})
    assert passes(RAIL, proposal(7, 4, 4, counts_pending=False), context)


def test_pending_capacity_is_taken_off_only_once():
    context = scene(groups={"workers_m": {"booting": 2}})
    once, _ = RAIL.apply(proposal(9, 4, 4, counts_pending=False), context)
    twice, _ = RAIL.apply(once, context)
    assert once.desired == twice.desired == (7, 4, 4)


def test_overdue_vms_do_not_count():
    assert passes(RAIL, proposal(7, 4, 4, counts_pending=False), scene(groups={"workers_m": {"overdue": 2}}))


def test_scale_in_beside_booting_vms_is_the_policys_affair():
    assert passes(RAIL, proposal(3, 4, 4, counts_pending=False), scene(groups={"workers_m": {"booting": 2}}))


@pytest.mark.parametrize("desired", [(3, 5, 4), (5, 5, 4)])
@pytest.mark.parametrize("origin", list(Origin))
def test_a_group_with_an_open_intent_is_held_whoever_asks(desired, origin):
    context = scene(in_flight=("workers_m",), controls=pinned({"workers_m": desired[0]}))
    effect = ask(RAIL, proposal(*desired, origin=origin), context)
    assert (effect.reason, effect.after) == (Reason.IN_FLIGHT, (4, 5, 4))


def test_the_safe_floor_and_pinned_groups_are_not_corrected_for_booting_vms():
    booting = {"workers_m": {"booting": 2}}
    assert passes(RAIL, proposal(7, 4, 4, counts_pending=False, origin=Origin.FLOOR), scene(groups=booting))
    context = scene(groups=booting, controls=pinned({"workers_m": 7}))
    assert passes(RAIL, proposal(7, 4, 4, counts_pending=False, origin=Origin.PIN), context)
