"""`trimtab world`: write a world file of what a ledger recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, examples, print_json
from domain.errors import BadInput
from trainer.commands.options import (
    ForceOption,
    RecordedFleetOption,
    RecordedSinceOption,
    RecordedUntilOption,
    check_output,
    recording,
    shown_days,
)


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    world = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Write a world file from the record of a ledger."
    )
    # With a callback the source stays a word of its own, though there is but one.
    world.callback()(lambda: None)
    world.command(
        "from-ledger",
        epilog=examples(
            "trimtab world from-ledger /var/lib/trimtab/ledger.db --fleet web --out web.toml",
            "trimtab world from-ledger postgresql://host/trimtab --fleet web --since 60d --out web.toml --json",
        ),
    )(from_ledger)
    app.add_typer(world, name="world")


def from_ledger(
    ledger: Annotated[str, Argument(metavar="LEDGER", help="SQLite file, or URL.")],
    fleet: RecordedFleetOption,
    out: Annotated[Path, Option("--out", "-o", metavar="FILE.toml", help="World file to write.")],
    since: RecordedSinceOption = None,
    until: RecordedUntilOption = None,
    base: Annotated[
        str, Option("--world", metavar="NAME|FILE", help="World for the fields that a ledger does not record.")
    ] = "live-like",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the world that a fleet was in: types, prices, limits, cool-down, and boot times as they were measured.

    Comments in the file say what was measured, of how many boots, and what is an assumption.
    """
    from simulator.autoscaling.world_file import world_named
    from trainer.learning.exported import export_world

    if out.suffix != ".toml":
        raise BadInput("--out", str(out), "give a file that ends in .toml")
    check_output(out, force, "--out")
    usual = world_named(base)
    recorded = recording(ledger, fleet, since, until)
    with shown_days(quiet=as_json) as on_day:
        made, notes = export_world(recorded, out, usual, on_day)
    if as_json:
        print_json({"file": str(out), "sha256": made.digest, "notes": list(notes)})
        return
    typer.echo(f"{out}: {len(made.config.types)} VM types, SHA-256 {made.digest}")
    for note in notes:
        typer.echo(f"  {note}")
