"""What a pending group asks for, read from its tags and from what it would launch, and what keeps it waiting."""

from __future__ import annotations

from typing import Final

from agent.admission.gate.rails import Asked, Held
from agent.admission.gate.records import ADMISSION, PENDING, REQUESTED
from collectors.clusters import ClusterGroup, ClusterReader
from domain.decisions import Reason
from domain.errors import BadInput

LONGEST_NUMBER: Final = 6


def is_pending(group: ClusterGroup) -> bool:
    """Return whether the group asks to come in."""
    return group.tags.get(ADMISSION) == PENDING and not group.deleting


def vms_wanted(group: ClusterGroup) -> int:
    """Return the size that a pending group asks for; BadInput when its tag holds none that it could have.

    BadInput as well for a group whose sizes are no numbers of VMs.
    """
    if group.unsupported is not None:
        raise BadInput(f"units of group {group.name}", "not VMs", group.unsupported)
    text = group.tags.get(REQUESTED, "")
    vms = int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else 0
    if vms < 1:
        raise BadInput(f"tag {REQUESTED}", text, "give the number of VMs that the group is to have, 1 or more")
    if vms > group.maximum:
        raise BadInput(f"tag {REQUESTED}", vms, f"the group's maximum is {group.maximum}: raise it, or ask for less")
    return vms


def asked_by(group: ClusterGroup, reader: ClusterReader) -> Asked:
    """Return what a pending group asks for; BadInput says what is wrong with it, CloudError that AWS did not answer."""
    vms = vms_wanted(group)
    vm_types, cores = reader.launched_cores(group.name)
    if len(vm_types) != 1 or vm_types[0] not in cores:
        shown = ", ".join(vm_types) or "none that its launch template names"
        raise BadInput("VM type", shown, "let a pending group launch one type that AWS knows in this region")
    return Asked(vms, vm_types[0], cores[vm_types[0]])


def waits_for(group: ClusterGroup, *, sized_by_fleet: bool, capacity_known: bool) -> Held | None:
    """Return what must be put right, or come first, before a pending group can be asked for."""
    if sized_by_fleet:
        return Held(Reason.IN_FLIGHT, "a fleet sizes it; take it out of the fleet until it is admitted")
    if group.desired or group.there:
        detail = f"it desires {group.desired} VMs and has {group.there}; set its desired capacity to 0"
        return Held(Reason.NOTHING_TO_DO, detail)
    if not capacity_known:
        return Held(Reason.CLOUD_UNREADABLE, "the capacity of its cluster is not known, or there is none")
    return None
