"""`trimtab pause` and `trimtab resume`: hold scale-in, scale-out or both, and let go again."""

from __future__ import annotations

import time
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
from agent.state import Pause, PauseScope

HELD = {PauseScope.ALL: "every change", PauseScope.IN: "scale-in", PauseScope.OUT: "scale-out"}


def pause(
    scope: Annotated[PauseScope, typer.Argument(help="Direction to hold.")],
    reason: ReasonOption,
    lasting: Annotated[
        str | None, typer.Option("--for", help="How long: 90s, 15m, 2h, 1d; else until resumed.")
    ] = None,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Hold changes in one direction or both, until resumed or for a time; works while the agent is down, too."""
    from agent.commands.ledger import fleets, one_fleet, open_ledger

    now = time.time()
    until = None if lasting is None else now + duration_s("--for", lasting)
    with open_ledger(ledger, to_write=True) as book:
        name = one_fleet(fleet, fleets(book))
        book.pause(name, Pause(scope, owner_of(owner), reason, now, until))
    end = "until resumed" if until is None else f"until {time_text(until)} ({duration_text(until - now)})"
    typer.echo(f"{name}: {HELD[scope]} is paused {end}")


def resume(
    scope: Annotated[PauseScope, typer.Argument(help="Pause to lift; all lifts every one.")] = PauseScope.ALL,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Lift pauses."""
    from agent.commands.ledger import fleets, one_fleet, open_ledger

    now = time.time()
    with open_ledger(ledger, to_write=True) as book:
        name = one_fleet(fleet, fleets(book))
        is_lifted = book.resume(name, scope, at=now, owner=owner_of(owner))
        left = [pause for pause in book.controls(name).pauses if pause.active(now)]
    said = f"{HELD[scope]} is resumed" if is_lifted else f"there was no pause of {HELD[scope]}"
    still = [f"{HELD[pause.scope]}, paused by {pause.owner} ({pause.reason})" for pause in left]
    typer.echo(f"{name}: {said}{'; still held: ' + '; '.join(still) if still else ''}")


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command(
        epilog=examples(
            'trimtab pause in --reason "load test" --for 2h', 'trimtab pause all --reason "incident 42" --fleet web'
        )
    )(pause)
    app.command(epilog=examples("trimtab resume", "trimtab resume in --fleet web"))(resume)
