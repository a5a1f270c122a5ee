"""What AWS's description of one group says: its identity, VM types, units, and the states of its VMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from domain.capacity_units import CapacityUnits
from domain.observed import GroupIdentity, Lifecycle

TERMINATING: Final = "autoscaling:EC2_INSTANCE_TERMINATING"
"""The transition of a lifecycle hook that drains."""
DRAIN_HOOK: Final = "drain"
"""The name that `deploy/` gives to the hook that drains."""
HOOK_TAG: Final = "trimtab:drain-hook"
"""The tag of a group that names the hook that drains its VMs."""

_LIFECYCLES: Final = {
    "Pending": Lifecycle.PENDING,
    "Pending:Wait": Lifecycle.PENDING,
    "Pending:Proceed": Lifecycle.PENDING,
    "InService": Lifecycle.IN_SERVICE,
    "Terminating:Wait": Lifecycle.DRAINING,
    "Terminating": Lifecycle.TERMINATING,
    "Terminating:Proceed": Lifecycle.TERMINATING,
    "Terminating:Retained": Lifecycle.TERMINATING,
    "Terminated": Lifecycle.TERMINATING,
    "Detaching": Lifecycle.TERMINATING,
    "Detached": Lifecycle.TERMINATING,
    # No capacity, and not to be changed.
    "EnteringStandby": Lifecycle.STANDBY,
    "Standby": Lifecycle.STANDBY,
    "Quarantined": Lifecycle.STANDBY,
    "ReplacingRootVolume": Lifecycle.STANDBY,
    "ReplacingRootVolume:Wait": Lifecycle.DRAINING,
    "ReplacingRootVolume:Proceed": Lifecycle.STANDBY,
    "RootVolumeReplaced": Lifecycle.STANDBY,
    # Of a warm pool. A VM that scale-in puts back into it may work while the hook holds it in Warmed:Pending:Wait; a
    # new one on its way into the pool is there too.
    "Warmed:Pending": Lifecycle.STANDBY,
    "Warmed:Pending:Wait": Lifecycle.DRAINING,
    "Warmed:Pending:Proceed": Lifecycle.STANDBY,
    "Warmed:Pending:Retained": Lifecycle.STANDBY,
    "Warmed:Running": Lifecycle.STANDBY,
    "Warmed:Stopped": Lifecycle.STANDBY,
    "Warmed:Hibernated": Lifecycle.STANDBY,
    "Warmed:Terminating": Lifecycle.TERMINATING,
    "Warmed:Terminating:Wait": Lifecycle.DRAINING,
    "Warmed:Terminating:Proceed": Lifecycle.TERMINATING,
    "Warmed:Terminating:Retained": Lifecycle.TERMINATING,
    "Warmed:Terminated": Lifecycle.TERMINATING,
}
_POOLED: Final = "Warmed:Pending:Wait"
_WARM_POOL: Final = "Warmed:"
# Any other state may count towards the desired capacity, those that AWS adds later included.
_UNCOUNTED: Final = frozenset(
    {
        "Terminating",
        "Terminating:Wait",
        "Terminating:Proceed",
        "Terminating:Retained",
        "Terminated",
        "Detaching",
        "Detached",
        "Standby",
    }
)
_GROUP_FIELDS: Final = ("AutoScalingGroupName", "DesiredCapacity", "MinSize", "MaxSize", "Instances")
_INSTANCE_FIELDS: Final = ("InstanceId", "LifecycleState", "AvailabilityZone")


@dataclass(frozen=True, slots=True)
class ExpectedGroup:
    """What the settings say that a group launches: the VM type, and the variable that holds it."""

    vm_type: str
    setting: str


def identity_of(described: Mapping[str, Any]) -> GroupIdentity | None:
    """Return what distinguishes a group from another one of its name; None where AWS names neither."""
    arn, created = described.get("AutoScalingGroupARN"), described.get("CreatedTime")
    if arn is None and created is None:
        return None
    return GroupIdentity(str(arn or ""), 0.0 if created is None else float(created.timestamp()))


def being_deleted(described: Mapping[str, Any]) -> str | None:
    """Return that a group is being deleted, with the remedy; None while it is not."""
    status = described.get("Status")
    if not status:
        return None
    name = described["AutoScalingGroupName"]
    return f"AWS deletes {name} ({status}): take it out of its fleet, or create it again under its name"


def unlike(described: Mapping[str, Any], launched: Iterable[str], expected: ExpectedGroup) -> str | None:
    """Return how a group's VM types differ from the settings' one, with the remedy; None when they do not.

    launched: the types that it launches from now on, as far as they are known. VMs on their way out do not count.
    """
    present = {str(one["InstanceType"]) for one in described["Instances"] if counts(one) and one.get("InstanceType")}
    for verb, types in (("launches", sorted(set(launched))), ("has VMs of", sorted(present))):
        if types and types != [expected.vm_type]:
            return (
                f"{described['AutoScalingGroupName']} {verb} {', '.join(types)}, and {expected.setting} is "
                f"{expected.vm_type}: one type to a group; correct {expected.setting} with CORES, MEMORY_GB and "
                "PRICE_PER_HOUR, or the group's launch template and overrides"
            )
    return None


def hook_of(described: Mapping[str, Any], name: str) -> str:
    """Return the name of the hook that drains a group: its tag, else the settings' `name`."""
    tags = {tag.get("Key"): tag.get("Value") for tag in described.get("Tags", ())}
    return tags.get(HOOK_TAG) or name


def lifecycle_of(state: str, *, served: bool) -> Lifecycle:
    """Return what a VM's state is to decisions; one that AWS does not document is STANDBY.

    served: the VM was in service, so that a return into the warm pool ends its work.
    """
    if state == _POOLED and not served:
        return Lifecycle.STANDBY
    return _LIFECYCLES.get(state, Lifecycle.STANDBY)


def is_known(state: str) -> bool:
    """Return whether AWS documents the state."""
    return state in _LIFECYCLES


def capacity_units(described: Mapping[str, Any]) -> CapacityUnits:
    """Return the sizes of a group as AWS describes it, where `unclear_units` finds nothing that speaks against it."""
    weights, launched = [weight_of(one) for one in described["Instances"] if counts(one)], launched_weight(described)
    return CapacityUnits(
        desired=int(described["DesiredCapacity"]),
        minimum=int(described["MinSize"]),
        maximum=int(described["MaxSize"]),
        counted=sum(weights),
        vms=len(weights),
        weight=launched,
        heaviest=max([launched, *weights]),
    )


def launched_weight(described: Mapping[str, Any]) -> int:
    """Return the capacity units of a VM that the group launches from now on."""
    return next((weight_of(one) for one in _overrides(described)), 1)


def unclear_units(described: Mapping[str, Any]) -> str | None:
    """Return why a group's capacity units do not tell its number of VMs, with the remedy; None when they do.

    They do not when its desired capacity counts vCPUs or memory, when its overrides have several weights, so that the
    units of the next VM depend on the type that AWS chooses, or when a weight is no whole number of at least 1.
    """
    name, unit = described["AutoScalingGroupName"], described.get("DesiredCapacityType") or "units"
    if unit != "units":
        return (
            f"the desired capacity of {name} counts {unit}, and Trimtab sizes groups in VMs: set the group's "
            "DesiredCapacityType to units, or take it out of its fleet"
        )
    overrides = _overrides(described)
    for one in (*overrides, *described.get("Instances", ())):
        text = one.get("WeightedCapacity")
        if text and not (text.isascii() and text.isdigit() and int(text) >= 1):
            return f"the weight of a {_type(one)} in {name} is {text!r}: give it a whole number of at least 1"
    if len({weight_of(one) for one in overrides}) < 2:
        return None
    weights = ", ".join(f"one {_type(one)} counts as {weight_of(one)}" for one in sorted(overrides, key=_type))
    return (
        f"the overrides of {name} have several weights ({weights}), so the VMs that a size gives depend on the types "
        "that AWS chooses: give all of them one WeightedCapacity, or take the group out of its fleet"
    )


def _overrides(described: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    template = (described.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    return template.get("Overrides") or ()


def _type(one: Mapping[str, Any]) -> str:
    return str(one.get("InstanceType") or "any type")


def weight_of(one: Mapping[str, Any]) -> int:
    """Return the capacity units of a VM, or of an override's type, as AWS describes it."""
    return int(one.get("WeightedCapacity") or 1)


def counts(one: Mapping[str, Any]) -> bool:
    """Return whether AWS counts a VM against the desired capacity, as far as that is known."""
    state = one["LifecycleState"]
    return state not in _UNCOUNTED and not state.startswith(_WARM_POOL)


def lacking(described: Mapping[str, Any]) -> str | None:
    """Return the first missing field that acting on a group requires, None when all are present."""
    absent = next((name for name in _GROUP_FIELDS if described.get(name) is None), None)
    if absent is not None:
        return absent
    for one in described["Instances"]:
        for name in _INSTANCE_FIELDS:
            if name not in one:
                return name
    return None
