"""Fits a table by both methods, sets each beside the table, and writes a preset that the simulator reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from domain.rules.admission.population import Population
from simulator.admission.presets import Cluster
from trainer.admission.fitting.comparison import CLASS_STARTS, Comparison, Facts, compare, facts_of
from trainer.admission.fitting.histories import Histories, histories_of
from trainer.admission.fitting.marginal import MarginalFit, fit_marginal
from trainer.admission.fitting.two_step import EVALUATIONS, TwoStepFit, fit_two_step
from trainer.admission.fitting.vm_table import VmTable, read_vm_table

METHODS = ("empirical-bayes", "two-step")
START = Population(0.5, 0.5, 1.0, 1.0, 1.0, 0.5, 0.7, 20.0)
COMPARISON_SEEDS = 2**40
"""Comparisons take random numbers that neither a fit nor a made table with a usual seed has used."""
Told = Callable[[str, int, int], None]
"""Is told the step, what of it is done and what there is of it; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Fitted:
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
    fits: tuple[Fitted, ...]

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
    path: Path, *, methods: tuple[str, ...] = METHODS, simulated: int = 50_000, seed: int = 0, told: Told | None = None
) -> FitReport:
    """Read a table and fit it by each method; the same table and seed give the same figures. Raises TraceError."""

    def tell(step: str, done: int, of: int) -> None:
        if told is not None:
            told(step, done, of)

    table = read_vm_table(path, lambda done, of: tell("reading", done, of))
    tell("sorting by deployment", 0, 0)
    histories = histories_of(table)
    fits = []
    if "empirical-bayes" in methods:
        marginal = fit_marginal(histories, START, lambda call, value: tell("empirical-bayes", call, 0))
        fits.append(_fitted("empirical-bayes", marginal, histories, simulated, seed))
    if "two-step" in methods:
        stepped = fit_two_step(
            histories, simulated=simulated, seed=seed, told=lambda call, value: tell("two-step", call, EVALUATIONS)
        )
        fits.append(_fitted("two-step", stepped, histories, simulated, seed))
    return FitReport(table, histories, facts_of(histories), tuple(fits))


def _fitted(method: str, fit: MarginalFit | TwoStepFit, histories: Histories, simulated: int, seed: int) -> Fitted:
    comparison = compare(histories, fit.population, simulated=simulated, seed=COMPARISON_SEEDS + seed)
    details = {name: value for name, value in asdict(fit).items() if name not in ("population", "distance")}
    if isinstance(fit, TwoStepFit):
        details["distance_minimised"] = fit.distance
    return Fitted(method, fit.population, comparison, details)


def check_preset_file(path: Path) -> None:
    """Raise BadInput unless the file's name ends in .toml or .json."""
    if path.suffix not in (".toml", ".json"):
        raise BadInput("--output", str(path), "end the file's name with .toml or .json")


def write_preset(path: Path, cluster: Cluster) -> None:
    """Write what `simulate admission --preset FILE` reads, .toml or .json. Raises BadInput."""
    check_preset_file(path)
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
