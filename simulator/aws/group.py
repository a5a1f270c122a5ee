"""The words of Auto Scaling: a group, its members and their states, hooks and the actions that wait on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.aws.activities import Activity

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
    standing_order: bool = False
    """A termination asked for while the Terminate process was suspended; carried out when it resumes."""
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
