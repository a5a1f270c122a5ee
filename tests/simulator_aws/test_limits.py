"""What an account may run: quotas that the control endpoint sets, reservations that are made as on EC2."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.simulator_aws.world import World

STANDARD_VCPUS = "L-1216C47A"


def reserve(world: World, instance_type: str = "m5a.xlarge", count: int = 6) -> str:
    answer = world.client("ec2").create_capacity_reservation(
        InstanceType=instance_type, InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1b", InstanceCount=count
    )
    return str(answer["CapacityReservation"]["CapacityReservationId"])


def test_a_quota_is_what_was_set_last(world: World) -> None:
    quotas = world.client("service-quotas")
    for value in (64.0, 96.0):
        world.control.set_quota(STANDARD_VCPUS, value)
        quota = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=STANDARD_VCPUS)["Quota"]
        assert (quota["QuotaCode"], quota["Value"]) == (STANDARD_VCPUS, value)


def test_a_quota_that_nobody_set_is_not_there(world: World) -> None:
    with pytest.raises(ClientError, match="NoSuchResourceException"):
        world.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-0")


def test_a_reservation_is_described_until_it_is_cancelled(world: World) -> None:
    machines, reservation_id = world.client("ec2"), reserve(world)
    wanted = {"CapacityReservationIds": [reservation_id]}
    (held,) = machines.describe_capacity_reservations(**wanted)["CapacityReservations"]
    assert (held["InstanceType"], held["TotalInstanceCount"], held["State"], held["AvailabilityZone"]) == (
        "m5a.xlarge",
        6,
        "active",
        "us-east-1b",
    )
    assert held["CreateDate"].timestamp() == world.control.now()
    machines.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    (held,) = machines.describe_capacity_reservations(**wanted)["CapacityReservations"]
    assert held["State"] == "cancelled"


def test_reservations_are_numbered_and_all_described_where_none_is_named(world: World) -> None:
    made = [reserve(world), reserve(world, "m5a.large")]
    held = world.client("ec2").describe_capacity_reservations()["CapacityReservations"]
    assert [one["CapacityReservationId"] for one in held] == made


def test_an_unknown_reservation_is_refused_as_ec2_does(world: World) -> None:
    with pytest.raises(ClientError, match=r"InvalidCapacityReservationId\.NotFound"):
        world.client("ec2").describe_capacity_reservations(CapacityReservationIds=["cr-0"])
