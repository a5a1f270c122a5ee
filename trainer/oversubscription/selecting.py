"""Judges a greedy policy during training, and says which one is kept: the most saved cores among the safe ones (§4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.risk import count_at_least
from simulator.oversubscription.sampling import sample
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.single import OversubscriptionSimulation
from simulator.oversubscription.usage import usage_of
from trainer.oversubscription.configuration import VdnConfig

Rates = Callable[[NDArray[np.float32]], NDArray[np.float64]]


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
    """Play a greedy policy on every one of the weeks and judge it on fresh episodes from `seed` on.

    One that cannot become the best is not sampled, its risk is the assessed one.
    """
    saved, assessed, placements = [], [], []
    for week in weeks:
        simulation = OversubscriptionSimulation(
            scenario, week, start=config.start, cost="analytic", observation=config.observation
        )
        simulation.reset()
        chances, over = [], False
        while not over:
            _, _, chance, over, _, _ = simulation.step_rates(rates(simulation.local()))
            chances.append(chance)
        placed = simulation.placement()
        placements.append(placed)
        saved.append(placed.s_cores or 0.0)
        assessed.append(1.0 if placed.rejects else count_at_least(np.array(chances), scenario.violation_hours))
    reserved, worst = 1.0 - float(np.mean(saved)), max(assessed)
    allowed, sampled = 1.0 - config.alpha, worst
    hopeless = best is not None and best.feasible and reserved >= best.reserved
    if worst <= allowed and not hopeless:
        seeds = np.arange(seed, seed + config.evaluation_episodes)
        sampled = max(sample(placed, usage_of("gauss", scenario, placed.week), seeds).c_hot_r for placed in placements)
    feasible = max(sampled, worst) <= allowed
    return Candidate(reserved, float(sampled), float(worst), bool(feasible))
