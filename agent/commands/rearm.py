"""`trimtab rearm`: the rates of a pool that was rolled back may go down again."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.commands.options import OwnerOption, examples, owner_of

ReasonOption = Annotated[
    str, typer.Option("--reason", help="What made machines hot, and why it is over; it stands in the journal.")
]


def rearm(
    reason: ReasonOption,
    pool: Annotated[
        str | None, typer.Argument(metavar="[POOL]", help="Pool; not needed when there is one.", show_default=False)
    ] = None,
    owner: OwnerOption = None,
) -> None:
    """Let the rates of a rolled-back pool go down again.

    Three hot hours in 120 roll a pool back: every new VM is reserved in full until a person has looked into it.
    The page and `GET /api/v1/oversubscription` tell which machines were hot and whose VMs made them so.

    After it, rates go down one level in two hours as the policy asks, and hot hours from before no longer count. The
    running agent does it; there is nothing to do while it is down, for nothing is oversold then.
    """
    from agent.commands.switchboard import switchboard

    with switchboard(None) as board:
        name = board.rearm(pool, owner=owner_of(owner), reason=reason)
    typer.echo(f"{name}: re-armed; rates go down again from the next hour, one level in two hours")


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command(
        epilog=examples(
            'trimtab rearm --reason "batch moved to other machines"', 'trimtab rearm main --reason "load test is over"'
        )
    )(rearm)
