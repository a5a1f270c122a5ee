"""What a scorer remembers by: moving averages made by hand, an LSTM over the states of all minutes, or nothing.

Each form is trained from lessons of the same seeds, and its margin chosen, as `trimtab train --form scorer` does. They
are judged on the selection by the rule in docs/train/fleet-scorer.md: costs by those of the queue rule, on the mean of
the groups. The recurrent form sees the state without the hand-made features, but with the jobs and the load of the last
minute; its memory goes to the first layer of each voter. The form without memory sees the same, and has none.

mean_<form>, worst_<form>: mean of the groups of the selection, and the worst of them, means over the seeds.
difference_<form>: of the mean from that of the hand-made form, in per cent, with its 95 % interval (pairs of cases
drawn again within groups). ships: 1 where the rule lets the recurrent form ship. cpu_s_<form>: seconds of a processor
of one training, with its lessons; selection_s_<form>: those of choosing its margin.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.autoscaling_policy import lessons
from benchmarks.report import arguments, progress, report
from domain.observations.autoscaling_scorer import STATES
from simulator.autoscaling.branching import Weights
from simulator.autoscaling.reference import preset
from trainer.autoscaling.fast_lstm import LstmUnroll, UnrolledLstm, fast_products
from trainer.autoscaling.scorer import (
    GAINS_SEED,
    MARGINS,
    SLACK,
    WORST,
    Lessons,
    Recipe,
    Scorer,
    Selection,
    Table,
    Trained,
    Workshop,
    expected_gain,
    fit,
    taught,
    train,
    weights_of,
    with_margin,
)
from trainer.kit.intervals import compare

HAND_MADE, RECURRENT, NONE = FORMS = ("hand_made", "recurrent", "none")
CELLS = 64
"""Units of the LSTM of each voter."""
MINUTES = 720
"""Minutes of an episode whose states are kept; the most that are branched lie far before its end."""
STRETCH, LEAD = 128, 64
"""Minutes of a sequence that is learnt from; all but an episode's first only fill the memory in the minutes of LEAD."""
TOGETHER, EPOCHS = 32, 12.0
"""Sequences of a step of the optimiser, and times that each is learnt from, or about as many steps as the others do."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A sequence: the row of its first minute among those of all episodes, and which branched minutes it teaches.

    rows: their rows in the table of samples. places: minutes since the sequence's first.
    """

    first: int
    rows: Ints
    places: Ints


def stretches(places: Sequence[Ints], minutes: Sequence[int]) -> list[Stretch]:
    """Cut episodes, one after another in memory, into sequences. places: of branched minutes, per episode."""
    found, begun, row = [], 0, 0
    for branched, length in zip(places, minutes, strict=True):
        rows, lead = np.arange(row, row + len(branched)), 0
        for first in range(0, max(length - LEAD, 1), STRETCH - LEAD):
            within = (branched >= first + lead) & (branched < first + STRETCH)
            if within.any():
                found.append(Stretch(begun + first, rows[within], branched[within] - first))
            lead = LEAD
        begun, row = begun + length, row + len(branched)
    return found


class OtherForm(Workshop):
    """Gathers samples with the states of all minutes, and fits networks of a form without hand-made memory."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form
        self._trails: list[Floats] = []
        self._places: list[Ints] = []

    def gather(self, lessons: Lessons, recipe: Recipe, weights: tuple[Weights, ...], explore: float) -> None:
        """Add what these lessons teach to the samples."""
        for lesson in lessons:
            before = len(self.samples.states)
            found = taught(lesson, recipe, weights, explore, self.samples, trail=MINUTES)
            if len(self.samples.states) > before:
                self._trails.append(found.trail[: found.places[-1] + 1].astype(np.float32))
                self._places.append(found.places)

    def fit(self, recipe: Recipe, seeds: Sequence[int], start: Trained | None) -> list[tuple[Weights, ...]]:
        """Return the weights of a network per seed; of gains there is none, and the first one stands for it."""
        table, found = self.samples.joined(), []
        seeds = [seed for seed in seeds if seed % 100 != GAINS_SEED]
        cut = stretches(self._places, [len(trail) for trail in self._trails])
        states = torch.from_numpy(np.concatenate(self._trails))
        for seed in seeds:
            if self._form == RECURRENT:
                found.append(fit_recurrent(table, states, cut, recipe, seed))
            else:
                forgetful = (np.zeros((1, STATES + 1, 0), np.float32), np.zeros((1, 0, recipe.hidden), np.float32))
                found.append((*weights_of([fit(table, recipe, seed)]), *forgetful))
        return [*found, found[0]]


class RecurrentScorer(nn.Module):
    """A scorer whose first layer is given the memory of an LSTM over the states of all minutes."""

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        """Draw the weights; hidden: units of the scorer's layers."""
        super().__init__()
        self.scorer = Scorer(hidden, generator)
        self.gates = nn.Parameter(torch.empty(CELLS + STATES + 1, 4 * CELLS))
        self.mixed = nn.Parameter(torch.empty(CELLS, hidden))
        bound = 1.0 / math.sqrt(CELLS)
        for weight in (self.gates, self.mixed):
            nn.init.uniform_(weight, -bound, bound, generator=generator)
        with torch.no_grad():
            # Forget gates begin open.
            self.gates[-1, 2 * CELLS : 3 * CELLS] = 2.0

    def weights(self) -> tuple[Weights, ...]:
        """Return the weights as `BranchedEpisodes.play` takes those of an ensemble."""
        cells = (self.gates.detach().numpy()[None].copy(), self.mixed.detach().numpy()[None].copy())
        return (*weights_of([self.scorer]), *cells)


def fit_recurrent(
    table: Table, states: torch.Tensor, cut: Sequence[Stretch], recipe: Recipe, seed: int
) -> tuple[Weights, ...]:
    """Return the weights of a recurrent scorer that maximises the expected gain, as `fit` does.

    states: of all minutes of all episodes.
    """
    generator = torch.Generator().manual_seed(seed)
    network, loss_of = RecurrentScorer(recipe.hidden, generator), expected_gain(recipe)
    parts = tuple(torch.from_numpy(part) for part in table)
    steps = max(int(EPOCHS * len(cut) / TOGETHER), 1)
    optimiser = torch.optim.Adam(network.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=recipe.rate, total_steps=steps)
    unroll = LstmUnroll(STRETCH, TOGETHER, STATES, CELLS)
    starts, nothing = torch.zeros(STRETCH, TOGETHER), torch.zeros(TOGETHER, CELLS)
    starts[0] = 1.0
    ahead = torch.arange(STRETCH)[:, None]
    with fast_products():
        for _ in range(steps):
            chosen = [cut[k] for k in torch.randint(len(cut), (TOGETHER,), generator=generator).tolist()]
            # Minutes after an episode's end are those of another: nothing is learnt from them.
            minutes = (ahead + torch.tensor([one.first for one in chosen])).clamp(max=len(states) - 1)
            unroll.fill(states[minutes], starts, nothing, nothing)
            memory = cast(Any, UnrolledLstm).apply(network.gates, unroll)
            at = torch.from_numpy(np.concatenate([one.places for one in chosen]))
            copy = torch.from_numpy(np.repeat(np.arange(TOGETHER), [len(one.rows) for one in chosen]))
            rows = torch.from_numpy(np.concatenate([one.rows for one in chosen]))
            seen, candidates, there, gains, worths = (part[rows] for part in parts)
            logits = network.scorer(seen, candidates, there, memory[at, copy] @ network.mixed)
            loss = loss_of(logits, there, gains, worths)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    return network.weights()


@dataclass(frozen=True, slots=True)
class Judged:
    """A training on the selection: costs of the cases by those of the rule, and seconds of a processor."""

    ratios: NDArray[np.float64]
    margin: float
    train_s: float
    selection_s: float


def judged(form: str, recipe: Recipe, seed: int) -> Judged:
    """Train a form and judge it on the selection."""
    begun = time.process_time()
    workshop = None if form == HAND_MADE else OtherForm(form)
    trained = train(lessons, recipe, seed, lambda line: progress(f"{form}, seed {seed}: {line}"), workshop)
    return on_selection(trained, time.process_time() - begun)[0]


def on_selection(trained: Trained, train_s: float) -> tuple[Judged, Trained]:
    """Return the judgement of what was trained in so many seconds, and the same with its margin chosen."""
    begun, shares = time.process_time(), list[list[float]]()

    def noted(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        return _noted(shares, map(work, items))

    found = with_margin(trained, preset("live-like"), noted)
    cost = np.array(shares)[:, MARGINS.index(found.margin)]
    return Judged(cost, found.margin, train_s, time.process_time() - begun), found


def _noted(kept: list[list[float]], answers: Iterable[list[float]]) -> Iterator[list[float]]:
    for answer in answers:
        kept.append(answer)
        yield answer


def compared(found: dict[str, list[Judged]], groups: Sequence[str]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of trainings by form, and those by group. groups: of each case.

    The first form is the one that ships, and the second the one that may ship instead.
    """
    present, other, *_ = found
    figures: dict[str, float] = {}
    notes: dict[str, Any] = {}
    cases = {form: np.mean([one.ratios for one in runs], axis=0) for form, runs in found.items()}
    names = np.array(groups)
    for form, runs in found.items():
        means = {group: float(cases[form][names == group].mean()) for group in dict.fromkeys(groups)}
        figures[f"mean_{form}"] = float(np.mean(list(means.values())))
        figures[f"worst_{form}"] = max(means.values())
        if form != present:
            beside = compare(cases[form], cases[present], groups).relative
            figures[f"difference_{form}"] = 100.0 * beside.mean
            figures[f"difference_{form}_low"] = 100.0 * beside.low
            figures[f"difference_{form}_high"] = 100.0 * beside.high
        figures[f"cpu_s_{form}"] = float(np.mean([one.train_s for one in runs]))
        figures[f"selection_s_{form}"] = float(np.mean([one.selection_s for one in runs]))
        notes[form] = {
            "groups": {group: f"{mean:.4f}" for group, mean in means.items()},
            "margins": [one.margin for one in runs],
            "means": [f"{_mean_of_groups(one.ratios, names):.4f}" for one in runs],
        }
    better = figures[f"mean_{other}"] < figures[f"mean_{present}"] - SLACK
    figures["ships"] = float(better and figures[f"worst_{other}"] <= WORST)
    return figures, notes


def _mean_of_groups(ratios: NDArray[np.float64], names: NDArray[np.str_]) -> float:
    return float(np.mean([ratios[names == group].mean() for group in np.unique(names)]))


def main(given: Sequence[str] | None = None) -> int:
    """Train, judge and print."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each form (default 1)")
    parser.add_argument("--episodes", type=int, default=60, help="episodes per round of training (default 60)")
    parser.add_argument("--selection", type=int, default=15, help="fleets of the selection (default 15)")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    parser.add_argument("--full", action="store_true", help="2 seeds, 500 episodes a round, 180 fleets: over an hour")
    asked = parser.parse_args(given)
    seeds, episodes, selection = (2, 500, 180) if asked.full else (asked.seeds, asked.episodes, asked.selection)
    torch.set_num_threads(1)
    recipe = Recipe(rounds=(episodes,) * 3, selection=selection)
    found = {form: [judged(form, recipe, seed) for seed in range(seeds)] for form in FORMS}
    groups = [group for group, _ in Selection(preset("live-like"), selection).cases]
    figures, notes = compared(found, groups)
    notes |= {"seeds": seeds, "episodes per round": episodes, "fleets of the selection": selection}
    return report("scorer_forms", figures, as_json=asked.json, packages=("torch", "numba", "numpy"), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
