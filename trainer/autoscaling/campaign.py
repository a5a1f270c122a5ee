"""A training campaign: one configuration, or a grid of them, each with several seeds: its curves and summary.

In the campaign's directory stand `summary.json` and, for each configuration, `curves.svg` and a directory per seed
(see `trainer.autoscaling.runs`); with a grid, each configuration has a directory of its own, named after what it
varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from trainer.autoscaling.ppo_lstm import PPOConfig
from trainer.autoscaling.runs import HELD_OUT, held_out_unit, marks_of
from trainer.kit.drawing import SOFT, panel, picture
from trainer.kit.fields import changes_of
from trainer.kit.files import write_json
from trainer.kit.intervals import Interval, mean_interval
from trainer.kit.jobs import Job, grid_of
from trainer.kit.progress import CURVE_FILE, column, read_curve
from trainer.kit.runs import CURVES_FILE, SUMMARY_FILE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[int, float]]
Floats = NDArray[np.float64]

_SEED, _MEAN = "#7fb8d1", "#0f3d57"
_LINE = 0.05
"""Height of a line of text as a share of the picture's."""
_HIGHEST = 2.0
"""The picture ends at so many times the highest baseline (or the best cost): early costs would hide the rest."""


def curve_of(path: Path, figure: str) -> list[tuple[int, float]]:
    """Return (steps, value) of a figure in a run's curve file; BadInput when it never measured it."""
    found = column(read_curve(path), figure)
    if not found:
        raise BadInput("curve", str(path), f"it has no {figure}: name a run that was evaluated")
    return found


def best_so_far(curve: Curve) -> list[tuple[int, float]]:
    """Return the lowest value up to each point."""
    lowest = np.minimum.accumulate([value for _, value in curve])
    return [(steps, float(value)) for (steps, _), value in zip(curve, lowest, strict=True)]


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """Return the mean over curves at each of their steps from where all have begun, each held until its next point."""
    begun = max(curve[0][0] for curve in curves)
    steps = sorted({at for curve in curves for at, _ in curve if at >= begun})
    rows = []
    for curve in curves:
        places = np.searchsorted([at for at, _ in curve], steps, side="right") - 1
        rows.append([curve[place][1] for place in places])
    return list(zip(steps, np.mean(rows, axis=0).tolist(), strict=True))


def summary_of(costs: Mapping[str, float], goals: Mapping[str, float], alone: Interval | None = None) -> dict[str, Any]:
    """Return the costs per run with their mean, its 95 % bootstrap interval, and the goals passed by mean and interval.

    costs: dollars an episode by name of the run. goals: those of the baselines on the same episodes. alone: interval
    over a single run's episodes, which says more than one over a single run.
    """
    over_episodes = alone is not None and len(costs) == 1
    interval = alone if alone is not None and over_episodes else mean_interval(list(costs.values()))
    return {
        "costs": dict(costs),
        "interval_over": "episodes" if over_episodes else "seeds",
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "goals": {
            name: {
                "cost": goal,
                "relative": interval.mean / goal - 1.0,
                "passed": interval.mean < goal,
                "surely": interval.high < goal,
            }
            for name, goal in goals.items()
        },
    }


def spread(values: Mapping[str, float], gap: float) -> dict[str, float]:
    """Return the values from low to high, each moved up as far as it takes to stand `gap` above the one before."""
    places: dict[str, float] = {}
    lowest = -np.inf
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        lowest = max(value, lowest)
        places[name] = lowest
        lowest += gap
    return places


def draw_curves(
    curves: Mapping[str, Curve], goals: Mapping[str, float], path: Path, *, title: str, unit: str = "cost, $ an episode"
) -> None:
    """Draw each run's cost and the mean of their best so far as SVG, a line per baseline; same data, same bytes.

    curves: (steps, held-out figure) by name of the run. goals: baselines in the same unit.
    """
    if not curves:
        raise BadInput("curves", 0, "give at least one run")
    path.write_bytes(picture(lambda: _figure(curves, goals, title, unit), "svg"))


def _figure(curves: Mapping[str, Curve], goals: Mapping[str, float], title: str, unit: str) -> Figure:
    from matplotlib.figure import Figure

    best = [best_so_far(curve) for curve in curves.values()]
    mean = mean_curve(best)
    lowest = min([value for _, value in mean] + list(goals.values()))
    highest = _HIGHEST * max(goals.values(), default=mean[-1][1])
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for curve in curves.values():
        axes.plot(*_columns(curve), color=_SEED, linewidth=0.9)
    axes.plot(*_columns(mean), color=_MEAN, linewidth=2.0)
    for goal in goals.values():
        axes.axhline(goal, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(left=0.0)
    top = max(value for curve in curves.values() for _, value in curve)
    bottom, top = 0.9 * lowest, min(highest, 1.05 * max(top, *goals.values(), 0.0))
    axes.set_ylim(bottom, top)
    beside: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    for name, place in spread(goals, (top - bottom) * _LINE).items():
        axes.annotate(f"{name} {goals[name]:.2f}", (1.0, place), xytext=(4, -3), color=SOFT, **beside)
    runs = f"{len(curves)} seeds (light) and the mean of their best so far" if len(curves) > 1 else "one run"
    panel(axes, f"{title}: {runs}", x="environment steps, millions", y=f"held-out {unit}")
    return figure


def _columns(curve: Curve) -> tuple[Floats, Floats]:
    points = np.array(curve, dtype=np.float64)
    return points[:, 0] / 1e6, points[:, 1]


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration of a campaign: its name (empty without a grid), the configuration, and where its runs stand."""

    name: str
    config: PPOConfig
    directory: Path


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is trained: every variant with every seed."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    directory: Path

    def run_directory(self, variant: Variant, seed: int) -> Path:
        """Return where a run stands."""
        return variant.directory / f"seed-{seed}"


def campaign_of(config: PPOConfig, seeds: Sequence[int], sweeps: Sequence[str], directory: Path) -> Campaign:
    """Return the campaign of a configuration, seeds and `field=value,value` sweeps; BadInput for a wrong field."""
    variants = []
    for changes in grid_of(sweeps):
        name = ",".join(f"{field}={value}" for field, value in changes.items())
        # A value may be a path or a policy's text; the directory's name keeps what any file system takes.
        folder = "".join(sign if sign.isalnum() or sign in "=.,-_+" else "_" for sign in name)
        varied = replace(config, **changes_of("--sweep", PPOConfig, changes))
        variants.append(Variant(name, varied, directory / folder if name else directory))
    if "seed" in {field for changes in grid_of(sweeps) for field in changes}:
        raise BadInput("--sweep", "seed", "give seeds by --seeds, such as --seeds 0-4")
    return Campaign(tuple(variants), tuple(seeds), directory)


def jobs_of(campaign: Campaign, goals: Mapping[str, Mapping[str, float]], episodes: int) -> list[Job]:
    """Return a job per run, seeds of one variant together. goals: cost by baseline, per training task."""
    jobs = []
    for variant in campaign.variants:
        task = variant.config.task
        own = dict(goals.get(task, {}))
        for seed in campaign.seeds:
            name = f"{variant.name} seed {seed}".strip()
            data = {
                "name": name,
                "config": replace(variant.config, seed=seed).plain(),
                "directory": str(campaign.run_directory(variant, seed).resolve()),
                "goals": own,
                "marks": marks_of(task, own),
                "episodes": episodes,
            }
            jobs.append(Job(name, data))
    return jobs


def conclude(campaign: Campaign, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write `summary.json` and each variant's `curves.svg`, and return the summary.

    results: what the runs returned, in the order of the jobs. The best run is the one that was cheapest on the
    held-out episodes by which checkpoints are chosen, not on those that are reported.
    """
    left = list(results)
    variants = []
    for variant in campaign.variants:
        runs, left = left[: len(campaign.seeds)], left[len(campaign.seeds) :]
        places = [campaign.run_directory(variant, seed) for seed in campaign.seeds]
        named = {f"seed {seed}": run for seed, run in zip(campaign.seeds, runs, strict=True)}
        goals, task = runs[0]["goals"], variant.config.task
        curves = {name: curve_of(place / CURVE_FILE, HELD_OUT) for name, place in zip(named, places, strict=True)}
        draw_curves(
            curves, marks_of(task, goals), variant.directory / CURVES_FILE, title=task, unit=held_out_unit(task)
        )
        first = runs[0]["report"]
        alone = Interval(first["cost"], first["low"], first["high"], first["episodes"])
        chosen = min(range(len(runs)), key=lambda at: runs[at]["selection_cost"])
        variants.append(
            {
                "variant": variant.name,
                "task": task,
                **summary_of({name: run["report"]["cost"] for name, run in named.items()}, goals, alone),
                "cpu_s": sum(run["cpu_s"] for run in runs),
                "best": {
                    "seed": campaign.seeds[chosen],
                    "selection_cost": runs[chosen]["selection_cost"],
                    "cost": runs[chosen]["report"]["cost"],
                    "model": str((places[chosen] / runs[chosen]["model"]).relative_to(campaign.directory)),
                },
                "curves": str((variant.directory / CURVES_FILE).relative_to(campaign.directory)),
            }
        )
    summary = {"seeds": list(campaign.seeds), "variants": variants}
    write_json(campaign.directory / SUMMARY_FILE, summary)
    return summary
