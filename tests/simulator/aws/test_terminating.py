"""Instances leave: by id or by a lower desired capacity, the protected only by id, none below the minimum."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.simulator.aws.world import World


def terminate(world: World, instance_id: str, *, decrement: bool) -> dict[str, object]:
    answer = world.groups.terminate_instance_in_auto_scaling_group(
        InstanceId=instance_id, ShouldDecrementDesiredCapacity=decrement
    )
    return dict(answer["Activity"])


def test_terminate_with_decrement_shrinks_the_group_by_exactly_that_instance(world: World) -> None:
    first, *others = world.ready_group(size=(1, 3, 5))
    activity = terminate(world, first, decrement=True)
    assert activity["Description"] == f"Terminating EC2 instance: {first}"
    assert "shrinking the capacity from 3 to 2" in str(activity["Cause"])
    assert world.show()["DesiredCapacity"] == 2
    assert world.machine_state(first) == "shutting-down"
    world.control.advance(15.0)
    assert sorted(world.ids()) == sorted(others)
    assert world.machine_state(first) == "terminated"
    assert world.activities()[0]["StatusCode"] == "Successful"


def test_terminate_without_decrement_is_replaced(world: World) -> None:
    first, *_ = world.ready_group(size=(1, 2, 5))
    terminate(world, first, decrement=False)
    assert world.show()["DesiredCapacity"] == 2
    assert world.states() == ["InService", "Pending", "Terminating"]


def test_an_unknown_instance_and_one_already_leaving_are_refused(world: World) -> None:
    first, *_ = world.ready_group(size=(0, 2, 5))
    with pytest.raises(ClientError, match=r"ValidationError.*No managed instance found for instance ID: i-0123"):
        terminate(world, "i-0123", decrement=True)
    terminate(world, first, decrement=True)
    with pytest.raises(ClientError, match="ScalingActivityInProgress"):
        terminate(world, first, decrement=True)
    assert world.show()["DesiredCapacity"] == 1


def test_scale_in_spares_the_protected_and_reports_when_no_other_is_left(world: World) -> None:
    ids = world.ready_group(size=(0, 3, 5))
    world.groups.set_instance_protection(AutoScalingGroupName="web", InstanceIds=ids[:2], ProtectedFromScaleIn=True)
    world.desire(0)
    world.control.advance(15.0)
    assert sorted(world.ids()) == sorted(ids[:2])
    newest = world.activities()[0]
    assert newest["StatusCode"] == "Failed"
    assert "protected from scale in" in newest["StatusMessage"]
    world.groups.set_instance_protection(AutoScalingGroupName="web", InstanceIds=ids[:2], ProtectedFromScaleIn=False)
    world.control.advance(15.0)
    assert world.ids() == []


def test_protection_does_not_stop_a_termination_by_id(world: World) -> None:
    first, *_ = world.ready_group(size=(0, 2, 5), NewInstancesProtectedFromScaleIn=True)
    terminate(world, first, decrement=True)
    world.control.advance(15.0)
    assert first not in world.ids()


def test_scale_in_takes_the_oldest_of_the_fullest_zone(world: World) -> None:
    world.ready_group(size=(0, 2, 6), AvailabilityZones=["us-east-1a", "us-east-1b"])
    world.control.advance(10.0)
    world.desire(3)
    world.control.ready_now()
    by_zone: dict[str, list[str]] = {}
    for instance in world.show()["Instances"]:
        by_zone.setdefault(instance["AvailabilityZone"], []).append(instance["InstanceId"])
    (fullest,) = [ids for ids in by_zone.values() if len(ids) == 2]
    world.desire(2)
    leaving = [one["InstanceId"] for one in world.show()["Instances"] if one["LifecycleState"] == "Terminating"]
    assert leaving == fullest[:1]


def test_the_termination_policy_of_the_group_is_honoured(world: World) -> None:
    old = world.ready_group(size=(0, 1, 6), TerminationPolicies=["NewestInstance"])
    world.control.advance(10.0)
    world.desire(2)
    world.control.ready_now()
    world.desire(1)
    world.control.advance(15.0)
    assert world.ids() == old


def test_standby_leaves_the_count_and_comes_back(world: World) -> None:
    first, second = world.ready_group(size=(0, 2, 5))
    world.groups.enter_standby(AutoScalingGroupName="web", InstanceIds=[first], ShouldDecrementDesiredCapacity=True)
    assert world.show()["DesiredCapacity"] == 1
    assert world.states() == ["InService", "Standby"]
    world.groups.exit_standby(AutoScalingGroupName="web", InstanceIds=[first])
    assert world.show()["DesiredCapacity"] == 2
    assert world.states() == ["InService", "InService"]
    assert sorted(world.ids()) == sorted([first, second])


def test_a_detached_machine_runs_on_outside_and_can_be_attached_again(world: World) -> None:
    first, _ = world.ready_group(size=(0, 2, 5))
    world.groups.detach_instances(AutoScalingGroupName="web", InstanceIds=[first], ShouldDecrementDesiredCapacity=True)
    assert first not in world.ids()
    assert world.machine_state(first) == "running"
    world.groups.attach_instances(AutoScalingGroupName="web", InstanceIds=[first])
    assert first in world.ids()
    assert world.show()["DesiredCapacity"] == 2
