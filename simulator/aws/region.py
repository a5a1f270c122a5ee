"""The Auto Scaling service of one region: its groups, and the changes that no request makes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from simulator.aws.group import (
    COUNTED,
    IN_SERVICE,
    LEAVING,
    ActivityLog,
    Group,
    LifecycleAction,
    Member,
    instant,
    stamp,
)
from simulator.aws.lifecycle import Agenda, Delays, Lifecycle
from simulator.aws.machines import ACCOUNT_ID, GONE, Machines
from simulator.aws.queues import Queues
from simulator.aws.requests import AwsError, validation_error
from simulator.aws.scaling import Scaling, Shortage


@dataclass(slots=True)
class Refresh:
    """An instance refresh that began at `started` and was cancelled at `cancelled` (epoch seconds; None: was not)."""

    refresh_id: str
    group_name: str
    started: float
    preferences: dict[str, Any]
    instances_to_update: int
    cancelled: float | None = None

    def status(self, at: float, takes_s: float) -> str:
        """Return the API's status at `at` of a refresh that takes `takes_s` seconds."""
        if self.cancelled is not None:
            return "Cancelled"
        return "Successful" if at >= self.started + takes_s else "InProgress"


@dataclass(slots=True)
class Region:
    """All Auto Scaling state of one region. Callers hold the cloud's lock and have settled the agenda."""

    name: str
    agenda: Agenda
    delays: Delays
    shortages: list[Shortage]
    seed: int
    queues: Queues
    zone_rebalance: bool = False
    groups: dict[str, Group] = field(default_factory=dict)
    activities: ActivityLog = field(default_factory=ActivityLog)
    refreshes: list[Refresh] = field(default_factory=list)
    machines: Machines = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    scaling: Scaling = field(init=False)

    def __post_init__(self) -> None:
        self.machines = Machines(self.name, self.seed)
        self.lifecycle = Lifecycle(self.machines, self.activities, self.agenda, self.delays, self.seed, self._announce)
        self.scaling = Scaling(self.lifecycle, self.shortages)
        self.lifecycle.changed = self._member_left

    def group(self, name: str) -> Group:
        """Return the group.

        Raises: AwsError (ValidationError) when there is none of that name.
        """
        if name not in self.groups:
            raise validation_error(f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
        return self.groups[name]

    def member(self, instance_id: str) -> tuple[Group, Member]:
        """Return the instance and its group.

        Raises: AwsError (ValidationError) when no group has it.
        """
        for group in self.groups.values():
            if instance_id in group.members:
                return group, group.members[instance_id]
        raise validation_error(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")

    def set_desired(self, group: Group, desired: int, at: float, because: str) -> None:
        """Change what the group desires and act on it; bounds and cool-down are the caller's to check."""
        group.desired = desired
        group.retry_wait_s = 0.0
        self.scaling.reconcile(group, at, because)

    def notice_machines(self, at: float) -> None:
        """Find members whose machines were stopped or terminated outside the group; a health check follows later."""
        for group in self.groups.values():
            for member in group.members.values():
                if member.state in COUNTED and not member.missed and self._is_gone(member):
                    self._check_health_later(group, member, at)

    def unhealthy(self, group: Group, member: Member, at: float, why: str) -> None:
        """Mark the member unhealthy and replace it, unless a suspended process forbids; `why` names the check."""
        member.health = "Unhealthy"
        suspended = group.suspended.keys() & {"ReplaceUnhealthy", "Terminate"}
        if suspended or member.state in LEAVING or member.instance_id not in group.members:
            return
        cause = f"At {stamp(at)} an instance was taken out of service in response to {why}."
        self.lifecycle.leave(group, member, cause, at)
        replacing = (
            f"At {stamp(at)} an instance was launched in response to an unhealthy instance needing to be replaced.  "
        )
        self.scaling.reconcile(group, at, replacing)

    def resumed(self, group: Group, at: float) -> None:
        """Catch up with what was held back while processes were suspended."""
        for member in list(group.members.values()):
            if member.termination_pending and "Terminate" not in group.suspended and member.state == IN_SERVICE:
                cause = (
                    f"At {stamp(at)} instance {member.instance_id} was taken out of service in response to a user "
                    "request."
                )
                self.lifecycle.leave(group, member, cause, at)
            elif member.health == "Unhealthy":
                self.unhealthy(group, member, at, "an EC2 health check indicating it has been terminated or stopped")
        self.notice_machines(at)
        self.scaling.reconcile(group, at)

    def delete(self, group: Group, at: float, *, force: bool) -> None:
        """Delete the group; `force` terminates what it has first, without hooks, and it goes with the last member."""
        if group.members and not force:
            raise AwsError(
                "ResourceInUse",
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) "
                "still in the group.",
            )
        group.deleting, group.desired, group.min_size = True, 0, 0
        for member in list(group.members.values()):
            if member.state not in LEAVING:
                cause = (
                    f"At {stamp(at)} a user request force deleted AutoScalingGroup changing the desired capacity to 0."
                )
                self.lifecycle.leave(group, member, cause, at, hooks=False)
        if not group.members:
            del self.groups[group.name]

    def _check_health_later(self, group: Group, member: Member, at: float) -> None:
        member.missed = True

        def check(due: float) -> None:
            if member.instance_id not in group.members or member.state in LEAVING:
                return
            member.missed = "HealthCheck" not in group.suspended and self._is_gone(member)
            if member.missed:
                self.unhealthy(group, member, due, "an EC2 health check indicating it has been terminated or stopped")

        self.agenda.schedule(at + self.delays.health_check_s, check)

    def _is_gone(self, member: Member) -> bool:
        return self.machines.state(member.instance_id) in GONE

    def _member_left(self, group: Group, at: float) -> None:
        if group.deleting:
            if not group.members:
                self.groups.pop(group.name, None)
            return
        self.scaling.reconcile(group, at)
        if self.zone_rebalance and self._imbalance(group) > 1:
            self.agenda.schedule(at + self.delays.rebalance_s, lambda due: self._rebalance(group, due))

    def _zone_counts(self, group: Group) -> Counter[str]:
        counts = Counter(dict.fromkeys(group.zones, 0))
        counts.update(member.zone for member in group.counted)
        return counts

    def _imbalance(self, group: Group) -> int:
        counts = self._zone_counts(group).values()
        return max(counts) - min(counts)

    def _rebalance(self, group: Group, at: float) -> None:
        """Launch in the emptiest zone, and terminate in the fullest once that serves, as AZRebalance does."""
        if (
            group.name not in self.groups
            or group.suspended.keys() & {"AZRebalance", "Launch"}
            or self._imbalance(group) < 2
        ):
            return
        counts = self._zone_counts(group)
        empty = min(group.zones, key=lambda zone: (counts[zone], zone))
        full = max(group.zones, key=lambda zone: (counts[zone], zone))
        because = (
            f"At {stamp(at)} instances were launched to balance instances in zones {empty} with other zones resulting "
            f"in more than desired number of instances in the group.  "
        )
        before = group.capacity
        self.scaling.grow(group, at, because, before + 1, only_zone=empty)

        def retire(due: float) -> None:
            spare = [one for one in group.counted if one.zone == full and one.state == IN_SERVICE and not one.protected]
            if group.capacity <= group.desired or "Terminate" in group.suspended or not spare:
                return
            cause = f"At {stamp(due)} an instance was taken out of service in response to a need to balance zones."
            self.lifecycle.leave(group, min(spare, key=lambda one: (one.launched_at, one.instance_id)), cause, due)

        if group.capacity > before:
            self.agenda.schedule(at + self.delays.launch_s[1] + 1.0, retire)

    def _announce(self, group: Group, member: Member, action: LifecycleAction, at: float) -> None:
        """Send the hook's notification to its SQS target, where it has one, as Auto Scaling does."""
        target = action.hook.target_arn
        if target is None or ":sqs:" not in target:
            return
        message = {
            "Origin": "EC2" if "LAUNCHING" in action.hook.transition else "AutoScalingGroup",
            "Destination": "AutoScalingGroup" if "LAUNCHING" in action.hook.transition else "EC2",
            "LifecycleHookName": action.hook.name,
            "AccountId": ACCOUNT_ID,
            "RequestId": self.lifecycle.identity(),
            "LifecycleTransition": action.hook.transition,
            "AutoScalingGroupName": group.name,
            "Service": "AWS Auto Scaling",
            "Time": instant(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "EC2InstanceId": member.instance_id,
            "NotificationMetadata": action.hook.metadata,
            "LifecycleActionToken": action.token,
        }
        self.queues.send(self.name, target.rsplit(":", 1)[1], json.dumps(message))
