"""`trimtab ledger`: look at the ledger itself, and make it fit an older version before going back to that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from agent.commands.options import JsonOption, LedgerOption, examples, print_json

ledger = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@ledger.callback()
def about() -> None:
    """Look at the ledger itself, or make it fit an older version of Trimtab."""


@ledger.command(epilog=examples("trimtab ledger check", "trimtab ledger check --json"))
def check(option: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Show where the ledger is, its schema, its newest row and what is open in it."""
    from agent.commands.ledger import open_ledger
    from agent.ledger.schema import REVISIONS

    with open_ledger(option) as opened:
        found = {
            "place": opened.place,
            "schema": opened.schema(),
            "newest_schema": REVISIONS[-1],
            "newest_row": opened.newest_seq(),
            "epoch": opened.epoch(),
            "fleets": list(opened.fleets()),
            "open_intents": [intent.intent_id for intent in opened.open_intents()],
        }
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        text = (", ".join(value) or "none") if isinstance(value, list) else value
        typer.echo(f"{name.replace('_', ' '):<14} {text}")


@ledger.command(
    epilog=examples("trimtab ledger downgrade --to 0004", "trimtab ledger downgrade --to 0002 --lose admission")
)
def downgrade(
    to: Annotated[str, typer.Option("--to", metavar="SCHEMA", help="Schema of the version to go back to.")],
    option: LedgerOption = None,
    lose: Annotated[
        list[str] | None,
        typer.Option("--lose", metavar="STATE", help="State to export and drop: admission, oversubscription."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="File for what is lost; else one beside the SQLite ledger."),
    ] = None,
) -> None:
    """Bring the schema back to that of an older version, with the agent stopped; history and open intents stay.

    State that the older version has no place for is never dropped unnoticed: the command refuses until --lose names
    it, and writes it to a file first. Upgrading needs no command: an agent that starts does it.
    """
    from agent.commands.ledger import open_ledger

    with open_ledger(option, to_write=True) as opened:
        place, before = opened.place, opened.schema()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        directory = Path() if "://" in place else Path(place).parent
        path = export or directory / f"ledger-schema-{before}-to-{to}-{moment}.jsonl"
        written = opened.downgrade(to, lose=lose or (), export_to=path)
    typer.echo(f"{place}: schema {before} -> {to}; install the version that uses it before starting the agent again")
    if written is not None:
        typer.echo(
            f"{', '.join(lose or ())}: exported to {written}; back on schema {before}: trimtab ledger import FILE"
        )


@ledger.command("import", epilog=examples("trimtab ledger import ledger-schema-0004-to-0002-20261122T150000Z.jsonl"))
def take_in(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `trimtab ledger downgrade` exported.")],
    option: LedgerOption = None,
) -> None:
    """Put back the state that a downgrade exported, with the agent stopped, once the ledger has its schema again."""
    from agent.commands.ledger import open_ledger

    with open_ledger(option, to_write=True) as opened:
        rows, place = opened.take_in(file), opened.place
    typer.echo(f"{place}: {rows} rows put back from {file}")


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.add_typer(ledger, name="ledger")
