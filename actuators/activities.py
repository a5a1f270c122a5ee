"""A group's scaling activities since a moment: started, failed, and refused for lack of capacity."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collectors.aws import AwsSession
from domain.decisions import CapacityShortage, Direction
from domain.errors import CloudError, FailureClass

_ENDED = frozenset({"Successful", "Failed", "Cancelled"})
_VM = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_DESIRED_TO = re.compile(r"changing the desired capacity from \d+ to (\d+)")
_CREATED = "created an AutoScalingGroup"
_SHRUNK = "user request, shrinking the capacity"
_PAGES_OF_ACCOUNT = 20
_TAKEN_BACK = re.compile(r"user request|shrinking the capacity")
IN_A_ROW = 3
"""Launches in a row that ended before service, from which on a type is left alone."""
_NO_CAPACITY = re.compile(
    r"do(?:es)? not have (?:sufficient|enough) .*capacity|Insufficient\w*Capacity|UnfulfillableCapacity"
    r"|no Spot capacity available|MaxSpotInstanceCountExceeded|SpotMaxPriceTooLow|InsufficientFreeAddressesInSubnet"
    r"|VcpuLimitExceeded|vCPU (?:capacity than|limit)|InstanceLimitExceeded"
    r"|instance type .*not supported in your requested Availability Zone",
    re.IGNORECASE | re.DOTALL,
)
_TYPE = re.compile(r"\b([a-z][a-z0-9-]*\.(?:\d+x|metal|nano|micro|small|medium|large|x)[a-z0-9-]*)\b")
_ZONE = re.compile(r"Availability Zone (?:you requested )?\(([a-z0-9-]+)\)")


class Kind(StrEnum):
    """The kind of an activity."""

    LAUNCH = "launch"
    TERMINATE = "terminate"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Activity:
    """One scaling activity; `desired_to` is the desired capacity whose setting caused it, where the cause names one."""

    kind: Kind
    started_at: float
    status: str
    message: str = ""
    vm: str | None = None
    zone: str = ""
    desired_to: int | None = None
    cause: str = ""

    @property
    def failed(self) -> bool:
        """Whether AWS gave it up."""
        return self.status in ("Failed", "Cancelled")

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.status not in _ENDED

    @property
    def resized(self) -> Direction | None:
        """The direction in which it changed the group's size, None for a replacement and for what failed.

        The VMs that a group is created with change no size that was there before.
        """
        if self.failed or _CREATED in self.cause:
            return None
        if self.kind is Kind.LAUNCH and self.desired_to is not None:
            return Direction.OUT
        if self.kind is Kind.TERMINATE and (self.desired_to is not None or _SHRUNK in self.cause):
            return Direction.IN
        return None

    @property
    def no_capacity(self) -> bool:
        """Whether it failed for want of machines or quota: another type or zone may still work."""
        return self.failed and _NO_CAPACITY.search(self.message) is not None


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of a group's size that AWS carried out, whoever asked; `at` its newest activity, epoch seconds."""

    group_name: str
    direction: Direction
    at: float


def read_resizes(session: AwsSession, group_names: Collection[str], since: float) -> tuple[Resize, ...]:
    """Return the newest change of size at or after `since` of each of the groups and directions; raises CloudError.

    The activities of the whole account are read, newest first, 2,000 of them at most: a call for each group would take
    a start with many fleets long. A launch that only replaces a VM, and one that failed, changes no size.
    """
    found: dict[tuple[str, Direction], Resize] = {}
    for described in _of_account(session, since):
        name, activity = str(described.get("AutoScalingGroupName", "")), parse_activity(described)
        direction = activity.resized
        if name in group_names and direction is not None:
            found.setdefault((name, direction), Resize(name, direction, activity.started_at))
    return tuple(found.values())


def _of_account(session: AwsSession, since: float) -> Iterator[dict[str, Any]]:
    pages = session.pages("autoscaling", "DescribeScalingActivities", MaxRecords=100)
    for _, page in zip(range(_PAGES_OF_ACCOUNT), pages, strict=False):
        for described in page.get("Activities", ()):
            if described.get("StartTime") is None or described.get("StatusCode") is None:
                continue
            if described["StartTime"].timestamp() >= since:
                yield described
            elif described["StatusCode"] in _ENDED:
                return


def read_activities(
    session: AwsSession, group_name: str, since: float, *, most_pages: int = 10
) -> tuple[Activity, ...]:
    """Return the group's activities started at or after `since` (epoch seconds), newest first; raises CloudError.

    AWS lists those in progress first, then the others, both newest first: reading stops at the first older one that has
    ended. One that waits for a hook may be in progress for hours.
    """
    found: list[Activity] = []
    pages = session.pages("autoscaling", "DescribeScalingActivities", AutoScalingGroupName=group_name, MaxRecords=100)
    for number, page in enumerate(pages, start=1):
        for described in page.get("Activities", ()):
            if described.get("StartTime") is None or described.get("StatusCode") is None:
                detail = f"an activity of {group_name} has no StartTime or no StatusCode"
                raise CloudError("DescribeScalingActivities", FailureClass.UNAVAILABLE, "IncompleteAnswer", detail)
            activity = parse_activity(described)
            if activity.started_at >= since:
                found.append(activity)
            elif not activity.running:
                return tuple(found)
        if number == most_pages:
            break
    return tuple(found)


def parse_activity(described: dict[str, Any]) -> Activity:
    """Return one activity of DescribeScalingActivities."""
    description = str(described.get("Description", ""))
    kind = Kind.OTHER
    if description.startswith("Launching"):
        kind = Kind.LAUNCH
    elif description.startswith("Terminating"):
        kind = Kind.TERMINATE
    vm = _VM.search(description)
    cause = str(described.get("Cause", ""))
    desired = _DESIRED_TO.search(cause)
    return Activity(
        kind=kind,
        started_at=described["StartTime"].timestamp(),
        status=str(described["StatusCode"]),
        message=str(described.get("StatusMessage") or description),
        vm=vm.group() if vm else None,
        zone=_zone_of(described),
        desired_to=int(desired.group(1)) if desired else None,
        cause=cause,
    )


def shortages(activities: Sequence[Activity], vm_type: str) -> tuple[CapacityShortage, ...]:
    """Return each (type, zone) that launches failed for, newest first; `vm_type` where AWS names no type."""
    found: dict[CapacityShortage, None] = {}
    for activity in activities:
        if activity.kind is Kind.LAUNCH and activity.no_capacity:
            named_type, named_zone = _TYPE.search(activity.message), _ZONE.search(activity.message)
            found[
                CapacityShortage(
                    named_type.group(1) if named_type else vm_type, named_zone.group(1) if named_zone else activity.zone
                )
            ] = None
    return tuple(found)


def failed_launches(activities: Sequence[Activity]) -> tuple[Activity, ...]:
    """Return the launches that AWS gave up, newest first; not those that a smaller size ended."""
    taken_back = {a.vm for a in activities if a.kind is Kind.TERMINATE and _TAKEN_BACK.search(a.cause)}
    return tuple(
        a
        for a in activities
        if a.kind is Kind.LAUNCH and a.failed and not (a.status == "Cancelled" and a.vm in taken_back)
    )


def ended_before_service(activities: Sequence[Activity]) -> int:
    """Return how many launches in a row, up to the newest that ended, failed though AWS had a VM."""
    failed = frozenset(a.vm for a in failed_launches(activities) if not a.no_capacity)
    ended = [a for a in activities if a.kind is Kind.LAUNCH and a.vm and (a.status == "Successful" or a.vm in failed)]
    return sum(1 for _ in itertools.takewhile(lambda a: a.vm in failed, ended))


def are_failing(activities: Sequence[Activity]) -> bool:
    """Return whether AWS has VMs of the type, and `IN_A_ROW` of them ended before service."""
    short = any(activity.kind is Kind.LAUNCH and activity.no_capacity for activity in activities)
    return not short and ended_before_service(activities) >= IN_A_ROW


def still_launching(activities: Sequence[Activity], present: Collection[str]) -> bool:
    """Return whether a launch runs whose VM is not yet among those `present` in the group."""
    return any(a.kind is Kind.LAUNCH and a.running and a.vm not in present for a in activities)


def _zone_of(described: dict[str, Any]) -> str:
    try:
        details = json.loads(described.get("Details") or "{}")
    except ValueError:
        return ""
    return str(details.get("Availability Zone", "")) if isinstance(details, dict) else ""
