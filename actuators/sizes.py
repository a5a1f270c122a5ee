"""Sizes of Auto Scaling groups: absolute desired capacity out, by id in, and every open intent settled by reading back.

Nothing about an intent is kept in this process. Each step reads the group, sees what of the intent is already there and
sends only what is missing, so that a process killed at any instruction and started again ends with the same fleet:

| killed                                | what `follow` finds                       | and does                       |
|---------------------------------------|-------------------------------------------|--------------------------------|
| before the call                       | group as before the intent                | asks the permit, and sends it  |
| after the call, before its outcome    | desired at target; victims out of service | no call                        |
| after lowering what AWS cannot launch | failed launches, desired below target     | no call: reports the shortage  |

Out of capacity: when launches since the intent failed and none is under way, the unfulfilled part of the desired
capacity is given back, so that AWS does not go on trying this type for hours while another type takes the load. It
takes no VM away: the group is read again right before, and the new value is never below what AWS counts in it, the
size before the intent, or the minimum. A launch that succeeds in between could cost one VM, and a busy one is
protected. A group that another party has resized since is left as it is. The same is done at an intent's deadline.

Launches that end before service, by a hook that abandons them or a bad image: AWS starts another for each, without end.
After three in a row all VMs not in service yet are terminated with a decrement, also those of earlier intents. At the
deadline after fewer only those launched since the intent.

A scale-out is over when its VMs are in service. Until then a decision may change the size of the group again once AWS
has launched all of them and none has ended (`outcomes.is_booting`): the new intent supersedes this one. Not where a VM
of the group is overdue: intents that supersede one another would each begin a deadline, and none would ever be over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from actuators.activities import (
    IN_A_ROW,
    Activity,
    Kind,
    are_failing,
    ended_before_service,
    failed_launches,
    read_activities,
    shortages,
    still_launching,
)
from actuators.base import Act, ChangingCall, Held, Permit, Refusal, change, is_contended
from actuators.outcomes import Report, achieved, asked
from collectors.aws import AwsSession
from collectors.inventory import Inventory
from domain.capacity_units import size_text
from domain.decisions import CapacityShortage, Direction, Intent, Outcome, Reason, VmRefusal
from domain.errors import CloudError, FailureClass, Fenced
from domain.fleet import Group, vms
from domain.observed import GroupObserved, Observed


@dataclass(frozen=True, slots=True)
class Clearance:
    """The permitted part of an intent: the VMs to terminate, in order, and those left, each with its reason.

    spares: VMs of a scale-in, in order, each of which goes in place of a victim that AWS refuses.
    """

    victims: tuple[str, ...] = ()
    left: Mapping[str, Reason] = field(default_factory=dict)
    spares: tuple[str, ...] = ()


def check(intent: Intent, group: GroupObserved, ours: Collection[str]) -> Clearance | Refusal:
    """Return what of the intent may be done on the group, read just now, or why nothing may.

    `ours` holds the VMs whose scale-in protection Trimtab set itself; VMs that another party protected are left alone.
    Scale-in terminates only as many VMs as lie between desired and target: VMs that another party removed count. The
    minimum in VMs is such that any of them may go, whatever it weighs.
    """
    out, shrinking = intent.direction is Direction.OUT, intent.direction is Direction.IN
    wanted, process = f"{intent.target} was requested", "Launch" if out else "Terminate"
    units = group.capacity
    if (out and group.desired >= intent.target) or (shrinking and group.desired <= intent.target):
        there = size_text(group.desired, units.desired)
        return Refusal(Reason.NOTHING_TO_DO, f"desired capacity of {group.name} is {there} already; {wanted}")
    if out and units.units_of(intent.target) > units.maximum:
        most = size_text(group.maximum, units.maximum)
        return Refusal(Reason.ABOVE_MAXIMUM, f"{group.name} has its maximum at {most} now; {wanted}")
    # A replacement keeps the size, so bounds do not matter; and it goes on while Launch is suspended or a refresh runs,
    # because the VM is lost anyway and starting its drain saves its work.
    if (out or shrinking) and intent.target < group.minimum:
        least = size_text(group.minimum, units.minimum)
        return Refusal(Reason.BELOW_MINIMUM, f"{group.name} has its minimum at {least} now; {wanted}")
    if process in group.suspended:
        return Refusal(
            Reason.LAUNCH_SUSPENDED if out else Reason.TERMINATE_SUSPENDED,
            f"the process {process} of {group.name} is suspended; resume it to let the group follow",
        )
    if (out or shrinking) and group.refreshing:
        detail = f"an instance refresh of {group.name} is under way; waiting for its end"
        return Refusal(Reason.REFRESH_IN_PROGRESS, detail)
    return Clearance() if out else _clear_victims(intent, group, ours)


def _clear_victims(intent: Intent, group: GroupObserved, ours: Collection[str]) -> Clearance | Refusal:
    serving = {instance.vm for instance in group.serving}
    left = {vm: Reason.VICTIM_GONE for vm in intent.victims if vm not in serving}
    left.update({one.vm: one.reason for one in _protected(intent, group, ours)})
    free = tuple(vm for vm in dict.fromkeys(intent.candidates) if vm in serving and vm not in left)
    most = group.desired - intent.target if intent.direction is Direction.IN else len(free)
    if free:
        return Clearance(free[:most], left, free[most:])
    reason = Reason.PROTECTED if Reason.PROTECTED in left.values() else Reason.VICTIM_GONE
    return Refusal(reason, f"no VM to terminate in {group.name}: {describe_left(left)}")


def _protected(intent: Intent, group: GroupObserved, ours: Collection[str]) -> tuple[VmRefusal, ...]:
    """Return the VMs of the intent that another party protects."""
    protected = {instance.vm for instance in group.serving if instance.protected and instance.vm not in ours}
    return tuple(VmRefusal(vm, Reason.PROTECTED) for vm in intent.candidates if vm in protected)


def describe_left(left: Mapping[str, Reason]) -> str:
    """Return which VMs were left alone and why, as a phrase."""
    texts = {
        Reason.VICTIM_GONE: "is no longer in service",
        Reason.PROTECTED: "is protected by another party",
        Reason.BUSY: "has been given work since, or no longer reports",
    }
    return ", ".join(f"{vm} {texts[why]}" for vm, why in left.items())


# Host clock against AWS's: an activity that AWS dates this much before the intent still belongs to it.
CLOCK_SKEW_S = 2.0
# A failure this fresh may be followed by AWS's own attempt in another zone: leave it that long.
QUIET_S = 5.0
# How long AWS may show a terminated VM as still in service after its desired capacity has fallen.
LAG_S = 120.0


class GroupSizes:
    """Applies and follows intents on Auto Scaling groups; `ours`: VMs whose scale-in protection Trimtab set."""

    def __init__(self, session: AwsSession, inventory: Inventory, ours: Collection[str] = ()) -> None:
        self._session, self._inventory, self._ours = session, inventory, ours

    def apply(self, intent: Intent, group: Group, now: float, permit: Permit) -> Outcome:
        """Carry out the intent, once, after checking the group as it is right now."""
        return self._send(intent, group, now, permit, first=True)

    def follow(self, intent: Intent, group: Group, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Follow an open intent by this tick's reading; a call is made only for what is still undone."""
        seen = observed.groups.get(group.name)
        if seen is None:
            return self._unread(intent, group, observed, now)
        if intent.direction is Direction.OUT:
            return self._follow_out(intent, group, seen, now, permit)
        return self._follow_victims(intent, group, seen, now, permit)

    def _unread(self, intent: Intent, group: Group, observed: Observed, now: float) -> Outcome:
        report = Report(intent, now)
        failed = observed.failures.get(group.name)
        failure, detail = (failed.failure, failed.detail) if failed else (None, "the group was not read in this tick")
        if failure is FailureClass.PERMANENT:
            return report.ended(Reason.PERMANENT_FAILURE, 0, detail, failure)
        if failure is FailureClass.UNSUPPORTED:
            return report.ended(Reason.GROUP_UNSUPPORTED, 0, detail, failure)
        if now >= intent.deadline_at:
            return report.ended(Reason.OVERDUE, 0, f"the result is unknown: {detail}", failure)
        return report.waiting(Reason.CLOUD_UNREADABLE, 0, detail, failure)

    def _follow_out(self, intent: Intent, group: Group, seen: GroupObserved, now: float, permit: Permit) -> Outcome:
        report, done = Report(intent, now), achieved(intent, seen)
        if seen.in_service >= intent.target:
            return report.done(f"{group.name} holds {vms(seen.in_service)}")
        try:
            since = min(intent.created_at, now) - CLOCK_SKEW_S
            activities = read_activities(self._session, group.name, since)
        except CloudError as error:
            if error.failure is not FailureClass.CREDENTIALS and now < intent.deadline_at:
                return report.after(error, done, group.vm_type.name)
            activities = ()
        failed = failed_launches(activities)
        if seen.desired < intent.target and intent.follows_launches:
            there = size_text(seen.desired, seen.capacity.desired)
            return report.ended(Reason.SUPERSEDED, done, f"another party set {group.name} to {there}")
        if seen.desired < intent.target:
            return self._below_target(intent, group, seen, activities, now, permit)
        present = {instance.vm for instance in seen.instances}
        quiet = failed and now - failed[-1].started_at >= QUIET_S and not still_launching(activities, present)
        if seen.pending and not any(activity.no_capacity for activity in failed):
            # AWS has VMs, and starts another for each that ends before service: a row of these says that none will be.
            quiet = ended_before_service(activities) >= IN_A_ROW
        if quiet or now >= intent.deadline_at:
            return self._give_up(intent, group, activities, now, permit)
        if failed:
            done = max(0, seen.in_service - intent.before)
        return report.waiting(
            Reason.ACCEPTED, done, f"in progress: {seen.in_service} of {intent.target} VMs in service in {group.name}"
        )

    def _below_target(
        self,
        intent: Intent,
        group: Group,
        seen: GroupObserved,
        activities: Sequence[Activity],
        now: float,
        permit: Permit,
    ) -> Outcome:
        """Follow a scale-out that the group does not show: not yet sent, given back, or undone by another party."""
        report, done = Report(intent, now), achieved(intent, seen)
        if failed_launches(activities):
            note = f"desired capacity is {size_text(seen.desired, seen.capacity.desired)}"
            return self._not_launched(intent, group, activities, done, now, note)
        if any(activity.desired_to == seen.capacity.units_of(intent.target) for activity in activities):
            return report.ended(
                Reason.SUPERSEDED,
                done,
                f"another party set {group.name} to {size_text(seen.desired, seen.capacity.desired)} after it had been "
                f"{intent.target}",
            )
        if now >= intent.deadline_at:
            return report.ended(
                Reason.OVERDUE, done, f"AWS did not apply the change of {group.name} to {intent.target}"
            )
        return self._send(intent, group, now, permit, first=False)

    def _give_up(
        self, intent: Intent, group: Group, activities: Sequence[Activity], now: float, permit: Permit
    ) -> Outcome:
        """Give back what AWS has not launched, and what it launches in place of VMs that end; then end the intent."""
        report, done, given_back = Report(intent, now), 0, 0
        try:
            fresh = self._inventory.fresh(group.name, now)
            if fresh.in_service >= intent.target:
                return report.done(f"{group.name} holds {vms(fresh.in_service)}")
            ended = ended_before_service(activities)
            if ended >= IN_A_ROW or (ended and now >= intent.deadline_at):
                given_back = self._give_back_pending(intent, group, fresh, activities, permit)
                fresh = self._inventory.fresh(group.name, now) if given_back else fresh
            done = achieved(intent, fresh)
            units = fresh.capacity
            keep = units.lowered_to(max(intent.before, len(fresh.serving)))
            there = size_text(fresh.desired, units.desired)
            note = f"desired capacity stays at {there}"
            if given_back:
                note = f"{vms(given_back)} that were not in service yet given back; {note}"
            if fresh.desired == intent.target - given_back and keep < units.desired:
                kept = size_text(replace(units, desired=keep).desired_vms, keep)
                note = f"desired capacity lowered from {there} to {kept}, which removes no VM"
                self._set_desired(Act.LOWER_DESIRED, intent, group, keep, permit)
        except Fenced as error:
            return report.waiting(Reason.NOT_LEADER, done, str(error))
        except Held as held:
            return report.waiting(held.refusal.reason, done, f"the desired capacity is not lowered yet: {held}")
        except CloudError as error:
            if error.failure is FailureClass.UNSUPPORTED:
                return report.ended(Reason.GROUP_UNSUPPORTED, done, str(error), error.failure)
            if error.failure in (FailureClass.CREDENTIALS, FailureClass.PERMANENT, FailureClass.READ_ONLY):
                return self._not_launched(
                    intent, group, activities, done, now, f"desired capacity not lowered: {error}"
                )
            return report.waiting(
                Reason.NO_CAPACITY if failed_launches(activities) else Reason.OVERDUE,
                done,
                f"giving up, the desired capacity could not be lowered yet: {error}",
                error.failure,
                shortages(activities, group.vm_type.name),
            )
        if not failed_launches(activities):
            done = max(0, min(asked(intent), fresh.in_service - intent.before))
        return self._not_launched(intent, group, activities, done, now, note)

    def _give_back_pending(
        self, intent: Intent, group: Group, fresh: GroupObserved, activities: Sequence[Activity], permit: Permit
    ) -> int:
        """Terminate VMs that are not in service yet; return how many.

        Those of the intents before only where the launches fail: else they may boot. None where another party asks for
        more than the intent did, for they may be its VMs; and none that works.
        """
        if fresh.desired > intent.target:
            return 0
        pending, least, gone = fresh.pending, max(fresh.minimum, fresh.in_service), 0
        if not are_failing(activities):
            launched = {activity.vm for activity in activities if activity.kind is Kind.LAUNCH}
            pending = tuple(instance for instance in pending if instance.vm in launched)
            least = max(least, intent.before)
        for instance in pending[: max(0, fresh.desired - least)]:
            call = ChangingCall(Act.LOWER_DESIRED, intent.fleet, intent.group, intent, instance.vm)
            try:
                self._terminate_one(call, permit, shrink=True)
            except Held as held:
                if held.refusal.reason is not Reason.BUSY:
                    raise
            except CloudError as error:
                if error.failure is not FailureClass.PERMANENT and not is_contended(error):
                    raise
            else:
                gone += 1
        return gone

    def _terminate_one(self, call: ChangingCall, permit: Permit, *, shrink: bool) -> None:
        change(
            self._session,
            permit,
            call,
            "autoscaling",
            "TerminateInstanceInAutoScalingGroup",
            InstanceId=call.vm,
            ShouldDecrementDesiredCapacity=shrink,
        )

    def _not_launched(
        self, intent: Intent, group: Group, activities: Sequence[Activity], done: int, now: float, note: str
    ) -> Outcome:
        report, failed = Report(intent, now), failed_launches(activities)
        if not failed:
            detail = f"only {done} of {intent.target - intent.before} VMs launched in {group.name} in time; {note}"
            return report.ended(Reason.OVERDUE, done, detail)
        short = shortages(activities, group.vm_type.name)
        if short:
            places = ", ".join(f"{one.vm_type} in {one.zone or 'any zone'}" for one in short)
            return report.ended(Reason.NO_CAPACITY, done, f"no {places}; {note}", FailureClass.CAPACITY, short)
        detail = f"launches in {group.name} fail: {failed[0].message}; {note}"
        if not are_failing(activities):
            return report.ended(Reason.PERMANENT_FAILURE, done, detail, FailureClass.PERMANENT)
        failing = (CapacityShortage(group.vm_type.name, "", failing=True),)
        return report.ended(Reason.LAUNCHES_FAILING, done, detail, FailureClass.PERMANENT, failing)

    def _follow_victims(self, intent: Intent, group: Group, seen: GroupObserved, now: float, permit: Permit) -> Outcome:
        report, gone = Report(intent, now), achieved(intent, seen)
        serving = {instance.vm for instance in seen.serving}
        if gone >= asked(intent) and intent.follows_launches:
            return self._follow_out(intent, group, seen, now, permit)
        if gone >= asked(intent):
            left_service = [vm for vm in intent.candidates if vm not in serving]
            return report.done(f"out of service in {group.name}: {', '.join(left_service)}")
        left = [vm for vm in intent.victims if vm in serving]
        if now >= intent.deadline_at:
            return report.ended(Reason.OVERDUE, gone, f"still in service in {group.name}: {', '.join(left)}")
        if intent.direction is Direction.IN and (seen.desired < intent.before - gone or _outweighed(seen, left)):
            # The size has fallen by more than the VMs that left: a termination of ours may not show yet, and repeating
            # it would take the size down twice.
            there = size_text(seen.desired, seen.capacity.desired)
            if now - intent.created_at < LAG_S:
                detail = f"desired capacity is {there}; waiting for {', '.join(left)} to leave"
                return report.waiting(Reason.ACCEPTED, gone, detail)
            if seen.desired <= intent.target:
                detail = f"another party set {group.name} to {there}; left in service: {', '.join(left)}"
                return report.ended(Reason.SUPERSEDED, gone, detail)
        return self._send(intent, group, now, permit, first=False)

    def _send(self, intent: Intent, group: Group, now: float, permit: Permit, *, first: bool) -> Outcome:
        """Read the group afresh, check, and send what is missing; the one place from which intents reach AWS."""
        report = Report(intent, now)
        try:
            fresh = self._inventory.fresh(group.name, now)
        except CloudError as error:
            why = (
                "" if error.failure is FailureClass.UNSUPPORTED else f"{group.name} could not be read, nothing was sent"
            )
            return report.after(error, 0, group.vm_type.name, why)
        done = achieved(intent, fresh)
        cleared = check(intent, fresh, self._ours)
        protected = _protected(intent, fresh, self._ours)
        if isinstance(cleared, Refusal):
            if first:
                return replace(report.skipped(cleared.reason, cleared.detail), refusals=protected)
            if cleared.reason in (Reason.NOTHING_TO_DO, Reason.VICTIM_GONE):
                return report.waiting(Reason.ACCEPTED, done, cleared.detail)
            return replace(report.refused(cleared, done), refusals=protected)
        if intent.direction is not Direction.OUT:
            outcome = self._terminate(intent, group, cleared, done, now, permit)
            return replace(outcome, refusals=(*protected, *outcome.refusals))
        units = fresh.capacity
        wanted = units.units_of(intent.target)
        try:
            self._set_desired(Act.LAUNCH, intent, group, wanted, permit)
        except Fenced as error:
            return report.waiting(Reason.NOT_LEADER, done, str(error))
        except Held as held:
            return report.refused(held.refusal, done)
        except CloudError as error:
            return report.after(error, done, group.vm_type.name)
        sizes = f"{size_text(fresh.desired, units.desired)} -> {size_text(intent.target, wanted)}"
        return report.waiting(Reason.ACCEPTED, done, f"desired capacity of {group.name}: {sizes}")

    def _set_desired(self, act: Act, intent: Intent, group: Group, units: int, permit: Permit) -> None:
        change(
            self._session,
            permit,
            ChangingCall(act, intent.fleet, intent.group, intent),
            "autoscaling",
            "SetDesiredCapacity",
            AutoScalingGroupName=group.name,
            DesiredCapacity=units,
            HonorCooldown=False,
        )

    def _terminate(
        self, intent: Intent, group: Group, cleared: Clearance, gone: int, now: float, permit: Permit
    ) -> Outcome:
        """Terminate the cleared VMs one by one, spares in place of those that may not go.

        It stops at the first failure that the next VM would meet as well.
        """
        report, done = Report(intent, now), gone
        act = Act.REMOVE if intent.direction is Direction.IN else Act.REPLACE
        refused: dict[str, CloudError] = {}
        left = dict(cleared.left)
        wanted = gone + len(cleared.victims)
        for vm in (*cleared.victims, *cleared.spares):
            if done >= wanted:
                break
            try:
                call = ChangingCall(act, intent.fleet, intent.group, intent, vm)
                self._terminate_one(call, permit, shrink=intent.direction is Direction.IN)
            except Fenced as error:
                return report.waiting(Reason.NOT_LEADER, done, str(error))
            except Held as held:
                if held.refusal.reason is not Reason.BUSY:
                    return report.refused(held.refusal, done)
                left[vm] = Reason.BUSY  # only this one: the others may go, and none in its place, for work came
                wanted -= vm in cleared.victims
            except CloudError as error:
                if error.failure is not FailureClass.PERMANENT and not is_contended(error):
                    outcome = report.after(error, done, group.vm_type.name, _progress(intent, done, refused))
                    return replace(outcome, refusals=_refusals(refused))
                refused[vm] = error
            else:
                done += 1
        kept = [why for why in (Reason.PROTECTED, Reason.BUSY) if why in left.values()]
        contended = [vm for vm, error in refused.items() if is_contended(error)]
        note = "; ".join(part for part in (_progress(intent, done, refused), describe_left(left)) if part)
        if done >= asked(intent) and intent.follows_launches:
            outcome = report.waiting(Reason.ACCEPTED, done, note)
        elif done >= asked(intent):
            outcome = report.done(note)
        elif contended:
            outcome = report.waiting(Reason.UNAVAILABLE, done, note, FailureClass.UNAVAILABLE)
        elif refused:
            outcome = report.ended(Reason.PERMANENT_FAILURE, done, note, FailureClass.PERMANENT)
        elif kept:
            outcome = report.ended(kept[0], done, note) if done else report.skipped(kept[0], note)
        else:
            outcome = report.ended(Reason.SUPERSEDED, done, note)
        return replace(outcome, refusals=_refusals(refused))


def _outweighed(group: GroupObserved, vms: Collection[str]) -> bool:
    """Whether AWS counts more units than it desires by one of these VMs: its decrement came, it still shows.

    Among VMs of one weight the sizes in VMs tell that; among others one VM's decrement may not change them.
    """
    units, weights = group.capacity, {instance.vm: instance.weight for instance in group.serving}
    uneven = any(weight != units.weight for weight in weights.values())
    return uneven and units.counted - units.desired >= min(weights[vm] for vm in vms)


def _refusals(refused: Mapping[str, CloudError]) -> tuple[VmRefusal, ...]:
    return tuple(VmRefusal(vm, Reason.REMOVAL_REFUSED, str(error)) for vm, error in refused.items())


def _progress(intent: Intent, done: int, refused: dict[str, CloudError]) -> str:
    refusals = "".join(f"; {vm}: {error}" for vm, error in refused.items())
    return f"{done} of {len(intent.victims)} terminated{refusals}"
