"""The report of experiments: figures of each cell and pair, and one HTML page with drawings and numbers (§13)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.admission import cluster_of
from trainer.admission.experiments import Experiment
from trainer.admission.fronts import (
    FEWEST_FAILING,
    FLOOR,
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
from trainer.kit.drawing import INK, PAPER, POLICIES, SOFT, colours, panel, svg
from trainer.kit.intervals import Estimate, Kind
from trainer.kit.report import Plot, Section, document, escape, table, write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """The figures of one experiment."""

    experiment: Experiment
    runs: Mapping[Cell, Runs]
    fronts: Mapping[str, Front]
    results: Mapping[str, tuple[CellResult, ...]]
    reached: Mapping[str, tuple[Estimate, ...]]
    """Utilisation by ladder at each of LEVELS, primary metric."""
    meetings: tuple[Meeting, ...]
    of_bound: Mapping[str, Estimate]
    """Utilisation at 1e-3 as a share of that without any promise; of ladders with such a bound."""

    @property
    def preset(self) -> str:
        """The cluster, as given."""
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
    """Return plain data of everything, with preset, seeds, runs and policy hash at every figure (§13.8)."""
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


SMALLEST = 3e-6
"""Failure rates below it are drawn there: none were seen, or hardly any."""


def fronts(found: ExperimentResult) -> str:
    """Draw utilisation against failures, a line per rule, by both metrics; bars: 95 % intervals of the failures."""
    colour = colours(list(found.fronts))

    def draw(figure: Figure) -> None:
        for axes, metric in zip(figure.subplots(1, 2, sharey=True), Metric, strict=True):
            for name, results in found.results.items():
                rates = [s.primary if metric is Metric.PRIMARY else s.pooled for s in results]
                x = np.maximum([rate.value for rate in rates], SMALLEST)
                y = [s.utilisation.value for s in results]
                axes.plot(x, y, color=colour[name], lw=1.4, marker="o", ms=3.5, label=name)
                for rate, height in zip(rates, y, strict=True):
                    if rate.high > SMALLEST:
                        ends = [max(rate.low, SMALLEST), rate.high]
                        axes.plot(ends, [height, height], color=colour[name], lw=0.8, alpha=0.45)
            for level in LEVELS:
                axes.axvline(level, color=SOFT, lw=0.7, ls=(0, (4, 3)))
            axes.set_xscale("log")
            refused = f"scale-outs refused, share ({'mean of months' if metric is Metric.PRIMARY else 'all together'})"
            panel(axes, metric.value, x=refused, y="utilisation, share of the cores")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")

    return svg((11.0, 4.2), draw)


def gains(found: ExperimentResult) -> str:
    """Draw every pair's gain in utilisation at equal risk with its interval; hollow where it is not resolved."""
    rows = [(meeting, g) for meeting in found.meetings for g in meeting.gains if g.metric is Metric.PRIMARY]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = [f"{meeting.challenger} against {meeting.base}, {g.sla:g}" for meeting, g in rows]
        for place, (_, g) in enumerate(rows):
            if isnan(g.difference.value):
                continue
            shade = POLICIES[LEVELS.index(g.sla)]
            ends = [100 * g.difference.low, 100 * g.difference.high]
            axes.plot(ends, [place, place], color=shade, lw=1.6 if g.resolved else 0.8)
            face = shade if g.resolved else PAPER
            axes.plot([100 * g.difference.value], [place], marker="o", ms=5, mfc=face, mec=shade, ls="")
        axes.axvline(0.0, color=INK, lw=1.0)
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        gained = "utilisation gained at an equal share of refused scale-outs, points (95 % interval)"
        panel(axes, x=gained, y="pair of rules and risk, by name")
        axes.grid(visible=False, axis="y")

    return svg((11.0, 0.9 + 0.25 * len(rows)), draw)


def by_ladder(found: ExperimentResult) -> str:
    """Draw the utilisation that each rule reaches at the levels of risk, with its interval."""
    names = list(found.reached)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, sla in enumerate(LEVELS):
            shade = POLICIES[place]
            shift = (place - 1) * 0.16
            for column, name in enumerate(names):
                estimate = found.reached[name][place]
                if not isnan(estimate.value):
                    axes.plot([column + shift] * 2, [estimate.low, estimate.high], color=shade, lw=1.2)
                    axes.plot([column + shift], [estimate.value], color=shade, marker="o", ms=5, ls="")
            axes.plot([], [], color=shade, marker="o", ms=5, ls="", label=f"{sla:g} refused")
        for name, results in found.results.items():
            if name not in found.reached:
                axes.axhline(results[-1].utilisation.value, color=INK, lw=0.9, ls=(0, (4, 3)), label=name)
        axes.set_xticks(range(len(names)), names)
        panel(axes, x="rule, by name", y="utilisation, share of the cores")
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside right upper")

    return svg((11.0, 3.4), draw)


def over_months(found: ExperimentResult) -> str:
    """Draw the share of refused scale-outs, and utilisation, by month; of each rule the cell nearest to 1e-3."""
    colour = colours(list(found.fronts))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for name, runs, text in _nearest(found):
            months = np.arange(1, runs.requests.shape[1] + 1)
            requests = runs.requests.sum(axis=0)
            share = runs.failures.sum(axis=0) / np.maximum(requests, 1)
            line: Any = {"color": colour[name], "lw": 1.3}
            panels[0].plot(months, np.maximum(share, FLOOR), label=f"{name} ({text})", **line)
            panels[1].plot(months, runs.utilisation_by_month.mean(axis=0), **line)
        panels[0].set_yscale("log")
        panel(panels[0], "Scale-outs refused, all runs together", y="refused, share")
        panel(panels[1], "Mean utilisation", x="time, months", y="utilisation, share")
        figure.legend(loc="outside right upper")

    return svg((11.0, 4.6), draw)


def shares_of_runs(found: ExperimentResult) -> str:
    """Draw how many of all failures the worst runs carry; of each rule the cell nearest to 1e-3."""
    colour = colours(list(found.fronts))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, runs, text in _nearest(found):
            failures = np.sort(runs.failures.sum(axis=1))[::-1]
            if failures.sum():
                share = np.cumsum(failures) / failures.sum()
                label = f"{name} ({text}): {int((failures > 0).sum())} of {len(failures)} runs fail"
                axes.plot(
                    100 * np.arange(1, len(share) + 1) / len(share), share, color=colour[name], lw=1.3, label=label
                )
        panel(axes, x="worst runs, % of all", y="failures, share of all")
        axes.set_ylim(0, 1.03)
        figure.legend(loc="outside right upper")

    return svg((11.0, 3.4), draw)


def _nearest(found: ExperimentResult) -> list[tuple[str, Runs, str]]:
    """Return ladder, runs and policy text of the most permissive cell within 1e-3."""
    chosen = []
    for name, front in found.fronts.items():
        cell = front.cells[nearest_place(front, Metric.PRIMARY, LEVELS[0])]
        chosen.append((name, found.runs[cell], cell.policy.partition(",")[0]))
    return chosen


def write(folder: Path, found: Sequence[ExperimentResult], configuration: Mapping[str, Any]) -> list[Path]:
    """Write report.html, summary.json and one .svg per figure; return the files in that order."""
    plots = {f"{one.preset_name}-{one.experiment.name}": plots_of(one) for one in found}
    named = {f"{key}-{name}": plot for key, own in plots.items() for name, plot in own.items()}
    return write_report(folder, page(found, plots, configuration), as_data(found, configuration), named)


def plots_of(found: ExperimentResult) -> dict[str, Plot]:
    """Return an experiment's figures by name."""
    plots = {
        "fronts": Plot(
            "Utilisation against refused scale-outs. A point is one threshold; the thin lines are 95 % intervals over "
            f"runs. Rates below {SMALLEST:g} are at the left edge.",
            fronts(found),
        ),
        "gains": Plot(
            "Gain of one rule over another at equal risk, primary metric. Hollow: fewer than "
            f"{FEWEST_FAILING} runs fail there, so the interval means little.",
            gains(found),
        ),
        "reached": Plot("Utilisation at each level of risk, primary metric.", by_ladder(found)),
    }
    if any(s.failing_runs for results in found.results.values() for s in results):
        plots["months"] = Plot("When it goes wrong: each rule at its last threshold within 1e-3.", over_months(found))
        plots["runs"] = Plot(
            "How few runs carry the failures: each rule at its last threshold within 1e-3.",
            shares_of_runs(found),
        )
    return plots


def page(
    found: Sequence[ExperimentResult], plots: Mapping[str, Mapping[str, Plot]], configuration: Mapping[str, Any]
) -> str:
    """Return the report as one page; plots: by experiment and name."""
    sections = []
    for one, (key, named) in zip(found, plots.items(), strict=True):
        drawn = "".join(plot.html(f"{key}-{name}") for name, plot in named.items())
        content = f'<p class="soft">{escape(_facts(one))}</p>{_gains(one)}{_ratios(one)}{_bounds(one)}{drawn}'
        sections.append(Section(key, f"{one.preset_name}: {one.experiment.title}", content + _results(one)))
    sections.append(Section("method", "How to read this", _METHOD))
    facts = {"code": str(configuration["code"]), "hours of a run": f"{configuration['hours']:g}"}
    return document("Rules of admission compared", sections, facts)


def _facts(found: ExperimentResult) -> str:
    first = next(iter(found.results.values()))[0]
    return f"{first.runs} runs, seeds {first.first_seed} to {first.last_seed}, the same for every rule."


def _gains(found: ExperimentResult) -> str:
    head = ["challenger", "against", *(f"{metric.value} {sla:g}" for metric in Metric for sla in LEVELS)]
    rows = [[escape(m.challenger), escape(m.base), *(escape(gain_text(g)) for g in m.gains)] for m in found.meetings]
    return table(head, rows, "Points of utilisation gained at equal risk")


def _ratios(found: ExperimentResult) -> str:
    head = ["challenger", "against", "at", "utilisation", *(f"{metric.value}" for metric in Metric)]
    rows = [
        [
            escape(m.challenger),
            escape(m.base),
            escape(m.ratios[0].cell.policy),
            f"{m.ratios[0].utilisation:.3f}",
            *(_estimate(r.ratio, ".3g") for r in m.ratios),
        ]
        for m in found.meetings
    ]
    return table(head, rows, "The challenger's failures as a share of the base's, at equal utilisation")


def _bounds(found: ExperimentResult) -> str:
    if not found.of_bound:
        return ""
    rows = [[escape(name), _estimate(estimate, ".3f")] for name, estimate in found.of_bound.items()]
    return table(["rule", "share"], rows, "Utilisation at 1e-3 as a share of the capacity in use without a promise")


def _results(found: ExperimentResult) -> str:
    head = ["policy", "hash", "obs", "runs", "utilisation", "primary", "pooled", "failing runs", "worst run's share"]
    parts = [table(head, map(_cells, results), name) for name, results in found.results.items()]
    return f"<details><summary>All thresholds</summary>{''.join(parts)}</details>"


def _cells(found: CellResult) -> list[str]:
    labels = f" {found.cell.labels}" if found.cell.labels else ""
    return [
        escape(found.cell.policy),
        found.cell.policy_hash,
        f"{found.cell.observations}{labels}",
        str(found.runs),
        _estimate(found.utilisation, ".3f"),
        _estimate(found.primary, ".2g"),
        _estimate(found.pooled, ".2g"),
        str(found.failing_runs),
        "-" if isnan(found.largest_share) else f"{found.largest_share:.0%}",
    ]


def _estimate(estimate: Estimate, form: str) -> str:
    if isnan(estimate.value):
        return "beyond the thresholds tried"
    return f"{estimate.value:{form}} <small>{escape(ends_text(estimate, form=form))}</small>"


_METHOD = f"""
<p>A run is that many hours of one cluster, three years by default. Its deployments, with their
whole lives inside, are drawn before any rule is asked, so all rules of a comparison meet the same deployments with
the same futures.</p>
<p>The primary metric is the mean over all months of all runs of the share of a month's scale-out requests that were
refused; pooled is all refusals over all requests. A few runs carry most failures, so the two differ.</p>
<p>Gain at equal risk: each rule's front of thresholds is read where it reaches the level, with the logarithm of the
rate (of {FLOOR:g} at least) linear in utilisation between two thresholds; the gain is the difference. Intervals are
95 % bootstrap intervals over runs, 10,000 resamples: bias-corrected and accelerated, or of percentiles, which is noted,
where a figure is not defined on every resample. With fewer than {FEWEST_FAILING} runs that fail at the first threshold
beyond the level their number follows the interval, and at 1e-4 the comparison counts as not resolved.</p>
"""
