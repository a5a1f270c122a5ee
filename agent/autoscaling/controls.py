"""What operators may switch: pause, resume, pin and unpin, the same from the command line and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.autoscaling.known_fleets import last_known
from agent.autoscaling.state import Pause, PauseScope, Pin
from agent.ledger import Ledger
from domain.errors import BadInput
from domain.fleet import Fleet

LONGEST_S = 366 * 86_400.0
LONGEST_WORDS = 500
"""Characters of a reason; an owner's name may have a fifth of that."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Whether there was a pause to lift, and the pauses that still hold."""

    lifted: bool
    left: tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Pinned:
    """The pin now in force and the one whose place it took, if that still held."""

    pin: Pin
    before: Pin | None


def pause(
    ledger: Ledger, fleet: str, scope: PauseScope, *, owner: str, reason: str, now: float, lasting_s: float | None
) -> Pause:
    """Hold a fleet's changes in one direction or both, for a time or (None) until resumed; return the pause."""
    until = None if lasting_s is None else now + _checked_length(lasting_s)
    made = Pause(scope, _owner(owner), _reason(reason), now, until)
    ledger.pause(fleet, made)
    return made


def resume(ledger: Ledger, fleet: str, scope: PauseScope, *, owner: str, now: float) -> Resumed:
    """Lift the pause of this scope, ALL lifts every one; say whether there was one and what still holds."""
    lifted = ledger.resume(fleet, scope, at=now, owner=_owner(owner))
    return Resumed(lifted, tuple(pause for pause in ledger.controls(fleet).pauses if pause.active(now)))


def pin(
    ledger: Ledger,
    fleet: str,
    size: int,
    *,
    group: str | None,
    owner: str,
    reason: str,
    now: float,
    lasting_s: float,
) -> Pinned:
    """Keep a fleet, or one group of it, at a size for a time.

    BadInput when the size is outside the bounds, the group unknown or nothing was ever decided for the fleet.
    """
    until = now + _checked_length(lasting_s)
    known, sizes = last_known(ledger, fleet)
    desired = spread(known, sizes, size) if group is None else of_group(known, group, size)
    before = ledger.controls(fleet).pin
    made = Pin(desired, _owner(owner), _reason(reason), now, until)
    ledger.pin(fleet, made)
    return Pinned(made, before if before is not None and before.active(now) else None)


def unpin(ledger: Ledger, fleet: str, *, owner: str, now: float) -> bool:
    """Lift the pin and say whether there was one."""
    return ledger.unpin(fleet, at=now, owner=_owner(owner))


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


def _checked_length(seconds: float) -> float:
    if not 0.0 < seconds <= LONGEST_S:
        raise BadInput("duration", seconds, f"give seconds above 0 and up to {LONGEST_S:.0f} (366 days)")
    return seconds


def _owner(owner: str) -> str:
    return _printable("owner", owner, LONGEST_WORDS // 5)


def _reason(reason: str) -> str:
    return _printable("reason", reason, LONGEST_WORDS)


def _printable(field: str, text: str, longest: int) -> str:
    """Return the text as it may stand in a log line, a terminal and a page."""
    if not text.strip() or len(text) > longest or not text.isprintable():
        raise BadInput(field, text, f"give 1 to {longest} printable characters")
    return text
