"""The inventory: every group in one describe per tick, with hooks, refreshes and launch times from caches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collectors.aws import AwsSession
from collectors.described_groups import (
    DRAIN_HOOK,
    TERMINATING,
    ExpectedGroup,
    being_deleted,
    capacity_units,
    hook_of,
    identity_of,
    is_known,
    lacking,
    lifecycle_of,
    unclear_units,
    unlike,
    weight_of,
)
from collectors.tagged_groups import MALFORMED, TaggedGroups
from domain.errors import CloudError, FailureClass
from domain.observed import DrainHook, GroupIdentity, GroupObserved, Instance, Lifecycle, Observed, ReadFailure

NAMES_PER_CALL = 100
IDS_PER_CALL = 200
FORGOTTEN_AFTER_S = 900.0
"""Of a group that was not observed for so long, nothing is remembered."""
# In all of these the group is being replaced or rolled back by AWS itself.
_REFRESHING = frozenset({"Pending", "InProgress", "Cancelling", "RollbackInProgress", "Baking"})


@dataclass(frozen=True, slots=True)
class _Details:
    """Details that change rarely, read at `at`: the drain hook, and whether an instance refresh runs.

    launched: the VM types that the group launches, empty where they are not known. of: the fields of the description
    from which the details follow.
    """

    at: float
    of: tuple[Any, ...]
    hook: DrainHook | None
    refreshing: bool
    launched: tuple[str, ...] = ()


class Inventory:
    """Reads groups for the loop (`observe`) and single groups afresh for the actuator (`fresh`).

    details_for_s: how long hooks and refreshes are kept; at most `details_per_tick` groups are read again per tick, the
    oldest first, and the hooks of all that hold VMs by one never read. unprotects_new: VMs that a group which protects
    each new one launched since its first reading are `born_protected`. hook_name: the lifecycle hook that drains a
    group, by the group's name, where no tag of the group names another; a group's other hooks are those of other
    parties.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        details_for_s: float = 300.0,
        details_per_tick: int = 20,
        hook_name: Callable[[str], str] = lambda group: DRAIN_HOOK,
        unprotects_new: bool = False,
    ) -> None:
        self._session = session
        self._details_for_s, self._details_per_tick = details_for_s, details_per_tick
        self._hook_name = hook_name
        self._unprotects_new = unprotects_new
        self._since: dict[str, float] = {}
        self._types = TaggedGroups(session)
        self._expected: Mapping[str, ExpectedGroup] = {}
        self._identities: dict[str, GroupIdentity | None] = {}
        self._served: dict[str, frozenset[str]] = {}
        self._details: dict[str, _Details] = {}
        self._asked: dict[str, float] = {}
        self._vms: dict[str, list[str]] = {}
        self._launched: dict[str, float] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._instances: dict[str, Instance] = {}

    def observe(
        self, names: Sequence[str], now: float, expected: Mapping[str, ExpectedGroup] | None = None
    ) -> Observed:
        """Return every named group, 100 names a call; groups that could not be read are in `failures`. Never raises.

        expected: by name, what a group launches by the settings; one that launches another type is not managed.
        """
        self._expected = expected or {}
        described: dict[str, dict[str, Any]] = {}
        failures: dict[str, ReadFailure] = {}
        for chunk in _chunks(list(dict.fromkeys(names)), NAMES_PER_CALL):
            nameless = None
            try:
                for group in self._describe(chunk):
                    absent, name = lacking(group), group.get("AutoScalingGroupName")
                    if absent is None:
                        described[group["AutoScalingGroupName"]] = group
                    elif name is None:
                        nameless = _incomplete("a group", absent)
                    else:
                        failures[name] = _incomplete(f"group {name}", absent)
            except CloudError as error:
                failed = ReadFailure(error.failure, str(error))
                failures.update({name: failed for name in chunk if name not in described})
            else:
                unread = [name for name in chunk if name not in described and name not in failures]
                failures.update({name: nameless or self._missing(name) for name in unread})
        # The fleets that an agent leads and those without a leader are observed one after the other.
        self._asked = {name: at for name, at in self._asked.items() if now - at < FORGOTTEN_AFTER_S}
        self._identities = {name: one for name, one in self._identities.items() if name in self._asked}
        self._served = {name: vms for name, vms in self._served.items() if name in self._asked}
        self._asked |= dict.fromkeys(names, now)
        self._since = {name: min(now, self._since.get(name, now)) for name in self._asked}
        self._details = {name: details for name, details in self._details.items() if name in self._asked}
        self._refresh_details(described, now)
        self._learn_from_ec2(described)
        self._note_service(described)
        groups, held = {}, {}
        for name in names:
            if name in described:
                group, why = described[name], self._not_managed(described[name])
                if why is None:
                    groups[name] = self._group(group)
                    continue
                failures[name] = ReadFailure(FailureClass.UNSUPPORTED, why)
                if being_deleted(group) is None:
                    held[name] = self._group(group)
        seen = {one.vm: one for some in (groups, held) for group in some.values() for one in group.instances}
        self._instances = {vm: one for vm, one in self._instances.items() if vm in self._launched} | seen
        return Observed(now, groups, failures, dict(self._names), held)

    def forget(self, names: Collection[str]) -> None:
        """Let these groups be first observed the next time: another agent led them, and more has happened."""
        for remembered in (self._since, self._identities, self._served, self._details):
            for name in names:
                remembered.pop(name, None)

    def fresh(self, name: str, now: float) -> GroupObserved:
        """Read one group, its instance refreshes included, right now; for the check before a side effect.

        Raises CloudError; a group that does not exist is PERMANENT, one that is not managed, or not the one that was
        observed, UNSUPPORTED. That refreshes may not be read is tolerated.
        """
        for group in self._describe([name]):
            absent = lacking(group)
            if absent is not None:
                failed = _incomplete(f"group {name}", absent)
                raise CloudError("DescribeAutoScalingGroups", failed.failure, "IncompleteAnswer", failed.detail)
            known = self._details.get(name)
            if known is None or known.of != self._behind(group):
                self._details[name] = self._read_details(group, now)
            else:
                self._details[name] = replace(known, refreshing=self._refreshing(name))
            why = self._not_managed(group)
            if why is None and self._identities.get(name, identity_of(group)) != identity_of(group):
                why = f"{name} was recreated after it was observed"
            if why is not None:
                raise CloudError("DescribeAutoScalingGroups", FailureClass.UNSUPPORTED, "UnsupportedGroup", why)
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
        stale = [
            name
            for name, group in described.items()
            if not 0.0 <= now - self._read_at(name) < self._details_for_s
            or self._details[name].of != self._behind(group)
        ]
        # A VM held by a hook that is not known yet comes first: its heartbeat is running.
        urgent = {name for name in stale if self._hook_due(described[name])}
        stale.sort(key=lambda name: (name not in urgent, self._read_at(name)))
        for name in stale[: self._details_per_tick]:
            self._details[name] = self._read_details(described[name], now)
        for name in stale[self._details_per_tick :]:
            if name in urgent:
                with contextlib.suppress(CloudError):
                    group = described[name]
                    self._details[name] = _Details(-math.inf, self._behind(group), self._hook(group), refreshing=False)

    def _hook_due(self, described: dict[str, Any]) -> bool:
        """Return whether a group holds VMs by a hook that was never read; after a take-over these are many."""
        known = self._details.get(described["AutoScalingGroupName"])
        return _holds_vms(described) and (known is None or (known.hook is None and known.at == -math.inf))

    def _read_details(self, described: Mapping[str, Any], now: float) -> _Details:
        """Return the details of a group, with a hook known before if it cannot be read; unknown, it is due again."""
        name, of = described["AutoScalingGroupName"], self._behind(described)
        known = self._details.get(name)
        at, hook = now, None if known is None else known.hook
        try:
            hook = self._hook(described)
        except CloudError as error:
            if hook is None and error.failure in (FailureClass.THROTTLE, FailureClass.UNAVAILABLE):
                at = -math.inf
        return _Details(at, of, hook, self._refreshing(name), self._launched_types(described))

    def _behind(self, described: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what the details of a group follow from: with another value they are read again at once."""
        name = described["AutoScalingGroupName"]
        sources = (described.get(key) for key in ("LaunchTemplate", "MixedInstancesPolicy", "LaunchConfigurationName"))
        return identity_of(described), hook_of(described, self._hook_name(name)), name in self._expected, *sources

    def _launched_types(self, described: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the VM types that a group launches; what was known before, or nothing, when it cannot be read now."""
        name = described["AutoScalingGroupName"]
        if name not in self._expected:
            return ()
        try:
            return tuple(self._types.vm_types(described))
        except (CloudError, *MALFORMED):
            known = self._details.get(name)
            return known.launched if known is not None and known.of == self._behind(described) else ()

    def _not_managed(self, described: Mapping[str, Any]) -> str | None:
        """Return why a group may not be sized, with the remedy; None when it may."""
        name = described["AutoScalingGroupName"]
        why = being_deleted(described) or unclear_units(described)
        expected, details = self._expected.get(name), self._details.get(name)
        if why is None and expected is not None:
            why = unlike(described, details.launched if details else (), expected)
        return why

    def _note_service(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        """Note which VMs were in service; of a group that is first read now each VM may have been."""
        for name, group in described.items():
            before, is_first = self._served.get(name, frozenset()), name not in self._identities
            self._served[name] = frozenset(
                one["InstanceId"]
                for one in group["Instances"]
                if is_first or one["LifecycleState"] == "InService" or one["InstanceId"] in before
            )
        self._identities |= {name: identity_of(group) for name, group in described.items()}

    def _read_at(self, name: str) -> float:
        return self._details[name].at if name in self._details else float("-inf")

    def _hook(self, described: Mapping[str, Any]) -> DrainHook | None:
        """Return the hook that drains a group, None where it has none; CloudError."""
        name = described["AutoScalingGroupName"]
        ours = hook_of(described, self._hook_name(name))
        hooks = self._session.read("autoscaling", "DescribeLifecycleHooks", AutoScalingGroupName=name)
        for hook in hooks.get("LifecycleHooks", ()):
            if hook.get("LifecycleHookName") == ours and hook.get("LifecycleTransition") == TERMINATING:
                return DrainHook(
                    ours, float(hook.get("HeartbeatTimeout", 3600)), float(hook.get("GlobalTimeout", 172_800))
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

    def _learn_from_ec2(self, described: dict[str, dict[str, Any]]) -> None:
        self._vms = {name: vms for name, vms in self._vms.items() if name in self._asked}
        self._vms |= {name: [one["InstanceId"] for one in group["Instances"]] for name, group in described.items()}
        known = [vm for vms in self._vms.values() for vm in vms if vm in self._launched]
        self._launched = {vm: self._launched[vm] for vm in known}
        self._names = {vm: self._names[vm] for vm in known}
        there = [vm for name in described for vm in self._vms[name]]
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
        details, units = self._details.get(name), None if unclear_units(described) else capacity_units(described)
        protects = self._unprotects_new and bool(described.get("NewInstancesProtectedFromScaleIn"))
        born_from = self._since.get(name, math.inf) if protects else math.inf
        served = self._served.get(name, frozenset())
        return GroupObserved(
            name=name,
            desired=units.desired_vms if units else 0,
            minimum=units.minimum_vms if units else 0,
            maximum=units.maximum_vms if units else 0,
            instances=tuple(
                self._instance(one, weight_of(one) if units else 1, born_from, served) for one in described["Instances"]
            ),
            zones=tuple(described.get("AvailabilityZones", ())),
            suspended=tuple(sorted(one.get("ProcessName", "") for one in described.get("SuspendedProcesses", ()))),
            drain_hook=details.hook if details else None,
            refreshing=details.refreshing if details else False,
            counted=units.vms if units else 0,
            units=units,
            identity=identity_of(described),
            unknown_states=tuple(
                (one["InstanceId"], one["LifecycleState"])
                for one in described["Instances"]
                if not is_known(one["LifecycleState"])
            ),
        )

    def _instance(self, one: dict[str, Any], weight: int, born_from: float, served: Collection[str]) -> Instance:
        vm = one["InstanceId"]
        lifecycle = lifecycle_of(one["LifecycleState"], served=vm in served)
        healthy = one.get("HealthStatus", "Healthy").lower() == "healthy"
        protected = bool(one.get("ProtectedFromScaleIn", False))
        launched_at = self._launched.get(vm)
        born = protected and launched_at is not None and launched_at >= born_from
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


def _incomplete(what: str, field: str) -> ReadFailure:
    detail = f"the response about {what} lacks {field}: nothing is done about it until a response is complete"
    return ReadFailure(FailureClass.UNAVAILABLE, detail)


def _holds_vms(described: dict[str, Any]) -> bool:
    return any(lifecycle_of(one["LifecycleState"], served=True) is Lifecycle.DRAINING for one in described["Instances"])


def _chunks(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
