"""`trimtab inputs try`: what a file of Graphite lines of other senders would become."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, app, examples, print_json, show
from agent.kernel.text import columns
from domain.errors import BadInput

if TYPE_CHECKING:
    from agent.autoscaling.plug_ins import Inputs
    from agent.settings import Settings
    from collectors.base import Refusal, SampleSink
    from collectors.mapping import VmPlace
    from domain.errors import RejectReason
    from domain.samples import Sample

SHOWN = 200

inputs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Test the input map on lines of other senders.")
app.add_typer(inputs, name="inputs")


class _Taken:
    """Keeps what the series take."""

    def __init__(self, series: SampleSink) -> None:
        self._series = series
        self.readings: list[tuple[str, float, float]] = []

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        refused = self._series.append(paths, values, times, now, peer)
        at_fault = {refusal.position for refusal in refused}
        self.readings += [
            (path.decode("utf-8", "replace"), value, at)
            for position, (path, value, at) in enumerate(zip(paths, values, times, strict=True))
            if position not in at_fault
        ]
        return refused

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        return self._series.append_samples(samples, now)


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
    replay: Annotated[
        bool, typer.Option("--replay", help="Take each line as if it came at its own time: for lines of the past.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what each line would become under a map, and the readings that come out; nothing is sent or stored.

    What the listener would refuse now is refused, for its reason. The settings' fleets are those that it would know.
    Exit status 1 when a line was refused, or nothing comes out of any.
    """
    from agent.autoscaling.inputs import series_of
    from agent.autoscaling.snapshot.series import SeriesStore
    from agent.settings import load_settings
    from collectors.intake import IntakeCounters, LineReader
    from collectors.mapping import MappedSink
    from domain.errors import REFUSED_LINES, RejectReason

    settings = load_settings(os.environ)
    if rules is not None:
        settings = settings.model_copy(update={"input_map": rules})
    if settings.input_map is None:
        raise BadInput("--map", "(nothing)", "give a map, or set TRIMTAB_INPUT_MAP (docs/operate/inputs.md)")
    inputs = _inputs(settings, [_named(one) for one in host or ()])
    fleets = [settings.fleet(key) for key in settings.fleets]
    text = _read(file)
    # Without fleets of its own a host is no judge of names.
    below, counters = _Taken(series_of(settings, fleets) if fleets else SeriesStore()), IntakeCounters()
    mapped = MappedSink(below, *inputs)
    here = time.time()
    now = 0.0 if replay else here
    reader = LineReader(mapped, counters, lambda: now)
    outcomes: dict[str, Counter[RejectReason | None]] = {}
    for line in text.splitlines():
        if replay:
            now = max(now, _time_of(line, here))
        before = dict(counters.rejected)
        reader.whole(line.encode())
        if len(fields := line.split()) == 3:
            why = next((reason for reason, count in counters.rejected.items() if count > before[reason]), None)
            outcomes.setdefault(fields[0], Counter())[why] += 1
    first = {path: _becomes(mapped.explain(path), found) for path, found in outcomes.items()}
    refused = {reason.value: count for reason, count in counters.rejected.items() if count}
    if as_json:
        readings = [{"path": path, "value": value, "at": at} for path, value, at in below.readings]
        print_json({"lines": len(text.splitlines()), "refused": refused, "becomes": first, "readings": readings})
    else:
        show(columns([*list(first.items())[:SHOWN]], indent=""))
        if len(first) > SHOWN:
            typer.echo(f"and {len(first) - SHOWN} further paths (--json shows all)")
        newest = {path: (value, at) for path, value, at in below.readings}
        times = Counter(path for path, _, _ in below.readings)
        typer.echo(f"\nreadings: {len(below.readings)} of {len(text.splitlines())} lines, {len(newest)} series")
        show(columns([(p, f"{value:g}", f"{times[p]} times") for p, (value, _) in newest.items()][:SHOWN], indent="  "))
        for reason, count in refused.items():
            why = RejectReason(reason)
            typer.echo(f"refused: {count} {reason}, the last one: {counters.examples[why]}")
            typer.echo(f"  {REFUSED_LINES[why]}")
        if RejectReason.TOO_OLD in refused and not replay:
            typer.echo("  lines of the past are tried with --replay")
    if refused or not below.readings:
        raise typer.Exit(1)


def _becomes(explained: str, outcomes: Counter[RejectReason | None]) -> str:
    """Return the explanation of a path, with the number of its lines that were refused, by reason."""
    from collectors.mapping import TAKEN
    from domain.errors import RejectReason

    refused = [f"{count} of {outcomes.total()} {why}" for why, count in outcomes.items() if why is not None]
    if not refused or (explained != TAKEN and outcomes.keys() <= {RejectReason.FOREIGN_PATH, RejectReason.UNKNOWN_VM}):
        return explained
    said = f"refused: {', '.join(refused)}"
    return said if explained == TAKEN and None not in outcomes else f"{explained}; {said}"


def _inputs(settings: Settings, named: Sequence[tuple[str, VmPlace]]) -> Inputs:
    """Return the map of the settings with the names given, and those of the settings' fleets where AWS shows them."""
    from agent.autoscaling.inputs import inputs_of, inputs_without_a_loop
    from agent.service.assembly import aws_session
    from collectors.mapping import Hosts
    from domain.clock import WallClock
    from domain.decisions import Mode
    from domain.errors import TrimtabError

    found = inputs_of(settings)
    assert found is not None, "the settings have a map"
    fleets = [settings.fleet(key) for key in settings.fleets]
    if fleets and found.map.finds_by_host:
        observing = settings.model_copy(update={"mode": Mode.OBSERVE})
        session = aws_session(observing, WallClock(), None, lambda: None)
        try:
            found = inputs_without_a_loop(settings, fleets, session) or found
        except TrimtabError as error:
            typer.echo(f"names of VMs are those of --host and [hosts] alone: {error}", err=True)
        finally:
            session.close()
    if named:
        hosts = Hosts(found.hosts.known)
        hosts.update((place, [name]) for name, place in named)
        found = found._replace(hosts=hosts)
    return found


def _time_of(line: str, latest: float) -> float:
    """Return the time of a line, 0 where it has none, or one that is yet to come."""
    try:
        at = float(line.split()[2])
    except (IndexError, ValueError):
        return 0.0
    return at if 0.0 <= at <= latest else 0.0


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
