"""What the verbs share on the command line: durations, the ledger, the fleet, who asks, and how data is printed."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Sequence
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


def ledger_url(option: str | None) -> str:
    """Return the ledger's URL from `--ledger` (a URL or the path of a SQLite file), else from the settings."""
    from agent.settings.location import ledger_location

    if option is None:
        return ledger_location(os.environ)
    return option if "://" in option else f"sqlite:///{Path(option).absolute()}"


def owner(option: str | None) -> str:
    """Return who asks: `--owner`, else the user behind sudo, else the user."""
    return option or os.environ.get("SUDO_USER") or os.environ.get("USER") or getpass.getuser()


def one_fleet(option: str | None, names: Sequence[str]) -> str:
    """Return the fleet meant: `--fleet`, or the only one there is; BadInput names those there are."""
    listed = ", ".join(sorted(names)) or "(none)"
    if option is not None:
        if option not in names:
            raise BadInput("--fleet", option, f"choose one of: {listed}")
        return option
    if len(names) != 1:
        remedy = f"name one of: {listed}" if names else "the ledger holds no fleet yet; start the agent first"
        raise BadInput("--fleet", None, remedy)
    return names[0]


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
