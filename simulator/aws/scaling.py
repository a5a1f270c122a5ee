"""Scaling: brings a group to its desired capacity, as far as AWS has machines.

A launch tries the group's zones from the emptiest on and, in a mixed group, the overrides in their order of priority
within a zone. A zone without machines leaves a Failed activity; with every zone short the group tries again after 60 s,
then after twice as long each time, up to 15 minutes. Scale-in follows the group's termination policies and never takes
a protected member.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.aws.group import IN_SERVICE, LEAVING, Group, Member, stamp
from simulator.aws.lifecycle import Lifecycle
from simulator.aws.machines import Blueprint
from simulator.aws.requests import AwsError


@dataclass(frozen=True, slots=True)
class Shortage:
    """No `instance_type` (None: any) in `zone` (None: any) before `until` (epoch seconds; None: until cleared)."""

    instance_type: str | None
    zone: str | None
    until: float | None

    def covers(self, instance_type: str, zone: str, now: float) -> bool:
        """Return whether a launch of `instance_type` in `zone` at `now` meets this shortage."""
        return (
            (self.instance_type is None or self.instance_type == instance_type)
            and (self.zone is None or self.zone == zone)
            and (self.until is None or now < self.until)
        )


def insufficient_capacity(instance_type: str, zone: str, other_zones: Sequence[str]) -> str:
    """Return the status message of a launch refused for want of machines; `other_zones` still have some."""
    message = (
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
        f"({zone}). Our system will be working on provisioning additional capacity. "
    )
    if other_zones:
        message += (
            f"You can currently get {instance_type} capacity by not specifying an Availability Zone in your request "
            f"or choosing {', '.join(other_zones)}. "
        )
    return message + "Launching EC2 instance failed."


class Scaling:
    """Keeps every group of a region at its desired capacity."""

    def __init__(self, lifecycle: Lifecycle, shortages: list[Shortage]) -> None:
        self.lifecycle, self.shortages = lifecycle, shortages

    def reconcile(self, group: Group, at: float, because: str = "") -> None:
        """Launch or terminate until the capacity is what the group desires; `because` opens each activity's cause."""
        if group.capacity < group.desired and "Launch" not in group.suspended and not group.deleting:
            self.grow(group, at, because, group.desired)
        elif group.capacity > group.desired and "Terminate" not in group.suspended:
            self._shrink(group, at, because)

    def grow(self, group: Group, at: float, because: str, target: int, only_zone: str | None = None) -> None:
        """Launch up to `target` capacity; what is refused now is tried again later."""
        short: set[str] = set()
        group.retry_round += 1
        while group.capacity < target:
            zones = [only_zone] if only_zone else self._zones_by_need(group)
            zone = next((zone for zone in zones if zone not in short), None)
            if zone is None:
                self._retry_later(group, at)
                return
            cause = (
                f"{because}At {stamp(at)} an instance was started in response to a difference between desired and "
                f"actual capacity, increasing the capacity from {group.capacity} to {target}."
            )
            try:
                member = self._launch(group, zone, at)
            except AwsError as refusal:
                activity = self.lifecycle.open_activity(group, "Launching a new EC2 instance", cause, at, zone)
                activity.close("Failed", at, refusal.message)
                short.add(zone)
                continue
            self.lifecycle.join(group, member, cause, at)
        group.retry_wait_s = 0.0

    def is_short(self, instance_type: str, zone: str, at: float) -> bool:
        """Return whether AWS has no such machine in the zone at this time."""
        return any(shortage.covers(instance_type, zone, at) for shortage in self.shortages)

    def blueprint(self, group: Group) -> Blueprint:
        """Resolve what the group launches from, as of now."""
        machines = self.lifecycle.machines
        configuration = group.source.get("LaunchConfigurationName")
        if configuration:
            return machines.configured(machines.launch_configuration(configuration))
        policy = group.source.get("MixedInstancesPolicy")
        if policy:
            return machines.blueprint(policy["LaunchTemplate"]["LaunchTemplateSpecification"])
        return machines.blueprint(group.source["LaunchTemplate"])

    def victims(self, group: Group, excess: int) -> list[Member]:
        """Return whom a scale-in by `excess` capacity takes, first to go first."""
        policies = group.source.get("TerminationPolicies") or ["Default"]
        chosen: list[Member] = []
        while True:
            free = [member for member in group.counted if not member.protected and member not in chosen]
            free = [member for member in free if member.weight <= excess - sum(other.weight for other in chosen)]
            if not free:
                return chosen
            in_service = [member for member in free if member.state == IN_SERVICE] or free
            staying = Counter(member.zone for member in group.counted if member not in chosen)
            fullest = max(staying[member.zone] for member in in_service)
            in_zone = [member for member in in_service if staying[member.zone] == fullest]
            if policies[0] == "NewestInstance":
                chosen.append(max(in_zone, key=lambda member: (member.launched_at, member.instance_id)))
            else:
                chosen.append(min(in_zone, key=_by_age if policies[0] == "OldestInstance" else _by_default_policy))

    def _shrink(self, group: Group, at: float, because: str) -> None:
        before, excess = group.capacity, group.capacity - group.desired
        chosen = self.victims(group, excess)
        for member in chosen:
            cause = (
                f"{because}At {stamp(at)} an instance was taken out of service in response to a difference between "
                f"desired and actual capacity, shrinking the capacity from {before} to {group.desired}.  At "
                f"{stamp(at)} instance {member.instance_id} was selected for termination."
            )
            self.lifecycle.leave(group, member, cause, at)
        if because and any(member.protected for member in group.counted) and group.capacity > group.desired:
            activity = self.lifecycle.open_activity(group, "Terminating EC2 instance", because.strip(), at)
            activity.close(
                "Failed",
                at,
                "Could not scale to desired capacity because all remaining instances are protected from scale in.",
            )

    def _zones_by_need(self, group: Group) -> list[str]:
        filled = Counter(member.zone for member in group.members.values() if member.state not in LEAVING)
        return sorted(group.zones, key=lambda zone: (filled[zone], zone))

    def _launch(self, group: Group, zone: str, at: float) -> Member:
        machines = self.lifecycle.machines
        blueprint = self.blueprint(group)
        wanted = _types(group, blueprint)
        usable = [(kind, weight) for kind, weight in wanted if not self.is_short(kind, zone, at)]
        if not usable:
            kind = wanted[0][0]
            others = [other for other in group.zones if other != zone and not self.is_short(kind, other, at)]
            raise AwsError("InsufficientInstanceCapacity", insufficient_capacity(kind, zone, others))
        kind, weight = usable[0]
        tags = {key: tag["Value"] for key, tag in group.tags.items() if tag["PropagateAtLaunch"]}
        subnets = group.source.get("VPCZoneIdentifier")
        subnet_of = machines.zones_of_subnets(subnets.split(",")) if subnets else {}
        instance_id = machines.launch(
            blueprint,
            instance_type=kind,
            zone=zone,
            subnet_id=subnet_of.get(zone),
            tags={**tags, "aws:autoscaling:groupName": group.name},
            spot=blueprint.spot or self._next_is_spot(group),
            at=at,
        )
        return Member(
            instance_id=instance_id,
            instance_type=kind,
            zone=zone,
            launched_at=at,
            image_id=blueprint.image_id,
            weight=weight,
            protected=bool(group.source.get("NewInstancesProtectedFromScaleIn")),
            template=blueprint.template,
            launch_configuration=group.source.get("LaunchConfigurationName"),
        )

    def _next_is_spot(self, group: Group) -> bool:
        policy = group.source.get("MixedInstancesPolicy")
        if not policy:
            return False
        distribution = policy.get("InstancesDistribution") or {}
        base = int(distribution.get("OnDemandBaseCapacity", 0))
        above = int(distribution.get("OnDemandPercentageAboveBaseCapacity", 100))
        on_demand_wanted = min(group.desired, base) + math.ceil(max(0, group.desired - base) * above / 100)
        machines = self.lifecycle.machines
        on_demand = sum(member.weight for member in group.counted if not machines.is_spot(member.instance_id))
        return on_demand >= on_demand_wanted

    def _retry_later(self, group: Group, at: float) -> None:
        delays = self.lifecycle.delays
        group.retry_wait_s = min(max(delays.retry_s, 2.0 * group.retry_wait_s), delays.retry_max_s)
        round_ = group.retry_round

        def retry(due: float) -> None:
            if group.retry_round == round_:
                self.reconcile(group, due)

        self.lifecycle.agenda.schedule(at + group.retry_wait_s, retry)


def override_weights(source: Mapping[str, Any]) -> dict[str, int]:
    """Return what one VM of each type counts as that the overrides of a group's mixed instances name, in their order.

    source: the request that made the group, as `Group.source` keeps it.
    """
    policy = source.get("MixedInstancesPolicy") or {}
    overrides = (policy.get("LaunchTemplate") or {}).get("Overrides") or []
    return {one["InstanceType"]: int(one.get("WeightedCapacity", 1)) for one in overrides if "InstanceType" in one}


def _types(group: Group, blueprint: Blueprint) -> Sequence[tuple[str, int]]:
    kinds = list(override_weights(group.source).items())
    if not kinds:
        if blueprint.instance_type is None:
            raise AwsError(
                "ValidationError", "The launch template names no instance type. Launching EC2 instance failed."
            )
        kinds = [(blueprint.instance_type, 1)]
    return kinds


def _by_age(member: Member) -> tuple[float, str]:
    return member.launched_at, member.instance_id


def _by_default_policy(member: Member) -> tuple[bool, int, float, str]:
    version = int(member.template["Version"]) if member.template else 0
    return member.launch_configuration is None, version, member.launched_at, member.instance_id
