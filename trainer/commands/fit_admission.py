"""`trimtab fit`: the population of deployments behind a table of virtual machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from agent.commands.options import JsonOption, examples, print_json, show
from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_DAY
from trainer.commands.options import ForceOption, check_output, epilog

if TYPE_CHECKING:
    from trainer.admission.fitting.report import FitReport

EPILOG = epilog(
    """
TRACE: vmtable.csv or .csv.gz as Azure published it in 2017, no header:
  vmid, subscriptionid, deploymentid, vmcreated, vmdeleted (seconds),
  maxcpu, avgcpu, p95maxcpu, vmcategory, vmcorecount, vmmemory
Rows that make no sense are left out and counted. Deployments that were there
at time 0 are left out too: the longer-lived would be too many among them.
""",
    """
Methods (--method):
  empirical-bayes  the likeliest population, rates integrated out
  two-step         as published: rates first, then gamma laws of the rates
  both             each of them; the preset is the first one's
""",
    calls=(
        "trimtab fit make-table -o vmtable.csv.gz --preset T --deployments 2000",
        "trimtab fit admission vmtable.csv.gz -o mine.toml --plot sizes.png",
        "trimtab simulate admission --preset mine.toml --policy second:2.5",
    ),
)


TABLE_EPILOG = examples(
    "trimtab fit make-table -o vmtable.csv.gz",
    "trimtab fit make-table -o exact.csv --preset K --deployments 5000 --grid 1",
)


def admission(
    trace: Annotated[Path, Argument(metavar="TRACE", help="Table of virtual machines, see below.")],
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE.toml|.json", help="Preset to write, for simulate admission."),
    ] = None,
    method: Annotated[str, Option(metavar="both|empirical-bayes|two-step", help="How to fit, see below.")] = "both",
    capacity: Annotated[int, Option(metavar="CORES", help="Cluster of the preset.", min=1)] = 20_000,
    arrival_rate: Annotated[
        float | None, Option(metavar="PER_HOUR", help="Deployments offered to that cluster, else the table's own.")
    ] = None,
    sla: Annotated[float, Option(metavar="SHARE", help="Scale-outs that the preset lets fail.")] = 1e-4,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw sizes, table and fits: .png, .svg or .html.")
    ] = None,
    simulated: Annotated[int, Option(metavar="N", help="Deployments simulated to compare sizes.", min=1000)] = 50_000,
    seed: Annotated[int, Option(help="Seed of the simulated deployments.", min=0)] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the population of deployments that a table of virtual machines comes from, and say how well it fits.

    Fitted: how soon cores end (mu), how often deployments scale out (lam, power), by how much (sig), how many
    core lifetimes they last (lifetimes). The same table and seed give the same figures.
    """
    from simulator.admission.arrivals import Cluster
    from trainer.admission.fitting.report import METHODS, check_preset_file, draw_fit, fit_table, write_preset
    from trainer.kit.drawing import check_plot_file
    from trainer.kit.progress import bars

    if method not in ("both", *METHODS):
        raise BadInput("--method", method, f"give both, {' or '.join(METHODS)}")
    if not 0.0 < sla < 1.0:
        raise BadInput("--sla", sla, "give a share between 0 and 1, such as 1e-4")
    if arrival_rate is not None and not 0.0 <= arrival_rate < 1e9:
        raise BadInput("--arrival-rate", arrival_rate, "give deployments per hour, 0 or more")
    if output is not None:
        check_preset_file(output)
        check_output(output, force)
    if plot is not None:
        check_plot_file(plot)
    methods = METHODS if method == "both" else (method,)
    with bars(as_json) as shown:
        steps: dict[str, Any] = {}

        def on_step(step: str, done: int, of: int) -> None:
            if step not in steps:
                steps[step] = shown.add_task(step, total=of or None)
            shown.update(steps[step], completed=done)

        report = fit_table(trace, methods=methods, simulated=simulated, seed=seed, on_progress=on_step)
    chosen = report.fits[0]
    rate = report.arrival_rate if arrival_rate is None else arrival_rate
    if output is not None:
        write_preset(output, Cluster(output.stem, chosen.population, capacity, rate, sla))
    if plot is not None:
        draw_fit(report, plot)
    if as_json:
        print_json(
            {"trace": str(trace), "seed": seed, "preset": None if output is None else str(output)} | report.as_data()
        )
        return
    _show(report, trace, output)


def make_table(
    output: Annotated[Path, Option("--output", "-o", metavar="FILE.csv[.gz]", help="Table to write.")],
    preset: Annotated[str, Option(metavar="T|H|K|FILE", help="Population to draw from.")] = "T",
    deployments: Annotated[int, Option(metavar="N", help="Deployments that come.", min=1)] = 2000,
    days: Annotated[float, Option(metavar="DAYS", help="Length of the window.")] = 30.0,
    grid: Annotated[int, Option(metavar="SECONDS", help="Step of the clock; Azure's is 300.", min=1)] = 300,
    seed: Annotated[int, Option(help="Seed of the deployments.", min=0)] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a table of virtual machines of simulated deployments, to try the fit on: does it find its population?

    Every core is a machine of its own, and none is refused. Some 150 machines a deployment with preset T.
    """
    from simulator.admission.arrivals import cluster_of
    from trainer.admission.fitting.lives import write_table
    from trainer.kit.progress import phases

    if not output.name.endswith((".csv", ".csv.gz")):
        raise BadInput("--output", str(output), "end the file's name with .csv or .csv.gz")
    if not 0.1 <= days <= 3650.0:
        raise BadInput("--days", days, "give a number from 0.1 to 3650")
    check_output(output, force)
    with phases(as_json) as on_phase:
        on_phase(f"drawing {deployments:,} deployments of {preset}")
        rows = write_table(
            output, cluster_of(preset).population, deployments, seed=seed, window_h=HOURS_PER_DAY * days, grid_s=grid
        )
    made = {"file": str(output), "preset": preset, "deployments": deployments, "machines": rows, "seed": seed}
    if as_json:
        print_json(made)
        return
    show([f"wrote {output}: {rows:,} machines of {deployments:,} deployments, preset {preset}, seed {seed}"])


def _show(report: FitReport, trace: Path, output: Path | None) -> None:
    from dataclasses import asdict

    from trainer.admission.fitting.report import CLASS_STARTS

    table, histories = report.table, report.histories
    lines = [
        f"{trace}: {len(table.deployment):,} machines of {table.deployments:,} deployments, "
        f"{table.subscriptions:,} subscriptions, {histories.window_h / HOURS_PER_DAY:.1f} days",
        f"fitted: {len(histories):,} deployments, {report.arrival_rate:.3g} an hour; left out, there at time 0 or come "
        f"at the end: {histories.truncated:,}",
    ]
    lines += [
        f"  rows left out, {reason}: {rejected.count:,}, first on line {', '.join(map(str, rejected.first_lines))}"
        for reason, rejected in table.rejected.items()
    ]
    methods = [fit.method for fit in report.fits]
    errors = [fit.details.get("relative_errors", {}) for fit in report.fits]
    rows: list[tuple[object, ...]] = [("parameter", *methods)]
    for name in asdict(report.fits[0].population):
        cells = []
        for fit, known in zip(report.fits, errors, strict=True):
            value = getattr(fit.population, name)
            error = known.get(name, 0.0) * (1.0 if name == "power" else value)
            cells.append(f"{value:.4g} ± {error:.2g}" if name in known else f"{value:.4g}")
        rows.append((name, *cells))
    for fit in report.fits:
        if "eps1" in fit.details:
            line = f"{fit.method}: eps1 {fit.details['eps1']:.3g}, eps2 {fit.details['eps2']:.3g}"
            lines.append(line)
        if fit.details.get("converged") is False:
            lines.append(f"{fit.method}: the search stopped before it had found the top; take the figures with care")
    lines += ["", *columns(rows), "", *columns(_fact_rows(report, methods)), ""]
    shares: list[tuple[object, ...]] = [("core-hours by largest size", "table", *methods)]
    for place, start in enumerate(CLASS_STARTS):
        last = "+" if place + 1 == len(CLASS_STARTS) else "" if start == 1 else f"-{2 * start - 1}"
        of_fits = (fit.comparison.facts.core_hours_by_class[place] for fit in report.fits)
        shares.append((f"  {start}{last}", *(f"{x:.1%}" for x in (report.facts.core_hours_by_class[place], *of_fits))))
    lines += columns(shares)
    if output is not None:
        lines += ["", f"wrote {output}: trimtab simulate admission --preset {output}"]
    show(lines)


def _fact_rows(report: FitReport, methods: list[str]) -> list[tuple[object, ...]]:
    kinds = (
        ("cores activated per deployment", "cores_activated", ".1f"),
        ("of these ended in the window", "ended_share", ".2%"),
        ("deployments dead in the window", "dead_share", ".1%"),
        ("of these by a shutdown", "shutdown_share", ".1%"),
        ("cores at the end per deployment", "cores_at_end", ".2f"),
        ("scale-outs per deployment", "scale_outs", ".2f"),
    )
    rows: list[tuple[object, ...]] = [("in the window", "table", *methods)]
    for title, name, form in kinds:
        every = (report.facts, *(fit.comparison.facts for fit in report.fits))
        rows.append((title, *(format(getattr(facts, name), form) for facts in every)))
    rows.append(("distance of largest sizes", "", *(f"{fit.comparison.distance:.2e}" for fit in report.fits)))
    return rows
