"""What the cloud says is there: instances, groups, and the one reading of them all that a tick works from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.errors import FailureClass


class Lifecycle(StrEnum):
    """The states of an Auto Scaling instance, folded to what decisions depend on."""

    PENDING = "pending"
    IN_SERVICE = "in_service"
    DRAINING = "draining"
    TERMINATING = "terminating"
    STANDBY = "standby"


@dataclass(frozen=True, slots=True)
class Instance:
    """One VM of a group; `launched_at` is None until known. DRAINING = held in Terminating:Wait by a lifecycle hook."""

    vm: str
    zone: str
    lifecycle: Lifecycle
    healthy: bool = True
    protected: bool = False
    launched_at: float | None = None

    @property
    def serving(self) -> bool:
        """Whether the VM is, or is about to be, part of the group's capacity."""
        return self.lifecycle in (Lifecycle.PENDING, Lifecycle.IN_SERVICE)


@dataclass(frozen=True, slots=True)
class DrainHook:
    """The lifecycle hook that holds a terminating VM: its name, heartbeat timeout and total limit in seconds."""

    name: str
    heartbeat_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class GroupObserved:
    """One Auto Scaling group as described by AWS; `suspended` holds process names such as Launch and Terminate.

    counted: what AWS holds against the desired capacity, in units of it; setting the desired capacity below this ends
    VMs. It may exceed `serving`: VMs in states that Trimtab does not touch may count too.
    """

    name: str
    desired: int
    minimum: int
    maximum: int
    instances: tuple[Instance, ...] = ()
    zones: tuple[str, ...] = ()
    suspended: tuple[str, ...] = ()
    drain_hook: DrainHook | None = None
    refreshing: bool = False
    counted: int = 0

    @property
    def serving(self) -> tuple[Instance, ...]:
        """Instances that are, or are about to be, capacity."""
        return tuple(instance for instance in self.instances if instance.serving)


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why a group could not be read this tick, or is of a kind that is not managed (UNSUPPORTED)."""

    failure: FailureClass
    detail: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Every group that could be read, by AWS name, and why the others could not."""

    at: float
    groups: Mapping[str, GroupObserved] = field(default_factory=dict)
    failures: Mapping[str, ReadFailure] = field(default_factory=dict)
