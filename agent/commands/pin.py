"""`trimtab pin` and `trimtab unpin`: set a fleet's or a group's size by hand for a time."""

from __future__ import annotations

from typing import Annotated

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
    from agent.commands.switchboard import switchboard

    lasting_s = duration_s("--for", lasting)
    with switchboard(ledger) as board:
        name, done = board.pin(fleet, size, group=group, owner=owner_of(owner), reason=reason, lasting_s=lasting_s)
    made, before = done.pin, done.before
    text = ", ".join(f"{key} {count}" for key, count in made.desired.items())
    typer.echo(f"{name}: pinned at {text} until {time_text(made.until)} ({duration_text(lasting_s)})")
    if before is not None:
        earlier = ", ".join(f"{key} {count}" for key, count in before.desired.items())
        typer.echo(f"it takes the place of {before.owner}'s pin at {earlier} ({before.reason})")


def unpin(fleet: FleetOption = None, ledger: LedgerOption = None, owner: OwnerOption = None) -> None:
    """Lift the pin, so that the policy decides again."""
    from agent.commands.switchboard import switchboard

    with switchboard(ledger) as board:
        name, is_lifted = board.unpin(fleet, owner=owner_of(owner))
    typer.echo(f"{name}: {'the pin is lifted' if is_lifted else 'there was no pin'}")


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command(
        epilog=examples(
            'trimtab pin 12 --for 2h --reason "product launch"',
            'trimtab pin 3 --group workers_l --for 1d --reason "large jobs tonight"',
        )
    )(pin)
    app.command(epilog=examples("trimtab unpin", "trimtab unpin --fleet web"))(unpin)
