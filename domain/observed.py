"""The observed state of the cloud: instances, groups, and the one reading of them that a tick works from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.capacity_units import CapacityUnits
from domain.errors import FailureClass


class Lifecycle(StrEnum):
    """The states of an Auto Scaling instance, folded to those that decisions depend on."""

    PENDING = "pending"
    IN_SERVICE = "in_service"
    DRAINING = "draining"
    TERMINATING = "terminating"
    STANDBY = "standby"


@dataclass(frozen=True, slots=True)
class Instance:
    """One VM of a group; `launched_at` is None until known. DRAINING = held in Terminating:Wait by a lifecycle hook.

    weight: its capacity units, which a termination with a decrement takes off the desired capacity. born_protected: it
    is protected, its group protects each new VM, and the agent may take that off.
    """

    vm: str
    zone: str
    lifecycle: Lifecycle
    healthy: bool = True
    protected: bool = False
    launched_at: float | None = None
    weight: int = 1
    born_protected: bool = False

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
class GroupIdentity:
    """What distinguishes a group from another one of the same name: its ARN and when it was created, epoch seconds."""

    arn: str
    created_at: float

    @property
    def group(self) -> str:
        """The group's name, which ends its ARN; "" where that is not known."""
        return self.arn.partition(":autoScalingGroupName/")[2]


@dataclass(frozen=True, slots=True)
class GroupObserved:
    """One Auto Scaling group as described by AWS; `suspended` holds process names such as Launch and Terminate.

    desired, minimum, maximum: in VMs. counted: VMs that AWS counts against the desired capacity; setting that below
    their units ends VMs. They may exceed `serving`: VMs in states that Trimtab does not touch may count too. units: the
    sizes as AWS holds them; None where each VM is one unit. identity: None where it is not known. unknown_states: VMs
    in a state that AWS does not document, each with the state; they may count, and are left alone.
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
    units: CapacityUnits | None = None
    identity: GroupIdentity | None = None
    unknown_states: tuple[tuple[str, str], ...] = ()

    @property
    def capacity(self) -> CapacityUnits:
        """The group's sizes in capacity units, which alone AWS is asked for."""
        return self.units or CapacityUnits(self.desired, self.minimum, self.maximum, self.counted, self.counted)

    @property
    def serving(self) -> tuple[Instance, ...]:
        """Instances that are, or are about to be, capacity."""
        return tuple(instance for instance in self.instances if instance.serving)

    @property
    def pending(self) -> tuple[Instance, ...]:
        """Instances that are about to be capacity, and may yet end before they are."""
        return tuple(instance for instance in self.instances if instance.lifecycle is Lifecycle.PENDING)

    @property
    def in_service(self) -> int:
        """How many instances are capacity."""
        return sum(instance.lifecycle is Lifecycle.IN_SERVICE for instance in self.instances)


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why a group could not be read in this tick, or is of a kind that is not managed (UNSUPPORTED)."""

    failure: FailureClass
    detail: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Every group that could be read, by AWS name, and why the others could not.

    names: what the network calls each VM, by instance id, where that is known. held: groups that are not managed and
    are in `failures` too; only VMs that work are cared for in them, and their sizes mean nothing.
    """

    at: float
    groups: Mapping[str, GroupObserved] = field(default_factory=dict)
    failures: Mapping[str, ReadFailure] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held: Mapping[str, GroupObserved] = field(default_factory=dict)
