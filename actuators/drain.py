"""Drains: VMs that a lifecycle hook holds in Terminating:Wait are kept while they work and let go when they are idle.

Nothing here starts a drain; terminating through the group does, and the worker stops pulling jobs when its instance
metadata reads Terminated. Heartbeats keep a busy VM's hook open up to the drain deadline or the hook's own limit,
whichever is earlier. A VM that reports no busy core is let go, but not before it has had time to see that it drains:
an earlier report does not cover a job received in between. Where no VM of the fleet reports, the path of their reports
has failed, and one that was busy by its last report is kept, also when its drain begins then. A VM that alone does not
report may be gone: it is neither kept nor let go, and its hook runs out by itself. Hooks of other parties are never
answered: a VM that only they hold gets no further call, and a busy one is told of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from actuators.activities import Kind, read_activities
from actuators.base import Act, ChangingCall, Held, Permit, change, is_contended
from collectors.aws import AwsSession
from domain.decisions import Event, Reason
from domain.errors import CloudError, FailureClass, Fenced
from domain.fleet import Fleet
from domain.observed import DrainHook, GroupObserved, Lifecycle, Observed
from domain.subject import fleet_subject

# A heartbeat that fails, or takes effect late, must not cost a job: there is time for others before the hook runs out.
HEARTBEATS_PER_PERIOD = 4.0
# The hook of a drain this young has all of its time left: a heartbeat would add nothing.
JUST_BEGUN_S = 5.0


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """deadline_s: longest drain. notice_s: how long a worker may take to see that it drains and to report again."""

    deadline_s: float = 3600.0
    notice_s: float = 30.0


@dataclass(slots=True)
class _Drain:
    started_at: float
    heartbeat_at: float | None = None
    completed_at: float | None = None
    ticks_since_completion: int = 0
    failures: int = 0
    over: bool = False
    """Our hook does not hold the VM: it was completed or ran out, or only another party's hook does."""


class Drains:
    """Remembers the drains under way; what is lost in a restart is read again from the scaling activities.

    settings: those of a fleet, by its name. were_busy: VMs that were busy before a restart, as far as that is known.
    """

    def __init__(
        self, session: AwsSession, settings: Callable[[str], DrainSettings], were_busy: Iterable[str] = ()
    ) -> None:
        self._session, self._settings_of = session, settings
        self._were_busy = frozenset(were_busy)
        self._busy: dict[str, set[str]] = {}
        """By group: its VMs that were busy by their last report, whether they drain yet or not."""
        self._drains: dict[str, dict[str, _Drain]] = {}
        self._unanswered: dict[str, dict[str, bool]] = {}
        """By group: VMs that hooks hold while none of ours is known, and whether that was told."""

    def clock_stepped(self, step_s: float) -> None:
        """Carry the drains' times over a step of the wall clock: no deadline comes early, no heartbeat late."""
        for drains in self._drains.values():
            for drain in drains.values():
                drain.started_at += step_s
                if drain.heartbeat_at is not None:
                    drain.heartbeat_at += step_s
                if drain.completed_at is not None:
                    drain.completed_at += step_s

    def tend(
        self,
        fleet: str,
        group: GroupObserved,
        busy_cores: Mapping[str, float | None],
        now: float,
        permit: Permit,
        events: list[Event],
    ) -> None:
        """Take each held VM of the group one step further, and add to `events` at once."""
        self._note_busy(group, busy_cores)
        hook = group.drain_hook
        held = [instance.vm for instance in group.instances if instance.lifecycle is Lifecycle.DRAINING]
        settings = self._settings_of(fleet)
        known = self._drains.setdefault(group.name, {})
        for vm in set(known) - set(held):
            del known[vm]
        if hook is None:
            events += self._undrained(fleet, group.name, held, busy_cores, now)
            return
        self._unanswered.pop(group.name, None)
        if not held:
            return
        new = self._begun(group, held, now, settings.deadline_s)
        events += [self._begin(fleet, group, _deadline_s(settings, hook), vm, busy_cores.get(vm), now) for vm in new]
        unheard = all(busy is None for busy in busy_cores.values())
        kept = self._busy[group.name] if unheard else frozenset[str]()
        # One whose calls fail comes last: what stops at it must not keep the others from their heartbeats for ever.
        for vm in sorted(held, key=lambda vm: known[vm].failures):
            try:
                events += self._step(fleet, group.name, hook, settings, vm, busy_cores.get(vm), vm in kept, now, permit)
            except Fenced:
                break
            except Held:
                continue  # the next VM may need its heartbeat
            except CloudError as error:
                if error.failure in (FailureClass.CREDENTIALS, FailureClass.PERMANENT):
                    reason = (
                        Reason.CREDENTIALS if error.failure is FailureClass.CREDENTIALS else Reason.PERMANENT_FAILURE
                    )
                    events.append(
                        Event(fleet_subject(fleet), now, reason, f"drain of {vm} in {group.name}: {error}", vm)
                    )
                known[vm].failures += 1
                if error.failure is not FailureClass.PERMANENT and not is_contended(error):
                    break  # the next VM would meet the same; the next tick tries again

    def _note_busy(self, group: GroupObserved, busy_cores: Mapping[str, float | None]) -> None:
        """Remember which of the group's VMs were busy by their last report, however long ago that was."""
        present = {instance.vm for instance in group.instances}
        before = self._busy.get(group.name, self._were_busy)
        last = {vm: vm in before if (busy := busy_cores.get(vm)) is None else busy > 0.0 for vm in present}
        self._busy[group.name] = {vm for vm, busy in last.items() if busy}

    def _undrained(
        self, fleet: str, group: str, held: list[str], busy_cores: Mapping[str, float | None], now: float
    ) -> list[Event]:
        """Return an event for each busy VM that other parties' hooks alone hold, once, from its second turn there on.

        In its first turn it may be that our hook could not be read yet.
        """
        before, events = self._unanswered.get(group, {}), []
        after = self._unanswered[group] = {vm: before.get(vm, False) for vm in held}
        for vm in held:
            busy = busy_cores.get(vm) or 0.0
            if vm in before and not before[vm] and busy > 0.0:
                after[vm] = True
                detail = f"{vm} of {group} is held by another party's hook and gets no heartbeats, with {busy:g} cores "
                detail += "busy: name the hook that drains in the fleet's DRAIN_HOOK, or add one; see trimtab preflight"
                events.append(Event(fleet_subject(fleet), now, Reason.NOT_DRAINED, detail, vm))
        return events

    def _begun(self, group: GroupObserved, held: list[str], now: float, deadline_s: float) -> list[str]:
        """Note VMs held since the last tick, since the time that AWS gives; return their ids."""
        known = self._drains[group.name]
        new = [vm for vm in held if vm not in known]
        if not new:
            return []
        started: dict[str, float] = {}
        try:
            # Before any restart of ours: as far back as a drain may last.
            for activity in read_activities(self._session, group.name, now - deadline_s, most_pages=3):
                if activity.kind is Kind.TERMINATE and activity.vm is not None and activity.running:
                    started[activity.vm] = min(now, activity.started_at)
        except CloudError:
            started.clear()
        for vm in new:
            known[vm] = _Drain(started.get(vm, now))
            if now - started.get(vm, float("-inf")) < JUST_BEGUN_S:
                known[vm].heartbeat_at = started[vm]
        return new

    def _begin(
        self, fleet: str, group: GroupObserved, deadline_s: float, vm: str, busy: float | None, now: float
    ) -> Event:
        drain = self._drains[group.name][vm]
        state = "does not report" if busy is None else f"has {busy:g} busy cores"
        left_s = max(0.0, drain.started_at + deadline_s - now)
        detail = f"{vm} of {group.name} draining: it {state}; terminated in at most {left_s:.0f} s"
        return Event(fleet_subject(fleet), now, Reason.DRAINING, detail, vm)

    def _step(
        self,
        fleet: str,
        group: str,
        hook: DrainHook,
        settings: DrainSettings,
        vm: str,
        busy: float | None,
        kept: bool,
        now: float,
        permit: Permit,
    ) -> list[Event]:
        """kept: without a report of its own, the VM counts as busy."""
        drain = self._drains[group][vm]
        if drain.over:
            return []
        if drain.completed_at is not None:
            drain.ticks_since_completion += 1
            if drain.ticks_since_completion >= 2:
                self._complete(fleet, group, hook, vm, now, permit)
            return []
        waited_s = now - drain.started_at
        if waited_s >= _deadline_s(settings, hook):
            self._complete(fleet, group, hook, vm, now, permit)
            state = "not reporting" if busy is None else f"with {busy:g} cores still busy"
            detail = f"{vm} of {group} drain timed out after {waited_s:.0f} s, {state}; lifecycle hook completed"
            return [Event(fleet_subject(fleet), now, Reason.DRAIN_TIMED_OUT, detail, vm)]
        if busy is None and not kept:
            return []
        works = kept if busy is None else busy > 0.0
        if works or waited_s < settings.notice_s:
            if drain.heartbeat_at is None or now - drain.heartbeat_at >= hook.heartbeat_s / HEARTBEATS_PER_PERIOD:
                operation = "RecordLifecycleActionHeartbeat"
                drain.over = not self._call(Act.HEARTBEAT, operation, fleet, group, hook, vm, permit)
                drain.heartbeat_at = now
                if drain.over and works:
                    state = "busy by its last report" if busy is None else f"with {busy:g} cores busy"
                    detail = f"{vm} of {group} is no longer held by the hook {hook.name}, {state}"
                    return [Event(fleet_subject(fleet), now, Reason.DRAIN_TIMED_OUT, detail, vm)]
            return []
        self._complete(fleet, group, hook, vm, now, permit)
        return [
            Event(
                fleet_subject(fleet),
                now,
                Reason.DRAINED,
                f"{vm} of {group} drained in {waited_s:.0f} s: idle; lifecycle hook completed",
                vm,
            )
        ]

    def _complete(self, fleet: str, group: str, hook: DrainHook, vm: str, now: float, permit: Permit) -> None:
        operation = "CompleteLifecycleAction"
        answer = {"LifecycleActionResult": "CONTINUE"}
        drain = self._drains[group][vm]
        drain.over = not self._call(Act.COMPLETE_HOOK, operation, fleet, group, hook, vm, permit, **answer)
        drain.completed_at, drain.ticks_since_completion = now, 0

    def _call(
        self, act: Act, operation: str, fleet: str, group: str, hook: DrainHook, vm: str, permit: Permit, **more: str
    ) -> bool:
        """Answer the hook for one VM; return False when it does not hold the VM (any more)."""
        try:
            change(
                self._session,
                permit,
                ChangingCall(act, fleet, group, vm=vm),
                "autoscaling",
                operation,
                AutoScalingGroupName=group,
                LifecycleHookName=hook.name,
                InstanceId=vm,
                **more,
            )
        except CloudError as error:
            if "No active Lifecycle Action" not in str(error):
                raise
            # The hook ran out, or the response to an earlier call was lost, or it is another hook that holds the VM.
            return False
        return True


def known_busy(
    fleet: Fleet, observed: Observed, before: Collection[str], busy_cores: Mapping[str, float | None]
) -> frozenset[str]:
    """Return the VMs that were busy by their last report; before: those of the minute before.

    Where a group was not read, VMs of before that are in no group that was read stay.
    """
    seen = [observed.groups.get(group.name) or observed.held.get(group.name) for group in fleet.groups]
    read = {one.vm for group in seen if group is not None for one in group.instances}
    last = {vm: vm in before if (busy := busy_cores.get(vm)) is None else busy > 0.0 for vm in read}
    unread = frozenset(before) - read if None in seen else frozenset[str]()
    return unread.union(vm for vm, busy in last.items() if busy)


def _deadline_s(settings: DrainSettings, hook: DrainHook) -> float:
    """Return how long a drain may last: AWS ends a hook by itself at its own limit."""
    return min(settings.deadline_s, hook.limit_s)
