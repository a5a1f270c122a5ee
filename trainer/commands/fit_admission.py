"""`trimtab fit`: the population of deployments behind a table of virtual machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from agent.commands.options import examples
from agent.kernel.text import columns
from domain.units import HOURS_PER_DAY
from trainer.commands.options import Bounds, Check, ForceOption, check_output, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from trainer.admission.fitting.report import FitReport


@dataclass(frozen=True, kw_only=True)
class FitAdmission(Verb):
    """Find the population of deployments that a table of virtual machines comes from, and say how well it fits.

    Fitted: how soon cores end (mu), how often deployments scale out (lam, power), by how much (sig), how many
    core lifetimes they last (lifetimes). The same table and seed give the same figures.
    """

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

    trace: Annotated[Path, Argument(metavar="TRACE", help="Table of virtual machines, see below.")]
    output: Annotated[Path | None, "--output", "-o", "FILE.toml|.json", "Preset to write, for simulate admission."] = (
        None
    )
    method: Annotated[str, "both|empirical-bayes|two-step", "How to fit, see below."] = "both"
    capacity: Annotated[int, "CORES", "Cluster of the preset.", Bounds(min=1)] = 20_000
    arrival_rate: Annotated[
        float | None,
        "PER_HOUR",
        "Deployments offered to that cluster, else the table's own.",
        Check(lambda rate: 0.0 <= rate < 1e9, "give deployments per hour, 0 or more"),
    ] = None
    sla: Annotated[
        float,
        "SHARE",
        "Scale-outs that the preset lets fail.",
        Check(lambda sla: 0.0 < sla < 1.0, "give a share between 0 and 1, such as 1e-4"),
    ] = 1e-4
    plot: Annotated[Path | None, "FILE", "Draw sizes, table and fits: .png, .svg or .html."] = None
    simulated: Annotated[int, "N", "Deployments simulated to compare sizes.", Bounds(min=1000)] = 50_000
    seed: Annotated[int, "Seed of the simulated deployments.", Bounds(min=0)] = 0
    force: ForceOption = False

    def run(self) -> Answer:
        """Fit, and write the preset."""
        from simulator.admission.arrivals import Cluster
        from trainer.admission.fitting.report import METHODS, check_preset_file, draw_fit, fit_table, write_preset
        from trainer.kit.drawing import check_plot_file
        from trainer.kit.progress import bars, counter

        if self.output is not None:
            check_preset_file(self.output)
            check_output(self.output, self.force)
        if self.plot is not None:
            check_plot_file(self.plot)
        methods = METHODS if self.method == "both" else (self.method,)
        with bars(self.as_json) as shown:
            steps: dict[str, Callable[[int, int], None]] = {}

            def on_step(step: str, done: int, of: int) -> None:
                if step not in steps:
                    steps[step] = counter(shown, step)
                steps[step](done, of)

            report = fit_table(
                self.trace, methods=methods, simulated=self.simulated, seed=self.seed, on_progress=on_step
            )
        rate = report.arrival_rate if self.arrival_rate is None else self.arrival_rate
        if self.output is not None:
            population = report.fits[0].population
            write_preset(self.output, Cluster(self.output.stem, population, self.capacity, rate, self.sla))
        if self.plot is not None:
            draw_fit(report, self.plot)
        preset = None if self.output is None else str(self.output)
        data = {"trace": str(self.trace), "seed": self.seed, "preset": preset} | report.as_data()
        return Answer(data, _lines(report, self.trace, self.output))


@dataclass(frozen=True, kw_only=True)
class FitMakeTable(Verb):
    """Write a table of virtual machines of simulated deployments, to try the fit on: does it find its population?

    Every core is a machine of its own, and none is refused. Some 150 machines a deployment with preset T.
    """

    EPILOG = examples(
        "trimtab fit make-table -o vmtable.csv.gz",
        "trimtab fit make-table -o exact.csv --preset K --deployments 5000 --grid 1",
    )

    output: Annotated[
        Path,
        "--output",
        "-o",
        "FILE.csv[.gz]",
        "Table to write.",
        Check(
            lambda path: path.name.endswith((".csv", ".csv.gz")),
            "end the file's name with .csv or .csv.gz",
        ),
    ]
    preset: Annotated[str, "T|H|K|FILE", "Population to draw from."] = "T"
    deployments: Annotated[int, "N", "Deployments that come.", Bounds(min=1)] = 2000
    days: Annotated[
        float,
        "DAYS",
        "Length of the window.",
        Check(lambda days: 0.1 <= days <= 3650.0, "give a number from 0.1 to 3650"),
    ] = 30.0
    grid: Annotated[int, "SECONDS", "Step of the clock; Azure's is 300.", Bounds(min=1)] = 300
    seed: Annotated[int, "Seed of the deployments.", Bounds(min=0)] = 0
    force: ForceOption = False

    def run(self) -> Answer:
        """Draw the deployments, and write their machines."""
        from simulator.admission.arrivals import cluster_of
        from trainer.admission.fitting.lives import write_table
        from trainer.kit.progress import phases

        check_output(self.output, self.force)
        population, window_h = cluster_of(self.preset).population, HOURS_PER_DAY * self.days
        with phases(self.as_json) as on_phase:
            on_phase(f"drawing {self.deployments:,} deployments of {self.preset}")
            rows = write_table(
                self.output, population, self.deployments, seed=self.seed, window_h=window_h, grid_s=self.grid
            )
        made = {"file": str(self.output), "preset": self.preset, "deployments": self.deployments}
        about = f"{rows:,} machines of {self.deployments:,} deployments, preset {self.preset}, seed {self.seed}"
        return Answer({**made, "machines": rows, "seed": self.seed}, [f"wrote {self.output}: {about}"])


def _lines(report: FitReport, trace: Path, output: Path | None) -> list[str]:
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
    return lines


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
