"""`trimtab local-aws`: an AWS on this machine with the groups and queues that a settings file describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import app, examples
from domain.errors import BadInput

if TYPE_CHECKING:
    from agent.rehearsal.local_aws import LocalAws


@app.command("local-aws", epilog=examples("trimtab local-aws web.toml", "trimtab local-aws web.toml --messages 60"))
def local_aws(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Settings, as `trimtab init` writes them.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on this machine; 0: any free one.")] = 0,
    messages: Annotated[int, typer.Option(min=0, max=100_000, help="Jobs to put on each fleet's queue.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of launch times.")] = 0,
) -> None:
    """Serve a simulated AWS on this machine with the fleets of a settings file, until Ctrl-C; needs no account.

    Launch templates, Auto Scaling groups at their minimum and the queues are made from FILE. The settings of an agent
    on it are written to the folder of FILE: `trimtab local-aws web.toml` writes web.local.env. Any AWS client can use
    the endpoint; groups that CloudFormation makes on it launch VMs too. The VMs run no worker.
    """
    from agent.rehearsal.local_aws import serve

    try:
        serve(file, port, seed, messages, _show)
    except OSError as error:
        raise BadInput("--port", port, f"give a free port, or 0 for any: {error.strerror or error}") from None


def _show(local: LocalAws) -> None:
    made = f"{', '.join(local.groups) or 'no group'}; {', '.join(local.queues) or 'no queue'}"
    typer.echo(f"local AWS on {local.endpoint} until Ctrl-C: {made}")
    typer.echo("in another terminal:")
    typer.echo(f"  set -a; . {local.settings if local.settings.is_absolute() else './' + str(local.settings)}; set +a")
    typer.echo("  trimtab run")
