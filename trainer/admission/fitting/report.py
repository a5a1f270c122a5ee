"""Fits a table by both methods, sets each beside the table, draws them, and writes a preset of the simulator."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.population import Population
from simulator.admission.arrivals import Cluster
from trainer.admission.fitting.fits import (
    EVALUATIONS,
    MarginalFit,
    TwoStepFit,
    cramer_von_mises,
    fit_marginal,
    fit_two_step,
    window_hours,
)
from trainer.admission.fitting.histories import SHUTDOWN_VMS, Histories, VmTable, histories_of, read_vm_table
from trainer.admission.fitting.lives import Lives, drawn_from, lives_of, uniforms
from trainer.kit.drawing import BUSY, QUEUE, panel, picture
from trainer.kit.report import Plot, Section, document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASS_STARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Least cores of each class of deployments by their largest size."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What deployments of the window have in common (admission specification §11)."""

    cores_activated: float
    """Per deployment."""
    ended_share: float
    """Of the cores activated, those that ended inside the window."""
    dead_share: float
    shutdown_share: float
    """Of the dead, those that lost three machines or more at the last instant."""
    cores_at_end: float
    """Per deployment, still running when the window ends."""
    scale_outs: float
    """Per deployment."""
    core_hours_by_class: tuple[float, ...]
    """Share of the core-hours, by largest size: see CLASS_STARTS."""
    deployments_by_class: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A population's facts and how far its largest sizes are from those of the table."""

    facts: Facts
    distance: float
    peak: NDArray[np.int64]


def facts_of(histories: Histories | Lives) -> Facts:
    """Return the facts of a table's deployments, or of simulated ones."""
    count, activated = len(histories.peak), float(histories.activated.sum())
    last = histories.last_vms if isinstance(histories, Histories) else histories.last_cores
    place = np.searchsorted(CLASS_STARTS, histories.peak, side="right") - 1
    by_class = np.bincount(place, weights=histories.core_hours, minlength=len(CLASS_STARTS))
    numbers = np.bincount(place, minlength=len(CLASS_STARTS))
    return Facts(
        cores_activated=activated / count,
        ended_share=float(histories.ended.sum()) / activated,
        dead_share=float(histories.dead.mean()),
        shutdown_share=float((last >= SHUTDOWN_VMS).sum() / max(histories.dead.sum(), 1)),
        cores_at_end=float((histories.activated - histories.ended).sum()) / count,
        scale_outs=float(histories.scale_outs.mean()),
        core_hours_by_class=tuple((by_class / by_class.sum()).tolist()),
        deployments_by_class=tuple((numbers / count).tolist()),
    )


def compare(histories: Histories, population: Population, *, simulated: int = 50_000, seed: int = 2**40) -> Comparison:
    """Simulate a population in the table's window and return its facts; take a seed that the fit has not used."""
    drawn = drawn_from(population, uniforms(simulated, seed), window_hours(histories, simulated, seed), seed)
    lives = lives_of(drawn, population.lifetimes)
    return Comparison(facts_of(lives), cramer_von_mises(histories.peak, lives.peak), lives.peak)


METHODS = ("empirical-bayes", "two-step")
START = Population(0.5, 0.5, 1.0, 1.0, 1.0, 0.5, 0.7, 20.0)
COMPARISON_SEEDS = 2**40
"""Comparisons take random numbers that neither a fit nor a made table with a usual seed has used."""
OnProgress = Callable[[str, int, int], None]
"""Called with the step, what of it is done and what there is of it, 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One method's population beside the table."""

    method: str
    population: Population
    comparison: Comparison
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FitReport:
    """Everything that a fit found."""

    table: VmTable
    histories: Histories
    facts: Facts
    fits: tuple[Fit, ...]

    @property
    def arrival_rate(self) -> float:
        """Deployments per hour that began inside the window."""
        return len(self.histories) / self.histories.window_h

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        table, histories = self.table, self.histories
        return {
            "lines": table.lines,
            "machines": len(table.deployment),
            "rejected": {reason: asdict(rejected) for reason, rejected in table.rejected.items()},
            "subscriptions": table.subscriptions,
            "deployments": table.deployments,
            "left_out": histories.truncated,
            "fitted_deployments": len(histories),
            "window_h": histories.window_h,
            "grid_h": histories.grid_h,
            "arrival_rate": self.arrival_rate,
            "machine_hours": table.machine_hours,
            "core_hours": table.core_hours,
            "fitted": {
                "cores_activated": int(histories.activated.sum()),
                "cores_ended": int(histories.ended.sum()),
                "dead": int(histories.dead.sum()),
                "shutdowns": int(histories.shut_down.sum()),
            },
            "size_classes": CLASS_STARTS,
            "facts": asdict(self.facts),
            "fits": {
                fit.method: {
                    "population": asdict(fit.population),
                    **fit.details,
                    "distance": fit.comparison.distance,
                    "facts": asdict(fit.comparison.facts),
                }
                for fit in self.fits
            },
        }


def fit_table(
    path: Path,
    *,
    methods: tuple[str, ...] = METHODS,
    simulated: int = 50_000,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> FitReport:
    """Read a table and fit it by each method; the same table and seed give the same figures. Raises TraceError."""

    def tell(step: str, done: int, of: int) -> None:
        if on_progress is not None:
            on_progress(step, done, of)

    table = read_vm_table(path, lambda done, of: tell("reading", done, of))
    tell("sorting by deployment", 0, 0)
    histories = histories_of(table)
    fits = []
    if "empirical-bayes" in methods:
        marginal = fit_marginal(histories, START, lambda call, value: tell("empirical-bayes", call, 0))
        fits.append(_fitted("empirical-bayes", marginal, histories, simulated, seed))
    if "two-step" in methods:
        stepped = fit_two_step(
            histories,
            simulated=simulated,
            seed=seed,
            on_progress=lambda call, value: tell("two-step", call, EVALUATIONS),
        )
        fits.append(_fitted("two-step", stepped, histories, simulated, seed))
    return FitReport(table, histories, facts_of(histories), tuple(fits))


def _fitted(method: str, fit: MarginalFit | TwoStepFit, histories: Histories, simulated: int, seed: int) -> Fit:
    comparison = compare(histories, fit.population, simulated=simulated, seed=COMPARISON_SEEDS + seed)
    details = {name: value for name, value in asdict(fit).items() if name not in ("population", "distance")}
    if isinstance(fit, TwoStepFit):
        details["distance_minimised"] = fit.distance
    return Fit(method, fit.population, comparison, details)


def write_preset(path: Path, cluster: Cluster) -> None:
    """Write what `simulate admission --preset FILE` reads, .toml or .json."""
    given: dict[str, str | int | float] = {
        "name": cluster.name,
        "capacity": cluster.capacity,
        "arrival_rate": cluster.arrival_rate,
        "sla": cluster.sla,
        **asdict(cluster.population),
    }
    if path.suffix == ".json":
        text = json.dumps(given, indent=2) + "\n"
    else:
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
    path.write_text(text, encoding="utf-8")


_TABLE, _FITS = "#0f3d57", (QUEUE, BUSY)


def draw_fit(report: FitReport, path: Path) -> None:
    """Write the picture: share of deployments above each size, and of the core-hours by size class."""
    kind = path.suffix.lower().removeprefix(".")
    if kind == "html":
        title = "Sizes of deployments: table and fits"
        drawn = Plot(title, picture(lambda: _figure(report), "svg").decode("utf-8")).html("fit")
        path.write_text(document(title, [Section("fit", "The fits", drawn)]), encoding="utf-8")
        return
    path.write_bytes(picture(lambda: _figure(report), kind))


def _figure(report: FitReport) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    sizes, shares = figure.subplots(1, 2)
    sizes.step(*_above(report.histories.peak), where="post", color=_TABLE, lw=2.0, label="table")
    for fit, color in zip(report.fits, _FITS, strict=False):
        label = f"{fit.method}, distance {fit.comparison.distance:.1e}"
        sizes.step(*_above(fit.comparison.peak), where="post", color=color, lw=1.2, label=label)
    sizes.set(xscale="log", yscale="log")
    panel(sizes, x="most at a time, cores", y="deployments above, share of all")
    sizes.legend(frameon=False)
    bars = [("table", report.facts.core_hours_by_class, _TABLE)]
    bars += [
        (fit.method, fit.comparison.facts.core_hours_by_class, color)
        for fit, color in zip(report.fits, _FITS, strict=False)
    ]
    width = 0.8 / len(bars)
    places = np.arange(len(CLASS_STARTS))
    for i, (label, values, color) in enumerate(bars):
        shares.bar(places + (i - 0.5 * (len(bars) - 1)) * width, values, width, color=color, label=label)
    shares.set_xticks(places, [f"{start}" for start in CLASS_STARTS], rotation=45)
    panel(shares, x="most at a time, cores from", y="core-hours, share of all")
    shares.legend(frameon=False)
    return figure


def _above(peak: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    sizes, counts = np.unique(peak, return_counts=True)
    above = 1.0 - np.cumsum(counts) / len(peak)
    # The last share is 0, which a log axis does not have.
    return sizes[:-1], above[:-1]
