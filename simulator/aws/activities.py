"""Scaling activities: the diary of a group as DescribeScalingActivities tells it, newest first."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from typing import Any


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
class Diary:
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
