"""`trimtab cluster`: what is inside a cluster that deployments ask to come into; keep it as files, put it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, LedgerOption, app, examples, print_json
from agent.commands.options import show as print_text

if TYPE_CHECKING:
    from agent.admission.service import AdmissionService
    from agent.ledger import Ledger

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[CLUSTER]", help="Cluster; not needed when there is one.", show_default=False)
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Cluster; not needed when there is one.", show_default=False)
]
cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect an admission cluster; save and restore its deployments.",
)
app.add_typer(cluster, name="cluster")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Name of the two files, without .json and .npz.")]


@cluster.command(epilog=examples("trimtab cluster show", "trimtab cluster show main --json"))
def show(name: NameArgument = None, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Print a cluster: cores taken, room left in each band of time, the month's promise, the newest decisions."""
    from agent.admission.text import cluster_lines
    from agent.commands.ledger import open_ledger
    from agent.ledger.codec import plain

    typer.echo("cluster show goes away: use trimtab status admission [CLUSTER]", err=True)
    with open_ledger(ledger) as book:
        service = _service(book, name)
        service.refresh()
        gauges, newest = service.gauges(service.now()), service.newest(10)
    if as_json:
        print_json({**plain(gauges), "newest": [plain(decision) for decision in newest]})
    else:
        print_text(cluster_lines(gauges, newest))


@cluster.command(
    epilog=examples("trimtab cluster snapshot main-monday", "trimtab cluster snapshot east --cluster east")
)
def snapshot(file: FileArgument, name: ClusterOption = None, ledger: LedgerOption = None) -> None:
    """Write what is inside a cluster to FILE.json and FILE.npz; the agent may be running."""
    from agent.commands.ledger import open_ledger

    with open_ledger(ledger) as book:
        service = _service(book, name)
        service.refresh()
        written = service.snapshot(file)
        typer.echo(f"{service.rules.name}: {len(service.deployments())} deployments written to {written}")


@cluster.command(epilog=examples("trimtab cluster restore main-monday", "trimtab cluster restore east --cluster east"))
def restore(file: FileArgument, name: ClusterOption = None, ledger: LedgerOption = None) -> None:
    """Put a snapshot in the place of everything inside a cluster; the agent may be running, and goes on from it."""
    from agent.commands.ledger import open_ledger

    with open_ledger(ledger, to_write=True) as book:
        service = _service(book, name)
        count = service.restore(file)
        typer.echo(f"{service.rules.name}: {count} deployments are inside now, as in {file}")


def _service(ledger: Ledger, name: str | None) -> AdmissionService:
    from agent.admission.service import clusters_of
    from agent.settings import load_settings
    from domain.clock import WallClock

    return clusters_of(load_settings(os.environ), ledger, WallClock()).one(name)
