"""The VMs of a fleet as hosts: read from its Auto Scaling groups, sized by their types as EC2 describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from agent.kernel.decision import Capacity
from agent.placement.records import HostRecord, HostState, Origin
from agent.placement.settings import PlacementSettings
from collectors.aws import AwsSession
from collectors.tagged_groups import TaggedGroups, VmSize
from domain.rules.placement.cluster import Cluster
from domain.rules.placement.coupling import draining, effective_cores
from domain.rules.placement.instance import Application, Vector

_NAMES_PER_CALL: Final = 50
_TAKES: Final = "InService"
_LEAVING: Final = ("Terminating", "Detaching", "EnteringStandby", "Standby")
_GONE: Final = ("Terminated", "Detached")


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM of a group as AWS lists it: its type, zone and group's key, and whether it takes containers.

    state: None for one that is not in service, or not again, and is not about to leave.
    """

    name: str
    vm_type: str
    zone: str
    group: str
    state: HostState | None


@dataclass(frozen=True, slots=True)
class FleetVms:
    """What AWS lists of a fleet: the VMs that are hosts, by id, and the ids of all that are there."""

    hosts: Mapping[str, HostRecord]
    there: Set[str]


class FleetHosts:
    """Reads a fleet's VMs; the sizes of types are remembered."""

    def __init__(self, session: AwsSession, settings: PlacementSettings) -> None:
        self._session, self._settings = session, settings
        self._types = TaggedGroups(session)

    def read(self, groups: Mapping[str, str]) -> FleetVms:
        """Return the VMs of these groups; groups: the AWS name of each by the fleet's key for it.

        CloudError when AWS cannot be read to the end: then nothing is known, not that VMs are gone. A VM that is not in
        service, of a type that EC2 does not describe, or too small for what is set aside, is there and no host.
        """
        vms = [
            vm
            for start in range(0, len(groups), _NAMES_PER_CALL)
            for vm in self._listed(dict(sorted(groups.items())[start : start + _NAMES_PER_CALL]))
        ]
        sizes = self._types.sizes({vm.vm_type for vm in vms if vm.vm_type})
        found = {}
        for vm in vms:
            capacity = capacity_of(sizes.get(vm.vm_type), self._settings)
            if capacity is not None and vm.state is not None:
                found[vm.name] = HostRecord(
                    vm.name, capacity, Origin.FLEET, vm.state, vm.zone, vm.group, capacity, vm.vm_type
                )
        return FleetVms(found, {vm.name for vm in vms})

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


def effective(vms: FleetVms, rate: float) -> FleetVms:
    """Return VMs with the cores that containers may request of them at this rate."""
    hosts = {}
    for name, host in vms.hosts.items():
        cores, memory, disk = host.capacity
        size = (effective_cores(cores, rate), memory, disk)
        hosts[name] = replace(host, capacity=size, rated=size)
    return replace(vms, hosts=hosts)


def capacity_of(size: VmSize | None, settings: PlacementSettings) -> Vector | None:
    """Return what a VM of this size takes, None for an unknown size or one that leaves nothing."""
    if size is None:
        return None
    cores = size.cores - settings.set_aside_cores
    memory = math.floor(size.memory_gb) - settings.set_aside_memory_gib
    return (cores, memory, settings.vm_disk_gb) if cores >= 1 and memory >= 1 else None


def takes(app: Application, groups: Mapping[str, VmSize], settings: PlacementSettings, rate: float) -> bool:
    """Return whether a VM of one of these groups, empty, takes a container of the application at this rate."""
    for key, size in groups.items():
        room = capacity_of(size, settings)
        if room is not None and app.label in ("", key):
            room = (effective_cores(room[0], rate), *room[1:])
            if all(map(int.__le__, app.demand, room)):
                return True
    return False


def to_drain(cluster: Cluster, vms: FleetVms, known: Mapping[str, HostRecord], fleet: Capacity) -> frozenset[str]:
    """Return the hosts to drain while groups of the fleet have VMs too many.

    known: every host that the pool has a record of. Hosts that an operator drained, or that AWS takes out, are left
    out: they take none anyway. So are VMs that may not go: one would drain for ever in place of one that may.
    """
    found: list[int] = []
    for group, vms_too_many in fleet.leaving.items():
        by_state: dict[HostState, list[int]] = {HostState.UP: [], HostState.DRAINING: []}
        for name, seen in vms.hosts.items():
            one = known.get(name)
            may = seen.label == group and seen.state is HostState.UP and name not in fleet.kept
            if may and one is not None and not one.held and one.state in by_state:
                by_state[one.state].append(cluster.host(name))
        taking, drained = (np.array(hosts, dtype=np.int64) for hosts in by_state.values())
        found += draining(cluster, taking, drained, vms_too_many).tolist()
    return frozenset(cluster.hosts[host].name for host in found)


def merged(
    vms: FleetVms, known: Mapping[str, HostRecord], drain: Set[str] = frozenset()
) -> tuple[dict[str, HostRecord], tuple[str, ...]]:
    """Return the fleet's hosts that changed, by name, and the names of hosts that AWS no longer lists.

    known: every host that the pool has a record of. drain: hosts to drain. What an operator ordered stays: a drained or
    failed host is not opened again, and a capacity that was changed holds. A host that is listed and can be none for
    now, such as one that comes back from standby, takes no more containers and keeps its own.
    """
    changed: dict[str, HostRecord] = {}
    for name, host in vms.hosts.items():
        before = known.get(name)
        if before is None:
            changed[name] = host
            continue
        if before.origin is not Origin.FLEET or before.state is HostState.FAILED:
            continue
        surplus = name in drain
        state = HostState.DRAINING if before.held or surplus else host.state
        # The rate of an oversubscription pool changes the rated cores: a size that an operator ordered holds then too.
        resized = before.capacity != before.rated and before.vm_type == host.vm_type
        capacity = before.capacity if resized or before.rated == host.rated else host.capacity
        now = HostRecord(
            name, capacity, Origin.FLEET, state, host.rack, host.label, host.rated, host.vm_type, before.held, surplus
        )
        if now != before:
            changed[name] = now
    gone = []
    for name, host in known.items():
        if host.origin is not Origin.FLEET or name in vms.hosts:
            continue
        if name not in vms.there:
            gone.append(name)
        elif host.state is HostState.UP:
            changed[name] = replace(host, state=HostState.DRAINING, ordered=False, surplus=False)
    return changed, tuple(sorted(gone))


def _vm(one: Mapping[str, Any], group: str) -> Vm | None:
    """Return a VM that is there, None for one that is gone."""
    state = str(one.get("LifecycleState", ""))
    if state in _GONE:
        return None
    healthy = str(one.get("HealthStatus", "Healthy")).lower() == "healthy"
    taken = None
    if state == _TAKES and healthy:
        taken = HostState.UP
    elif state == _TAKES or state.startswith(_LEAVING):
        taken = HostState.DRAINING
    return Vm(one["InstanceId"], one.get("InstanceType", ""), one.get("AvailabilityZone", ""), group, taken)
