"""`trimtab dry-run`: the whole loop against a fake AWS with real input, told as a story in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from domain.errors import BadInput, TrimtabError

EPILOG = """Examples:

  trimtab dry-run

  trimtab dry-run --fault throttle --headless

  trimtab dry-run --set FLEETS__web__POLICY=threshold --fault none"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("dry-run", epilog=EPILOG)(dry_run)


def dry_run(
    fault: Annotated[
        str,
        typer.Option(help="What goes wrong: story, none, throttle, capacity, gap, spot or timeout."),
    ] = "story",
    speed: Annotated[float, typer.Option(min=1.0, max=120.0, help="Simulated seconds per second.")] = 60.0,
    minutes: Annotated[int, typer.Option(min=5, max=240, help="Simulated minutes to live.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of jobs, boot times and faults.")] = 1993,
    workload: Annotated[str, typer.Option(help="Recorded jobs to replay.")] = "nasa",
    mode: Annotated[str, typer.Option(help="act, or observe: decide and record, change nothing.")] = "act",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the agent, without TRIMTAB_; repeatable."),
    ] = None,
    keep: Annotated[Path, typer.Option(help="Directory for the ledger; an earlier run's is replaced.")] = Path(
        ".trimtab/dry-run"
    ),
    headless: Annotated[bool, typer.Option("--headless", help="Lines instead of the live view.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The ledger's events as JSON, one a line.")] = False,
) -> None:
    """Run the agent for a simulated hour against a fake AWS on this machine, and show what it does and why.

    Needs no account and no network. Exits with status 1 when the ledger lacks an event that the story requires.
    """
    from agent.rehearsal.program import play

    overrides = dict(_pair(text) for text in setting or [])
    complete = play(
        fault=fault,
        speed=speed,
        minutes=minutes,
        seed=seed,
        workload=workload,
        mode=mode,
        overrides=overrides,
        directory=keep,
        headless=headless,
        as_json=as_json,
    )
    if not complete:
        raise TrimtabError("the ledger lacks an event that the story requires (see `missing` above)")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise BadInput("--set", text, "give NAME=VALUE, for example FLEETS__web__POLICY=threshold")
    return f"TRIMTAB_{name.removeprefix('TRIMTAB_')}", value
