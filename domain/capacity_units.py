"""Capacity units, in which AWS counts a group, and VMs, in which everything else counts: the one place of conversion.

A group's desired capacity and its bounds are units. A VM is one unit, unless the overrides of the group's mixed
instances give its type a weight; it keeps that weight when they lose theirs. AWS launches until the units of the VMs
reach the desired capacity, so that it may go beyond by less than one VM. It ends VMs only as long as those that stay
still reach it, and a VM that is terminated with a decrement takes its own weight off. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapacityUnits:
    """A group as AWS counts it, in units; `vms` alone is a number of VMs.

    desired, minimum, maximum: the group's sizes. counted: units of the VMs that AWS counts against `desired`; vms: how
    many these are. weight: units of each VM launched from now on. heaviest: units of the heaviest VM, of those counted
    and those launched from now on.

    With k VMs of c units, desired capacity d, weight w and heaviest VM h, the sizes in VMs are

        desired   k + ceil((d - c) / w) where d >= c, else k - floor((c - d) / h)
        minimum   desired - floor((d - minimum) / h)
        maximum   k + floor((maximum - c) / w), and no less than desired

    Where all VMs weigh w these are ceil(d / w) and, for bounds that are multiples of w, the bounds divided by w.
    """

    desired: int
    minimum: int
    maximum: int
    counted: int
    vms: int
    weight: int = 1
    heaviest: int = 1

    @property
    def desired_vms(self) -> int:
        """VMs with which AWS reaches the desired capacity."""
        step = self.heaviest if self.counted > self.desired else self.weight
        return self.vms - (self.counted - self.desired) // step

    @property
    def minimum_vms(self) -> int:
        """VMs that are left once as many were terminated, each with a decrement, as AWS is sure to accept."""
        return self.desired_vms - (self.desired - self.minimum) // self.heaviest

    @property
    def maximum_vms(self) -> int:
        """VMs whose units do not exceed the maximum; those that AWS reaches its desired capacity with are within it."""
        most = self.vms + (self.maximum - self.counted) // self.weight
        return max(most, self.desired_vms) if self.desired <= self.maximum else most

    def units_of(self, vms: int) -> int:
        """Return the desired capacity with which AWS has so many VMs: for more VMs than desired, more than it is."""
        return self.counted + (vms - self.vms) * self.weight

    def lowered_to(self, vms: int) -> int:
        """Return the desired capacity of so many VMs, but no less than AWS counts: it then ends none."""
        return max(self.units_of(vms), self.counted, self.minimum)


def bounds_in_vms(minimum: int, maximum: int, weight: int) -> tuple[int, int]:
    """Return bounds in units as VMs that all weigh `weight`: those that reach the minimum, and fit into the maximum.

    Where no number of VMs lies between the two, both are the fewest that reach the minimum.
    """
    fewest = -(-minimum // weight)
    return fewest, max(fewest, maximum // weight)


def size_text(vms: int, units: int) -> str:
    """Return a size in VMs, with its units where these differ: `3`, or `3 VMs = 6 units`."""
    if vms == units:
        return str(vms)
    return f"{vms} VM{'' if vms == 1 else 's'} = {units} unit{'' if units == 1 else 's'}"
