"""What an account may run: quotas that the control endpoint sets, reservations that are made as on EC2."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.simulator.aws.world import World

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


def test_the_quotas_of_a_service_are_listed_in_pages(world: World) -> None:
    quotas = world.client("service-quotas")
    for code in ("L-B", "L-A", "L-C"):
        world.control.set_quota(code, 8.0)
    first = quotas.list_service_quotas(ServiceCode="ec2", MaxResults=2)
    second = quotas.list_service_quotas(ServiceCode="ec2", MaxResults=2, NextToken=first["NextToken"])
    assert [one["QuotaCode"] for one in first["Quotas"] + second["Quotas"]] == ["L-A", "L-B", "L-C"]
    assert {one["Value"] for one in first["Quotas"]} == {8.0}
    assert "NextToken" not in second
    assert quotas.list_service_quotas(ServiceCode="ec2", QuotaCode="L-C")["Quotas"][0]["QuotaCode"] == "L-C"
    assert quotas.list_service_quotas(ServiceCode="vpc")["Quotas"] == []
    with pytest.raises(ClientError, match="InvalidPaginationTokenException"):
        quotas.list_service_quotas(ServiceCode="ec2", NextToken="none of ours")


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("state", ["active"], ["m5a.large"]),
        ("state", ["cancelled"], ["m5a.xlarge"]),
        ("instance-type", ["m5a.*"], ["m5a.xlarge", "m5a.large"]),
        ("instance-type", ["m5a.large", "m5a.xlarge"], ["m5a.xlarge", "m5a.large"]),
        ("availability-zone", ["us-east-1a"], []),
        ("instance-platform", ["Linux/UNIX"], ["m5a.xlarge", "m5a.large"]),
    ],
)
def test_reservations_are_found_by_filters(world: World, name: str, values: list[str], found: list[str]) -> None:
    machines, made = world.client("ec2"), [reserve(world), reserve(world, "m5a.large")]
    assert [
        one["CapacityReservationId"] for one in machines.describe_capacity_reservations()["CapacityReservations"]
    ] == made
    machines.cancel_capacity_reservation(CapacityReservationId=made[0])
    answer = machines.describe_capacity_reservations(Filters=[{"Name": name, "Values": values}])
    assert [one["InstanceType"] for one in answer["CapacityReservations"]] == found


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
