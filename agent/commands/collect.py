"""`trimtab collect`: on each VM, report its CPU and memory; anywhere, run one collector once to see what it gives."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, app, examples, print_json, show
from agent.kernel.text import columns

if TYPE_CHECKING:
    from agent.settings import Settings
    from collectors.base import Collector

HOST = "host"


@app.command(epilog=examples("TRIMTAB_COLLECT__FLEET=web trimtab collect", "trimtab collect queue:web --once --json"))
def collect(
    name: Annotated[
        str, typer.Argument(help="host: this VM; with --once also a collector of the agent, such as queue:web.")
    ] = HOST,
    once: Annotated[bool, typer.Option("--once", help="Collect once, print it and send nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Report this VM's CPU and memory, and what its job workers tell, until stopped.

    Where to, and whose VM it is, stands in the settings TRIMTAB_COLLECT__...; --once shows what one collection gives.
    """
    from agent.settings import load_settings
    from domain.errors import BadInput

    settings = load_settings(os.environ)
    if not once:
        if name != HOST:
            raise BadInput("collector", name, "add --once; without it `trimtab collect` reports this VM")
        if as_json:
            raise BadInput("--json", True, "add --once; reports go to Graphite, not to this command")
        _report(settings, os.environ)
        return
    from agent.service.vm_agent import measured_once

    began = time.monotonic()
    found = measured_once(settings) if name == HOST else tuple(_collector(settings, name).collect(time.time()))
    duration_s = time.monotonic() - began
    rows = [{"path": sample.series.path, "value": sample.value, "at": sample.at} for sample in found]
    if as_json:
        print_json({"collector": name, "duration_s": round(duration_s, 3), "samples": rows})
        return
    show(columns([(row["path"], f"{row['value']:g}", f"{row['at']:.0f}") for row in rows], indent=""))
    typer.echo(f"{name}: {len(rows)} samples in {duration_s:.2f} s", err=True)


def _report(settings: Settings, environ: Mapping[str, str]) -> None:
    from threading import Event

    from agent.commands.run import watch_signals
    from agent.service.logs import Scrubber, configure_logs, secrets_of
    from agent.service.systemd import Notifier
    from agent.service.vm_agent import report_until_stopped

    configure_logs(settings.log_level, Scrubber(secrets_of(settings, environ)))
    stopping = Event()
    watch_signals(stopping)
    report_until_stopped(settings, stopping, Notifier(environ))


def _collector(settings: Settings, name: str) -> Collector:
    """Return the fleets' collector of a name; BadInput lists those there are."""
    from agent.autoscaling.inputs import collectors_of, inputs_without_a_loop
    from agent.service.assembly import aws_session
    from domain.clock import WallClock
    from domain.decisions import Mode
    from domain.errors import BadInput

    observing = settings.model_copy(update={"mode": Mode.OBSERVE})
    session = aws_session(observing, WallClock(), None, lambda: None)
    fleets = [settings.fleet(key) for key in settings.fleets]
    inputs = inputs_without_a_loop(settings, fleets, session)
    made = {collector.name: collector for collector in collectors_of(settings, fleets, session, inputs=inputs)}
    try:
        return made[name]
    except KeyError:
        raise BadInput("collector", name, f"choose one of: {', '.join([HOST, *sorted(made)])}") from None
