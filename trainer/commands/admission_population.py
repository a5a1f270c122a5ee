"""`trimtab fit`, `price` and `admission`: the population of deployments, forecasts, the price of uncertainty."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from agent.commands.options import LedgerOption, examples
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S, HOURS_PER_DAY
from trainer.commands.options import Bounds, Check, ForceOption, Written, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from agent.admission.records import NamedLaw
    from domain.rules.admission.population import Population
    from trainer.admission.fitting.report import FitReport


@dataclass(frozen=True, kw_only=True)
class AdmissionMoments(Verb):
    """Print mean and variance of a deployment's cores at times to come.

    Data: E and V, lists in the order of --at; third, the third central moment, or null where it is not known. A
    deployment that is gone counts as 0 cores. Nothing is asked of a cluster: this is the belief that an admission is
    decided by.
    """

    EPILOG = epilog(
        """
Moments (--moments):
  ab        death at zero cores by a hazard closure; the usual choice
  ab_fast   the same, with mean scale-out rate and size in the closure
  na        death at zero ignored: never too low
  paper     as published: all factors independent
  volterra  nearly exact, takes seconds
""",
        calls=(
            "trimtab admission moments --size 4 --at 24,720",
            "trimtab admission moments --size 4 --preset mine.toml",
            "trimtab admission moments --preset T --size 4 --deaths 5 --core-hours 60 \\",
            "    --scale-outs 3 --hours 20 --extra-cores 7 --size-draws 4 --at 1,24 --json",
        ),
    )

    size: Annotated[int, "CORES", "Cores now.", Bounds(min=1)]
    at: Annotated[str, "HOURS,...", "Hours from now."] = "1,24,168,730,8760,26280"
    preset: Annotated[str, "T|H|K|FILE", "Population of deployments."] = "T"
    moments: Annotated[str, "NAME", "How they are computed, see below."] = "ab"
    deaths: Annotated[float, "Cores that ended, one by one."] = 0.0
    core_hours: Annotated[float, "Hours that all its cores ran, together."] = 0.0
    scale_outs: Annotated[float, "Requests for more cores, refused ones too."] = 0.0
    hours: Annotated[float, "Hours in the cluster."] = 0.0
    gap_hours: Annotated[float, "Hours of gaps between scale-outs seen before it came."] = 0.0
    extra_cores: Annotated[float | None, "Sum of (cores - 1) over the sizes drawn, the first too; else size - 1."] = (
        None
    )
    size_draws: Annotated[float, "Sizes drawn, the first too."] = 1.0

    def run(self) -> Answer:
        """Compute the curve."""
        import numpy as np

        from domain.rules.admission.population import Statistics
        from trainer.admission.volterra import curve_of

        wanted = hours_of(self.at)
        extra = float(self.size - 1) if self.extra_cores is None else self.extra_cores
        horizons_h, order = np.unique(np.array(wanted), return_inverse=True)
        seen = (self.deaths, self.core_hours, self.scale_outs, self.hours, self.gap_hours, extra, self.size_draws)
        try:
            curve = curve_of(population_of(self.preset), Statistics(self.size, *seen), horizons_h, self.moments)
        except BadInput as error:
            if error.field == "horizons_h":
                remedy = "give hours above 0 with commas between them, such as 1,24,720"
                raise BadInput("--at", self.at, remedy) from None
            known = any(error.field == field.name for field in fields(self))
            option = f"--{error.field.replace('_', '-')}" if known else error.field
            raise BadInput(option, error.value, error.remedy) from None
        mean, variance = curve.mean[order].tolist(), curve.variance[order].tolist()
        third = None if curve.third is None else curve.third[order].tolist()
        rows: list[tuple[object, ...]] = [("in", "mean cores", "standard deviation")]
        rows += [
            (duration_text(at_h * HOUR_S), f"{e:.4g}", f"{v**0.5:.4g}")
            for at_h, e, v in zip(wanted, mean, variance, strict=True)
        ]
        data = {"preset": self.preset, "moments": self.moments, "at": wanted, "E": mean, "V": variance, "third": third}
        return Answer(data, columns(rows))


def population_of(preset: str) -> Population:
    """Return a preset's population, or that of a cluster in a file; BadInput for neither."""
    from domain.rules.admission.population import POPULATIONS

    if preset in POPULATIONS:
        return POPULATIONS[preset]
    # The simulator takes a second to load, which a preset need not wait for.
    from simulator.admission import cluster_of

    return cluster_of(preset).population


def hours_of(text: str) -> list[float]:
    """Return the hours of `1,24,720`; BadInput otherwise."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise BadInput("--at", text, "give hours with commas between them, such as 1,24,720") from None


@dataclass(frozen=True, kw_only=True)
class PriceAdmission(Verb):
    """Show the price of an hour of a deployment, and the share of it that uncertainty costs.

    Formulas: admission specification §8. Prices are in your own currency; nothing here sends a bill.
    """

    EPILOG = epilog(
        """
An hour costs (--core CORES) + (--variance VARIANCE), at most --cap: VARIANCE is that
of the size predicted --ahead hours from now, in cores squared. It is agreed once, when
the deployment comes (a priori), or predicted again from observations until --at
(a posteriori; shown for one that holds still).

With --label or --owner it is one of these names in a cluster of the settings: from
the observations in its ledger, and the price without names is shown too.
""",
        calls=(
            "trimtab price admission --size 4 --core 0.05 --variance 0.002",
            "trimtab price admission --size 4 --preset mine.toml --at 24,168,720 --cap 2 --json",
            "trimtab price admission --size 4 --label nightly-batch --owner ada --cluster main",
        ),
    )

    size: Annotated[int, "CORES", "Cores of the deployment.", Bounds(min=1)]
    preset: Annotated[str | None, "T|H|K|FILE", "Population that it comes from, T unless a name is given."] = None
    core: Annotated[float, "PRICE", "Of a core and hour.", Bounds(min=0.0)] = 0.05
    variance: Annotated[float, "PRICE", "Of a core squared of variance and hour.", Bounds(min=0.0)] = 0.002
    ahead: Annotated[float, "HOURS", "How far ahead the variance is predicted."] = 24.0
    cap: Annotated[float | None, "PRICE", "No hour costs more."] = None
    at: Annotated[str, "HOURS,...", "Hours after it came."] = "1,24,168,720"
    moments: Annotated[str, "NAME", "As for `admission moments`."] = "ab"
    label: Annotated[str, "NAME", "Its label, with the cluster's record of it."] = ""
    owner: Annotated[str, "NAME", "Its owner."] = ""
    cluster: Annotated[str | None, "NAME", "Cluster of the names; not needed when there is one."] = None
    ledger: LedgerOption = None

    def run(self) -> Answer:
        """Predict the variance at each time, and price it."""
        import numpy as np

        from domain.rules.admission.population import Statistics, fresh
        from trainer.admission.payment import Tariff, hourly_price
        from trainer.admission.volterra import curve_of

        size, cap = self.size, self.cap
        tariff = Tariff(self.core, self.variance, self.ahead, math.inf if cap is None else cap)

        def predicted(law: Population, statistics: Statistics) -> float:
            return float(curve_of(law, statistics, np.array([self.ahead]), self.moments).variance[0])

        named, population = None, population_of(self.preset or "T")
        if self.label or self.owner:
            if self.preset is not None:
                remedy = "leave it out: with --label or --owner it is the cluster's population"
                raise BadInput("--preset", self.preset, remedy)
            named, population = _learnt(self.ledger, self.cluster, self.owner, self.label)
        seen = {0.0: fresh(size)}
        for hour in hours_of(self.at):
            seen[hour] = Statistics(size, core_hours=size * hour, hours=hour, extra_cores=size - 1)
        rows: list[dict[str, Any]] = []
        for hour, statistics in seen.items():
            expected = predicted(named.law if named else population, statistics)
            price = float(hourly_price(tariff, size, expected))
            cores = min(self.core * size, price)
            share = float(np.divide(price - cores, price)) if price else 0.0
            row = {"hours": hour, "variance": expected, "price": price, "for_cores": cores}
            rows.append({**row, "for_uncertainty": price - cores, "share": share})
            if named is not None:
                rows[-1]["price_without_names"] = float(hourly_price(tariff, size, predicted(population, statistics)))
        given: dict[str, Any] = {"preset": self.preset or "T"}
        whose = f"preset {self.preset or 'T'}"
        if named is not None:
            of = {"of_label": named.of_label, "of_owner": named.of_owner}
            given = {"label": self.label, "owner": self.owner, **of}
            words = [f"label {self.label} ({named.of_label:,.1f} deployments before it)"] if self.label else []
            whose = ", ".join(words + ([f"owner {self.owner} ({named.of_owner:,.1f})"] if self.owner else []))
        about = {"size": size, "moments": self.moments, "ahead_h": self.ahead, "cap": cap, "hours": rows}
        heading = f"{size} cores of {whose}, variance predicted {self.ahead:g} h ahead"
        return Answer(given | about, [heading, "", *columns(_table(rows))])


def _table(hours: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    heads = ["after", "standard deviation", "an hour costs", "of it for uncertainty", "without names"]
    named = "price_without_names" in hours[0]
    table: list[tuple[object, ...]] = [tuple(heads if named else heads[:-1])]
    for row in hours:
        after = duration_text(row["hours"] * HOUR_S) if row["hours"] else "it came"
        uncertain = f"{row['for_uncertainty']:.4g} ({row['share']:.0%})"
        line = (after, f"{row['variance'] ** 0.5:.4g} cores", f"{row['price']:.4g}", uncertain)
        table.append((*line, f"{row['price_without_names']:.4g}") if named else line)
    return table


def _learnt(ledger: str | None, cluster: str | None, owner: str, label: str) -> tuple[NamedLaw, Population]:
    """Return what a cluster's ledger has gathered of these names, and the cluster's population."""
    from agent.admission.cluster import clusters_of
    from agent.commands.ledger import open_ledger
    from agent.settings import load_settings
    from domain.clock import WallClock

    with open_ledger(ledger) as opened:
        service = clusters_of(load_settings(os.environ), opened, WallClock()).one(cluster)
        named = service.prior_of(owner, label).named
    assert named is not None, "there is a name"
    return named, service.rules.population


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
    output: Annotated[
        Path | None,
        *("--output", "-o", "FILE.toml|.json", "Preset to write, for simulate admission."),
        Written((".toml", ".json")),
    ] = None
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
    plot: Annotated[
        Path | None,
        "FILE",
        "Draw sizes, table and fits: .png, .svg, .pdf or .html.",
        Written((".png", ".svg", ".pdf", ".html")),
    ] = None
    simulated: Annotated[int, "N", "Deployments simulated to compare sizes.", Bounds(min=1000)] = 50_000
    seed: Annotated[int, "Seed of the simulated deployments.", Bounds(min=0)] = 0
    force: ForceOption = False

    def run(self) -> Answer:
        """Fit, and write the preset."""
        from simulator.admission.arrivals import Cluster
        from trainer.admission.fitting.report import METHODS, draw_fit, fit_table, write_preset
        from trainer.kit.progress import bars, counter

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

    output: Annotated[Path, "--output", "-o", "FILE.csv[.gz]", "Table to write.", Written((".csv", ".csv.gz"))]
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
