"""An experiment's runs made into figures: of each cell, and of each pair at equal risk and at equal load."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from simulator.admission import cluster_of
from trainer.admission.experiments import Experiment
from trainer.admission.fronts import (
    CellResult,
    Front,
    Gain,
    Metric,
    Ratio,
    failure_ratio,
    front_of,
    gain,
    nearest_place,
    reach,
    result_of,
    share_of_bound,
)
from trainer.admission.table import Cell, Runs
from trainer.kit.intervals import Estimate, Kind

LEVELS = (1e-3, 3e-4, 1e-4)
"""Failure rates at which rules are compared."""
UNRESOLVED_SLA = 1e-4


@dataclass(frozen=True, slots=True)
class Meeting:
    """A challenger against a base on the same runs."""

    challenger: str
    base: str
    gains: tuple[Gain, ...]
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """What one experiment says."""

    experiment: Experiment
    runs: Mapping[Cell, Runs]
    fronts: Mapping[str, Front]
    results: Mapping[str, tuple[CellResult, ...]]
    reached: Mapping[str, tuple[Estimate, ...]]
    """Utilisation by ladder at each of LEVELS, primary metric."""
    meetings: tuple[Meeting, ...]
    of_bound: Mapping[str, Estimate]
    """Utilisation at 1e-3 as a share of what fits without any promise; of ladders that stand beside that bound."""

    @property
    def preset(self) -> str:
        """The cluster, as it was given."""
        return self.experiment.ladders[0].preset

    @property
    def preset_name(self) -> str:
        """The cluster's name, fit for a file."""
        return re.sub(r"[^\w-]+", "-", cluster_of(self.preset).name)


def experiment_result(experiment: Experiment, runs: Mapping[Cell, Runs]) -> ExperimentResult:
    """Work out an experiment's figures; all cells must have the same seeds, else BadInput."""
    fronts = {ladder.name: front_of(ladder.cells, runs) for ladder in experiment.ladders}
    single = [name for name, front in fronts.items() if len(front.cells) == 1]
    several = {name: front for name, front in fronts.items() if len(front.cells) > 1}
    return ExperimentResult(
        experiment,
        runs,
        fronts,
        {ladder.name: tuple(result_of(cell, runs[cell]) for cell in ladder.cells) for ladder in experiment.ladders},
        {name: tuple(reach(front, Metric.PRIMARY, sla) for sla in LEVELS) for name, front in several.items()},
        tuple(_meeting(experiment, fronts, *pair) for pair in experiment.pairs),
        {
            name: share_of_bound(front, fronts[single[0]], Metric.PRIMARY, LEVELS[0])
            for name, front in several.items()
            if single
        },
    )


def _meeting(experiment: Experiment, fronts: Mapping[str, Front], challenger: str, base: str) -> Meeting:
    ours, theirs = fronts[challenger], fronts[base]
    named = [place for place, cell in enumerate(ours.cells) if cell.policy == experiment.judged]
    return Meeting(
        challenger,
        base,
        tuple(gain(ours, theirs, metric, sla) for metric in Metric for sla in LEVELS),
        tuple(
            failure_ratio(ours, named[0] if named else nearest_place(ours, metric, LEVELS[1]), theirs, metric)
            for metric in Metric
        ),
    )


def as_data(found: Sequence[ExperimentResult], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data of everything, with preset, seeds, runs and policy hash beside every figure (§13.8)."""
    return {"configuration": dict(configuration), "experiments": [_experiment_data(one) for one in found]}


def _experiment_data(found: ExperimentResult) -> dict[str, Any]:
    return {
        "name": found.experiment.name,
        "preset": found.preset,
        "sla": cluster_of(found.preset).sla,
        "ladders": {name: [result_data(s) for s in results] for name, results in found.results.items()},
        "utilisation_at": {
            name: {f"{sla:g}": estimate_data(e) for sla, e in zip(LEVELS, estimates, strict=True)}
            for name, estimates in found.reached.items()
        },
        "share_of_accept_if_fits_at_1e-3": {name: estimate_data(e) for name, e in found.of_bound.items()},
        "comparisons": [
            {
                "challenger": meeting.challenger,
                "base": meeting.base,
                "gains": [_gain_data(g) for g in meeting.gains],
                "failure_ratios": [_ratio_data(r) for r in meeting.ratios],
            }
            for meeting in found.meetings
        ],
    }


def result_data(found: CellResult) -> dict[str, Any]:
    """Return a cell's figures as plain data."""
    return {
        "policy": found.cell.policy,
        "policy_hash": found.cell.policy_hash,
        "preset": found.cell.preset,
        "observations": found.cell.observations,
        "labels": found.cell.labels or None,
        "hours": found.cell.hours,
        "runs": found.runs,
        "seeds": [found.first_seed, found.last_seed],
        "utilisation": estimate_data(found.utilisation),
        "primary": estimate_data(found.primary),
        "pooled": estimate_data(found.pooled),
        "failing_runs": found.failing_runs,
        "largest_share_of_failures": _number(found.largest_share),
    }


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """Return a figure with its interval as plain data; null where it is not defined."""
    return {
        "value": _number(estimate.value),
        "low": _number(estimate.low),
        "high": _number(estimate.high),
        "interval": estimate.kind.value,
        "undefined_share": estimate.undefined,
        "runs": estimate.runs,
    }


def _gain_data(found: Gain) -> dict[str, Any]:
    return {
        "metric": found.metric.value,
        "sla": found.sla,
        "challenger": _number(found.challenger),
        "base": _number(found.base),
        "gain": estimate_data(found.difference),
        "failing_runs": found.failing_runs,
        "resolved": found.resolved,
    }


def _ratio_data(found: Ratio) -> dict[str, Any]:
    return {
        "metric": found.metric.value,
        "policy": found.cell.policy,
        "utilisation": found.utilisation,
        "challenger": found.challenger,
        "ratio": estimate_data(found.ratio),
        "failing_runs": found.failing_runs,
    }


def _number(value: float) -> float | None:
    return None if isnan(value) else float(value)


def gain_text(found: Gain) -> str:
    """Return a gain in words: points of utilisation with their interval, or why there is none.

    Where fewer than FEWEST_FAILING runs fail their number is given; at UNRESOLVED_SLA and below in place of the
    interval.
    """
    if isnan(found.difference.value):
        return "beyond the thresholds tried"
    value = f"{100 * found.difference.value:+.1f}"
    if not found.resolved and found.sla <= UNRESOLVED_SLA:
        return f"{value}, not resolved: {found.failing_runs} runs fail"
    text = f"{value} {ends_text(found.difference, 100, '+.1f')}"
    return text if found.resolved else f"{text}, {found.failing_runs} runs fail"


def ends_text(estimate: Estimate, scale: float = 1.0, form: str = ".3g") -> str:
    """Return the interval in brackets, marked where it is one of percentiles."""
    if estimate.kind is Kind.UNDEFINED:
        return "[-]"
    mark = " (percentile)" if estimate.kind is Kind.PERCENTILE else ""
    return f"[{estimate.low * scale:{form}}, {estimate.high * scale:{form}}]{mark}"
