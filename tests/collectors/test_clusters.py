"""Clusters as they are read: groups by tag, cores by what is in service, capacities as AWS tells them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectors.aws import AwsOptions, AwsSession
from collectors.tagged_groups import ClusterReader
from domain.clock import VirtualClock
from domain.errors import CloudError, FailureClass
from simulator.aws.client import CloudControl
from simulator.aws.lifecycle import Delays
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World


@pytest.fixture
def world() -> Iterator[World]:
    running = start_in_thread(VirtualClock(START), seed=7, delays=Delays())
    made = World(running, CloudControl(running.endpoint))
    for vm_type in ("m5a.large", "m5a.2xlarge"):
        made.template(vm_type, vm_type)
    yield made
    made.close()


@pytest.fixture
def reader(world: World) -> Iterator[ClusterReader]:
    options = AwsOptions(
        "us-east-1", world.running.endpoint, access_key_id="agent", secret_access_key="simulated", read_attempts=1
    )
    session = AwsSession(options, VirtualClock(START), read_only=True)
    yield ClusterReader(session)
    session.close()


def tagged(world: World, name: str, size: tuple[int, int, int], vm_type: str = "m5a.large", **tags: str) -> None:
    world.group(
        name,
        size=size,
        LaunchTemplate={"LaunchTemplateName": vm_type, "Version": "$Latest"},
        Tags=[{"Key": f"trimtab:{key}", "Value": value, "PropagateAtLaunch": False} for key, value in tags.items()],
    )


def test_groups_of_any_cluster_are_found_by_name_and_others_are_not(world: World, reader: ClusterReader) -> None:
    tagged(world, "b", (0, 0, 5), cluster="gpu", admission="pending")
    tagged(world, "a", (0, 0, 5), cluster=" other ")
    tagged(world, "c", (0, 0, 5), fleet="web")
    assert [(group.name, group.cluster) for group in reader.groups().groups] == [("a", "other"), ("b", "gpu")]
    assert reader.groups().groups[1].tags["trimtab:admission"] == "pending"


def test_cores_are_those_of_vms_in_service_and_no_others(world: World, reader: ClusterReader) -> None:
    tagged(world, "a", (0, 3, 5), "m5a.2xlarge", cluster="gpu")
    (group,) = reader.groups().groups
    assert (group.cores, group.vms, group.there, group.vm_cores) == (0, 0, 3, {"m5a.2xlarge": 8})
    ids = world.control.ready_now("a")
    (group,) = reader.groups().groups
    assert (group.cores, group.vms, group.there) == (24, 3, 3)
    world.groups.enter_standby(AutoScalingGroupName="a", InstanceIds=ids[:1], ShouldDecrementDesiredCapacity=True)
    (group,) = reader.groups().groups
    assert (group.cores, group.there, group.desired) == (16, 2, 2)


def test_a_group_of_two_types_has_the_cores_of_each(world: World, reader: ClusterReader) -> None:
    tagged(world, "a", (0, 1, 5), "m5a.large", cluster="gpu")
    world.control.ready_now("a")
    world.groups.update_auto_scaling_group(
        AutoScalingGroupName="a", LaunchTemplate={"LaunchTemplateName": "m5a.2xlarge", "Version": "$Latest"}
    )
    world.desire(2, "a")
    world.control.ready_now("a")
    (group,) = reader.groups().groups
    assert (dict(group.in_service), group.cores) == ({"m5a.large": 1, "m5a.2xlarge": 1}, 10)
    assert reader.launched_cores("a") == (("m5a.2xlarge",), {"m5a.2xlarge": 8})


def test_a_group_that_is_being_deleted_is_marked(world: World, reader: ClusterReader) -> None:
    tagged(world, "a", (0, 1, 5), cluster="gpu")
    world.control.ready_now("a")
    world.groups.delete_auto_scaling_group(AutoScalingGroupName="a", ForceDelete=True)
    (group,) = reader.groups().groups
    assert (group.deleting, group.vms) == (True, 0)


def test_more_groups_than_a_page_holds_are_all_read(world: World, reader: ClusterReader) -> None:
    for number in range(101):
        tagged(world, f"g{number:03d}", (0, 0, 1), cluster="gpu")
    assert len(reader.groups().groups) == 101


def test_capacities_are_in_cores_and_what_is_not_there_is_a_failure(world: World, reader: ClusterReader) -> None:
    world.control.set_quota("L-1216C47A", 96.7)
    assert reader.quota_cores("L-1216C47A") == 96
    held = world.client("ec2").create_capacity_reservation(
        InstanceType="m5a.2xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=4
    )["CapacityReservation"]["CapacityReservationId"]
    assert reader.reserved_cores(held) == 32
    world.client("ec2").cancel_capacity_reservation(CapacityReservationId=held)
    assert reader.reserved_cores(held) == 0
    for ask, name in ((reader.quota_cores, "L-00000000"), (reader.reserved_cores, "cr-00000000")):
        with pytest.raises(CloudError) as failed:
            ask(name)
        assert failed.value.failure is FailureClass.PERMANENT
    with pytest.raises(CloudError, match="no group named nowhere"):
        reader.launched_cores("nowhere")
