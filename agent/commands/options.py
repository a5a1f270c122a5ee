"""The program `trimtab`, to which each module adds its verbs, and what they share: options, times, printing.

A verb imports what it needs only when it runs.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup

from domain.errors import BadInput, ConfigurationError, TrimtabError, install_command
from domain.units import DAY_S, HOUR_S, MINUTE_S

ENTRY_POINTS = "trimtab.commands"
"""Packages outside add verbs here: an entry point is a function that takes the program and adds to it."""

FAILED, BAD_INPUT = 1, 2

EXTRAS: Mapping[str, str] = {
    "torch": "train",
    "numba": "train",
    "gymnasium": "train",
    "onnx": "train",
    "onnxscript": "train",
    "scipy": "train",
    "highspy": "deferral",
    "pyarrow": "train",
    "matplotlib": "train",
    "tensorboard": "train",
    "ray": "distributed",
    "ortools": "placement",
    "cmaes": "placement",
    "psycopg": "postgres",
    "moto": "dry-run",
}
"""Packages that only some verbs need, and the extra that brings each."""

DECISIONS = ", ".join(sorted(entry_points(group="trimtab.decisions").names))
"""The decisions that are installed; none is loaded for a help text."""

LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL|PATH", help="Ledger; else that of the settings.", show_default=False),
]
DecisionArgument = Annotated[
    str | None,
    typer.Argument(metavar="[DECISION]", help=f"{DECISIONS}; or a subject.", show_default=False),
]
SubjectArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SUBJECT]", help="Fleet, cluster or pool; not needed when there is one.", show_default=False
    ),
]
SubjectOption = Annotated[
    str | None,
    typer.Option(
        "--subject",
        metavar="[DECISION/]NAME",
        help="Fleet, cluster or pool meant; not needed when there is one fleet.",
        show_default=False,
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option("--fleet", metavar="NAME", help="Fleet meant; not needed when there is one.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]
OwnerOption = Annotated[
    str | None,
    typer.Option("--owner", help="Name of the operator; default: $SUDO_USER or $USER.", show_default=False),
]

ModelsOption = Annotated[
    Path | None,
    typer.Option("--models", metavar="DIRECTORY", help="Models directory; else that of the settings."),
]

ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, shown in status and in every decision.")]

DURATION_UNITS_S = {"s": 1.0, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}
LONGEST_DURATION_S = 366 * DAY_S

GOOD = r"\b(?P<good>done|act|raised|closed)\b"
BAD = r"\b(?P<bad>vetoed|failed|unknown|partial|open|stale)\b"
HELD = r"\b(?P<held>shrunk|moved|skipped|in progress|paused|pinned|observe|lowered)\b"
STYLES = {"word.good": "green", "word.bad": "bold red", "word.held": "yellow"}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAKE_ROOM = ": make room there and give the same command again; a file is written whole or not at all"


class Program(TyperGroup):
    """Finds the verbs of other packages only when they are asked for, and turns an error into one message.

    The exit status is 2 when a value given is wrong, 1 when the work failed.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs, ours first."""
        return [*super().list_commands(ctx), *_plugged_in()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb by name, None when there is none."""
        return super().get_command(ctx, cmd_name) or _plugged_in().get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            typer.echo(f"error: this needs {error.name}: install it with {install_command(extra)}", err=True)
            raise typer.Exit(FAILED) from None
        except (TrimtabError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            print_error(error)
            raise typer.Exit(BAD_INPUT if isinstance(error, BadInput | ConfigurationError) else FAILED) from None


def print_error(error: Exception) -> None:
    """Print an error for people, on standard error, with the remedy for a full disk."""
    full = isinstance(error, OSError) and error.errno in FULL
    typer.echo(f"error: {error}{_MAKE_ROOM if full else ''}", err=True)


@cache
def _plugged_in() -> Mapping[str, Any]:
    """Return the verbs of other packages; loading them costs time that `trimtab run` need not spend."""
    outside = typer.Typer(rich_markup_mode=None)
    # With a callback it stays a group, however few verbs there are.
    outside.callback()(lambda: None)
    for plugin in entry_points(group=ENTRY_POINTS):
        plugin.load()(outside)
    group: Any = typer.main.get_command(outside)
    return dict(group.commands)


def _in_usage(argument: TyperArgument, ctx: Any) -> list[str]:
    """Return an argument as a usage line names it: FILE, or an optional [FILE]."""
    name = argument.metavar or argument.display_name_raw.upper()
    if not argument.required and not name.startswith("["):
        name = f"[{name}]"
    return [name if argument.nargs == 1 or name.endswith("...") else f"{name}..."]


def _commands(group: TyperGroup, ctx: Any, formatter: Any) -> None:
    """Write the first sentence of each command, over as many lines as it takes."""
    found = {name: group.get_command(ctx, name) for name in group.list_commands(ctx)}
    rows = [(name, one.get_short_help_str(limit=1000)) for name, one in found.items() if one and not one.hidden]
    with formatter.section("Commands"):
        formatter.write_dl(rows)


# Typer sets required arguments in braces, and cuts a sentence that is longer than a line.
TyperArgument.get_usage_pieces = _in_usage  # type: ignore[assignment, method-assign]
TyperGroup.format_commands = _commands  # type: ignore[assignment, method-assign]

app = typer.Typer(
    name="trimtab",
    cls=Program,
    help="Scales cloud fleets safely and explains every decision.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def duration_s(option: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 2h or 1d; BadInput names the option."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(found[1]) * DURATION_UNITS_S[found[2]] if found else 0.0
    if not 0.0 < seconds <= LONGEST_DURATION_S:
        raise BadInput(option, text, "give a duration above 0 and up to 366d, such as 90s, 15m, 2h or 1d")
    return seconds


def setting_given(text: str) -> tuple[str, str]:
    """Return variable and value of a `--set NAME=VALUE`; BadInput."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise BadInput("--set", text, "give NAME=VALUE, for example FLEETS__web__POLICY=threshold")
    return f"TRIMTAB_{name.removeprefix('TRIMTAB_')}", value


def examples(*lines: str) -> str:
    """Return the end of a verb's help: two examples, one to a line."""
    # The backspace keeps the help from being wrapped.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def moment(option: str, text: str, now: float) -> float:
    """Return the epoch seconds of `2026-03-01T12:00` (UTC unless it says otherwise), or of `2h`: so long ago."""
    if re.fullmatch(r"[\d.]+[a-z]", text.strip()):
        return now - duration_s(option, text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInput(
            option, text, "give a time such as 2026-03-01T12:00 (UTC), or how long ago: 90s, 2h, 1d"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def models_directory(option: Path | None) -> Path:
    """Return the directory of models and champion: `--models`, else as the settings have it."""
    from agent.settings.location import models_location

    return option or models_location(os.environ)


def models_environment(option: Path | None, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the directory of `--models` in place of that of the settings."""
    from agent.settings.location import MODELS_VARIABLE

    if option is None:
        return environ
    others = {name: value for name, value in environ.items() if name.upper() != MODELS_VARIABLE}
    return others | {MODELS_VARIABLE: str(option.absolute())}


def owner_of(option: str | None) -> str:
    """Return who asks: `--owner`, else the user behind sudo, else the user."""
    return option or os.environ.get("SUDO_USER") or os.environ.get("USER") or getpass.getuser()


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def wrapped(line: str, width: int) -> list[str]:
    """Return a line in pieces of at most `width` columns, cut between words, the later ones further in."""
    from textwrap import wrap

    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrap(line, width, subsequent_indent=indent, replace_whitespace=False, break_on_hyphens=False)


def show(lines: Sequence[str]) -> None:
    """Print lines, on a terminal as wide as that and with words for good and bad coloured; a pipe gets them as are."""
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Words(RegexHighlighter):
        base_style = "word."
        highlights = [GOOD, BAD, HELD]  # noqa: RUF012 (rich reads this name from the class)

    console = Console(theme=Theme(STYLES), highlighter=Words(), soft_wrap=True)
    for line in lines:
        for piece in wrapped(line, console.width) if console.is_terminal else [line]:
            console.print(piece, markup=False, emoji=False)
