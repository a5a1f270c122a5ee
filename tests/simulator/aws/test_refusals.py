"""What the cloud refuses, in AWS's words, and that a refusal changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from simulator.aws.client import ControlError
from tests.golden import check_wording
from tests.simulator.aws.test_capacity import mixed
from tests.simulator.aws.world import World

Cases = dict[str, Callable[[], object]]
NEW: dict[str, Any] = {
    "AutoScalingGroupName": "other",
    "LaunchTemplate": {"LaunchTemplateName": "workers"},
    "AvailabilityZones": ["us-east-1a"],
}


def of_groups(world: World, first: str) -> Cases:
    groups, web = world.groups, {"AutoScalingGroupName": "web"}
    hook = {"LifecycleHookName": "drain", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING"}
    pending, times = world.ids("new"), [{"Name": "StartTimeLowerBound", "Values": values} for values in ([], ["noon"])]
    return {
        "desired above the maximum": lambda: world.desire(50),
        "desired below the minimum": lambda: world.desire(1),
        "desired below 0": lambda: world.desire(-1),
        "update: desired above the maximum": lambda: groups.update_auto_scaling_group(**web, DesiredCapacity=9),
        "update: minimum above the maximum": lambda: groups.update_auto_scaling_group(**web, MinSize=3, MaxSize=1),
        "update: minimum below 0": lambda: groups.update_auto_scaling_group(**web, MinSize=-1),
        "update: maximum below 0": lambda: groups.update_auto_scaling_group(**web, MaxSize=-1),
        "update: desired below 0": lambda: groups.update_auto_scaling_group(**web, DesiredCapacity=-1),
        "create: minimum below 0": lambda: groups.create_auto_scaling_group(**NEW, MinSize=-1, MaxSize=5),
        "create: maximum below 0": lambda: groups.create_auto_scaling_group(**NEW, MinSize=0, MaxSize=-1),
        "create: desired below 0": lambda: groups.create_auto_scaling_group(
            **NEW, MinSize=0, MaxSize=5, DesiredCapacity=-1
        ),
        "create: a name again": lambda: world.group("web"),
        "create: no such template": lambda: world.group("other", LaunchTemplate={"LaunchTemplateName": "nobody"}),
        "create: weight 0": lambda: world.group("other", MixedInstancesPolicy=mixed("0")),
        "create: weight 1000": lambda: world.group("other", MixedInstancesPolicy=mixed("1000")),
        "create: some weights": lambda: world.group(
            "other", MixedInstancesPolicy=mixed("2", {"InstanceType": "m5a.xlarge"})
        ),
        "no such group": lambda: world.desire(1, "nobody"),
        "no such group's activities": lambda: world.activities("nobody"),
        "delete with machines": lambda: groups.delete_auto_scaling_group(**web),
        "terminate below the minimum": lambda: groups.terminate_instance_in_auto_scaling_group(
            InstanceId=first, ShouldDecrementDesiredCapacity=True
        ),
        "protect a machine that is pending": lambda: groups.set_instance_protection(
            AutoScalingGroupName="new", InstanceIds=pending, ProtectedFromScaleIn=True
        ),
        "suspend an unknown process": lambda: groups.suspend_processes(**web, ScalingProcesses=["Lunch"]),
        "a heartbeat of over two hours": lambda: groups.put_lifecycle_hook(**web, **hook, HeartbeatTimeout=7201),
        "an unknown filter of tags": lambda: groups.describe_tags(Filters=[{"Name": "colour", "Values": ["red"]}]),
        "a filter without a time": lambda: world.activities(Filters=times[:1]),
        "a filter with no time": lambda: world.activities(Filters=times[1:]),
        "an operation that is not simulated": lambda: groups.put_warm_pool(**web),
    }


def of_ec2(world: World) -> Cases:
    ec2, quotas = world.client("ec2"), world.client("service-quotas")
    place = {"InstanceType": "m5a.large", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1b"}
    return {
        "no such quota": lambda: quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-0"),
        "an unknown filter of reservations": lambda: ec2.describe_capacity_reservations(
            Filters=[{"Name": "colour", "Values": ["red"]}]
        ),
        "a reservation of fewer than 0": lambda: ec2.create_capacity_reservation(**place, InstanceCount=-1),
        "no such reservation": lambda: ec2.describe_capacity_reservations(CapacityReservationIds=["cr-0"]),
    }


def of_the_control(world: World, first: str) -> Cases:
    control = world.control
    return {
        "a notice without a queue": lambda: control.spot_notice([first]),
        "a notice on an unknown queue": lambda: control.spot_notice([first], queue="nowhere"),
        "a notice for an unknown machine": lambda: control.spot_notice(["i-0123"], queue="nowhere"),
        "an unknown fault": lambda: control.add_fault("gremlin"),
        "a rate above 1": lambda: control.add_fault("throttle", rate=2.0),
        "an unknown field of a fault": lambda: control.add_fault("throttle", speed=1),
        "an unknown field of a shortage": lambda: control.add_fault("capacity", typ="m5a.large"),
    }


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises((ClientError, ControlError)) as refused:
        call()
    if isinstance(refused.value, ClientError):
        error = refused.value.response["Error"]
        return re.sub(r"\bi-[0-9a-f]{8,}", "i-…", f"{error['Code']}: {error['Message']}")
    return str(refused.value)


def test_a_refusal_is_worded_as_awss_and_changes_nothing(world: World) -> None:
    first, _ = world.ready_group(size=(2, 2, 5))
    world.group("new", size=(0, 1, 5))

    def state() -> object:
        faults = {name: value for name, value in world.control.faults().items() if name in ("faults", "shortages")}
        return world.groups.describe_auto_scaling_groups()["AutoScalingGroups"], world.activities(), faults

    before = state()
    cases = of_groups(world, first) | of_ec2(world) | of_the_control(world, first)
    check_wording("simulated-aws", {name: refusal(call) for name, call in cases.items()})
    assert state() == before
    assert world.control.imds(first, "spot/instance-action") is None
