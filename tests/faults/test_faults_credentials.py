"""Credentials expire, or one call is denied: told as what it is, no storm of retries, and everything else goes on."""

from __future__ import annotations

from typing import Any

import pytest

from agent.autoscaling.state import FleetStore
from domain.decisions import Reason, Status
from domain.errors import FailureClass
from domain.fleet import Group
from tests.faults.evidence import SET, TERMINATE, calls_per_minute, carried_out, intents, told
from tests.faults.world import MEDIUM, SMALL, M, MakeWorld, S, final_reasons

TWO_FLEETS: dict[str, Any] = {
    "groups": (SMALL,),
    "sizes": (1,),
    "batch": (Group("batch_small", "batch-s", S, 1, 10), Group("batch_medium", "batch-m", M, 0, 10)),
}


def test_expired_credentials_are_reported_as_such_and_one_call_a_minute_asks_again(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.tick(2)
    world.submit(20)
    world.fault("expired_token", duration_s=601.0)
    world.tick(10)
    assert {report.decisions[0].reason for report in world.reports[2:]} == {Reason.CLOUD_UNREADABLE}
    assert "ExpiredToken" in world.last.sentence
    # One describe and one look into the queue of notices.
    assert max(calls_per_minute(world)[2:]) == 2
    assert world.mutations == []
    assert FleetStore(world.ledger).loop_state("web").breakers == ()


def test_new_credentials_are_enough(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 0, 0))
    world.tick()
    world.submit(20)
    world.fault("expired_token", duration_s=301.0)
    world.tick(5)
    world.tick(3)
    assert world.last.reason is Reason.QUEUE_COVERED
    assert set(final_reasons(world)) == {Reason.DONE}
    assert len(world.vms()) > 2


def test_credentials_that_expire_between_the_call_and_its_end_lose_no_intent(
    make_world: MakeWorld,
) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.submit(8)
    world.tick()
    world.fault("expired_token", duration_s=121.0)
    world.tick(2)
    assert [intent.target for intent in world.ledger.open_intents()] == [4]
    assert world.outcomes[-1].failure is FailureClass.CREDENTIALS
    world.tick(2)
    assert final_reasons(world) == [Reason.DONE]
    assert world.count(SET) == 1


def test_a_denied_change_fails_with_the_remedy_and_the_other_fleet_goes_on(make_world: MakeWorld) -> None:
    world = make_world(**TWO_FLEETS)
    world.submit(8)
    world.batch_waiting = 8
    world.fault("access_denied", operations=[SET], groups=["workers-s"])
    world.tick()
    denied = next(outcome for outcome in world.outcomes if outcome.status is Status.FAILED)
    assert (denied.reason, denied.failure, denied.achieved) == (Reason.CREDENTIALS, FailureClass.CREDENTIALS, 0)
    assert "`trimtab preflight`" in denied.detail
    world.tick(2)
    assert world.desired()["small"] == 1
    assert world.desired()["batch_small"] + world.desired()["batch_medium"] > 1
    batch = [intent for intent in intents(world) if intent["fleet"] == "batch"]
    assert {FleetStore(world.ledger).last_outcome(intent["intent_id"]).status for intent in batch} == {Status.DONE}  # type: ignore[union-attr]


def test_a_denied_change_fails_alone_and_the_fleets_other_groups_go_on(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL, MEDIUM), sizes=(1, 0), policy="constant:3,2")
    world.fault("access_denied", operations=[SET], groups=["workers-m"])
    world.tick(3)
    assert world.desired() == {"small": 3, "medium": 0}
    assert FleetStore(world.ledger).loop_state("web").breakers[0].group == "medium"


@pytest.mark.exhaustive
def test_a_permission_that_stays_missing_is_tried_ever_less_often(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,), interruptions=False)
    world.submit(8)
    world.fault("access_denied", operations=[SET])
    world.tick(60)
    # Three in a row, then after 5, 10, 20 and 30 minutes.
    assert world.count(SET) == 6
    assert len(intents(world)) == 6
    assert world.last.reason is Reason.CIRCUIT_OPEN
    assert set(final_reasons(world)) == {Reason.CREDENTIALS}
    assert world.ledger.open_intents() == ()
    world.control.clear_faults()
    world.tick(31)
    assert world.desired() == {"small": 4}
    assert FleetStore(world.ledger).loop_state("web").breakers == ()


def test_a_denied_termination_takes_none_and_is_no_storm(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(5,))
    world.fault("access_denied", operations=[TERMINATE])
    world.tick(10)
    # The first VM tells what the others would: one call per intent, not one per VM.
    assert world.count(TERMINATE) == 4
    assert carried_out(world, TERMINATE) == []
    assert len(world.in_service("small")) == 5


@pytest.mark.parametrize(
    "operation",
    ["DescribeScalingActivities", "DescribeLifecycleHooks", "DescribeInstanceRefreshes", "DescribeInstances"],
)
def test_a_read_that_is_denied_costs_its_knowledge_and_not_the_decision(make_world: MakeWorld, operation: str) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.fault("access_denied", operations=[operation])
    world.submit(8)
    world.tick(3)
    assert world.desired() == {"small": 4}
    assert final_reasons(world) == [Reason.DONE]
    assert max(calls_per_minute(world)) <= 12


@pytest.mark.exhaustive
def test_a_denied_protection_is_reported_and_nothing_waits_for_it(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), protect_busy=True)
    world.busy = dict.fromkeys(world.in_service("small"), 1.0)
    world.fault("access_denied", operations=["SetInstanceProtection"])
    world.submit(12)
    world.tick(4)
    assert "workers-s" in told(world, Reason.CREDENTIALS)[0]
    assert world.desired()["small"] > 2
    assert world.count("SetInstanceProtection") <= 4


def test_a_denied_completion_lets_the_hook_run_out_by_itself(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,))
    world.fault("access_denied", operations=["CompleteLifecycleAction"])
    world.tick(9)
    assert len(world.vms()) == 1
    assert world.count("CompleteLifecycleAction") <= 4
    assert any("drain of" in detail for detail in told(world, Reason.CREDENTIALS))


def test_a_denied_queue_of_notices_is_no_reason_to_hold(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.fault("access_denied", services=["sqs"])
    world.submit(8)
    world.tick(3)
    assert world.desired() == {"small": 4}
    assert sum(call["service"] == "sqs" for call in world.calls) == 3


def test_a_group_that_does_not_exist_holds_its_fleet_and_not_the_other(make_world: MakeWorld) -> None:
    world = make_world(**TWO_FLEETS)
    world.tick()
    world.owner.delete_auto_scaling_group(AutoScalingGroupName="batch-m", ForceDelete=True)
    world.submit(8)
    world.batch_waiting = 20
    world.tick(3)
    assert world.desired()["small"] == 4
    assert world.decision("batch").reason is Reason.CLOUD_UNREADABLE
    assert "batch-m" in world.decision("batch").sentence
    assert {name for _, name in world.mutations} == {"workers-s"}
