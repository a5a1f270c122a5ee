"""`trimtab pin` and `trimtab unpin`: set a fleet's or a group's size by hand for a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import (
    FleetOption,
    LedgerOption,
    OwnerOption,
    ReasonOption,
    duration_s,
    duration_text,
    examples,
    owner_of,
    time_text,
)
from domain.errors import BadInput

if TYPE_CHECKING:
    from domain.fleet import Fleet


def pin(
    size: Annotated[int, typer.Argument(metavar="N", min=0, help="VMs of the fleet, or of the group with --group.")],
    lasting: Annotated[str, typer.Option("--for", help="How long: 90s, 15m, 2h, 1d.")],
    reason: ReasonOption,
    group: Annotated[str | None, typer.Option("--group", metavar="KEY", help="Pin this group only.")] = None,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Keep a fleet, or one group, at a size for a time; it ends by itself, and a pause stands before it.

    N VMs of a fleet are spread from its present sizes: more come from the cheapest type with room, fewer go from the
    most expensive type first.
    """
    from agent.commands.ledger import fleets, known_fleet, one_fleet, open_ledger
    from agent.state import Pin

    now = time.time()
    until = now + duration_s("--for", lasting)
    with open_ledger(ledger, to_write=True) as book:
        name = one_fleet(fleet, fleets(book))
        known, sizes = known_fleet(book, name)
        desired = spread(known, sizes, size) if group is None else of_group(known, group, size)
        before = book.controls(name).pin
        book.pin(name, Pin(desired, owner_of(owner), reason, now, until))
    text = ", ".join(f"{key} {count}" for key, count in desired.items())
    typer.echo(f"{name}: pinned at {text} until {time_text(until)} ({duration_text(until - now)})")
    if before is not None and before.active(now):
        earlier = ", ".join(f"{key} {count}" for key, count in before.desired.items())
        typer.echo(f"it takes the place of {before.owner}'s pin at {earlier} ({before.reason})")


def unpin(fleet: FleetOption = None, ledger: LedgerOption = None, owner: OwnerOption = None) -> None:
    """Lift the pin, so that the policy decides again."""
    from agent.commands.ledger import fleets, one_fleet, open_ledger

    with open_ledger(ledger, to_write=True) as book:
        name = one_fleet(fleet, fleets(book))
        is_lifted = book.unpin(name, at=time.time(), owner=owner_of(owner))
    typer.echo(f"{name}: {'the pin is lifted' if is_lifted else 'there was no pin'}")


def of_group(fleet: Fleet, key: str, size: int) -> dict[str, int]:
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


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command(
        epilog=examples(
            'trimtab pin 12 --for 2h --reason "product launch"',
            'trimtab pin 3 --group workers_l --for 1d --reason "large jobs tonight"',
        )
    )(pin)
    app.command(epilog=examples("trimtab unpin", "trimtab unpin --fleet web"))(unpin)
