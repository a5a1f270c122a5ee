"""What memory is worth to a scorer: moving averages, an LSTM in their place, both, neither; same lessons, same seeds.

Each figure is a cost divided by the tuned queue rule's, mean over the nine families of T3, T5 and T6 and over the
seeds. Every arm sees the three-minute average, by which arrivals are seen at all. `averages` sees the longer ones too,
of 10 minutes to 8 hours, and the minutes since an arrival and without work; `lstm` has an LSTM in their place; `both`
has both; `neither` has neither. lstm_gain, both_gain: what they cost less than `averages`, as a share.

The rule, written before the runs. Each seed has separate lessons, `trainer.autoscaling.lessons.changing_lessons` in
three rounds, played under the `averages` of that seed and learnt by all arms. An arm is an ensemble; its margin is
chosen by `choose_margin` on seeds 900,000 and up. Memory adds something where the interval of a gain, over cases,
excludes 0. The preset `lstm` is `lstm` or `both`, with 16 or 32 cells (`--cells`, tried with seed 0): the lowest mean
on the selection; within 0.002 the LSTM without averages, and 16 cells. The suite's cases decide nothing.

Samples, networks and margins are kept in --directory: a run that was stopped continues from there.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import arguments, progress, report
from domain.observations.autoscaling_scorer import STATE_FEATURES
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.branching import NO_WEIGHTS
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation.suite import suite
from trainer.autoscaling.lessons import Lesson, changing_lessons
from trainer.autoscaling.scorer import (
    AVERAGES,
    HELD_OUT,
    LESSONS_APART,
    LSTM,
    PART,
    THE_RULE,
    Ensemble,
    Part,
    Policy,
    Recipe,
    Samples,
    Scorer,
    choose_margin,
    ensemble_of,
    fit_seed,
    join,
    read_samples,
    write_samples,
)
from trainer.kit.intervals import compare

Floats = NDArray[np.float64]
SEEDS, EPISODES, NETWORKS = 3, 400, 3
LAST_ROUNDS = 3
ARMS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "averages": (False, ()),
    "lstm": (True, AVERAGES),
    "both": (True, ()),
    "neither": (False, AVERAGES),
}
"""Of each arm, whether it has an LSTM, and the inputs that it does not see."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The lessons and arms of one seed, kept in a folder."""

    folder: Path
    seed: int
    episodes: int
    cells: int
    selection: int
    world = preset("live-like")

    def recipe(self, arm: str) -> Recipe:
        """Return the recipe of an arm."""
        recurrent, left_out = ARMS[arm]
        cells = self.cells if recurrent else 0
        return replace(LSTM, cells=cells, left_out=left_out, networks=NETWORKS, selection=self.selection)

    def samples(self) -> Samples:
        """Play the lessons, those of the later rounds under the `averages` fitted so far, and return their samples."""
        found: list[Samples] = []
        weights = NO_WEIGHTS
        lessons = partial(changing_lessons, world=self.world)
        for number, explore in enumerate(LSTM.explore[:LAST_ROUNDS]):
            first = number * self.episodes
            for at in range(first, first + self.episodes, PART):
                path, count = self.folder / f"{at:06d}.npz", min(PART, first + self.episodes - at)
                kept = read_samples(path)
                if kept is None:
                    # The recipe with an LSTM, so that the minutes between are kept too.
                    part = Part(
                        path, lessons, self.seed * LESSONS_APART + at, count, self.recipe("both"), weights, explore
                    )
                    kept = part.play(), 0.0
                    write_samples(path, *kept)
                found.append(kept[0])
            progress(f"seed {self.seed}, round {number + 1}: {sum(len(part.at) for part in found)} branched minutes")
            if number < LAST_ROUNDS - 1:
                weights = self._fitted(f"behaviour-{number}", found, "averages", 0)
        return join(found)

    def _fitted(self, name: str, samples: Sequence[Samples] | Samples, arm: str, number: int) -> Ensemble:
        """Return a network, from its file where it has been fitted."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            whole = samples if isinstance(samples, Samples) else join(samples)
            np.savez(path, *fit_seed(whole, self.recipe(arm), self.seed * 100 + number, None))
        with np.load(path) as stored:
            return tuple(stored[key] for key in stored.files)

    def scorer(self, arm: str, samples: Samples) -> Scorer:
        """Return an arm's ensemble with its margin."""
        own = f"{arm}-{self.cells}" if ARMS[arm][0] else arm
        votes = ensemble_of([self._fitted(f"{own}-{k}", samples, arm, k) for k in range(NETWORKS)])
        no, recipe = np.zeros(len(STATE_FEATURES), dtype=np.float32), self.recipe(arm)
        bare = Scorer(votes, NO_WEIGHTS, 0.0, recipe.idle_limit_min, no, no, no, no, recipe, self.seed, {})
        path = self.folder / f"{own}.json"
        if not path.exists():
            chosen = choose_margin(bare, world=self.world)
            path.write_text(json.dumps({"margin": chosen.margin, **chosen.figures}), "utf-8")
        figures = json.loads(path.read_text("utf-8"))
        return replace(bare, margin=figures.pop("margin"), figures=figures)


def suite_cases(most: int) -> Iterator[tuple[str, Lesson]]:
    """Yield the families and cases of T3, T5 and T6."""
    for case in suite(("T3", "T5", "T6"), seeds=most):
        yield case.family, Lesson(case.config, case.trace, RuleSetting(), case.seed)


def costs_of(policies: Sequence[Policy], most: int) -> tuple[list[str], Floats]:
    """Return the family of each case, and dollars [policies, cases]."""
    families, rows = [], []
    for family, lesson in suite_cases(most):
        episodes = lesson.episodes()
        families.append(family)
        rows.append([policy.cost(episodes, lesson.seed) for policy in policies])
    return families, np.array(rows).T


def main(given: Sequence[str] | None = None) -> int:
    """Fit the arms and play the suite; exit status 0."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--seeds", default=f"0-{SEEDS - 1}", help=f"trainings, such as 0-2 (default 0-{SEEDS - 1})")
    parser.add_argument("--episodes", type=int, default=EPISODES, help=f"of each of three rounds (default {EPISODES})")
    parser.add_argument("--cells", type=int, default=16, help="of each LSTM (default 16)")
    parser.add_argument("--selection", type=int, default=60, help="fleets that margins are chosen on (default 60)")
    parser.add_argument("--arms", default="+".join(ARMS), help="some of the arms, joined by +")
    parser.add_argument("--cases", type=int, default=100, help="of each family at most; 0: the selection alone")
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    first, _, last = asked.seeds.partition("-")
    arms = asked.arms.split("+")
    found: dict[str, list[Scorer]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(int(first), int(last or first) + 1):
            trial = Trial(
                (asked.directory or Path(temporary)) / f"seed-{seed}",
                seed,
                asked.episodes,
                asked.cells,
                asked.selection,
            )
            trial.folder.mkdir(parents=True, exist_ok=True)
            samples = trial.samples()
            for arm in arms:
                found[arm].append(trial.scorer(arm, samples))
                progress(f"seed {seed}, {arm}: {found[arm][-1].figures[HELD_OUT]:.4f} on the selection")
    notes: dict[str, list[Any]] = {
        arm: [{**one.figures, "margin": one.margin} for one in scorers] for arm, scorers in found.items()
    }
    figures: dict[str, float] = {
        f"{arm}_selection": float(np.mean([one.figures[HELD_OUT] for one in scorers])) for arm, scorers in found.items()
    }
    if asked.cases:
        policies = [one.policy for scorers in found.values() for one in scorers]
        families, costs = costs_of([THE_RULE, *policies], asked.cases)
        by_arm = costs[1:].reshape(len(arms), -1, len(families))
        for place, arm in enumerate(arms):
            each = [1.0 + compare(row, costs[0], families).relative.mean for row in by_arm[place]]
            whole = compare(by_arm[place].mean(axis=0), costs[0], families).relative
            figures |= {arm: 1.0 + whole.mean, f"{arm}_low": 1.0 + whole.low, f"{arm}_high": 1.0 + whole.high}
            notes[f"{arm} suite"] = [
                {"seeds": each, "families": _families(by_arm[place].mean(axis=0), costs[0], families)}
            ]
            if arm != arms[0]:
                gain = compare(by_arm[place].mean(axis=0), by_arm[0].mean(axis=0), families).relative
                figures |= {f"{arm}_gain": -gain.mean, f"{arm}_gain_low": -gain.high, f"{arm}_gain_high": -gain.low}
    return report(
        "autoscaling_memory",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy", "torch"),
        notes=notes,
    )


def _families(ours: Floats, rule: Floats, families: Sequence[str]) -> dict[str, float]:
    names = np.array(families)
    return {
        family: float(ours[names == family].sum() / rule[names == family].sum()) for family in sorted(set(families))
    }


if __name__ == "__main__":
    sys.exit(main())
