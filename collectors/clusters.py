"""Reads clusters: the Auto Scaling groups tagged into them, the cores that these have in service, and what may run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from collectors.aws import AwsSession
from collectors.inventory import other_units
from collectors.tagged_groups import TaggedGroups
from domain.errors import CloudError, FailureClass

CLUSTER: Final = "trimtab:cluster"
"""The tag that puts a group into a cluster, which it names."""
QUOTA_SERVICE: Final = "ec2"
IN_SERVICE: Final = "InService"
GONE: Final = frozenset({"Terminated", "Detached", "Standby"})


@dataclass(frozen=True, slots=True)
class ClusterGroup:
    """A group of a cluster as AWS describes it.

    in_service: VMs in service by type. there: VMs that are in it at all, on their way in or out included. vm_cores: the
    cores of one VM of each type in it; a type that AWS does not know is left out. deleting: AWS is at its end.
    unsupported: why its sizes are no numbers of VMs, None when they are.
    """

    name: str
    cluster: str
    tags: Mapping[str, str]
    desired: int
    minimum: int
    maximum: int
    in_service: Mapping[str, int]
    there: int
    vm_cores: Mapping[str, int]
    zones: tuple[str, ...] = ()
    suspended: tuple[str, ...] = ()
    deleting: bool = False
    unsupported: str | None = None

    @property
    def cores(self) -> int:
        """Cores in service."""
        return sum(count * self.vm_cores.get(vm_type, 0) for vm_type, count in self.in_service.items())

    @property
    def vms(self) -> int:
        """VMs in service."""
        return sum(self.in_service.values())


MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)
"""What comes of an answer without a field, or with one of another kind."""


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """Every group that is tagged into a cluster, by name.

    unreadable: by name, why a group's description makes no sense; nothing is known of it, not that it is gone. Under
    "" stands one without a name: then no group that was not found counts as gone.
    """

    groups: tuple[ClusterGroup, ...]
    unreadable: Mapping[str, str]


class ClusterReader:
    """Reads clusters; what VM types have is remembered, the rest is read anew each time."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session
        self._tagged = TaggedGroups(session)

    def groups(self) -> ClusterGroups:
        """Return every group that is tagged into a cluster; raises CloudError unless AWS told of all of them."""
        wanted = [{"Name": "tag-key", "Values": [CLUSTER]}]
        described = [
            group
            for page in self._session.pages("autoscaling", "DescribeAutoScalingGroups", Filters=wanted, MaxRecords=100)
            for group in page["AutoScalingGroups"]
        ]
        present = {
            vm["InstanceType"] for group in described for vm in group.get("Instances", ()) if vm.get("InstanceType")
        }
        cores, unknown = self._cores(present)
        found: list[ClusterGroup] = []
        unreadable: dict[str, str] = {}
        for one in described:
            try:
                group = _group(one, cores)
            except MALFORMED as error:
                unreadable[str(one.get("AutoScalingGroupName", ""))] = (
                    f"AWS's description of it makes no sense ({type(error).__name__}: {error})"
                )
                continue
            lacking = sorted(unknown & group.in_service.keys())
            if lacking:
                unreadable[group.name] = f"AWS describes its VM type {lacking[0]} without its cores"
            else:
                found.append(group)
        return ClusterGroups(tuple(sorted(found, key=lambda group: group.name)), unreadable)

    def _cores(self, vm_types: Collection[str]) -> tuple[Mapping[str, int], frozenset[str]]:
        """Return the cores of VMs of these types, and the types whose description makes no sense."""
        try:
            return {name: size.cores for name, size in self._tagged.sizes(vm_types).items()}, frozenset()
        except MALFORMED:
            cores: dict[str, int] = {}
            unknown: set[str] = set()
            for vm_type in vm_types:
                try:
                    cores |= {name: size.cores for name, size in self._tagged.sizes([vm_type]).items()}
                except MALFORMED:
                    unknown.add(vm_type)
            return cores, frozenset(unknown)

    def launched_cores(self, name: str) -> tuple[tuple[str, ...], Mapping[str, int]]:
        """Return the VM types that the group launches from now on, and the cores of a VM of each; raises CloudError."""
        wanted = {"AutoScalingGroupNames": [name], "MaxRecords": 1}
        for group in self._session.read("autoscaling", "DescribeAutoScalingGroups", **wanted)["AutoScalingGroups"]:
            vm_types = tuple(self._tagged.vm_types(group))
            return vm_types, {kind: size.cores for kind, size in self._tagged.sizes(vm_types).items()}
        raise CloudError("DescribeAutoScalingGroups", FailureClass.PERMANENT, "NoSuchGroup", f"no group named {name}")

    def quota_cores(self, code: str) -> int:
        """Return the vCPUs that a quota of EC2 allows, such as L-1216C47A; raises CloudError."""
        answer = self._session.read("service-quotas", "GetServiceQuota", ServiceCode=QUOTA_SERVICE, QuotaCode=code)
        value: float = answer["Quota"]["Value"]
        return math.floor(value)

    def reserved_cores(self, reservation_id: str) -> int:
        """Return the cores of a capacity reservation, 0 when it is over; raises CloudError."""
        operation = "DescribeCapacityReservations"
        answer = self._session.read("ec2", operation, CapacityReservationIds=[reservation_id])
        for one in answer["CapacityReservations"]:
            if one["State"] != "active":
                return 0
            vm_type = one["InstanceType"]
            sizes = self._tagged.sizes([vm_type])
            if vm_type not in sizes:
                raise CloudError(operation, FailureClass.PERMANENT, "NoSuchType", f"AWS knows no type {vm_type}")
            return int(one["TotalInstanceCount"]) * sizes[vm_type].cores
        raise CloudError(operation, FailureClass.PERMANENT, "NoSuchReservation", f"no reservation {reservation_id}")


def _tags(group: Mapping[str, Any]) -> Mapping[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in group.get("Tags", ())}


def _group(group: Mapping[str, Any], cores: Mapping[str, int]) -> ClusterGroup:
    tags = _tags(group)
    states = [(vm["InstanceType"], vm["LifecycleState"]) for vm in group["Instances"]]
    return ClusterGroup(
        name=group["AutoScalingGroupName"],
        # Only groups with this tag were asked for: without it the description is not whole.
        cluster=tags[CLUSTER].strip(),
        tags=tags,
        desired=int(group["DesiredCapacity"]),
        minimum=int(group["MinSize"]),
        maximum=int(group["MaxSize"]),
        in_service=Counter(vm_type for vm_type, state in states if state == IN_SERVICE),
        there=sum(state not in GONE for _, state in states),
        vm_cores={vm_type: cores[vm_type] for vm_type, _ in states if vm_type in cores},
        zones=tuple(group.get("AvailabilityZones", ())),
        suspended=tuple(sorted(one["ProcessName"] for one in group.get("SuspendedProcesses", ()))),
        deleting=bool(group.get("Status")),
        unsupported=other_units(group),
    )
