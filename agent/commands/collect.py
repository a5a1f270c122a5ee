"""`trimtab collect`: on each VM, report its CPU and memory; anywhere, run one collector once to see what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, examples, print_json

if TYPE_CHECKING:
    from agent.settings import Settings

HOST = "host"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=examples("TRIMTAB_COLLECT__FLEET=web trimtab collect", "trimtab collect queue:web --once --json")
    )(collect)


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
    import os

    from agent.settings import load_settings
    from domain.errors import BadInput

    settings = load_settings(os.environ)
    if not once:
        if name != HOST:
            raise BadInput("collector", name, "add --once; without it `trimtab collect` reports this VM")
        if as_json:
            raise BadInput("--json", True, "add --once; what is reported goes to Graphite, not here")
        _report(settings, os.environ)
        return
    from agent.service.one_collection import collected_once

    found = collected_once(settings, name)
    rows = [{"path": sample.series.path, "value": sample.value, "at": sample.at} for sample in found.samples]
    if as_json:
        print_json({"collector": found.name, "duration_s": round(found.duration_s, 3), "samples": rows})
        return
    from agent.commands.output import columns, show

    show(columns([(row["path"], f"{row['value']:g}", f"{row['at']:.0f}") for row in rows], indent=""))
    typer.echo(f"{found.name}: {len(rows)} samples in {found.duration_s:.2f} s", err=True)


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
