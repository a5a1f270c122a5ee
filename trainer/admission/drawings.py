"""The figures of the report as SVG text: fronts, gains, prior observations, failures over months, shares of runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.admission.figures import LEVELS, Findings
from trainer.admission.fronts import FLOOR, Metric, nearest_place
from trainer.admission.table import Runs
from trainer.kit.drawing import INK, POLICIES, SOFT, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST = 3e-6
"""Failure rates below it are drawn there: none were seen, or hardly any."""


def _colours(names: Sequence[str]) -> dict[str, str]:
    return {name: POLICIES[place % len(POLICIES)] for place, name in enumerate(names)}


def fronts(found: Findings) -> str:
    """Draw utilisation against failures, a line per rule, by both metrics; bars: 95 % intervals of the failures."""
    colour = _colours(list(found.fronts))

    def draw(figure: Figure) -> None:
        for axes, metric in zip(figure.subplots(1, 2, sharey=True), Metric, strict=True):
            for name, standings in found.standings.items():
                rates = [s.primary if metric is Metric.PRIMARY else s.pooled for s in standings]
                x = np.maximum([rate.value for rate in rates], SMALLEST)
                y = [s.utilisation.value for s in standings]
                axes.plot(x, y, color=colour[name], lw=1.4, marker="o", ms=3.5, label=name)
                for rate, height in zip(rates, y, strict=True):
                    if rate.high > SMALLEST:
                        ends = [max(rate.low, SMALLEST), rate.high]
                        axes.plot(ends, [height, height], color=colour[name], lw=0.8, alpha=0.45)
            for level in LEVELS:
                axes.axvline(level, color=SOFT, lw=0.7, ls=(0, (4, 3)))
            axes.set_xscale("log")
            axes.set_xlabel(f"scale-outs refused, {'mean of months' if metric is Metric.PRIMARY else 'all together'}")
            axes.set_title(metric.value, loc="left", fontsize=9.5)
            axes.tick_params(length=0)
        figure.axes[0].set_ylabel("utilisation")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")

    return svg((11.0, 4.2), draw)


def gains(found: Findings, metric: Metric = Metric.PRIMARY) -> str:
    """Draw every pair's gain in utilisation at equal risk with its interval; hollow where it is not resolved."""
    rows = [(meeting, g) for meeting in found.meetings for g in meeting.gains if g.metric is metric]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = [f"{meeting.challenger} against {meeting.base}, {g.sla:g}" for meeting, g in rows]
        for place, (_, g) in enumerate(rows):
            if isnan(g.difference.value):
                continue
            shade = POLICIES[LEVELS.index(g.sla)]
            ends = [100 * g.difference.low, 100 * g.difference.high]
            axes.plot(ends, [place, place], color=shade, lw=1.6 if g.resolved else 0.8)
            face = shade if g.resolved else "white"
            axes.plot([100 * g.difference.value], [place], marker="o", ms=5, mfc=face, mec=shade, ls="")
        axes.axvline(0.0, color=INK, lw=1.0)
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set_xlabel("points of utilisation gained at an equal share of refused scale-outs (95 % interval)")
        axes.grid(visible=False, axis="y")
        axes.tick_params(length=0)

    return svg((11.0, 0.9 + 0.25 * len(rows)), draw)


def by_ladder(found: Findings) -> str:
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
        for name, standings in found.standings.items():
            if name not in found.reached:
                axes.axhline(standings[-1].utilisation.value, color=INK, lw=0.9, ls=(0, (4, 3)), label=name)
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("utilisation")
        axes.grid(visible=False, axis="x")
        axes.tick_params(length=0)
        figure.legend(loc="outside right upper")

    return svg((11.0, 3.4), draw)


def over_months(found: Findings) -> str:
    """Draw the share of refused scale-outs, and utilisation, by month; of each rule the cell nearest to 1e-3."""
    colour = _colours(list(found.fronts))

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
        _title(panels[0], "Scale-outs refused, all runs together")
        _title(panels[1], "Mean utilisation")
        panels[1].set_xlabel("month")
        figure.legend(loc="outside right upper")

    return svg((11.0, 4.6), draw)


def shares_of_runs(found: Findings) -> str:
    """Draw how many of all failures the worst runs carry; of each rule the cell nearest to 1e-3."""
    colour = _colours(list(found.fronts))

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
        axes.set_xlabel("worst runs, % of all")
        axes.set_ylabel("share of all failures")
        axes.set_ylim(0, 1.03)
        axes.tick_params(length=0)
        figure.legend(loc="outside right upper")

    return svg((11.0, 3.4), draw)


def _nearest(found: Findings) -> list[tuple[str, Runs, str]]:
    """Return ladder, runs and policy text of the most permissive cell within 1e-3."""
    chosen = []
    for name, front in found.fronts.items():
        cell = front.cells[nearest_place(front, Metric.PRIMARY, LEVELS[0])]
        chosen.append((name, found.runs[cell], cell.policy.partition(",")[0]))
    return chosen


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9.5)
    axes.tick_params(length=0)
