"""Options and help texts that the trainer's verbs share."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from agent.commands.options import examples, moment
from domain.errors import BadInput

if TYPE_CHECKING:
    from trainer.learning.recorded import Recorded

WorkersOption = Annotated[int, Option(metavar="N", min=1, help="Processes.")]
PlayersOption = Annotated[int, Option(metavar="N", min=1, help="Processes; cores of a local Ray.")]
PlayOnRayOption = Annotated[str | None, Option(metavar="ADDRESS|local", help="Play on a Ray cluster.")]
YearsOption = Annotated[float, Option(metavar="YEARS", help="Length of a run.")]
ScenarioOption = Annotated[str, Option(metavar="NAME|FOLDER", help="internal_like, azure_like, or a folder of yours.")]
StartOption = Annotated[str, Option(metavar="cold|warm", help="Empty, or with the VMs of hour 0.")]
AlphaOption = Annotated[float, Option(help="Required chance of a week with fewer hot hours than promised.")]
ForceOption = Annotated[bool, Option("--force", help="Write over a file that exists.")]
PricesOption = Annotated[str | None, Option(metavar="train|m5a", help="Price table, else the world's prices.")]
BootOption = Annotated[
    str | None, Option(metavar="const:S|uniform:LOW,HIGH", help="Boot time in seconds, else the world's.")
]
WorldOption = Annotated[
    str,
    Option(
        "--world", "--preset", metavar="NAME|FILE", help="The world: a name, see `simulate --help`, or a FILE.toml."
    ),
]
CooldownOption = Annotated[float | None, Option(metavar="SECONDS", help="Cool-down, else the world's.")]
SuiteWorldOption = Annotated[
    str,
    Option(
        "--world",
        metavar="live-like|training|NAME|FILE",
        help="The world of T3, T5 and T6; or any other, of jobs of your own.",
    ),
]
OwnWorkloadsOption = Annotated[
    list[str] | None,
    Option("--workload", metavar="NAME|FILE", help="Your jobs in place of the suite, as for `simulate`; repeatable."),
]
SuiteSeedsOption = Annotated[
    int | None, Option("--seeds", metavar="N", help="At most so many cases per family.", min=1)
]
RecordedFleetOption = Annotated[str, Option("--fleet", metavar="NAME", help="Fleet of the ledger.")]
RecordedSinceOption = Annotated[
    str | None, Option("--since", "--from", metavar="TIME", help="Not before: 2026-03-01T12:00, or 30d ago.")
]
RecordedUntilOption = Annotated[
    str | None, Option("--until", metavar="TIME", help="Before: 2026-03-08T12:00, or 2h ago.")
]


def recording(ledger: str, fleet: str, since: str | None, until: str | None) -> Recorded:
    """Return what a ledger recorded of a fleet in the span of two options; BadInput, LedgerUnavailable."""
    from trainer.learning.recorded import read_recorded

    return read_recorded(ledger, fleet, *span_of_options(since, until))


def span_of_options(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """Return the epoch seconds that --since and --until mean, None for one that is not given; BadInput."""
    now = time.time()
    start = None if since is None else moment("--since", since, now)
    end = None if until is None else moment("--until", until, now)
    if start is not None and end is not None and not start < end:
        raise BadInput("--until", until, f"give a time after --since {since}")
    return start, end


@contextmanager
def shown_days(*, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show the day that was read last (epoch seconds) on standard error while it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading the ledger") as bar:
        yield lambda end_s: bar.update(f"reading the ledger: {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d}")


def epilog(*blocks: str, calls: tuple[str, ...]) -> str:
    """Return the end of a verb's help: blocks of text, whose lines stay as they are, and examples of calls."""
    # The backspace keeps a block from being wrapped.
    return "\n\n".join([*(f"\b\n{block.strip()}" for block in blocks), examples(*calls)])


def words_of(text: str) -> list[str]:
    """Return the words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def check_output(path: Path, force: bool, option: str = "--output") -> None:
    """Raise BadInput where an option names a file that is there already, unless forced, or a folder that is not."""
    if path.exists() and not force:
        raise BadInput(option, str(path), "it exists: give another file, or --force to write over it")
    if not path.absolute().parent.is_dir():
        raise BadInput(option, str(path), "give a file in a folder that exists")


def command_of(ctx: Context, without: tuple[str, ...] = ()) -> str:
    """Return the command that was called, with the options that were given; `without`: long names left out."""
    words = [*ctx.command_path.split()]
    for parameter in ctx.command.params:
        name = parameter.opts[0] if parameter.opts else ""
        value = ctx.params.get(parameter.name or "")
        if value is None or value == parameter.get_default(ctx) or name.removeprefix("--") in without:
            continue
        if isinstance(value, bool):
            words.append(name if value else max(parameter.secondary_opts, key=len, default=name))
        else:
            given = value if isinstance(value, list | tuple) else [value]
            words += [word for one in given for word in ([name, str(one)] if name.startswith("-") else [str(one)])]
    return shlex.join(words)
