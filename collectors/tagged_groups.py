"""Finds the Auto Scaling groups that carry a tag, with what is needed to describe their VMs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from collectors.aws import AwsSession
from collectors.described_groups import capacity_units, launched_weight, unclear_units
from domain.capacity_units import bounds_in_vms
from domain.errors import CloudError, FailureClass

TYPES_PER_CALL = 100
_MIB_PER_GB = 1024.0


@dataclass(frozen=True, slots=True)
class TaggedGroup:
    """A group as AWS describes it.

    minimum, maximum: in VMs of the weight that it launches. vm_types: the types it may launch; more than one for a
    group of mixed instances, none when AWS does not tell them. unsupported: why its capacity units tell no number of
    VMs, None when they do.
    """

    name: str
    tags: Mapping[str, str]
    minimum: int
    maximum: int
    vm_types: tuple[str, ...]
    unsupported: str | None = None


@dataclass(frozen=True, slots=True)
class VmSize:
    """The size of a VM type: vCPUs and memory in GB."""

    cores: int
    memory_gb: float


class TaggedGroups:
    """Reads groups by tag; the types of launch templates and the sizes of VM types are remembered."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session
        self._sizes: dict[str, VmSize] = {}

    def read(self, tag: str | None) -> tuple[TaggedGroup, ...]:
        """Return every group that has the tag, None for all, by name; CloudError when AWS cannot be read to the end."""
        tagged = {} if tag is None else {"Filters": [{"Name": "tag-key", "Values": [tag]}]}
        found = [
            self._group(group)
            for page in self._session.pages(
                "autoscaling",
                "DescribeAutoScalingGroups",
                MaxRecords=100,
                **tagged,
            )
            for group in page["AutoScalingGroups"]
            # A group that is being deleted is no longer there to be managed.
            if not group.get("Status")
        ]
        return tuple(sorted(found, key=lambda group: group.name))

    def sizes(self, vm_types: Iterable[str]) -> Mapping[str, VmSize]:
        """Return what VMs of these types have; a type that AWS does not know is left out. Raises CloudError."""
        wanted = sorted(set(vm_types))
        unknown = [name for name in wanted if name not in self._sizes]
        for start in range(0, len(unknown), TYPES_PER_CALL):
            names = unknown[start : start + TYPES_PER_CALL]
            # A filter, not InstanceTypes: one that AWS does not know would fail the whole call.
            by_name = [{"Name": "instance-type", "Values": names}]
            for page in self._session.pages("ec2", "DescribeInstanceTypes", Filters=by_name):
                for one in page["InstanceTypes"]:
                    memory_gb = one["MemoryInfo"]["SizeInMiB"] / _MIB_PER_GB
                    self._sizes[one["InstanceType"]] = VmSize(one["VCpuInfo"]["DefaultVCpus"], memory_gb)
        return {name: self._sizes[name] for name in wanted if name in self._sizes}

    def _group(self, group: Mapping[str, Any]) -> TaggedGroup:
        tags = {tag["Key"]: tag.get("Value", "") for tag in group.get("Tags", ())}
        why = unclear_units(group)
        weight = launched_weight(group) if why is None else 1
        minimum, maximum = bounds_in_vms(group["MinSize"], group["MaxSize"], weight)
        return TaggedGroup(group["AutoScalingGroupName"], tags, minimum, maximum, tuple(self.vm_types(group)), why)

    def vm_types(self, group: Mapping[str, Any]) -> list[str]:
        """Return the types that the group launches from now on, by its overrides, template or configuration.

        Nothing for a group whose types AWS chooses by what they have; those are no types to plan with.
        """
        mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
        overrides = mixed.get("Overrides", ())
        if any(one.get("InstanceRequirements") for one in overrides):
            return []
        named = sorted({one["InstanceType"] for one in overrides if one.get("InstanceType")})
        if named:
            return named
        template = group.get("LaunchTemplate") or mixed.get("LaunchTemplateSpecification")
        if template:
            return self._of_template(template)
        configuration = group.get("LaunchConfigurationName")
        return self._of_configuration(configuration) if configuration else []

    def _of_template(self, template: Mapping[str, str]) -> list[str]:
        which = (
            {"LaunchTemplateId": template["LaunchTemplateId"]}
            if template.get("LaunchTemplateId")
            else {"LaunchTemplateName": template["LaunchTemplateName"]}
        )
        version = template.get("Version") or "$Default"
        try:
            response = self._session.read("ec2", "DescribeLaunchTemplateVersions", Versions=[version], **which)
        except CloudError as error:
            return _unless_gone(error)
        types = [one["LaunchTemplateData"].get("InstanceType") for one in response["LaunchTemplateVersions"]]
        return [name for name in types if name]

    def _of_configuration(self, name: str) -> list[str]:
        response = self._session.read("autoscaling", "DescribeLaunchConfigurations", LaunchConfigurationNames=[name])
        return [one["InstanceType"] for one in response["LaunchConfigurations"] if one.get("InstanceType")]


def _unless_gone(error: CloudError) -> list[str]:
    """Return nothing for a template that does not exist; any other failure is one of the whole reading."""
    if error.failure is FailureClass.PERMANENT:
        return []
    raise error


CLUSTER: Final = "trimtab:cluster"
"""The tag that puts a group into a cluster, which it names."""
QUOTA_SERVICE: Final = "ec2"
IN_SERVICE: Final = "InService"
GONE: Final = frozenset({"Terminated", "Detached", "Standby"})


@dataclass(frozen=True, slots=True)
class ClusterGroup:
    """A group of a cluster as AWS describes it.

    desired, minimum, maximum: in VMs; desired_units: the first as AWS holds it, in its capacity units. in_service: VMs
    in service by type. there: VMs that are in it at all, on their way in or out included. vm_cores: the cores of one VM
    of each type in it; a type that AWS does not know is left out. deleting: AWS is at its end. unsupported: why its
    capacity units tell no number of VMs, None when they do; where they do not, the sizes are units.
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
    desired_units: int | None = None

    @property
    def cores(self) -> int:
        """Cores in service."""
        return sum(count * self.vm_cores.get(vm_type, 0) for vm_type, count in self.in_service.items())

    @property
    def vms(self) -> int:
        """VMs in service."""
        return sum(self.in_service.values())


MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)
"""The errors of a response without a field, or with one of another type."""


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """Every group that is tagged into a cluster, by name.

    unreadable: by name, why a group's description cannot be used; nothing is known of it, not that it is gone. Under
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
        """Return every group that is tagged into a cluster; raises CloudError unless AWS listed all of them."""
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
                    f"AWS's description of it cannot be used ({type(error).__name__}: {error})"
                )
                continue
            lacking = sorted(unknown & group.in_service.keys())
            if lacking:
                unreadable[group.name] = f"AWS describes its VM type {lacking[0]} without its cores"
            else:
                found.append(group)
        return ClusterGroups(tuple(sorted(found, key=lambda group: group.name)), unreadable)

    def _cores(self, vm_types: Collection[str]) -> tuple[Mapping[str, int], frozenset[str]]:
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
        response = self._session.read("service-quotas", "GetServiceQuota", ServiceCode=QUOTA_SERVICE, QuotaCode=code)
        value: float = response["Quota"]["Value"]
        return math.floor(value)

    def reserved_cores(self, reservation_id: str) -> int:
        """Return the cores of a capacity reservation, 0 when it is over; raises CloudError."""
        operation = "DescribeCapacityReservations"
        response = self._session.read("ec2", operation, CapacityReservationIds=[reservation_id])
        for one in response["CapacityReservations"]:
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
    sizes = tuple(int(group[name]) for name in ("DesiredCapacity", "MinSize", "MaxSize"))
    units, why = sizes[0], unclear_units(group)
    if why is None:
        counted = capacity_units(group)
        sizes = (counted.desired_vms, counted.minimum_vms, counted.maximum_vms)
    return ClusterGroup(
        name=group["AutoScalingGroupName"],
        # Only groups with this tag were requested: without it the description is not complete.
        cluster=tags[CLUSTER].strip(),
        tags=tags,
        desired=sizes[0],
        minimum=sizes[1],
        maximum=sizes[2],
        in_service=Counter(vm_type for vm_type, state in states if state == IN_SERVICE),
        there=sum(state not in GONE for _, state in states),
        vm_cores={vm_type: cores[vm_type] for vm_type, _ in states if vm_type in cores},
        zones=tuple(group.get("AvailabilityZones", ())),
        suspended=tuple(sorted(one["ProcessName"] for one in group.get("SuspendedProcesses", ()))),
        deleting=bool(group.get("Status")),
        unsupported=why,
        desired_units=units,
    )
