"""Answers that never come, and actions that AWS carries out in part: read back, repeat what is missing, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.autoscaling.state import FleetStore
from domain.decisions import Direction, Reason, Status
from tests.faults.evidence import SET, TERMINATE, carried_out, intents, told
from tests.faults.world import QUICK, SMALL, MakeWorld, World, final_reasons
from tests.stages import exhaustive
from tests.waiting import until

ONE_GROUP: dict[str, Any] = {"groups": (SMALL,), "sizes": (1,)}


def statuses(world: World) -> list[Status]:
    """How the ledger's outcomes followed each other, from the first intent on."""
    return [Status(entry.body["status"]) for entry in world.journal if entry.kind == "outcome"]


@pytest.mark.parametrize(
    ("kind", "calls"),
    # The first took effect, so there is no second; the others did not, so there is one more.
    [("timeout_after", 1), ("timeout_before", 2), *exhaustive(("foreign_page", 1), ("internal_error", 2))],
)
def test_a_scale_out_whose_answer_got_lost_is_read_back_before_anything_else_and_opens_no_breaker(
    make_world: MakeWorld, kind: str, calls: int
) -> None:
    world = make_world(**ONE_GROUP, limits=replace(QUICK, breaker_failures=1))
    world.submit(8)
    world.fault(kind, operations=[SET], count=1)
    world.tick()
    assert (world.outcomes[-1].status, world.outcomes[-1].reason) == (Status.UNKNOWN, Reason.UNKNOWN_OUTCOME)
    assert len(world.ledger.open_intents()) == 1
    world.tick(3)
    assert (world.count(SET), len(carried_out(world, SET)), len(intents(world))) == (calls, 1, 1)
    assert world.desired() == {"small": 4}
    assert statuses(world)[0] is Status.UNKNOWN
    assert final_reasons(world) == [Reason.DONE]
    assert told(world, Reason.DRIFT_ADOPTED) == []
    assert FleetStore(world.ledger).loop_state("web").breakers == ()


def test_an_answer_slower_than_the_timeout_is_one_that_got_lost(make_world: MakeWorld) -> None:
    world = make_world(**ONE_GROUP, read_timeout_s=1.0)
    world.submit(8)
    world.fault("timeout_after", operations=[SET], count=1, hold_s=1.5)
    world.tick()
    # AWS's log has the call when AWS is done with it.
    until(lambda: world.mutations)
    assert statuses(world) == [Status.UNKNOWN]
    world.tick(2)
    assert len(carried_out(world, SET)) == world.count(SET) == 1
    assert world.desired() == {"small": 4}
    assert final_reasons(world) == [Reason.DONE]


@pytest.mark.parametrize(
    ("kind", "calls"), [("timeout_after", 2), *exhaustive(("foreign_page", 2), ("timeout_before", 3))]
)
def test_a_termination_with_a_lost_answer_takes_no_vm_more(make_world: MakeWorld, kind: str, calls: int) -> None:
    world = make_world(groups=(SMALL,), sizes=(3,))
    world.fault(kind, operations=[TERMINATE], count=1)
    world.tick(10)
    assert world.count(TERMINATE) == calls
    gone = [call["InstanceId"] for call in carried_out(world, TERMINATE)]
    assert len(gone) == len(set(gone)) == 2
    assert world.desired() == {"small": 1}
    assert len(world.in_service("small")) == 1
    assert [set(intent["victims"]) for intent in intents(world, Direction.IN)] == [set(gone)]
    assert set(final_reasons(world)) == {Reason.DONE}


@pytest.mark.parametrize("kind", ["foreign_page", "timeout_before"])
def test_a_reading_without_an_answer_is_no_empty_group_and_nothing_is_sent(make_world: MakeWorld, kind: str) -> None:
    world = make_world(**ONE_GROUP)
    world.tick()
    world.submit(8)
    world.fault(kind, operations=["DescribeAutoScalingGroups"], duration_s=100.0)
    world.tick()
    assert world.last.reason is Reason.CLOUD_UNREADABLE
    assert ("between here and AWS" in world.last.sentence) is (kind == "foreign_page")
    assert world.mutations == []
    world.tick(2)
    assert world.desired() == {"small": 4}


@pytest.mark.parametrize("kind", ["timeout_before", "timeout_after"])
def test_an_agent_that_dies_over_a_lost_answer_finds_out_after_the_restart(make_world: MakeWorld, kind: str) -> None:
    world = make_world(**ONE_GROUP)
    world.submit(8)
    world.fault(kind, operations=[SET], count=1)
    world.tick()
    world.restart()
    world.tick(3)
    assert len(carried_out(world, SET)) == 1
    assert world.desired() == {"small": 4}
    assert len(intents(world)) == 1


# Row 4: two of the victims may not go


def shrinking(make_world: MakeWorld, **plan: Any) -> tuple[World, list[str]]:
    """Six idle VMs, all but the one with the lowest id about to go; returns two of them, for AWS to refuse."""
    world = make_world(groups=(SMALL,), sizes=(6,), **plan)
    world.tick()
    stuck = sorted(world.in_service("small"))[1:3]
    return world, stuck


def test_the_spare_goes_in_place_of_one_that_was_refused_and_the_ledger_counts_four_of_five(
    make_world: MakeWorld,
) -> None:
    world, stuck = shrinking(make_world)
    world.fault("fail_terminate", instance_ids=stuck, duration_s=400.0)
    world.tick()
    intent = world.ledger.open_intents()[0]
    assert len(intent.victims) == 5
    assert set(stuck) < set(intent.victims)
    last = FleetStore(world.ledger).last_outcome(intent.intent_id)
    assert last is not None
    assert (last.status, last.asked, last.achieved) == (Status.IN_PROGRESS, 5, 4)
    assert world.desired() == {"small": 2}
    world.tick(3)
    record = FleetStore(world.ledger).decision(intent.decision_id).intents[0]
    ended = record.outcomes[-1]
    assert (ended.status, ended.reason, ended.asked, ended.achieved) == (Status.PARTIAL, Reason.SUPERSEDED, 5, 4)
    assert set(stuck) <= set(world.in_service("small"))
    assert not record.is_open


def test_the_two_that_were_refused_are_retried_and_only_they(make_world: MakeWorld) -> None:
    world, stuck = shrinking(make_world)
    world.fault("fail_terminate", instance_ids=stuck, duration_s=90.0)
    world.tick(6)
    gone = [call["InstanceId"] for call in carried_out(world, TERMINATE)]
    assert len(gone) == len(set(gone)) == 5
    refused = [call["params"]["InstanceId"] for call in world.control.mutations(operation=TERMINATE)]
    retried = {vm for vm in refused if refused.count(vm) > 1}
    assert retried
    assert retried <= set(stuck)
    assert world.desired() == {"small": 1}
    assert final_reasons(world) == [Reason.SUPERSEDED, Reason.DONE]


def test_the_minimum_is_never_broken_by_what_is_retried(make_world: MakeWorld) -> None:
    world, stuck = shrinking(make_world)
    world.fault("fail_terminate", instance_ids=stuck, duration_s=90.0)
    world.tick()
    world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", MinSize=2)
    world.tick(6)
    assert world.desired() == {"small": 2}
    assert len(world.in_service("small")) == 2
    assert len(carried_out(world, TERMINATE)) == 4


def test_survivors_of_a_partial_scale_in_go_later_by_a_new_decision(make_world: MakeWorld) -> None:
    world, stuck = shrinking(make_world, limits=replace(QUICK, stop_deadline_s=100.0))
    world.fault("fail_terminate", instance_ids=stuck, duration_s=200.0)
    world.tick(9)
    assert world.desired() == {"small": 1}
    gone = [call["InstanceId"] for call in carried_out(world, TERMINATE)]
    assert len(gone) == len(set(gone)) == 5
    assert len(intents(world, Direction.IN)) > 1
    assert told(world, Reason.DRIFT_ADOPTED) == []
    assert FleetStore(world.ledger).loop_state("web").breakers == ()
