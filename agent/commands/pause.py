"""`trimtab pause` and `trimtab resume`: hold scale-in, scale-out or both, and let go again."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.autoscaling.state import PauseScope
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
    from agent.commands.switchboard import switchboard

    lasting_s = None if lasting is None else duration_s("--for", lasting)
    with switchboard(ledger) as board:
        name, made = board.pause(fleet, scope, owner=owner_of(owner), reason=reason, lasting_s=lasting_s)
    end = "until resumed"
    if made.until is not None:
        end = f"until {time_text(made.until)} ({duration_text(made.until - made.since)})"
    typer.echo(f"{name}: {HELD[scope]} is paused {end}")


def resume(
    scope: Annotated[PauseScope, typer.Argument(help="Pause to lift; all lifts every one.")] = PauseScope.ALL,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Lift pauses."""
    from agent.commands.switchboard import switchboard

    with switchboard(ledger) as board:
        name, done = board.resume(fleet, scope, owner=owner_of(owner))
    said = f"{HELD[scope]} is resumed" if done.lifted else f"there was no pause of {HELD[scope]}"
    still = [f"{HELD[pause.scope]}, paused by {pause.owner} ({pause.reason})" for pause in done.left]
    typer.echo(f"{name}: {said}{'; still held: ' + '; '.join(still) if still else ''}")


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command(
        epilog=examples(
            'trimtab pause in --reason "load test" --for 2h', 'trimtab pause all --reason "incident 42" --fleet web'
        )
    )(pause)
    app.command(epilog=examples("trimtab resume", "trimtab resume in --fleet web"))(resume)
