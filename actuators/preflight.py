"""The check before the first side effect: may this intent be started on the group as it is read right now?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from actuators.base import Refusal
from domain.decisions import Direction, Intent, Reason
from domain.observed import GroupObserved


@dataclass(frozen=True, slots=True)
class Clearance:
    """What may be done now: for scale-in and replacement the VMs to terminate, in order, and those left with why."""

    victims: tuple[str, ...] = ()
    left: Mapping[str, Reason] = field(default_factory=dict)


def check(intent: Intent, group: GroupObserved, ours: Collection[str]) -> Clearance | Refusal:
    """Return what of the intent may be done on the group, read just now, or why nothing may.

    `ours` holds the VMs whose scale-in protection Trimtab set itself; VMs that somebody else protected are left alone.
    Scale-in terminates only as many VMs as lie between desired and target: what somebody else took away counts.
    """
    if intent.direction is Direction.OUT:
        return _check_out(intent, group)
    return _check_victims(intent, group, ours)


def _check_out(intent: Intent, group: GroupObserved) -> Clearance | Refusal:
    if group.desired >= intent.target:
        return Refusal(
            Reason.NOTHING_TO_DO,
            f"desired capacity of {group.name} is {group.desired} already; {intent.target} was asked for",
        )
    if intent.target > group.maximum:
        return Refusal(
            Reason.ABOVE_MAXIMUM,
            f"{group.name} has its maximum at {group.maximum} now; {intent.target} was asked for",
        )
    if intent.target < group.minimum:
        return Refusal(
            Reason.BELOW_MINIMUM,
            f"{group.name} has its minimum at {group.minimum} now; {intent.target} was asked for",
        )
    if "Launch" in group.suspended:
        return Refusal(Reason.LAUNCH_SUSPENDED, _suspended(group, "Launch"))
    return _refreshing(group) or Clearance()


def _check_victims(intent: Intent, group: GroupObserved, ours: Collection[str]) -> Clearance | Refusal:
    shrinking = intent.direction is Direction.IN
    # A replacement keeps the size, so bounds do not matter; and it goes on while Launch is suspended or a refresh runs,
    # because the VM is lost anyway and starting its drain saves its work.
    if shrinking and group.desired <= intent.target:
        return Refusal(
            Reason.NOTHING_TO_DO,
            f"desired capacity of {group.name} is {group.desired} already; {intent.target} was asked for",
        )
    if shrinking and intent.target < group.minimum:
        return Refusal(
            Reason.BELOW_MINIMUM,
            f"{group.name} has its minimum at {group.minimum} now; {intent.target} was asked for",
        )
    if "Terminate" in group.suspended:
        return Refusal(Reason.TERMINATE_SUSPENDED, _suspended(group, "Terminate"))
    if shrinking and (refusal := _refreshing(group)) is not None:
        return refusal
    serving = {instance.vm: instance for instance in group.serving}
    left = {vm: Reason.VICTIM_GONE for vm in intent.victims if vm not in serving}
    left.update(
        {vm: Reason.PROTECTED for vm in intent.victims if vm in serving and serving[vm].protected and vm not in ours}
    )
    victims = tuple(vm for vm in dict.fromkeys(intent.victims) if vm not in left)
    if shrinking:
        victims = victims[: group.desired - intent.target]
    if victims:
        return Clearance(victims, left)
    reason = Reason.PROTECTED if Reason.PROTECTED in left.values() else Reason.VICTIM_GONE
    return Refusal(reason, f"no VM to terminate in {group.name}: {describe_left(left)}")


def describe_left(left: Mapping[str, Reason]) -> str:
    """Return which VMs were left alone and why, as a phrase."""
    words = {
        Reason.VICTIM_GONE: "is no longer in service",
        Reason.PROTECTED: "is protected by somebody else",
        Reason.BUSY: "has been given work since, or no longer reports",
    }
    return ", ".join(f"{vm} {words[why]}" for vm, why in left.items())


def _suspended(group: GroupObserved, process: str) -> str:
    return f"the process {process} of {group.name} is suspended; resume it to let the group follow"


def _refreshing(group: GroupObserved) -> Refusal | None:
    if not group.refreshing:
        return None
    return Refusal(Reason.REFRESH_IN_PROGRESS, f"an instance refresh of {group.name} is under way; waiting for its end")
