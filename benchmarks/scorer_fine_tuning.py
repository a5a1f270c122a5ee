"""How far a scorer trained at large is from one trained for a world alone, and how fast fine-tuning closes the gap.

Worlds are fleets that no training draws (`benchmarks.held_out_worlds`), each with the queue rule tuned for
it. On each, weights are trained from nothing, and from those that ship, on more and more lessons of that world's loads:
at every rung new lessons are played under the weights so far, all of them are fitted, and the margin is chosen on
training loads. Every rung is judged on other loads of that world, on the same jobs and boots. The rung that is taken is
the one that costs least on the training loads that margins are chosen on.

zero_shot, fine_tuned, specialist: costs by those of the tuned rule, mean over the worlds; the last two by the rungs
that are taken. degradation: zero_shot beside the specialist; fine_tuned_degradation likewise. steps_from_nothing,
steps_fine_tuned: mean simulator steps until within NEAR of the specialist (all that were taken where a ladder never
comes there; none where the shipped weights are that near), and share_of_steps: the second by the first. Steps of the
ladders' lessons are counted, not those of choosing margins, which are alike for both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.autoscaling_policy import lessons
from benchmarks.held_out_worlds import held_out_fleets
from benchmarks.report import Target, arguments, progress, report
from domain.errors import BadInput
from simulator.autoscaling.branching import NO_WEIGHTS, RuleSetting
from simulator.autoscaling.reference import preset
from trainer.autoscaling.fleets import Fleet, tuned
from trainer.autoscaling.scorer import (
    MARGINS,
    WORST,
    Lesson,
    Recipe,
    Samples,
    Trained,
    gather,
    joined,
    network_of,
    train,
    with_margin,
)
from trainer.autoscaling.scorer_runs import RELEASE, start_of
from trainer.autoscaling.scorer_tuning import ALONE, FINE, THE_RULE, Policy, costs_of

NEAR = 0.005
LEARNT_FROM, CHOSEN_ON, JUDGED_ON = 1_000, 500, 100
"""Numbers of a fleet's loads, from which on they serve; the rule is tuned on the first few."""
CHOSEN = 6
"""Loads that a margin is chosen on."""
BATCH, LEAST_FITS = 256, 150
"""Minutes per step of the optimiser, and steps at least, however few lessons there are."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A ladder so far: simulator steps, and costs by those of the tuned rule.

    chosen: on loads that a margin and a rung are chosen on. ratio: on those that are reported.
    """

    steps: int
    chosen: float
    ratio: float


@dataclass(frozen=True, slots=True)
class World:
    """A held-out fleet with its tuned rule."""

    fleet: Fleet
    rule: RuleSetting
    judged: int

    def lessons(self, first: int, count: int) -> list[Lesson]:
        """Return lessons of this world."""
        numbers = range(LEARNT_FROM + first, LEARNT_FROM + first + count)
        return [Lesson(self.fleet.config, self.fleet.trace(n), self.rule, self.fleet.seed + n) for n in numbers]

    def shares(self, first: int, count: int, policies: Sequence[Policy]) -> list[float]:
        """Return the costs of policies on some loads, by those of the rule."""
        traces = [self.fleet.trace(first + k) for k in range(count)]
        costs = costs_of(self.fleet.config, self.rule, traces, [*policies, THE_RULE], first, 1, map).sum(axis=1)
        return [float(cost / costs[-1]) for cost in costs[:-1]]

    def ladder(self, recipe: Recipe, start: Trained | None, rungs: Sequence[int]) -> list[Rung]:
        """Train on as many lessons as each rung says, and judge there."""
        samples, found, played = Samples(), [], 0
        weights = NO_WEIGHTS if start is None else start.weights
        for number, rung in enumerate(rungs):
            explore = recipe.explore[0] if number == 0 else recipe.explore[-1]
            gather(self.lessons(played, rung - played), recipe, weights, explore, samples)
            played = rung
            epochs = max(recipe.epochs, LEAST_FITS * recipe.batch / max(samples.minutes, 1))
            enough = replace(recipe, epochs=epochs)
            weights = joined([network_of([samples], enough, k, start) for k in range(recipe.networks)])
            tried: list[Policy] = [(weights, margin, recipe.idle_limit_min) for margin in MARGINS]
            shares = self.shares(CHOSEN_ON, CHOSEN, tried)
            best = int(np.argmin(shares)) if min(shares) <= WORST else len(MARGINS) - 1
            (ratio,) = self.shares(JUDGED_ON, self.judged, [tried[best]])
            found.append(Rung(samples.steps, shares[best], ratio))
        return found


def best_of(ladder: Sequence[Rung]) -> Rung:
    """Return the rung that costs least on the loads for choosing: one more round does not always improve."""
    return min(ladder, key=lambda rung: rung.chosen)


def steps_until(ladder: Sequence[Rung], limit: float) -> int:
    """Return the simulator steps until a ladder's ratio is at most `limit`; all of them where it never is."""
    return next((rung.steps for rung in ladder if rung.ratio <= limit), ladder[-1].steps)


def rungs_to(lessons_: int) -> list[int]:
    """Return the numbers of lessons of a ladder, each twice the one before, up to `lessons_`."""
    found = [lessons_]
    while found[0] >= 10:
        found.insert(0, found[0] // 2)
    return found


def general(asked: str, episodes: int) -> Trained:
    """Return the weights at large: those that are named, or a short training where none ship."""
    try:
        return start_of(asked)
    except BadInput:
        if asked != RELEASE:
            raise
    progress(f"no scorer ships: training one on {2 * episodes} lessons first")
    recipe = Recipe(rounds=(episodes, episodes), explore=(0.15, 0.05), selection=max(episodes // 5, 3))
    return with_margin(train(lessons, recipe, 0, progress), preset("live-like"))


def main(given: Sequence[str] | None = None) -> int:
    """Climb both ladders in every world and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--fleets", type=int, default=6, help="held-out worlds (default 6)")
    parser.add_argument("--lessons", type=int, default=40, help="lessons from nothing at most (default 40)")
    parser.add_argument("--judged", type=int, default=6, help="loads that each world is judged on (default 6)")
    parser.add_argument("--from", dest="start", default=RELEASE, help="weights at large: release, FILE.onnx or a run")
    parser.add_argument("--general", type=int, default=100, help="episodes a round where no scorer ships (default 100)")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    parser.add_argument("--full", action="store_true", help="16 worlds, 320 lessons, 24 loads")
    asked = parser.parse_args(given)
    fleets, most, judged = (16, 320, 24) if asked.full else (asked.fleets, asked.lessons, asked.judged)
    torch.set_num_threads(1)
    start = general(asked.start, asked.general)
    shape = start.weights[0].shape
    common = {"hidden": shape[2], "networks": min(shape[0], 2), "most": 120 if asked.full else 40}
    alone = Recipe(epochs=ALONE.epochs, rate=ALONE.rate, batch=BATCH, **common)
    fine = replace(alone, epochs=FINE.epochs, rate=FINE.rate, margin=start.margin)
    rows, notes = [], {}
    for number, fleet in enumerate(held_out_fleets(fleets)):
        world = World(fleet, tuned(fleet), judged)
        shipped = [(start.weights, start.margin, start.idle_limit_min)]
        (zero_shot,) = world.shares(JUDGED_ON, judged, shipped)
        begin = Rung(0, world.shares(CHOSEN_ON, CHOSEN, shipped)[0], zero_shot)
        from_nothing = world.ladder(alone, None, rungs_to(most))
        fine_tuned = [begin, *world.ladder(fine, start, rungs_to(max(most // 4, 1)))]
        specialist = best_of(from_nothing).ratio
        limit = specialist * (1.0 + NEAR)
        steps = steps_until(fine_tuned, limit), steps_until(from_nothing, limit)
        rows.append((zero_shot, best_of(fine_tuned).ratio, specialist, *steps))
        ladders = [" ".join(f"{rung.ratio:.3f}" for rung in ladder) for ladder in (fine_tuned, from_nothing)]
        text = f"from the weights at large {ladders[0]}; from nothing {ladders[1]}; specialist {specialist:.3f}"
        notes[f"{number}: {len(fleet.config.types)} types, {fleet.load}"] = text
        progress(f"world {number + 1} of {fleets}: {text}")
    table = np.array(rows)
    figures = {
        "zero_shot": float(table[:, 0].mean()),
        "fine_tuned": float(table[:, 1].mean()),
        "specialist": float(table[:, 2].mean()),
        "degradation": float((table[:, 0] / table[:, 2]).mean() - 1.0),
        "degradation_worst": float((table[:, 0] / table[:, 2]).max() - 1.0),
        "fine_tuned_degradation": float((table[:, 1] / table[:, 2]).mean() - 1.0),
        "steps_from_nothing": float(table[:, 4].mean()),
        "steps_fine_tuned": float(table[:, 3].mean()),
        "share_of_steps": float(table[:, 3].mean() / table[:, 4].mean()),
    }
    return report(
        "scorer_fine_tuning",
        figures,
        as_json=asked.json,
        packages=("torch", "numba", "numpy"),
        targets=(Target("degradation", 0.015), Target("share_of_steps", 0.1)),
        notes={"worlds": fleets, "lessons": most, "loads judged on": judged, **notes},
    )


if __name__ == "__main__":
    sys.exit(main())
