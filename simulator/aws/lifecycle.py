"""One machine's way through a group: Pending, the hooks, InService, Terminating, gone; and its activities.

The order of states is AWS's: Pending -> (Pending:Wait) -> InService -> (Terminating:Wait) -> Terminating -> removed. A
machine stays Pending for the launch delay, then waits on its launching hooks; it is shutting down for the terminate
delay after its terminating hooks.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.aws.group import (
    IN_SERVICE,
    LAUNCHING_TRANSITION,
    PENDING,
    PENDING_WAIT,
    TERMINATING,
    TERMINATING_TRANSITION,
    TERMINATING_WAIT,
    Activity,
    ActivityLog,
    Group,
    LifecycleAction,
    Member,
    stamp,
)
from simulator.aws.machines import Machines
from simulator.aws.requests import validation_error


class Agenda:
    """A queue of (time, action); `settle` runs each action due at its own time, so no background thread is needed."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def schedule(self, at: float, action: Callable[[float], None]) -> None:
        """Run `action(at)` at the first `settle` for `at` or later; equal times run in the order scheduled."""
        heapq.heappush(self._due, (at, next(self._order), action))

    def settle(self, now: float) -> None:
        """Run what is due by `now`, earliest first, including what the actions themselves schedule by then."""
        while self._due and self._due[0][0] <= now:
            at, _, action = heapq.heappop(self._due)
            action(at)

    def clear(self) -> None:
        """Drop every action that is not carried out yet."""
        self._due.clear()

    @property
    def next_at(self) -> float | None:
        """Return when the next action is due, None when nothing is."""
        return self._due[0][0] if self._due else None


@dataclass(slots=True)
class Delays:
    """Delays in seconds of the cloud's clock; pairs are the ends of a uniform distribution."""

    launch_s: tuple[float, float] = (45.0, 97.0)
    terminate_s: tuple[float, float] = (10.0, 20.0)
    health_check_s: float = 60.0
    retry_s: float = 60.0
    retry_max_s: float = 900.0
    refresh_s: float = 300.0
    rebalance_s: float = 120.0


class Lifecycle:
    """Moves members through their states; `changed(group, at)` is called when a group may want another member."""

    def __init__(
        self,
        machines: Machines,
        activities: ActivityLog,
        agenda: Agenda,
        delays: Delays,
        seed: int,
        announce: Callable[[Group, Member, LifecycleAction, float], None],
    ) -> None:
        self.machines, self.activities, self.agenda, self.delays = machines, activities, agenda, delays
        self.changed: Callable[[Group, float], None] = lambda group, at: None
        self._announce = announce
        self._identities = np.random.default_rng([seed, 1])
        self._launch_delays = np.random.default_rng([seed, 2])
        self._terminate_delays = np.random.default_rng([seed, 3])

    def identity(self) -> str:
        """Return a new activity id or lifecycle action token (a UUID from the seeded stream)."""
        return str(uuid.UUID(bytes=self._identities.bytes(16), version=4))

    def open_activity(self, group: Group, description: str, cause: str, at: float, zone: str | None = None) -> Activity:
        """Open an activity of the group."""
        return self.activities.add(Activity(self.identity(), group.name, group.arn, description, cause, at, zone))

    def join(self, group: Group, member: Member, cause: str, at: float) -> None:
        """Take a machine that has just been started into the group; it is Pending until its launch delay has passed."""
        member.activity = self.open_activity(
            group, f"Launching a new EC2 instance: {member.instance_id}", cause, at, member.zone
        )
        member.activity.progress = 30
        group.members[member.instance_id] = member
        delay_s = float(self._launch_delays.uniform(*self.delays.launch_s))
        self.agenda.schedule(at + delay_s, lambda due: self.booted(group, member, due))

    def booted(self, group: Group, member: Member, at: float) -> None:
        """Let a Pending machine run its launching hooks, or go straight into service; others are left alone."""
        if member.state != PENDING or self.machines.state(member.instance_id) != "pending":
            return
        self.machines.set_state(member.instance_id, "running")
        if not self._wait_on_hooks(group, member, LAUNCHING_TRANSITION, PENDING_WAIT, at):
            self.enter_service(group, member, at)

    def enter_service(self, group: Group, member: Member, at: float) -> None:
        """Put the member into service now, past any hook that still waits."""
        member.actions.clear()
        self.machines.set_state(member.instance_id, "running")
        member.state, member.in_service_at = IN_SERVICE, at
        self._close(group, member, "Successful", at)

    def leave(self, group: Group, member: Member, cause: str, at: float, *, hooks: bool = True) -> Activity:
        """Take the member out for good, through its terminating hooks unless `hooks` is False; return the activity."""
        if member.activity is not None and member.activity.end is None:
            member.activity.close("Cancelled", at)
        activity = self.open_activity(group, f"Terminating EC2 instance: {member.instance_id}", cause, at, member.zone)
        member.activity = activity
        member.actions.clear()
        if not (hooks and self._wait_on_hooks(group, member, TERMINATING_TRANSITION, TERMINATING_WAIT, at)):
            self._shut_down(group, member, at)
        return activity

    def complete(self, group: Group, member: Member, action: LifecycleAction, result: str, at: float) -> None:
        """Record a hook's result ("CONTINUE" or "ABANDON") and move the member on when nothing holds it any more."""
        action.result = result
        waiting = any(other.result is None for other in member.actions)
        if member.state == PENDING_WAIT:
            if result == "ABANDON":
                cause = f"At {stamp(at)} an instance was taken out of service in response to a launch failure."
                self._close(group, member, "Cancelled", at, f"Lifecycle action {action.hook.name} was abandoned.")
                self.leave(group, member, cause, at, hooks=False)
                self.changed(group, at)
            elif not waiting:
                self.enter_service(group, member, at)
        elif member.state == TERMINATING_WAIT and (result == "ABANDON" or not waiting):
            member.actions.clear()
            self._shut_down(group, member, at)

    def heartbeat(self, action: LifecycleAction, at: float) -> None:
        """Give the waiting machine another heartbeat period, never past the global limit."""
        if action.result is None:
            action.deadline = min(at + action.hook.heartbeat_s, action.limit)

    def remove(self, group: Group, member: Member, at: float) -> None:
        """Drop a member whose machine is gone from the group."""
        self.machines.set_state(member.instance_id, "terminated")
        if group.members.pop(member.instance_id, None) is None:
            return
        self._close(group, member, "Successful", at)
        self.changed(group, at)

    def _shut_down(self, group: Group, member: Member, at: float) -> None:
        member.state = TERMINATING
        self.machines.set_state(member.instance_id, "shutting-down")
        delay_s = float(self._terminate_delays.uniform(*self.delays.terminate_s))
        self.agenda.schedule(at + delay_s, lambda due: self.remove(group, member, due))

    def _wait_on_hooks(self, group: Group, member: Member, transition: str, state: str, at: float) -> bool:
        hooks = group.hooks_for(transition)
        if not hooks:
            return False
        member.state = state
        if member.activity is not None:
            member.activity.wait("MidLifecycleAction", 60)
        member.actions = [
            LifecycleAction(hook, self.identity(), at + hook.heartbeat_s, at + hook.global_timeout_s) for hook in hooks
        ]
        for action in member.actions:
            self._watch(group, member, action)
            self._announce(group, member, action, at)
        return True

    def _watch(self, group: Group, member: Member, action: LifecycleAction) -> None:
        def due(at: float) -> None:
            if action.result is not None or action not in member.actions:
                return
            if at < action.deadline:
                self._watch(group, member, action)
            else:
                self.complete(group, member, action, action.hook.default_result, at)

        self.agenda.schedule(action.deadline, due)

    def _close(self, group: Group, member: Member, status: str, at: float, message: str | None = None) -> None:
        if member.activity is not None and member.activity.end is None:
            member.activity.close(status, at, message)
            group.last_scaling_end = at


def waiting_action(member: Member, hook_name: str, token: str | None) -> LifecycleAction:
    """Return the member's open action on the hook.

    Raises: AwsError (ValidationError) when there is none, or the token is another's.
    """
    for action in member.actions:
        if action.hook.name == hook_name and action.result is None and token in (None, action.token):
            return action
    if token is not None:
        raise validation_error(f"No active Lifecycle Action found with token {token}")
    raise validation_error(f"No active Lifecycle Action found with instance ID {member.instance_id}")
