"""`trimtab cluster`: what is inside a cluster that deployments ask to come into; keep it as files, put it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, LedgerOption, examples, print_json, time_text

if TYPE_CHECKING:
    from agent.admission.gauges import Gauges
    from agent.admission.records import AdmissionDecision
    from agent.admission.service import AdmissionService
    from agent.ledger import Ledger

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[CLUSTER]", help="Cluster; not needed when there is one.", show_default=False)
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Cluster; not needed when there is one.", show_default=False)
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Name of the two files, without .json and .npz.")]


def show(name: NameArgument = None, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Print a cluster: cores taken, room left in each band of time, the month's promise, the newest decisions."""
    from agent.autoscaling.explain import plain
    from agent.commands.ledger import open_ledger
    from agent.commands.output import show as print_lines

    with open_ledger(ledger) as book:
        service = _service(book, name)
        service.refresh()
        gauges, newest = service.gauges(service.now()), service.newest(10)
    if as_json:
        print_json({**plain(gauges), "newest": [plain(decision) for decision in newest]})
    else:
        print_lines(_lines(gauges, newest))


def snapshot(file: FileArgument, cluster: ClusterOption = None, ledger: LedgerOption = None) -> None:
    """Write what is inside a cluster to FILE.json and FILE.npz; the agent may be running."""
    from agent.commands.ledger import open_ledger

    with open_ledger(ledger) as book:
        service = _service(book, cluster)
        service.refresh()
        written = service.snapshot(file)
        typer.echo(f"{service.rules.name}: {len(service.deployments())} deployments written to {written}")


def restore(file: FileArgument, cluster: ClusterOption = None, ledger: LedgerOption = None) -> None:
    """Put a snapshot in the place of everything inside a cluster; the agent may be running, and goes on from it."""
    from agent.commands.ledger import open_ledger

    with open_ledger(ledger, to_write=True) as book:
        service = _service(book, cluster)
        count = service.restore(file)
        typer.echo(f"{service.rules.name}: {count} deployments are inside now, as in {file}")


def _service(ledger: Ledger, name: str | None) -> AdmissionService:
    from agent.admission.clusters import clusters_of
    from agent.settings import load_settings
    from domain.clock import WallClock

    return clusters_of(load_settings(os.environ), ledger, WallClock()).one(name)


def _lines(gauges: Gauges, newest: tuple[AdmissionDecision, ...]) -> list[str]:
    from agent.commands.output import columns
    from domain.decisions import Mode

    share = gauges.total_cores / gauges.capacity_cores
    rows: list[tuple[object, ...]] = [
        ("cores taken", f"{gauges.total_cores:,} of {gauges.capacity_cores:,} ({share:.1%})"),
        ("deployments", f"{gauges.live:,} live, {gauges.reserved:,} admitted and not started"),
        ("mode", "act" if gauges.mode is Mode.ACT else "observe: who asks gets advice, nobody is taken in"),
        ("rule", gauges.policy if gauges.safe else f"{gauges.policy}, broken by those inside"),
        *((f"room: {band.replace('_', ' ')}", f"{cores:,.0f}") for band, cores in gauges.worst_slack_cores.items()),
        (
            "this month",
            f"{gauges.failures_month_to_date:,} of {gauges.requests_month_to_date:,} requests for more cores refused, "
            f"{gauges.sla_budget_used:.0%} of what is promised",
        ),
    ]
    made = [
        (
            d.decision_id,
            time_text(d.at),
            d.deployment_id,
            f"{d.cores:,}",
            ("would be " if d.advice else "") + ("admitted" if d.admit else str(d.reason)),
        )
        for d in newest
    ]
    return [f"{gauges.cluster}", *columns(rows), "", "Newest decisions", *(columns(made) or ["  none yet"])]


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    cluster = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Look into a cluster that deployments ask to come into; keep what is inside, put it back.",
    )
    cluster.command(epilog=examples("trimtab cluster show", "trimtab cluster show main --json"))(show)
    cluster.command(
        epilog=examples("trimtab cluster snapshot main-monday", "trimtab cluster snapshot east --cluster east")
    )(snapshot)
    cluster.command(
        epilog=examples("trimtab cluster restore main-monday", "trimtab cluster restore east --cluster east")
    )(restore)
    app.add_typer(cluster, name="cluster")
