"""The objects of Auto Scaling: groups, members and their states, hooks, the actions that wait on them, activities."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from typing import Any

PENDING, PENDING_WAIT, IN_SERVICE = "Pending", "Pending:Wait", "InService"
TERMINATING, TERMINATING_WAIT, STANDBY = "Terminating", "Terminating:Wait", "Standby"
COUNTED = frozenset({PENDING, PENDING_WAIT, IN_SERVICE})
"""The states whose members count towards the desired capacity."""
LEAVING = frozenset({TERMINATING, TERMINATING_WAIT})

LAUNCHING_TRANSITION = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING_TRANSITION = "autoscaling:EC2_INSTANCE_TERMINATING"

PROCESSES = (
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "Launch",
    "ReplaceUnhealthy",
    "ScheduledActions",
    "Terminate",
)


@dataclass(slots=True)
class Hook:
    """A lifecycle hook: machines in `transition` wait `heartbeat_s`, then CONTINUE or ABANDON by `default_result`."""

    name: str
    transition: str
    heartbeat_s: float = 3600.0
    default_result: str = "ABANDON"
    target_arn: str | None = None
    role_arn: str | None = None
    metadata: str | None = None

    @property
    def global_timeout_s(self) -> float:
        """Return how long heartbeats may keep a machine waiting: 48 hours or a hundred periods, whichever is less."""
        return min(172_800.0, 100.0 * self.heartbeat_s)


@dataclass(slots=True)
class LifecycleAction:
    """One machine waiting on one hook; `deadline` moves with each heartbeat, `limit` never."""

    hook: Hook
    token: str
    deadline: float
    limit: float
    result: str | None = None


@dataclass(slots=True)
class Member:
    """An instance of a group."""

    instance_id: str
    instance_type: str
    zone: str
    launched_at: float
    image_id: str
    weight: int = 1
    state: str = PENDING
    health: str = "Healthy"
    missed: bool = False
    """Its machine is gone and a health check is on its way to find that out."""
    protected: bool = False
    template: dict[str, str] | None = None
    launch_configuration: str | None = None
    in_service_at: float | None = None
    termination_pending: bool = False
    """A termination requested while the Terminate process was suspended; carried out when it resumes."""
    activity: Activity | None = None
    actions: list[LifecycleAction] = field(default_factory=list)

    @property
    def target_state(self) -> str:
        """Return the target lifecycle state that the instance's own metadata shows."""
        if self.state in LEAVING:
            return "Terminated"
        return "Standby" if self.state == STANDBY else "InService"


@dataclass(slots=True)
class Group:
    """An Auto Scaling group: the request that made it (`source`, as parsed), its bounds and its members."""

    name: str
    arn: str
    created_at: float
    min_size: int
    max_size: int
    desired: int
    zones: list[str]
    source: dict[str, Any]
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    hooks: dict[str, Hook] = field(default_factory=dict)
    suspended: dict[str, str] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    deleting: bool = False
    retry_round: int = 0
    retry_wait_s: float = 0.0
    last_scaling_end: float | None = None

    @property
    def counted(self) -> list[Member]:
        """Return the members that count towards the desired capacity."""
        return [member for member in self.members.values() if member.state in COUNTED]

    @property
    def capacity(self) -> int:
        """Return the capacity running or on its way, in the units of `desired`."""
        return sum(member.weight for member in self.counted)

    def hooks_for(self, transition: str) -> list[Hook]:
        """Return the hooks that machines in `transition` wait on."""
        return [hook for hook in self.hooks.values() if hook.transition == transition]


@dataclass(slots=True)
class Activity:
    """One launch or termination. Times are epoch seconds; `progress` is 0 to 100; `end` is None while it runs."""

    activity_id: str
    group_name: str
    group_arn: str
    description: str
    cause: str
    start: float
    zone: str | None = None
    status: str = "InProgress"
    message: str | None = None
    progress: int = 0
    end: float | None = None

    def close(self, status: str, now: float, message: str | None = None) -> None:
        """End the activity at `now` as `status`, with the reason where there is one."""
        self.status, self.end, self.progress = status, now, 100
        if message is not None:
            self.message = message
            self.description = f"{self.description}.  Status Reason: {message}"

    def wait(self, status: str, progress: int) -> None:
        """Note a stage on the way, such as MidLifecycleAction at 60 %."""
        self.status, self.progress = status, progress

    def described(self, *, deleted: bool = False) -> dict[str, Any]:
        """Return the activity as the API's `Activity` structure."""
        result: dict[str, Any] = {
            "ActivityId": self.activity_id,
            "AutoScalingGroupName": self.group_name,
            "AutoScalingGroupARN": self.group_arn,
            "Description": self.description,
            "Cause": self.cause,
            "StartTime": instant(self.start),
            "StatusCode": self.status,
            "Progress": self.progress,
        }
        if self.end is not None:
            result["EndTime"] = instant(self.end)
        if self.message is not None:
            result["StatusMessage"] = self.message
        if self.zone is not None:
            result["Details"] = json.dumps({"Availability Zone": self.zone})
        if deleted:
            result["AutoScalingGroupState"] = "Deleted"
        return result


@dataclass(slots=True)
class ActivityLog:
    """The activities of one region in the order they began."""

    entries: list[Activity] = field(default_factory=list)

    def add(self, activity: Activity) -> Activity:
        """Append `activity` and return it."""
        self.entries.append(activity)
        return activity

    def running(self, group_name: str) -> list[Activity]:
        """Return the group's activities that have not ended, oldest first."""
        return [entry for entry in self.entries if entry.group_name == group_name and entry.end is None]

    def newest_first(self, group_name: str | None) -> list[Activity]:
        """Return the activities of one group (None: of all), the most recently started first."""
        return [entry for entry in reversed(self.entries) if group_name is None or entry.group_name == group_name]


def instant(at: float) -> datetime.datetime:
    """Return epoch seconds as an aware UTC datetime."""
    return datetime.datetime.fromtimestamp(at, tz=datetime.UTC)


def stamp(at: float) -> str:
    """Return epoch seconds as AWS writes a time inside a cause, to the second."""
    return instant(at).strftime("%Y-%m-%dT%H:%M:%SZ")
