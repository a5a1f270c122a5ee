"""The VMs of a fleet as hosts: read from its Auto Scaling groups, sized by their types as EC2 describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agent.placement.records import HostRecord, HostState, Origin
from agent.placement.settings import PlacementSettings
from collectors.aws import AwsSession
from collectors.tagged_groups import TaggedGroups, VmSize
from domain.rules.placement.instance import Vector

_NAMES_PER_CALL: Final = 50
_TAKES: Final = "InService"
_COMING: Final = "Pending"
_LEAVING: Final = ("Terminating", "Detaching", "EnteringStandby", "Standby")


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM of a group as AWS lists it: its type, zone and group's key, and whether it takes containers."""

    name: str
    vm_type: str
    zone: str
    group: str
    state: HostState


class FleetHosts:
    """Reads a fleet's VMs; the sizes of types are remembered."""

    def __init__(self, session: AwsSession, settings: PlacementSettings) -> None:
        self._session, self._settings = session, settings
        self._types = TaggedGroups(session)

    def read(self, groups: Mapping[str, str]) -> dict[str, HostRecord]:
        """Return the VMs of these groups as hosts by id; groups: the AWS name of each by the fleet's key for it.

        CloudError when AWS cannot be read to the end: then nothing is known, not that VMs are gone. A VM of a type that
        EC2 does not describe, or that is too small for what is set aside, is left out.
        """
        vms = [
            vm
            for start in range(0, len(groups), _NAMES_PER_CALL)
            for vm in self._listed(dict(sorted(groups.items())[start : start + _NAMES_PER_CALL]))
        ]
        sizes = self._types.sizes({vm.vm_type for vm in vms})
        found = {}
        for vm in vms:
            capacity = capacity_of(sizes.get(vm.vm_type), self._settings)
            if capacity is not None:
                found[vm.name] = HostRecord(
                    vm.name, capacity, Origin.FLEET, vm.state, vm.zone, vm.group, capacity, vm.vm_type
                )
        return found

    def _listed(self, groups: Mapping[str, str]) -> Sequence[Vm]:
        key_of = {name: key for key, name in groups.items()}
        pages = self._session.pages(
            "autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=list(key_of), MaxRecords=_NAMES_PER_CALL
        )
        described = [group for page in pages for group in page["AutoScalingGroups"]]
        return [
            vm
            for group in described
            for one in group.get("Instances", ())
            if (vm := _vm(one, key_of[group["AutoScalingGroupName"]])) is not None
        ]


def capacity_of(size: VmSize | None, settings: PlacementSettings) -> Vector | None:
    """Return what a VM of this size takes, None for an unknown size or one that leaves nothing."""
    if size is None:
        return None
    cores = size.cores - settings.set_aside_cores
    memory = math.floor(size.memory_gb) - settings.set_aside_memory_gib
    return (cores, memory, settings.vm_disk_gb) if cores >= 1 and memory >= 1 else None


def merged(
    found: Mapping[str, HostRecord], known: Mapping[str, HostRecord]
) -> tuple[dict[str, HostRecord], tuple[str, ...]]:
    """Return the fleet's hosts that changed, by name, and the names of those that AWS no longer lists.

    found: as AWS lists them now. known: every host that the pool has a record of. What an operator ordered stays: a
    drained host is not opened again, and a capacity that was changed holds.
    """
    changed: dict[str, HostRecord] = {}
    for name, host in found.items():
        before = known.get(name)
        if before is None:
            changed[name] = host
            continue
        if before.origin is not Origin.FLEET:
            continue
        state = before.state if before.ordered and host.state is HostState.UP else host.state
        capacity = before.capacity if before.rated == host.rated else host.capacity
        now = HostRecord(
            name, capacity, Origin.FLEET, state, host.rack, host.label, host.rated, host.vm_type, before.ordered
        )
        if now != before:
            changed[name] = now
    gone = sorted(
        name
        for name, host in known.items()
        if host.origin is Origin.FLEET and name not in found and host.state is not HostState.FAILED
    )
    return changed, tuple(gone)


def _vm(one: Mapping[str, Any], group: str) -> Vm | None:
    """Return a VM that takes containers, or drains; None for one that is not in service yet."""
    state = str(one.get("LifecycleState", ""))
    if state.startswith(_COMING) or not one.get("InstanceType"):
        return None
    healthy = str(one.get("HealthStatus", "Healthy")).lower() == "healthy"
    if state == _TAKES and healthy:
        taken = HostState.UP
    elif state == _TAKES or state.startswith(_LEAVING):
        taken = HostState.DRAINING
    else:
        return None
    return Vm(one["InstanceId"], one["InstanceType"], one.get("AvailabilityZone", ""), group, taken)
