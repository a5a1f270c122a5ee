"""The inventory: every group in one describe per tick, with hooks, refreshes and launch times from caches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectors.aws import AwsSession
from domain.capacity_units import CapacityUnits
from domain.errors import CloudError, FailureClass
from domain.observed import DrainHook, GroupObserved, Instance, Lifecycle, Observed, ReadFailure

NAMES_PER_CALL = 100
IDS_PER_CALL = 200
TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"

_LIFECYCLES = {
    "Pending": Lifecycle.PENDING,
    "Pending:Wait": Lifecycle.PENDING,
    "Pending:Proceed": Lifecycle.PENDING,
    "InService": Lifecycle.IN_SERVICE,
    "Terminating:Wait": Lifecycle.DRAINING,
    "Terminating": Lifecycle.TERMINATING,
    "Terminating:Proceed": Lifecycle.TERMINATING,
    "Terminated": Lifecycle.TERMINATING,
    "Detaching": Lifecycle.TERMINATING,
    "Detached": Lifecycle.TERMINATING,
}
# Any other state may count towards the desired capacity, those that AWS adds later included.
_UNCOUNTED = frozenset(
    {"Terminating", "Terminating:Wait", "Terminating:Proceed", "Terminated", "Detaching", "Detached", "Standby"}
)
_WARM_POOL = "Warmed:"
_GROUP_FIELDS = ("AutoScalingGroupName", "DesiredCapacity", "MinSize", "MaxSize", "Instances")
_INSTANCE_FIELDS = ("InstanceId", "LifecycleState", "AvailabilityZone")
# In all of these the group is being replaced or rolled back by AWS itself.
_REFRESHING = frozenset({"Pending", "InProgress", "Cancelling", "RollbackInProgress", "Baking"})


@dataclass(frozen=True, slots=True)
class _Details:
    """Details that change rarely: the drain hook and whether an instance refresh runs, read at `at`."""

    at: float
    hook: DrainHook | None
    refreshing: bool


class Inventory:
    """Reads groups for the loop (`observe`) and single groups afresh for the actuator (`fresh`).

    details_for_s: how long hooks and refreshes are kept; at most `details_per_tick` groups are read again per tick, the
    oldest first. unprotects_new: VMs that a group which protects each new one launched since the first reading are
    `born_protected`. hook_name: the lifecycle hook that drains; None takes the first terminating hook of the group.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        details_for_s: float = 300.0,
        details_per_tick: int = 20,
        hook_name: str | None = None,
        unprotects_new: bool = False,
    ) -> None:
        self._session = session
        self._details_for_s, self._details_per_tick = details_for_s, details_per_tick
        self._hook_name = hook_name
        self._unprotects_new, self._since = unprotects_new, math.inf
        self._details: dict[str, _Details] = {}
        self._launched: dict[str, float] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._instances: dict[str, Instance] = {}

    def observe(self, names: Sequence[str], now: float) -> Observed:
        """Return every named group, 100 names a call; groups that could not be read are in `failures`. Never raises."""
        self._since = min(self._since, now)
        described: dict[str, dict[str, Any]] = {}
        failures: dict[str, ReadFailure] = {}
        for chunk in _chunks(list(dict.fromkeys(names)), NAMES_PER_CALL):
            nameless = None
            try:
                for group in self._describe(chunk):
                    lacking, name = _lacking(group), group.get("AutoScalingGroupName")
                    if lacking is None:
                        described[group["AutoScalingGroupName"]] = group
                    elif name is None:
                        nameless = _incomplete("a group", lacking)
                    else:
                        failures[name] = _incomplete(f"group {name}", lacking)
            except CloudError as error:
                failed = ReadFailure(error.failure, str(error))
                failures.update({name: failed for name in chunk if name not in described})
            else:
                unread = [name for name in chunk if name not in described and name not in failures]
                failures.update({name: nameless or self._missing(name) for name in unread})
        wanted = frozenset(names)
        self._details = {name: details for name, details in self._details.items() if name in wanted}
        self._refresh_details(described, now)
        self._learn_from_ec2(described, complete=len(described) == len(wanted))
        groups = {}
        for name in names:
            if name in described:
                why = unclear_units(described[name])
                if why is None:
                    groups[name] = self._group(described[name])
                else:
                    failures[name] = ReadFailure(FailureClass.UNSUPPORTED, why)
        self._instances = {instance.vm: instance for group in groups.values() for instance in group.instances}
        return Observed(now, groups, failures, dict(self._names))

    def fresh(self, name: str, now: float) -> GroupObserved:
        """Read one group, its instance refreshes included, right now; for the check before a side effect.

        Raises CloudError; a group that does not exist is PERMANENT, one whose units tell no number of VMs UNSUPPORTED.
        That refreshes may not be read is tolerated.
        """
        for group in self._describe([name]):
            lacking = _lacking(group)
            if lacking is not None:
                failed = _incomplete(f"group {name}", lacking)
                raise CloudError("DescribeAutoScalingGroups", failed.failure, "IncompleteAnswer", failed.detail)
            why = unclear_units(group)
            if why is not None:
                raise CloudError("DescribeAutoScalingGroups", FailureClass.UNSUPPORTED, "UnclearUnits", why)
            known = self._details.get(name)
            hook = known.hook if known else self._hook(name)
            self._details[name] = _Details(known.at if known else now, hook, self._refreshing(name))
            return self._group(group)
        missing = self._missing(name)
        raise CloudError("DescribeAutoScalingGroups", missing.failure, "NoSuchGroup", missing.detail)

    def _describe(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        for page in self._session.pages(
            "autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=list(names), MaxRecords=100
        ):
            if "AutoScalingGroups" not in page:
                failed = _incomplete("the account", "AutoScalingGroups")
                raise CloudError("DescribeAutoScalingGroups", failed.failure, "IncompleteAnswer", failed.detail)
            yield from page["AutoScalingGroups"]

    def _missing(self, name: str) -> ReadFailure:
        return ReadFailure(
            FailureClass.PERMANENT,
            f"no Auto Scaling group is named {name} in {self._session.region}: check its name and TRIMTAB_AWS__REGION",
        )

    def _refresh_details(self, described: dict[str, dict[str, Any]], now: float) -> None:
        stale = [name for name in described if not 0.0 <= now - self._read_at(name) < self._details_for_s]
        # A VM held by a hook that is not known yet comes first: its heartbeat is running.
        stale.sort(key=lambda name: (not _holds_vms(described[name]) or name in self._details, self._read_at(name)))
        for name in stale[: self._details_per_tick]:
            self._details[name] = _Details(now, self._hook(name), self._refreshing(name))

    def _read_at(self, name: str) -> float:
        return self._details[name].at if name in self._details else float("-inf")

    def _hook(self, name: str) -> DrainHook | None:
        """Return the group's drain hook; what was known before when it cannot be read now."""
        try:
            hooks = self._session.read("autoscaling", "DescribeLifecycleHooks", AutoScalingGroupName=name)
        except CloudError:
            return self._details[name].hook if name in self._details else None
        for hook in hooks.get("LifecycleHooks", ()):
            hook_name = hook.get("LifecycleHookName")
            if (
                hook_name is not None
                and hook.get("LifecycleTransition") == TERMINATING
                and self._hook_name in (None, hook_name)
            ):
                return DrainHook(
                    hook_name, float(hook.get("HeartbeatTimeout", 3600)), float(hook.get("GlobalTimeout", 172_800))
                )
        return None

    def _refreshing(self, name: str) -> bool:
        """Return whether AWS replaces the group's VMs now; the permission for this call is optional, without it: no."""
        try:
            response = self._session.read(
                "autoscaling", "DescribeInstanceRefreshes", AutoScalingGroupName=name, MaxRecords=1
            )
        except CloudError:
            return False
        return any(refresh.get("Status") in _REFRESHING for refresh in response.get("InstanceRefreshes", ()))

    def _learn_from_ec2(self, described: dict[str, dict[str, Any]], *, complete: bool) -> None:
        there = [one["InstanceId"] for group in described.values() for one in group["Instances"]]
        if complete:
            self._launched = {vm: self._launched[vm] for vm in there if vm in self._launched}
            self._names = {vm: self._names[vm] for vm in self._launched}
        for chunk in _chunks([vm for vm in there if vm not in self._launched], IDS_PER_CALL):
            # A filter, not InstanceIds: one id that is gone would fail the whole call.
            wanted = [{"Name": "instance-id", "Values": chunk}]
            try:
                for page in self._session.pages("ec2", "DescribeInstances", Filters=wanted, MaxResults=1000):
                    for reservation in page.get("Reservations", ()):
                        for one in reservation.get("Instances", ()):
                            if "InstanceId" in one and "LaunchTime" in one:
                                self._launched[one["InstanceId"]] = one["LaunchTime"].timestamp()
                                names = (one.get("PrivateDnsName"), one.get("PrivateIpAddress"))
                                self._names[one["InstanceId"]] = tuple(name for name in names if name)
            except CloudError:
                return  # unknown launch times are allowed; the next tick reads them again

    def _group(self, described: dict[str, Any]) -> GroupObserved:
        name = described["AutoScalingGroupName"]
        details, units = self._details.get(name), capacity_units(described)
        born = self._unprotects_new and bool(described.get("NewInstancesProtectedFromScaleIn"))
        return GroupObserved(
            name=name,
            desired=units.desired_vms,
            minimum=units.minimum_vms,
            maximum=units.maximum_vms,
            instances=tuple(self._instance(one, born) for one in described["Instances"]),
            zones=tuple(described.get("AvailabilityZones", ())),
            suspended=tuple(sorted(one.get("ProcessName", "") for one in described.get("SuspendedProcesses", ()))),
            drain_hook=details.hook if details else None,
            refreshing=details.refreshing if details else False,
            counted=units.vms,
            units=units,
        )

    def _instance(self, one: dict[str, Any], born: bool) -> Instance:
        vm = one["InstanceId"]
        # Standby, warm-pool and unknown states are no capacity, and not to be changed.
        lifecycle = _LIFECYCLES.get(one["LifecycleState"], Lifecycle.STANDBY)
        healthy = one.get("HealthStatus", "Healthy").lower() == "healthy"
        protected = bool(one.get("ProtectedFromScaleIn", False))
        launched_at, weight = self._launched.get(vm), weight_of(one)
        born = born and protected and launched_at is not None and launched_at >= self._since
        known = self._instances.get(vm)
        # Most are as they were a minute ago, and comparing is cheaper than making; a VM never changes its zone.
        if (
            known is not None
            and known.lifecycle is lifecycle
            and known.healthy is healthy
            and known.protected is protected
            and known.launched_at == launched_at
            and known.weight == weight
            and known.born_protected is born
        ):
            return known
        return Instance(vm, one["AvailabilityZone"], lifecycle, healthy, protected, launched_at, weight, born)


def capacity_units(described: Mapping[str, Any]) -> CapacityUnits:
    """Return the sizes of a group as AWS describes it, where `unclear_units` finds nothing that speaks against it."""
    weights, launched = [weight_of(one) for one in described["Instances"] if _counts(one)], launched_weight(described)
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


def _counts(one: Mapping[str, Any]) -> bool:
    state = one["LifecycleState"]
    return state not in _UNCOUNTED and not state.startswith(_WARM_POOL)


def _lacking(described: dict[str, Any]) -> str | None:
    """Return the first missing field that acting on a group requires, None when all are present."""
    lacking = next((name for name in _GROUP_FIELDS if described.get(name) is None), None)
    if lacking is not None:
        return lacking
    for one in described["Instances"]:
        for name in _INSTANCE_FIELDS:
            if name not in one:
                return name
    return None


def _incomplete(what: str, field: str) -> ReadFailure:
    detail = f"the response about {what} lacks {field}: nothing is done about it until a response is complete"
    return ReadFailure(FailureClass.UNAVAILABLE, detail)


def _holds_vms(described: dict[str, Any]) -> bool:
    return any(one["LifecycleState"] == "Terminating:Wait" for one in described["Instances"])


def _chunks(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
