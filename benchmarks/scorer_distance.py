"""How far outside its training a scorer still beats the queue rule: fleets beyond anything that it has seen.

Fleets are drawn as in training, then one thing is far beyond: boots of up to 3 hours, a price of waiting up to 300
times higher or lower, up to 20 times as many VMs, jobs of up to 20 hours, rests of up to 2 hours, or prices that differ
tenfold for the same cores. Each against the rule tuned for it. The distance of a minute is how far its furthest feature
stands beyond the range of the training, as a share of that range; that of an episode is the largest of its minutes.
ratio_within_<d>: mean ratio of costs over the fleets whose distance is at most <d> and above the one before, without
the guard. far: the model's own limit; ratio_with_guard: mean over all fleets where the rule decides beyond it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.report import arguments, progress, report
from simulator.autoscaling.branching import BranchedEpisodes
from trainer.autoscaling.fleets import TRAINED_TYPES, Fleet, fleet_of, tuned
from trainer.autoscaling.scorer import Trained
from trainer.autoscaling.scorer_file import FAR
from trainer.autoscaling.scorer_runs import RELEASE, start_of

SEED = 6_000_000
STEPS = (0.0, 0.1, 0.25, 0.5, 1.0, math.inf)
WAYS = ("boots", "waiting", "limits", "jobs", "rests", "prices")


def beyond(seed: int) -> tuple[str, Fleet]:
    """Return in which way a fleet is beyond what training draws, and the fleet."""
    way, rng = WAYS[seed % len(WAYS)], np.random.default_rng([seed, 5])
    fleet = fleet_of(seed, TRAINED_TYPES)
    config, factor = fleet.config, math.exp(rng.uniform(0.0, math.log(20.0)))
    if way == "boots":
        config = replace(config, boot_low_s=config.boot_low_s * factor, boot_high_s=config.boot_high_s * factor)
    elif way == "waiting":
        factor = factor**1.9 if rng.random() < 0.5 else factor**-1.9
        config = replace(config, waiting_price_per_hour=config.waiting_price_per_hour * factor)
    elif way == "limits":
        config = replace(config, limits=tuple(math.ceil(limit * factor) for limit in config.limits))
    elif way == "jobs":
        fleet = replace(fleet, length_s=fleet.length_s * factor)
    elif way == "rests":
        config = replace(config, cooldown_s=max(config.cooldown_s, 120.0) * factor)
    else:
        prices = [kind.price_per_hour * math.exp(rng.uniform(0.0, math.log(10.0))) for kind in config.types]
        types = [replace(kind, price_per_hour=price) for kind, price in zip(config.types, prices, strict=True)]
        config = replace(config, types=tuple(types))
    return way, replace(fleet, config=config)


def distance(trained: Trained, states: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """Return the largest distance of an episode's states [B, S] from the training."""
    if not len(states):
        return 0.0
    width = np.maximum(trained.greatest - trained.least, 1e-6)
    outside = np.maximum(trained.least - states, states - trained.greatest)
    return float((np.where(outside > 1e-6, outside, 0.0) / width).max())


def main(given: Sequence[str] | None = None) -> int:
    """Play the fleets and print ratios by distance."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--fleets", type=int, default=60, help="fleets beyond the training (default 60)")
    parser.add_argument("--model", default=RELEASE, help="release (default), a model file, or a finished run of train")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    asked = parser.parse_args(given)
    trained = start_of(asked.model)
    rows: list[tuple[str, float, float]] = []
    for number in range(asked.fleets):
        way, fleet = beyond(SEED + number)
        rule = tuned(fleet, 2)
        episodes = BranchedEpisodes(fleet.config, fleet.trace(0), rule)
        learned = episodes.play(
            fleet.seed,
            trained.weights,
            margin=trained.margin,
            idle_limit_min=trained.idle_limit_min,
            branch_share=1.0,
            most=4_000,
            steps=0,
        )
        ratio = learned.cost / episodes.play(fleet.seed).cost
        rows.append((way, distance(trained, learned.states), ratio))
        progress(f"{number + 1} of {asked.fleets}: {way}, distance {rows[-1][1]:.2f}, ratio {ratio:.3f}")
    figures: dict[str, float] = {"far": FAR}
    for above, most in zip((-1.0, *STEPS), STEPS, strict=False):
        found = [ratio for _, away, ratio in rows if above < away <= most]
        if found:
            figures[f"ratio_within_{most:g}"] = float(np.mean(found))
            figures[f"worst_within_{most:g}"] = max(found)
    guarded = [ratio if away <= FAR else 1.0 for _, away, ratio in rows]
    figures |= {"ratio_with_guard": float(np.mean(guarded)), "worst_with_guard": max(guarded)}
    notes = {way: [f"{away:.2f}: {ratio:.3f}" for name, away, ratio in rows if name == way] for way in WAYS}
    return report("scorer_distance", figures, as_json=asked.json, packages=("numba", "numpy"), targets=(), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
