"""`trimtab inputs try`: what a file of Graphite lines of other senders would become."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, app, examples, print_json, show
from agent.decisions.text import columns
from domain.errors import BadInput

if TYPE_CHECKING:
    from collectors.base import Refusal
    from collectors.mapping import VmPlace
    from domain.samples import Sample

SHOWN = 200

inputs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at what other senders' lines become.")
app.add_typer(inputs, name="inputs")


class _Readings:
    """Keeps what would have reached the series."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, float, float]] = []

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        self.taken += zip((path.decode("utf-8", "replace") for path in paths), values, times, strict=True)
        return ()

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        return ()


@inputs.command(
    "try",
    epilog=examples(
        "trimtab inputs try lines.txt --map inputs.toml --host web-1=web.workers.i-0abc",
        "nc -l 2003 | head -500 | trimtab inputs try - --json",
    ),
)
def attempt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines `path value time`; - reads standard input.")],
    rules: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="Map; else TRIMTAB_INPUT_MAP.", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FLEET.GROUP.VM", help="A name that the inventory would know; repeatable.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each line would become under a map, and the readings that come out; nothing is sent or stored.

    Exit status 1 when nothing comes out of any line.
    """
    from agent.settings import load_settings
    from collectors.intake import IntakeCounters, LineReader
    from collectors.mapping import Hosts, MappedSink, read_map
    from domain.errors import RejectReason

    place = rules or load_settings(os.environ).input_map
    if place is None:
        raise BadInput("--map", "(nothing)", "give a map, or set TRIMTAB_INPUT_MAP (docs/operate/inputs.md)")
    chosen = read_map(place)
    hosts = Hosts(chosen.hosts)
    hosts.update((place, [name]) for name, place in map(_named, host or ()))
    text = _read(file)
    lines = [line.split() for line in text.splitlines() if len(line.split()) == 3]
    below, counters = _Readings(), IntakeCounters()
    mapped = MappedSink(below, chosen, hosts)
    # Each line is judged at its own time: a file is older than what a listener takes.
    reader = LineReader(mapped, counters, lambda: at)
    at = 0.0
    for line in text.splitlines():
        at = _time_of(line, at)
        reader.whole(line.encode())
    first = {path: mapped.explain(path) for path, _, _ in lines}
    refused = {reason.value: count for reason, count in counters.rejected.items() if count}
    if as_json:
        readings = [{"path": path, "value": value, "at": at} for path, value, at in below.taken]
        print_json({"lines": len(text.splitlines()), "refused": refused, "becomes": first, "readings": readings})
    else:
        show(columns([*list(first.items())[:SHOWN]], indent=""))
        if len(first) > SHOWN:
            typer.echo(f"and {len(first) - SHOWN} further paths (--json shows all)")
        newest = {path: (value, at) for path, value, at in below.taken}
        times = Counter(path for path, _, _ in below.taken)
        typer.echo(f"\nreadings: {len(below.taken)} of {len(text.splitlines())} lines, {len(newest)} series")
        show(columns([(p, f"{value:g}", f"{times[p]} times") for p, (value, _) in newest.items()][:SHOWN], indent="  "))
        for reason, count in refused.items():
            typer.echo(f"refused: {count} {reason}, the last one: {counters.examples[RejectReason(reason)]}")
    if not below.taken:
        raise typer.Exit(1)


def _time_of(line: str, before: float) -> float:
    parts = line.split()
    try:
        at = float(parts[2])
    except (IndexError, ValueError):
        return before
    return at if at >= 0 else before


def _read(file: Path) -> str:
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as fault:
        raise BadInput("FILE", str(file), f"{fault.strerror}: give a readable file of Graphite lines") from None
    return raw.decode("utf-8", "replace")


def _named(text: str) -> tuple[str, VmPlace]:
    name, _, place = text.partition("=")
    keys = place.split(".")
    if not name or len(keys) != 3 or not all(keys):
        raise BadInput("--host", text, "give NAME=FLEET.GROUP.VM, such as web-1=web.workers.i-0abc")
    return name, (keys[0], keys[1], keys[2])
