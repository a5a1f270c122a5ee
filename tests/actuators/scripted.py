"""An AWS that answers as a test says: each changing call is noted, and fails where an error is named for it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from actuators.base import ChangingCall, Refusal
from actuators.sizes import GroupSizes
from domain.decisions import Direction, Intent, Outcome
from domain.errors import CloudError, FailureClass
from domain.fleet import Group, VmType
from domain.observed import DrainHook, GroupObserved, Instance, Lifecycle, Observed, ReadFailure

NOW = 1_795_176_000.0
LATE = NOW + 600.0
"""The deadline of each intent."""
WEB = Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 0, 10)
SHORT = "We currently do not have sufficient m5a.large capacity in the Availability Zone you requested (us-east-1b)."
"""Why a launch failed that AWS had no VM for."""
A, B, C, D = "i-0000000a", "i-0000000b", "i-0000000c", "i-0000000d"


def error(failure: FailureClass, code: str = "Odd", operation: str = "SetDesiredCapacity") -> CloudError:
    """Return a failed call of this class."""
    return CloudError(operation, failure, code, "as the test says")


def vms(*names: str, lifecycle: Lifecycle = Lifecycle.IN_SERVICE, **about: Any) -> tuple[Instance, ...]:
    """Return instances of these names."""
    return tuple(Instance(name, "us-east-1a", lifecycle, **about) for name in names)


def group(desired: int, *instances: Instance, minimum: int = 0, maximum: int = 10, **about: Any) -> GroupObserved:
    """Return the group `web-s` as AWS describes it."""
    return GroupObserved("web-s", desired, minimum, maximum, instances, **about)


def activity(status: str, *, at: float = NOW, kind: str = "Launching", **about: str) -> dict[str, Any]:
    """Return a scaling activity as AWS describes it; vm, message, cause and zone may be named."""
    described: dict[str, Any] = {
        "Description": f"{kind} a new EC2 instance: {about.get('vm', '')}",
        "StartTime": datetime.datetime.fromtimestamp(at, datetime.UTC),
        "StatusCode": status,
    }
    if "message" in about:
        described["StatusMessage"] = about["message"]
    if "cause" in about:
        described["Cause"] = about["cause"]
    return described


@dataclass
class Cloud:
    """Stands in for session, inventory and permit.

    group: what the next fresh reading shows, or the error that it meets. activities: newest first, or the error.
    fails: the errors of the next changing calls, by the VM or operation that they are about. refusals: by VM, or by
    act. calls: what was sent, as (operation, parameters). asked: every call that the permit was asked about.
    """

    group: GroupObserved | CloudError = field(default_factory=lambda: group(0))
    activities: list[dict[str, Any]] | CloudError = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[ChangingCall] = field(default_factory=list)
    read_only: bool = False

    def mutate(self, service: str, operation: str, **parameters: Any) -> None:
        self.calls.append((operation, parameters))
        for name in (str(parameters.get("InstanceId")), operation):
            if name in self.fails:
                raise self.fails[name]

    def pages(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        if isinstance(self.activities, CloudError):
            raise self.activities
        yield {"Activities": self.activities}

    @property
    def sizes(self) -> list[int]:
        """The desired capacities that were sent, in order."""
        return [parameters["DesiredCapacity"] for name, parameters in self.calls if name == "SetDesiredCapacity"]

    def fresh(self, name: str, now: float) -> GroupObserved:
        if isinstance(self.group, CloudError):
            raise self.group
        return self.group

    def permit(self, call: ChangingCall) -> Refusal | None:
        self.asked.append(call)
        return self.refusals.get(call.vm) or self.refusals.get(call.act.value)


HOOK = DrainHook("drain", 300.0, 7200.0)


def out(before: int = 2, target: int = 4) -> Intent:
    """Return an intent to grow."""
    return Intent("i1", "d1", "web", "s", Direction.OUT, before, target, (), 1, NOW, LATE)


def leaving(*victims: str, before: int = 4, direction: Direction = Direction.IN) -> Intent:
    """Return an intent by which VMs leave."""
    target = before - len(victims) if direction is Direction.IN else before
    return Intent("i1", "d1", "web", "s", direction, before, target, victims, 1, NOW, LATE)


def apply(cloud: Cloud, intent: Intent, ours: tuple[str, ...] = ()) -> Outcome:
    """Act on an intent for the first time."""
    return GroupSizes(cloud, cloud, ours).apply(intent, WEB, NOW, cloud.permit)  # type: ignore[arg-type]


def follow(
    cloud: Cloud, intent: Intent, seen: GroupObserved | None, now: float = NOW + 60.0, **failures: ReadFailure
) -> Outcome:
    """Follow it at a later turn, which read the group as `seen`, or failed to."""
    observed = Observed(now, {} if seen is None else {"web-s": seen}, {"web-s": failures["failed"]} if failures else {})
    return GroupSizes(cloud, cloud).follow(intent, WEB, observed, now, cloud.permit)  # type: ignore[arg-type]
