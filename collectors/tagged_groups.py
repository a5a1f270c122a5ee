"""Finds the Auto Scaling groups that carry a tag, with what is needed to describe their VMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collectors.aws import AwsSession
from collectors.inventory import other_units
from domain.errors import CloudError, FailureClass

TYPES_PER_CALL = 100
_MIB_PER_GB = 1024.0


@dataclass(frozen=True, slots=True)
class TaggedGroup:
    """A group as AWS describes it.

    vm_types: the types it may launch; more than one for a group of mixed instances, none when AWS does not say.
    unsupported: why its sizes are no numbers of VMs, None when they are.
    """

    name: str
    tags: Mapping[str, str]
    minimum: int
    maximum: int
    vm_types: tuple[str, ...]
    unsupported: str | None = None


@dataclass(frozen=True, slots=True)
class VmSize:
    """What a VM of a type has: vCPUs and memory in GB."""

    cores: int
    memory_gb: float


class TaggedGroups:
    """Reads groups by tag; the types of launch templates and the sizes of VM types are remembered."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session
        self._sizes: dict[str, VmSize] = {}

    def read(self, tag: str) -> tuple[TaggedGroup, ...]:
        """Return every group that has the tag, by name; raises CloudError when AWS cannot be read to the end."""
        found = [
            self._group(group)
            for page in self._session.pages(
                "autoscaling",
                "DescribeAutoScalingGroups",
                Filters=[{"Name": "tag-key", "Values": [tag]}],
                MaxRecords=100,
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
        return TaggedGroup(
            group["AutoScalingGroupName"],
            tags,
            group["MinSize"],
            group["MaxSize"],
            tuple(self.vm_types(group)),
            other_units(group),
        )

    def vm_types(self, group: Mapping[str, Any]) -> list[str]:
        """Return what the group launches from now on: what its overrides, template or configuration say.

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
            answer = self._session.read("ec2", "DescribeLaunchTemplateVersions", Versions=[version], **which)
        except CloudError as error:
            return _unless_gone(error)
        types = [one["LaunchTemplateData"].get("InstanceType") for one in answer["LaunchTemplateVersions"]]
        return [name for name in types if name]

    def _of_configuration(self, name: str) -> list[str]:
        answer = self._session.read("autoscaling", "DescribeLaunchConfigurations", LaunchConfigurationNames=[name])
        return [one["InstanceType"] for one in answer["LaunchConfigurations"] if one.get("InstanceType")]


def _unless_gone(error: CloudError) -> list[str]:
    """Return nothing for a template that does not exist; any other failure is one of the whole reading."""
    if error.failure is FailureClass.PERMANENT:
        return []
    raise error
