"""What the verbs share on the command line: options, durations and times, who asks, and how data is printed."""

from __future__ import annotations

import getpass
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from domain.errors import BadInput

LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL|PATH", help="Ledger; else that of the settings.", show_default=False),
]
FleetOption = Annotated[
    str | None,
    typer.Option("--fleet", metavar="NAME", help="Fleet meant; not needed when there is one.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]
OwnerOption = Annotated[
    str | None,
    typer.Option("--owner", help="Who asks; else $SUDO_USER or $USER.", show_default=False),
]

ModelsOption = Annotated[
    Path | None,
    typer.Option("--models", metavar="DIRECTORY", help="Models directory; else that of the settings."),
]

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it stands in status and in every decision.")]

DURATION_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LONGEST_DURATION_S = 366 * 86_400.0


def duration_s(option: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 2h or 1d; BadInput names the option."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(found[1]) * DURATION_UNITS_S[found[2]] if found else 0.0
    if not 0.0 < seconds <= LONGEST_DURATION_S:
        raise BadInput(option, text, "give a duration above 0 and up to 366d, such as 90s, 15m, 2h or 1d")
    return seconds


def duration_text(seconds: float) -> str:
    """Return a duration as people write it: 90 s, 15 min, 2 h 5 min, 3 d 4 h."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {name}" for count, name in parts[first : first + 2] if count)


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


def time_text(at: float) -> str:
    """Return a time as 2026-03-01 12:04:05 UTC."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "a time beyond the calendar"


def models_directory(option: Path | None) -> Path:
    """Return the directory of models and champion: `--models`, else as the settings have it."""
    from agent.settings.location import models_location

    return option or models_location(os.environ)


def owner_of(option: str | None) -> str:
    """Return who asks: `--owner`, else the user behind sudo, else the user."""
    return option or os.environ.get("SUDO_USER") or os.environ.get("USER") or getpass.getuser()


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
