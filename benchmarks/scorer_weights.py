"""Other weights of the scorer against the ones that ship, by the rule of docs/train/fleet-scorer.md.

Both play the cases of the selection behind those that margins are chosen on: FRESH_FLEETS fleets at large, and FRESH
cases of every other group, each beside the queue rule of its world.

mean_shipped, mean_other: cost in times the rule's, on the mean of the groups. worst_other: its worst group.
difference: of the means, in per cent of the shipped one's, with its 95 % interval (cases drawn again in pairs within
groups). may_ship: 1 where the first two points of the rule hold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import arguments, progress, report
from simulator.autoscaling.reference import preset
from trainer.autoscaling.scorer import FLEETS, WORST, Selection, Trained, ratios
from trainer.autoscaling.scorer_runs import RELEASE, start_of
from trainer.kit.intervals import compare
from trainer.kit.jobs import Pool

FIRST_FLEET, FRESH_FLEETS = 300, 600
"""Fleets of the selection before these are for the choice of margins; this many are judged on."""
FIRST, FRESH = 100, 200
"""The same of every other group."""


def fresh_cases(share: float) -> list[tuple[str, int]]:
    """Return the group and number of each case; share: how much of each group, in 0..1."""
    groups = dict.fromkeys(group for group, _ in Selection(preset("live-like"), 3).cases)
    found = []
    for group in groups:
        first, count = (FIRST_FLEET, FRESH_FLEETS) if group == FLEETS else (FIRST, FRESH)
        found += [(group, first + k) for k in range(max(int(count * share), 1))]
    return found


def ratios_of(models: Sequence[Trained], case: tuple[str, int]) -> list[float]:
    """Return what each of the models costs in a case, in times the rule's."""
    lesson = Selection(preset("live-like"), 1).lesson(*case)
    found = []
    for one in models:
        learned, rule = ratios([lesson], one.weights, one.margin, one.idle_limit_min)[0]
        found.append(float(learned / rule))
    return found


def compared(costs: Sequence[Sequence[float]], groups: Sequence[str]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of ratios by case [E, 2], the shipped one's first, and the means by group."""
    shipped, other = np.array(costs).T
    names = np.array(groups)
    means = {group: (shipped[names == group].mean(), other[names == group].mean()) for group in dict.fromkeys(groups)}
    mean_shipped, mean_other = np.mean(list(means.values()), axis=0)
    beside, worst = compare(other, shipped, groups).relative, max(theirs for _, theirs in means.values())
    figures = {
        "mean_shipped": float(mean_shipped),
        "mean_other": float(mean_other),
        "worst_other": float(worst),
        "difference": 100.0 * beside.mean,
        "difference_low": 100.0 * beside.low,
        "difference_high": 100.0 * beside.high,
        "may_ship": float(beside.high < 0.0 and mean_other < mean_shipped and worst <= WORST),
    }
    return figures, {"groups": {group: f"{a:.4f} {b:.4f}" for group, (a, b) in means.items()}}


def main(given: Sequence[str] | None = None) -> int:
    """Play, compare and print."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("other", nargs="?", default=RELEASE, help="a run of `trimtab train` or an .onnx file of one")
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    asked = parser.parse_args(given)
    models = [start_of(RELEASE), start_of(asked.other)]
    cases = fresh_cases(asked.share)
    costs = []
    with Pool(partial(ratios_of, models), asked.jobs) as pool:
        for number, found in enumerate(pool.run(cases), start=1):
            costs.append(found)
            if number % 200 == 0:
                progress(f"{number} of {len(cases)} cases")
    figures, notes = compared(costs, [group for group, _ in cases])
    notes |= {"cases": len(cases), "other": asked.other, "margins": [one.margin for one in models]}
    return report("scorer_weights", figures, as_json=asked.json, packages=("numba", "numpy"), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
