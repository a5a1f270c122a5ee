"""The managed objects: VM types, groups of one type, and the fleet that serves one queue."""

from __future__ import annotations

from dataclasses import dataclass

from domain.errors import BadInput, UnknownName


@dataclass(frozen=True, slots=True)
class VmType:
    """A kind of VM: its cores, memory in GB and price in dollars per hour."""

    name: str
    cores: int
    memory_gb: float
    price_per_hour: float

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise BadInput(f"VM type {self.name}: cores", self.cores, "give a whole number of at least 1")
        if not self.price_per_hour >= 0.0:
            raise BadInput(
                f"VM type {self.name}: price_per_hour", self.price_per_hour, "give dollars per hour, 0 or more"
            )


@dataclass(frozen=True, slots=True)
class Group:
    """An Auto Scaling group of one VM type.

    `key` is its short name in settings and metric paths, `name` is AWS's name for it.
    """

    key: str
    name: str
    vm_type: VmType
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise BadInput(
                f"group {self.key}: minimum..maximum", (self.minimum, self.maximum), "give 0 <= minimum <= maximum"
            )


@dataclass(frozen=True, slots=True)
class Fleet:
    """One queue, one policy and one group per VM type; vectors over a fleet are in the order of `groups`."""

    name: str
    groups: tuple[Group, ...]
    queue_url: str | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise BadInput(f"fleet {self.name}: groups", (), "give at least one group")
        for what, names in (("key", [g.key for g in self.groups]), ("name", [g.name for g in self.groups])):
            if len(set(names)) != len(names):
                raise BadInput(f"fleet {self.name}: group {what}s", names, "give each group its own")

    @property
    def cores(self) -> tuple[int, ...]:
        """Cores of one VM, per group."""
        return tuple(group.vm_type.cores for group in self.groups)

    @property
    def prices_per_hour(self) -> tuple[float, ...]:
        """Dollars per hour of one VM, per group."""
        return tuple(group.vm_type.price_per_hour for group in self.groups)

    @property
    def max_cores(self) -> int:
        """Cores of the fleet with every group at its maximum (C_max of the autoscaler specification, §3)."""
        return sum(group.maximum * group.vm_type.cores for group in self.groups)

    @property
    def core_price_per_hour(self) -> float:
        """Dollars per hour of a core, the mean over the fleet with every group at its maximum."""
        counts = [max(group.maximum, 1) for group in self.groups]
        prices = sum(n * price for n, price in zip(counts, self.prices_per_hour, strict=True))
        return prices / sum(n * cores for n, cores in zip(counts, self.cores, strict=True))

    def index(self, key: str) -> int:
        """Return the position of the group with this key; UnknownName lists the existing keys."""
        for position, group in enumerate(self.groups):
            if group.key == key:
                return position
        raise UnknownName("group", key, f"fleet {self.name} has: {', '.join(g.key for g in self.groups)}")


def vms(count: int) -> str:
    """Return '1 VM' or 'n VMs'."""
    return f"{count} VM" if count == 1 else f"{count} VMs"
