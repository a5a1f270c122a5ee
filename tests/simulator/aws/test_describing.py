"""What describes show: pages, name limits, tag filters, activities newest first, prices and machine sizes."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from simulator.aws.client import ControlError
from simulator.aws.prices import price_per_hour, spot_price_per_hour
from tests.simulator.aws.world import START, World


def test_groups_come_in_pages_and_at_most_a_hundred_names_a_call(world: World) -> None:
    for number in range(5):
        world.group(f"g{number}", size=(0, 0, 1))
    pages = list(world.groups.get_paginator("describe_auto_scaling_groups").paginate(PaginationConfig={"PageSize": 2}))
    assert [[group["AutoScalingGroupName"] for group in page["AutoScalingGroups"]] for page in pages] == [
        ["g0", "g1"],
        ["g2", "g3"],
        ["g4"],
    ]
    many = [f"g{number}" for number in range(101)]
    with pytest.raises(ClientError, match=r"ValidationError.*limited to 100"):
        world.groups.describe_auto_scaling_groups(AutoScalingGroupNames=many)
    shown = world.groups.describe_auto_scaling_groups(AutoScalingGroupNames=many[:100])["AutoScalingGroups"]
    assert len(shown) == 5
    with pytest.raises(ClientError, match="InvalidNextToken"):
        world.groups.describe_auto_scaling_groups(NextToken="not ours")


def test_groups_are_found_by_their_tags(world: World) -> None:
    for name, fleet in (("a", "web"), ("b", "web"), ("c", "batch")):
        world.group(name, size=(0, 0, 1), Tags=[{"Key": "trimtab:fleet", "Value": fleet, "PropagateAtLaunch": False}])
    world.group("d", size=(0, 0, 1))

    def found(name: str, *values: str) -> list[str]:
        answer = world.groups.describe_auto_scaling_groups(Filters=[{"Name": name, "Values": list(values)}])
        return [group["AutoScalingGroupName"] for group in answer["AutoScalingGroups"]]

    assert found("tag:trimtab:fleet", "web") == ["a", "b"]
    assert found("tag-key", "trimtab:fleet") == ["a", "b", "c"]
    assert found("tag-value", "batch") == ["c"]
    world.groups.create_or_update_tags(
        Tags=[
            {
                "ResourceId": "d",
                "ResourceType": "auto-scaling-group",
                "Key": "trimtab:fleet",
                "Value": "web",
                "PropagateAtLaunch": True,
            }
        ]
    )
    assert found("tag:trimtab:fleet", "web") == ["a", "b", "d"]
    tags = world.groups.describe_tags(Filters=[{"Name": "auto-scaling-group", "Values": ["d"]}])["Tags"]
    assert [(tag["Key"], tag["Value"], tag["PropagateAtLaunch"]) for tag in tags] == [("trimtab:fleet", "web", True)]
    world.groups.delete_tags(Tags=[{"ResourceId": "d", "ResourceType": "auto-scaling-group", "Key": "trimtab:fleet"}])
    assert found("tag:trimtab:fleet", "web") == ["a", "b"]


def test_a_group_shows_what_it_was_made_with(world: World) -> None:
    world.group(size=(1, 1, 5), DefaultInstanceWarmup=0, DefaultCooldown=120, HealthCheckGracePeriod=30)
    shown = world.show()
    assert shown["DefaultInstanceWarmup"] == 0
    assert (shown["DefaultCooldown"], shown["HealthCheckGracePeriod"], shown["HealthCheckType"]) == (120, 30, "EC2")
    assert shown["LaunchTemplate"]["LaunchTemplateName"] == "workers"
    assert shown["LaunchTemplate"]["Version"] == "$Latest"
    assert shown["Instances"][0]["LaunchTemplate"]["Version"] == "1"
    assert shown["CreatedTime"].timestamp() == START
    assert shown["AutoScalingGroupARN"].endswith(":autoScalingGroupName/web")
    world.groups.update_auto_scaling_group(AutoScalingGroupName="web", DefaultInstanceWarmup=90)
    assert world.show()["DefaultInstanceWarmup"] == 90


def test_a_group_over_subnets_takes_their_zones(world: World) -> None:
    subnets = world.client("ec2").describe_subnets()["Subnets"][:2]
    world.group(
        size=(0, 2, 5), AvailabilityZones=[], VPCZoneIdentifier=",".join(subnet["SubnetId"] for subnet in subnets)
    )
    zones = sorted(subnet["AvailabilityZone"] for subnet in subnets)
    assert world.show()["AvailabilityZones"] == zones
    machines = [
        reservation["Instances"][0]
        for reservation in world.client("ec2").describe_instances(InstanceIds=world.ids())["Reservations"]
    ]
    assert sorted(machine["SubnetId"] for machine in machines) == sorted(subnet["SubnetId"] for subnet in subnets)


def test_a_launch_configuration_serves_as_well_as_a_template(world: World) -> None:
    world.groups.create_launch_configuration(
        LaunchConfigurationName="old", ImageId="ami-12c6146b", InstanceType="m5a.xlarge"
    )
    world.groups.create_auto_scaling_group(
        AutoScalingGroupName="web",
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=1,
        LaunchConfigurationName="old",
        AvailabilityZones=["us-east-1a"],
    )
    (shown,) = world.show()["Instances"]
    assert (shown["InstanceType"], shown["LaunchConfigurationName"]) == ("m5a.xlarge", "old")


def test_instances_are_described_on_their_own(world: World) -> None:
    first, _ = world.ready_group(size=(0, 2, 5))
    (shown,) = world.groups.describe_auto_scaling_instances(InstanceIds=[first])["AutoScalingInstances"]
    assert shown["AutoScalingGroupName"] == "web"
    assert (shown["LifecycleState"], shown["HealthStatus"]) == ("InService", "HEALTHY")
    assert len(world.groups.describe_auto_scaling_instances()["AutoScalingInstances"]) == 2


def test_instances_carry_the_groups_tags_where_they_propagate(world: World) -> None:
    tags = [
        {"Key": "trimtab:fleet", "Value": "web", "PropagateAtLaunch": True},
        {"Key": "internal", "Value": "x", "PropagateAtLaunch": False},
    ]
    (first,) = world.ready_group(size=(0, 1, 5), Tags=tags)
    machine = world.client("ec2").describe_instances(InstanceIds=[first])["Reservations"][0]["Instances"][0]
    shown = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}
    assert (shown["trimtab:fleet"], shown["aws:autoscaling:groupName"]) == ("web", "web")
    assert "internal" not in shown
    assert machine["LaunchTime"].timestamp() == START


def test_activities_are_newest_first_in_pages_and_by_status(world: World) -> None:
    world.group(size=(0, 1, 5))
    for count in (2, 3):
        world.control.advance(200.0)
        world.desire(count)
    starts = [one["StartTime"].timestamp() - START for one in world.activities()]
    assert starts == [400.0, 200.0, 0.0]
    page = world.groups.describe_scaling_activities(AutoScalingGroupName="web", MaxRecords=2)
    assert len(page["Activities"]) == 2
    rest = world.groups.describe_scaling_activities(
        AutoScalingGroupName="web", MaxRecords=2, NextToken=page["NextToken"]
    )
    assert [one["StartTime"].timestamp() - START for one in rest["Activities"]] == [0.0]
    assert "NextToken" not in rest
    (asked,) = world.activities(ActivityIds=[rest["Activities"][0]["ActivityId"]])
    assert asked["ActivityId"] == rest["Activities"][0]["ActivityId"]
    running = world.activities(Filters=[{"Name": "Status", "Values": ["InProgress"]}])
    assert [one["StartTime"].timestamp() - START for one in running] == [400.0]
    with pytest.raises(ClientError, match="ValidationError"):
        world.activities("nobody")


def test_machine_sizes_and_prices_are_known(world: World) -> None:
    kinds = ["m5a.large", "m5a.xlarge", "m5a.2xlarge"]
    shown = world.client("ec2").describe_instance_types(InstanceTypes=kinds)["InstanceTypes"]
    sizes = {one["InstanceType"]: (one["VCpuInfo"]["DefaultVCpus"], one["MemoryInfo"]["SizeInMiB"]) for one in shown}
    assert sizes == {"m5a.large": (2, 8192), "m5a.xlarge": (4, 16384), "m5a.2xlarge": (8, 32768)}
    assert [price_per_hour(kind) for kind in kinds] == [0.086, 0.172, 0.344]
    assert world.control.price_per_hour("m5a.large", "eu-west-1") == 0.096
    with pytest.raises(ControlError, match=r"no price for x9\.huge in us-east-1"):
        world.control.price_per_hour("x9.huge")


def test_a_repeated_client_token_starts_no_second_machine(world: World) -> None:
    ec2 = world.client("ec2")
    asked = {
        "ImageId": "ami-12c6146b",
        "InstanceType": "m5a.large",
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": "once",
    }
    first, second = ec2.run_instances(**asked), ec2.run_instances(**asked)
    assert first["Instances"][0]["InstanceId"] == second["Instances"][0]["InstanceId"]
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        ec2.run_instances(**{**asked, "MaxCount": 2})


def test_the_spot_market_has_prices_below_on_demand(world: World) -> None:
    history = world.client("ec2").describe_spot_price_history(InstanceTypes=["m5a.large"])["SpotPriceHistory"]
    prices = {one["AvailabilityZone"]: float(one["SpotPrice"]) for one in history}
    assert prices["us-east-1a"] == spot_price_per_hour("m5a.large", "us-east-1a")
    assert all(0.3 * 0.086 - 1e-6 <= price <= 0.45 * 0.086 for price in prices.values())
    assert len(set(prices.values())) > 1
