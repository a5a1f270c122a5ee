"""Plays a dry run on the screen that was asked for, and prints its reckoning."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType

import structlog
from rich.console import Console

from agent.ledger import Ledger
from agent.ledger.records import JournalEntry
from agent.rehearsal.admission import Admissions, play_admissions
from agent.rehearsal.live_view import LiveScreen
from agent.rehearsal.oversubscription import Oversold, play_oversubscription
from agent.rehearsal.run import LEDGER, LOG, DryRun, DryRunOptions, fresh_directory, shown_path, shown_program
from agent.rehearsal.screen import JsonScreen, LineScreen, Screen, clock_text
from agent.rehearsal.story import story_named, told_by
from agent.rehearsal.summary import Summary
from domain.decisions import Event, Reason

ANSWERS = frozenset(
    {
        Reason.ADMITTED,
        Reason.REJECTED_FEASIBILITY,
        Reason.REJECTED_RULE,
        Reason.REJECTED_UNSAFE,
        Reason.REJECTED_INPUT,
        Reason.NO_CAPACITY,
        Reason.OBSERVE_MODE,
        Reason.RATES_CHANGED,
        Reason.RATES_FROZEN,
        Reason.RATES_ROLLED_BACK,
        Reason.MACHINE_HOT,
        Reason.USAGE_DRIFTED,
        Reason.NO_MACHINE,
    }
)
"""What is worth a line of what happens to a cluster or a pool."""


class Section(Enum):
    """What a dry run shows: the hour of a fleet, the gate before a cluster, rates of a pool, or one after the other."""

    ALL = "all"
    FLEET = "fleet"
    ADMISSION = "admission"
    OVERSUBSCRIPTION = "oversubscription"


class Ending(Enum):
    """How a dry run ended."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    STOPPED = "stopped"


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
    page: bool = False,
    section: Section = Section.ALL,
) -> Ending:
    """Run and print.

    Return COMPLETE when the ledger holds every event that the story requires (always so in observe mode), STOPPED after
    Ctrl-C or SIGTERM.
    """
    story = story_named(fault)
    options = DryRunOptions(story, speed, seed, minutes, workload, mode, directory, overrides, page)
    console = Console()
    json_screen = JsonScreen() if as_json else None
    screen: Screen
    if json_screen is not None:
        screen = json_screen
    elif headless or not console.is_terminal or console.is_dumb_terminal:
        screen = LineScreen()
    else:
        screen = LiveScreen(console, story.name)
    fresh_directory(directory)
    run = DryRun(options, screen)
    summary: Summary | None = None
    admissions: Admissions | None = None
    oversold: Oversold | None = None
    try:
        with logging_to(directory / LOG), termination_as_interrupt():
            if section in (Section.ALL, Section.FLEET):
                summary = run.run()
            if section is Section.ADMISSION or (section is Section.ALL and mode == "act"):
                teller = tells(console, json_screen, screen)
                admissions = play_admissions(directory.resolve(), seed, mode, overrides, teller)
            if section in (Section.ALL, Section.OVERSUBSCRIPTION):
                teller = tells(console, json_screen, screen)
                oversold = play_oversubscription(directory.resolve(), seed, mode, overrides, teller)
    except KeyboardInterrupt:
        _print_stopped(console, json_screen, run, directory)
        return Ending.STOPPED
    if json_screen is not None:
        _print_events(json_screen, directory)
        for told in (admissions, oversold, summary):
            if told is not None:
                json_screen.say(**told.as_json())
    else:
        if admissions is not None:
            _print_admissions(console, admissions)
        if oversold is not None:
            _print_oversold(console, oversold)
        if summary is not None:
            _print_summary(console, summary)
    return Ending.INCOMPLETE if mode == "act" and summary is not None and summary.missing else Ending.COMPLETE


def tells(console: Console, json_screen: JsonScreen | None, screen: Screen) -> Callable[[Event], None]:
    """Return what shows an event of a cluster: every decision as a line; in the terminal view only refusals.

    A program reads them all from the ledger's entries.
    """
    shown = ANSWERS if isinstance(screen, LineScreen) else ANSWERS - {Reason.ADMITTED}

    def tell(event: Event) -> None:
        if json_screen is None and event.reason in shown:
            line = f"{clock_text(event.at)} {event.reason} {event.detail}"
            console.print(line, highlight=False, soft_wrap=True, style="" if isinstance(screen, LineScreen) else "dim")

    return tell


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what was started is stopped."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send log events to a file beside the ledger: the screen belongs to the story."""
    before = structlog.get_config()
    quiet = logging.getLogger("apscheduler")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    with path.open("w", encoding="utf-8") as log:
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            logger_factory=structlog.WriteLoggerFactory(file=log),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)
            quiet.setLevel(level)


def _print_stopped(console: Console, json_screen: JsonScreen | None, run: DryRun, directory: Path) -> None:
    if json_screen is not None:
        json_screen.say(kind="stopped", turns=run.turns, ledger=shown_path(directory / LEDGER))
        return
    console.print(f"stopped after {run.turns} turns of the loop; nothing is left running", highlight=False)
    if run.turns:
        command = f"{shown_program()} decisions --ledger {shown_path(directory / LEDGER)}"
        console.print(f"what was decided until then: [cyan]{command}[/cyan]", highlight=False, soft_wrap=True)


def _print_events(screen: JsonScreen, directory: Path) -> None:
    with Ledger.open(f"sqlite:///{(directory / LEDGER).resolve()}", read_only=True) as ledger:
        journal: list[JournalEntry] = []
        while entries := ledger.journal(journal[-1].seq if journal else 0):
            journal += entries
    reasons: dict[int, list[str]] = {}
    for entry in journal:
        reasons[entry.seq] = [told.reason for told in told_by([entry])]
    for entry in journal:
        screen.say(
            kind=entry.kind,
            seq=entry.seq,
            at=entry.at,
            fleet=entry.fleet,
            ref=entry.ref,
            reason=entry.reason,
            reasons=reasons[entry.seq],
            detail=entry.body.get("sentence") or entry.body.get("detail", ""),
        )


def _print_admissions(console: Console, admissions: Admissions) -> None:
    console.print()
    console.print(admissions.sentence(), highlight=False)
    for reason, decision_id, detail in admissions.refusals():
        console.print(f"  {reason}, for example {decision_id}: {detail}", style="dim", highlight=False)
    console.print(f"why one was refused: [cyan]{admissions.next_command()}[/cyan]", highlight=False, soft_wrap=True)


def _print_oversold(console: Console, oversold: Oversold) -> None:
    console.print()
    console.print(oversold.sentence(), highlight=False)
    console.print(f"why a rate is what it is: [cyan]{oversold.next_command()}[/cyan]", highlight=False, soft_wrap=True)


def _print_summary(console: Console, summary: Summary) -> None:
    console.print()
    console.print(summary.sentence(), highlight=False)
    console.print()
    console.print(summary.table(), highlight=False)
    console.print()
    if summary.missing:
        console.print(f"missing from the ledger: {', '.join(summary.missing)}", style="bold red")
    console.print("try next:")
    for command in summary.next_commands():
        console.print(f"  {command}", style="cyan", highlight=False, soft_wrap=True)
