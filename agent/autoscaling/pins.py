"""Pins: a fleet or a group kept at a size, the same from the command line and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.autoscaling.state import FleetStore
from agent.kernel.controls import checked_length, checked_owner, checked_reason
from agent.ledger import Ledger
from domain.controls import Pin
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.subject import AUTOSCALING


@dataclass(frozen=True, slots=True)
class PinChange:
    """The pin now in force and the one whose place it took, if that still held."""

    pin: Pin
    before: Pin | None


def pin(
    store: FleetStore,
    fleet: str,
    size: int,
    *,
    group: str | None,
    owner: str,
    reason: str,
    now: float,
    lasting_s: float,
) -> PinChange:
    """Keep a fleet, or one group of it, at a size for a time.

    BadInput when the size is outside the bounds, the group unknown or nothing was ever decided for the fleet.
    """
    until = now + checked_length(lasting_s)
    known, sizes = _last_known(store, fleet)
    desired = spread(known, sizes, size) if group is None else of_group(known, group, size)
    before = store.ledger.controls(AUTOSCALING, fleet).pin
    made = Pin(desired, checked_owner(owner), checked_reason(reason), now, until)
    store.ledger.pin(AUTOSCALING, fleet, made)
    return PinChange(made, before if before is not None and before.active(now) else None)


def unpin(ledger: Ledger, fleet: str, *, owner: str, now: float) -> bool:
    """Lift the pin and say whether there was one."""
    return ledger.unpin(AUTOSCALING, fleet, at=now, owner=checked_owner(owner))


def of_group(fleet: Fleet, key: str, size: int) -> Mapping[str, int]:
    """Return the pin of one group; BadInput names the groups there are, or the bounds."""
    group = fleet.groups[fleet.index(key)]
    if not group.minimum <= size <= group.maximum:
        raise BadInput("N", size, f"give {group.minimum} to {group.maximum}, the bounds of {key}")
    return {key: size}


def spread(fleet: Fleet, sizes: Sequence[int], total: int) -> dict[str, int]:
    """Return the size of every group, keys in the fleet's order, that sums up to `total`.

    Starts from `sizes` brought within each group's bounds. VMs to add are of the cheapest type with room; VMs to remove
    are of the most expensive type above its minimum. BadInput names the fleet's bounds.
    """
    low, high = sum(group.minimum for group in fleet.groups), sum(group.maximum for group in fleet.groups)
    if not low <= total <= high:
        raise BadInput("N", total, f"give {low} to {high}, the bounds of fleet {fleet.name}")
    desired = [min(max(size, group.minimum), group.maximum) for group, size in zip(fleet.groups, sizes, strict=True)]
    cheapest_first = sorted(range(len(desired)), key=lambda k: (fleet.prices_per_hour[k], k))
    missing = total - sum(desired)
    for k in cheapest_first if missing > 0 else reversed(cheapest_first):
        group = fleet.groups[k]
        step = max(group.minimum - desired[k], min(group.maximum - desired[k], missing))
        desired[k] += step
        missing -= step
    return {group.key: count for group, count in zip(fleet.groups, desired, strict=True)}


def _last_known(store: FleetStore, name: str) -> tuple[Fleet, tuple[int, ...]]:
    """Return the fleet as it was last decided on, and the sizes requested then; BadInput before the first decision."""
    record = store.newest(name)
    if record is None:
        raise BadInput("fleet", name, "nothing was ever decided for it, so its groups are not known: start the agent")
    fleet, snapshot = record.inputs.fleet, record.inputs.snapshot
    if snapshot is not None:
        return fleet, snapshot.requested
    known = record.inputs.state.known_desired
    return fleet, tuple(known.get(group.key, group.minimum) for group in fleet.groups)
