"""AWS has no machines: launches fail in the diary, other zones and types are tried, and the group tries again."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.simulator.aws.world import START, World


def failed(world: World) -> list[dict[str, Any]]:
    return [one for one in world.activities() if one["StatusCode"] == "Failed"]


def test_a_short_zone_fails_in_the_diary_and_another_zone_of_the_group_serves(world: World) -> None:
    world.control.add_fault("capacity", instance_type="m5a.large", zone="us-east-1a")
    world.group(size=(0, 2, 5), AvailabilityZones=["us-east-1a", "us-east-1b"])
    assert {one["AvailabilityZone"] for one in world.show()["Instances"]} == {"us-east-1b"}
    assert len(world.ids()) == 2
    (refused,) = failed(world)
    assert refused["StatusMessage"] == (
        "We currently do not have sufficient m5a.large capacity in the Availability Zone you requested (us-east-1a). "
        "Our system will be working on provisioning additional capacity. You can currently get m5a.large capacity by "
        "not specifying an Availability Zone in your request or choosing us-east-1b. Launching EC2 instance failed."
    )
    assert refused["Progress"] == 100


def test_with_no_zone_left_the_group_tries_again_less_and_less_often(world: World) -> None:
    world.control.add_fault("capacity", instance_type="m5a.large")
    world.group(size=(0, 1, 5))
    world.control.advance(500.0)
    moments = sorted(one["StartTime"].timestamp() - START for one in failed(world))
    assert moments == [0.0, 60.0, 180.0, 420.0]
    assert world.show()["DesiredCapacity"] == 1
    assert world.ids() == []


def test_a_retry_succeeds_when_the_shortage_is_over(world: World) -> None:
    world.control.add_fault("capacity", instance_type="m5a.large", zone="us-east-1a", duration_s=50)
    world.group(size=(0, 2, 5))
    assert world.ids() == []
    world.control.advance(60.0)
    assert world.states() == ["Pending", "Pending"]
    newest = world.activities()[0]
    assert newest["StatusCode"] == "InProgress"
    assert "increasing the capacity from 1 to 2" in newest["Cause"]


def test_a_new_request_starts_the_retries_afresh(world: World) -> None:
    world.control.add_fault("capacity", instance_type="m5a.large")
    world.group(size=(0, 1, 5))
    world.control.advance(30.0)
    world.desire(2)
    world.control.advance(270.0)
    moments = sorted(one["StartTime"].timestamp() - START for one in failed(world))
    assert moments == [0.0, 30.0, 90.0, 210.0]


def test_lowering_desired_ends_the_retries(world: World) -> None:
    world.control.add_fault("capacity")
    world.group(size=(0, 1, 5))
    world.desire(0)
    world.control.advance(3600.0)
    assert len(failed(world)) == 1


def mixed(weight: str, *more: dict[str, str]) -> dict[str, Any]:
    overrides = [{"InstanceType": "m5a.large", "WeightedCapacity": weight}, *more]
    return {
        "LaunchTemplate": {"LaunchTemplateSpecification": {"LaunchTemplateName": "workers"}, "Overrides": overrides}
    }


def test_a_mixed_group_falls_to_its_next_type_and_counts_by_weight(world: World) -> None:
    world.template()
    policy = mixed("1", {"InstanceType": "m5a.xlarge", "WeightedCapacity": "2"})
    world.group(size=(0, 2, 10), MixedInstancesPolicy=policy)
    assert [one["InstanceType"] for one in world.show()["Instances"]] == ["m5a.large", "m5a.large"]
    world.control.add_fault("capacity", instance_type="m5a.large")
    world.desire(6)
    kinds = [(one["InstanceType"], one.get("WeightedCapacity")) for one in world.show()["Instances"]]
    assert kinds == [("m5a.large", None)] * 2 + [("m5a.xlarge", "2")] * 2
    shown = world.show()["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    assert [one["InstanceType"] for one in shown] == ["m5a.large", "m5a.xlarge"]


def test_new_weights_hold_for_the_machines_there_and_the_group_follows(world: World) -> None:
    world.ready_group(size=(0, 4, 10))
    world.groups.update_auto_scaling_group(AutoScalingGroupName="web", MixedInstancesPolicy=mixed("2"))
    assert world.states() == ["InService", "InService", "Terminating", "Terminating"]
    assert {one.get("WeightedCapacity") for one in world.show()["Instances"]} == {"2"}
    world.groups.update_auto_scaling_group(
        AutoScalingGroupName="web", LaunchTemplate={"LaunchTemplateName": "workers", "Version": "$Latest"}
    )
    assert {one.get("WeightedCapacity") for one in world.show()["Instances"]} == {"2"}


def test_raising_a_weighted_group_launches_fewer_machines_and_may_pass_its_size(world: World) -> None:
    world.template()
    world.ready_group(size=(0, 4, 20), MixedInstancesPolicy=mixed("2"))
    assert len(world.ids()) == 2
    world.desire(9)
    assert len(world.ids()) == 5
    world.control.ready_now()
    world.desire(5)
    assert world.states() == ["InService"] * 3 + ["Terminating"] * 2


def test_run_instances_meets_the_shortage_too(world: World) -> None:
    world.control.add_fault("capacity", instance_type="m5a.large")
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        world.client("ec2").run_instances(ImageId="ami-12c6146b", InstanceType="m5a.large", MinCount=1, MaxCount=1)


def test_clearing_the_faults_ends_the_shortage(world: World) -> None:
    world.control.add_fault("capacity")
    assert world.control.faults()["shortages"] == [{"instance_type": None, "zone": None, "until": None}]
    world.control.clear_faults()
    world.group(size=(0, 1, 5))
    assert world.states() == ["Pending"]
