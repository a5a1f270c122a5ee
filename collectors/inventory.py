"""What is there: every group in one describe per tick, with hooks, refreshes and launch times from caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectors.aws import AwsSession
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
    """What changes rarely: the drain hook and whether an instance refresh runs, read at `at`."""

    at: float
    hook: DrainHook | None
    refreshing: bool


class Inventory:
    """Reads groups for the loop (`observe`) and single groups afresh for the actuator (`fresh`).

    details_for_s: how long hooks and refreshes are kept; at most `details_per_tick` groups are read again per tick, the
    oldest first. hook_name: the lifecycle hook that drains; None takes the first terminating hook of the group.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        details_for_s: float = 300.0,
        details_per_tick: int = 20,
        hook_name: str | None = None,
    ) -> None:
        self._session = session
        self._details_for_s, self._details_per_tick = details_for_s, details_per_tick
        self._hook_name = hook_name
        self._details: dict[str, _Details] = {}
        self._launched: dict[str, float] = {}
        self._instances: dict[str, Instance] = {}

    def observe(self, names: Sequence[str], now: float) -> Observed:
        """Return every named group, 100 names a call; what could not be read stands in `failures`. Never raises."""
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
        self._learn_launch_times(described, complete=len(described) == len(wanted))
        groups = {}
        for name in names:
            if name in described:
                why = other_units(described[name])
                if why is None:
                    groups[name] = self._group(described[name])
                else:
                    failures[name] = ReadFailure(FailureClass.UNSUPPORTED, why)
        self._instances = {instance.vm: instance for group in groups.values() for instance in group.instances}
        return Observed(now, groups, failures)

    def fresh(self, name: str, now: float) -> GroupObserved:
        """Read one group, its instance refreshes included, right now; for the check before a side effect.

        Raises CloudError; a group that does not exist is PERMANENT, one whose sizes are no numbers of VMs UNSUPPORTED.
        That refreshes may not be read is tolerated.
        """
        for group in self._describe([name]):
            lacking = _lacking(group)
            if lacking is not None:
                failed = _incomplete(f"group {name}", lacking)
                raise CloudError("DescribeAutoScalingGroups", failed.failure, "IncompleteAnswer", failed.detail)
            why = other_units(group)
            if why is not None:
                raise CloudError("DescribeAutoScalingGroups", FailureClass.UNSUPPORTED, "WeightedGroup", why)
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
        # A VM that is held by a hook nobody knows yet comes first: its heartbeat is running.
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
                    hook_name,
                    float(hook.get("HeartbeatTimeout", 3600)),
                    float(hook.get("GlobalTimeout", 172_800)),
                )
        return None

    def _refreshing(self, name: str) -> bool:
        """Return whether AWS replaces the group's VMs now; the permission to ask is optional, without it: no."""
        try:
            answer = self._session.read(
                "autoscaling", "DescribeInstanceRefreshes", AutoScalingGroupName=name, MaxRecords=1
            )
        except CloudError:
            return False
        return any(refresh.get("Status") in _REFRESHING for refresh in answer.get("InstanceRefreshes", ()))

    def _learn_launch_times(self, described: dict[str, dict[str, Any]], *, complete: bool) -> None:
        there = [one["InstanceId"] for group in described.values() for one in group["Instances"]]
        if complete:
            self._launched = {vm: self._launched[vm] for vm in there if vm in self._launched}
        for chunk in _chunks([vm for vm in there if vm not in self._launched], IDS_PER_CALL):
            # A filter, not InstanceIds: one id that is gone would fail the whole call.
            wanted = [{"Name": "instance-id", "Values": chunk}]
            try:
                for page in self._session.pages("ec2", "DescribeInstances", Filters=wanted, MaxResults=1000):
                    for reservation in page.get("Reservations", ()):
                        for one in reservation.get("Instances", ()):
                            if "InstanceId" in one and "LaunchTime" in one:
                                self._launched[one["InstanceId"]] = one["LaunchTime"].timestamp()
            except CloudError:
                return  # unknown launch times are allowed; the next tick asks again

    def _group(self, described: dict[str, Any]) -> GroupObserved:
        name = described["AutoScalingGroupName"]
        details = self._details.get(name)
        return GroupObserved(
            name=name,
            desired=int(described["DesiredCapacity"]),
            minimum=int(described["MinSize"]),
            maximum=int(described["MaxSize"]),
            instances=tuple(self._instance(one) for one in described["Instances"]),
            zones=tuple(described.get("AvailabilityZones", ())),
            suspended=tuple(sorted(one.get("ProcessName", "") for one in described.get("SuspendedProcesses", ()))),
            drain_hook=details.hook if details else None,
            refreshing=details.refreshing if details else False,
            counted=sum(_weight(one) for one in described["Instances"] if _counts(one)),
        )

    def _instance(self, one: dict[str, Any]) -> Instance:
        vm = one["InstanceId"]
        # Standby, warm-pool and states we do not know are no capacity, and nothing of ours to touch.
        lifecycle = _LIFECYCLES.get(one["LifecycleState"], Lifecycle.STANDBY)
        healthy = one.get("HealthStatus", "Healthy").lower() == "healthy"
        protected = bool(one.get("ProtectedFromScaleIn", False))
        launched_at = self._launched.get(vm)
        known = self._instances.get(vm)
        # Most are as they were a minute ago, and comparing is cheaper than making; a VM never changes its zone.
        if (
            known is not None
            and known.lifecycle is lifecycle
            and known.healthy is healthy
            and known.protected is protected
            and known.launched_at == launched_at
        ):
            return known
        return Instance(vm, one["AvailabilityZone"], lifecycle, healthy, protected, launched_at)


def other_units(described: Mapping[str, Any]) -> str | None:
    """Return why the sizes of a group as AWS describes it are no numbers of VMs, with the remedy; None when they are.

    A group counts in other units when an override of its mixed instances, or a VM in it, has a weight other than 1, or
    when its desired capacity is one of vCPUs or memory. A VM keeps its weight after the overrides have lost theirs.
    """
    name, unit = described["AutoScalingGroupName"], described.get("DesiredCapacityType") or "units"
    if unit != "units":
        return (
            f"the desired capacity of {name} counts {unit}, and Trimtab sizes groups in VMs: set the group's "
            "DesiredCapacityType to units, or take it out of its fleet"
        )
    template = (described.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    weighing = [*(template.get("Overrides") or ()), *described.get("Instances", ())]
    weights = {
        one.get("InstanceType") or "any type": one["WeightedCapacity"]
        for one in weighing
        if one.get("WeightedCapacity", "1") != "1"
    }
    if not weights:
        return None
    heavy = ", ".join(f"one {vm_type} counts as {weight}" for vm_type, weight in sorted(weights.items()))
    return (
        f"the sizes of {name} count weights and not VMs ({heavy}), and weights are not supported: set every "
        "WeightedCapacity of its overrides to 1 and replace the VMs that weigh more, or take it out of its fleet"
    )


def _weight(one: Mapping[str, Any]) -> int:
    try:
        return max(1, int(one.get("WeightedCapacity") or 1))
    except ValueError:
        return 1


def _counts(one: Mapping[str, Any]) -> bool:
    state = one["LifecycleState"]
    return state not in _UNCOUNTED and not state.startswith(_WARM_POOL)


def _lacking(described: dict[str, Any]) -> str | None:
    """Return the field without which a group's description says too little to act on, None when it has them all."""
    lacking = next((name for name in _GROUP_FIELDS if described.get(name) is None), None)
    if lacking is not None:
        return lacking
    for one in described["Instances"]:
        for name in _INSTANCE_FIELDS:
            if name not in one:
                return name
    return None


def _incomplete(what: str, field: str) -> ReadFailure:
    detail = f"the answer about {what} lacks {field}: nothing is done about it before an answer is whole"
    return ReadFailure(FailureClass.UNAVAILABLE, detail)


def _holds_vms(described: dict[str, Any]) -> bool:
    return any(one["LifecycleState"] == "Terminating:Wait" for one in described["Instances"])


def _chunks(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
