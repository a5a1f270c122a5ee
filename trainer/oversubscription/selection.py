"""Judges a greedy policy during training, and says which one is kept: the most saved cores among the safe ones (§4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.risk import count_at_least
from simulator.oversubscription.batch import OversubscriptionBatch
from simulator.oversubscription.sampling import sample
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import usage_of
from trainer.oversubscription.configuration import VdnConfig

Rates = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""From what every subscriber sees in each of several clusters, (B, N, features), to their rates, (B, N)."""
SAMPLED_WEEKS = 8
"""Of many weeks, the riskiest ones are played on fresh episodes; the others are below them by assessment."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy as evaluated: the worst week's risk by sampling and by assessment, and the share of cores reserved."""

    reserved: float
    sampled: float
    assessed: float
    feasible: bool

    def beats(self, other: Candidate | None) -> bool:
        """Say whether this one is kept: safe before unsafe, then by cores saved, unsafe ones by their risk."""
        if other is None or self.feasible != other.feasible:
            return other is None or self.feasible
        return self.reserved < other.reserved if self.feasible else self.assessed < other.assessed

    def figures(self) -> dict[str, float]:
        """Return what a learning curve shows of it."""
        return {
            "held_out/reserved": self.reserved,
            "held_out/c_hot_r": self.sampled,
            "held_out/c_hot_r_assessed": self.assessed,
            "held_out/feasible": float(self.feasible),
        }


def judged_candidate(
    rates: Rates, scenario: Scenario, config: VdnConfig, weeks: Sequence[Week], best: Candidate | None, seed: int
) -> Candidate:
    """Play a greedy policy on all of the weeks and judge it on fresh episodes from `seed` on, the riskiest week first.

    One that cannot become the best is not sampled, its risk is the assessed one; one that is not safe in a week is not
    sampled on the others.
    """
    count = len(weeks)
    batch = OversubscriptionBatch(scenario, weeks, count, start=config.start, observation=config.observation)
    batch.reset(np.zeros(count, np.int64), np.arange(count))
    chances = np.zeros((count, scenario.hours))
    for t in range(scenario.hours):
        chances[:, t] = batch.step_rates(rates(batch.local))[2]
    placements = [batch.placement(i) for i in range(count)]
    assessed = np.array(
        [
            1.0 if placed.rejects else count_at_least(own, scenario.violation_hours)
            for placed, own in zip(placements, chances, strict=True)
        ]
    )
    reserved, worst = 1.0 - float(np.mean([placed.s_cores or 0.0 for placed in placements])), float(assessed.max())
    allowed, sampled = 1.0 - config.alpha, worst
    hopeless = best is not None and best.feasible and reserved >= best.reserved
    if worst <= allowed and not hopeless:
        seeds, sampled = np.arange(seed, seed + config.evaluation_episodes), 0.0
        for i in np.argsort(-assessed, kind="stable")[:SAMPLED_WEEKS].tolist():
            sampled = max(sampled, sample(placements[i], usage_of("gauss", scenario, weeks[i]), seeds).c_hot_r)
            if sampled > allowed:
                break
    feasible = max(sampled, worst) <= allowed
    return Candidate(reserved, float(sampled), worst, bool(feasible))
