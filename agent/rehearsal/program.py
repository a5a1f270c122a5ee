"""Plays a dry run on the screen that was asked for, and prints its reckoning."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog
from rich.console import Console

from agent.ledger import Ledger
from agent.rehearsal.run import DryRun, DryRunOptions, reasons_of
from agent.rehearsal.screen import JsonScreen, LineScreen, LiveScreen, Screen
from agent.rehearsal.story import story_named
from agent.rehearsal.summary import Summary


def play(
    *,
    fault: str,
    speed: float,
    minutes: int,
    seed: int,
    workload: str,
    mode: str,
    overrides: Mapping[str, str],
    directory: Path,
    headless: bool,
    as_json: bool,
) -> bool:
    """Run and print.

    Return whether the ledger holds every event that the story requires (always true in observe mode).
    """
    story = story_named(fault)
    options = DryRunOptions(story, speed, seed, minutes, workload, mode, directory, overrides)
    console = Console()
    json_screen = JsonScreen() if as_json else None
    screen: Screen
    if json_screen is not None:
        screen = json_screen
    elif headless or not sys.stdout.isatty():
        screen = LineScreen()
    else:
        screen = LiveScreen(console, f"trimtab dry-run – {story.name}: {story.about}")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "dry-run.log").open("w", encoding="utf-8") as log:
        _log_to(log)
        run = DryRun(options, screen)
        if json_screen is not None:
            json_screen.say(kind="workload", detail=run.scenario.description)
        else:
            console.print(run.scenario.description, style="dim", highlight=False)
        summary = run.run()
    if json_screen is not None:
        _print_events(json_screen, directory)
        json_screen.say(**summary.as_json())
    else:
        _print_summary(console, summary)
    return mode != "act" or not summary.missing


def _log_to(stream: object) -> None:
    """Send log events to a file beside the ledger: the screen belongs to the story."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=stream),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    logging.getLogger("apscheduler").setLevel(logging.ERROR)


def _print_events(screen: JsonScreen, directory: Path) -> None:
    with Ledger.open(f"sqlite:///{(directory / 'ledger.db').resolve()}", read_only=True) as ledger:
        seen = 0
        while entries := ledger.journal(seen):
            for entry in entries:
                screen.say(
                    kind=entry.kind,
                    seq=entry.seq,
                    at=entry.at,
                    fleet=entry.fleet,
                    ref=entry.ref,
                    reason=entry.reason,
                    reasons=reasons_of(entry),
                    detail=entry.body.get("sentence") or entry.body.get("detail", ""),
                )
            seen = entries[-1].seq


def _print_summary(console: Console, summary: Summary) -> None:
    lived = summary.lived
    console.print()
    console.print(
        f"{summary.decisions} decisions, {summary.changes} changed the fleet; {lived.finished} of {lived.submitted} "
        f"jobs done, {lived.interrupted} interrupted; ${lived.rent:.3f} of rent",
        highlight=False,
    )
    console.print(summary.table())
    if summary.missing:
        console.print(f"missing from the ledger: {', '.join(summary.missing)}", style="bold red")
    console.print("try next:")
    for command in summary.next_commands():
        console.print(f"  {command}", style="cyan", highlight=False, soft_wrap=True)
