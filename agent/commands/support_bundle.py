"""`trimtab support-bundle`: versions, settings, decisions, health and metrics in one archive, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent.commands.options import app, examples


@app.command(
    "support-bundle",
    epilog=examples("trimtab support-bundle", "trimtab support-bundle --decisions 200 --output trouble.tar.gz"),
)
def support_bundle(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Archive to write; it must not exist.", show_default=False)
    ] = None,
    decisions: Annotated[int, typer.Option(help="How many of the newest decisions.", min=0, max=10_000)] = 50,
    journal: Annotated[int, typer.Option(help="How many of the newest journal rows.", min=0, max=100_000)] = 500,
    log: Annotated[
        Path | None, typer.Option(help="A log file whose end is added, as `journalctl -u trimtab-agent` writes.")
    ] = None,
) -> None:
    """Write an archive for somebody who helps; secrets are masked, and what could not be read is named in it.

    It tells names of groups, queues and VMs, sizes and costs: look into it before you hand it on.
    """
    import os
    import time

    from agent.service.support_bundle import write_bundle

    target = output or Path(time.strftime("trimtab-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    for line in write_bundle(target, os.environ, decisions=decisions, journal=journal, log=log):
        typer.echo(f"  {line}")
    typer.echo(f"wrote {target}")
