"""The ledger as the verbs use it, and `trimtab ledger`: look at it, restore it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, LedgerOption, app, examples, print_json
from domain.errors import ConfigurationError, LedgerUnavailable

if TYPE_CHECKING:
    from agent.kernel.decision import Part
    from agent.kernel.parts import Parts
    from agent.ledger import Ledger

ledger = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at the ledger itself, or restore it.",
)
app.add_typer(ledger, name="ledger")


@ledger.command(epilog=examples("trimtab ledger check", "trimtab ledger check --json"))
def check(option: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Show where the ledger is, its schema, its newest row and what is open in it; exit with 1 when it is damaged."""
    from agent.kernel.parts import kinds
    from agent.kernel.store import DecisionStore
    from agent.ledger.schema import REVISIONS

    with open_ledger(option) as opened:
        damage = opened.damage()
        if damage:
            raise LedgerUnavailable(
                f"ledger {opened.place} is damaged ({damage}): stop the agent and run `trimtab ledger restore FILE` "
                "with a copy of it"
            )
        there, owner, decided = opened.identity(), opened.owned_by(), DecisionStore(opened.database)
        found = {
            "place": opened.place,
            "ledger_id": there.ledger_id,
            "generation": there.generation,
            "account": owner.account or "",
            "region": owner.region or "",
            "deployment": owner.deployment or "",
            "schema": opened.schema(),
            "newest_schema": REVISIONS[-1],
            "newest_row": opened.newest_seq(),
            "epoch": opened.epoch(),
            **{f"{kind.subject_word}s": list(decided.subjects(kind.name)) for kind in kinds()},
            "open_intents": [intent.intent_id for intent in opened.open_intents()],
        }
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        text = (", ".join(value) or "none") if isinstance(value, list) else value
        typer.echo(f"{name.replace('_', ' '):<14} {text}")


@ledger.command(epilog=examples("trimtab ledger restore copy.db", "trimtab ledger restore"))
def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Copy of a SQLite ledger; default: the ledger in place.")
    ] = None,
    option: LedgerOption = None,
    another: Annotated[bool, typer.Option("--another", help="Take another agent's ledger, or free this one.")] = False,
) -> None:
    """Put a copy in the place of the ledger, with the agent stopped; what was in place is kept under another name.

    Without FILE the agent goes on with what is in place: a PostgreSQL database that was restored by its own tools, or
    nothing at all, where the next start shall begin a new ledger.
    """
    from agent.kernel.parts import kept
    from agent.ledger.restore import restore
    from agent.settings.location import DEFAULT_STATE_DIRECTORY, state_directory_location

    named = state_directory_location(os.environ)
    directories = [named] if option is None or named != DEFAULT_STATE_DIRECTORY else []
    done = restore(ledger_url(option), file, directories, time.time(), kept(), is_another=another)
    if done is None:
        typer.echo("no ledger in place: the next start creates one")
        return
    typer.echo(f"{done.place}: {f'restored from {file}' if file else 'taken as it is'}, epoch {done.epoch}")
    if done.kept is not None:
        typer.echo(f"the replaced ledger is kept as {done.kept}")
    typer.echo(f"decisions continue from number {done.numbers_from + 1}")
    typer.echo(f"open intents, which the next start reads back: {', '.join(done.open_intents) or 'none'}")
    if done.lost is None:
        typer.echo("the ledger before cannot be compared: see `trimtab status` for the pauses and pins now in force")
        return
    for (decision, subject), controls in done.lost.items():
        lost = f"{decision}/{subject}" if decision else subject
        for pause in controls.pauses:
            typer.echo(f"LOST: {lost} was paused ({pause.scope}) by {pause.owner}: {pause.reason}")
        if controls.pin is not None:
            typer.echo(f"LOST: {lost} was pinned by {controls.pin.owner}: {controls.pin.reason}")
    if done.lost:
        typer.echo("pause and pin them again before the agent starts: both verbs write to the ledger itself")


def ledger_url(option: str | None) -> str:
    """Return the ledger's URL from `--ledger` (a URL or the path of a SQLite file), else from the settings."""
    from agent.settings.location import ledger_location

    if option is None:
        return ledger_location(os.environ)
    return option if "://" in option else f"sqlite:///{Path(option).absolute()}"


def open_ledger(option: str | None, *, to_write: bool = False) -> Ledger:
    """Open the ledger, which must exist: a verb never makes one."""
    from agent.ledger import Ledger

    url = ledger_url(option)
    ledger = Ledger.open(url, read_only=True)
    if not to_write:
        return ledger
    ledger.close()
    return Ledger.open(url)


def installed(ledger: Ledger, environ: Mapping[str, str] = os.environ) -> Parts:
    """Return the installed parts on a ledger, with the environment's settings as far as these can be read."""
    from agent.kernel.decision import Host
    from agent.kernel.parts import parts_of
    from agent.settings import load_settings
    from domain.clock import WallClock

    try:
        settings = load_settings(environ)
    except ConfigurationError:
        settings = None
    return parts_of(Host(ledger, settings, WallClock(), environ=environ))


@contextmanager
def open_parts(option: str | None, environ: Mapping[str, str] = os.environ) -> Iterator[Parts]:
    """Give the installed parts on the ledger that an option names."""
    with open_ledger(option) as book:
        yield installed(book, environ)


def chosen(parts: Parts, decision: str | None, subject: str | None, fleet: str | None = None) -> list[tuple[Part, str]]:
    """Return the subjects that DECISION and SUBJECT mean, each with its part; DECISION may be a subject's own name.

    fleet: of the option of the release before. BadInput or UnknownName lists what there is.
    """
    names = {part.name for part in parts}
    if fleet is not None:
        from agent.kernel.decision import one_subject
        from domain.subject import AUTOSCALING

        part = parts.named(AUTOSCALING)
        return [(part, one_subject(part, fleet, field="--fleet"))]
    if decision is not None and decision not in names and subject is None:
        decision, subject = None, decision
    return parts.choose(decision, subject)
