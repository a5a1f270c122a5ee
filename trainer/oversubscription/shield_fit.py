"""Which rates a shield stands on and how much it lets pass: the pair that saves most within a risk (§12.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.oversubscription.guard import guard_of
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.weekly import Assessor
from trainer.oversubscription.policies.static import optimise

Floats = NDArray[np.float64]

BASES = (1.0, 3.0, 10.0)
"""A base breaks the promise in at most so many times 1 - alpha of the weeks, before the shield."""
LOOSEST = 0.5
"""No base breaks it more often: what stands in the machines is past repair (§12.4)."""
BUDGETS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.06, 0.1)
"""Expected hot hours of a machine and day from which a rate is raised; none below is as safe and saves less."""


@dataclass(frozen=True, slots=True, eq=False)
class Shielded:
    """Rates (N,) and the budget of the shield before them, with the cores saved and the worst week's risk."""

    rates: Floats
    budget: float
    s_cores: float
    risk: float
    evaluations: int


def fit_shield(
    scenario: Scenario,
    weeks: Sequence[Week],
    start: str,
    alpha: float,
    *,
    cap: float,
    evaluations: int,
    seed: int,
    told: Callable[[str], None],
) -> Shielded | None:
    """Return base and budget that save most on the mean of the weeks, the worst of them within `cap`; None for none."""
    bare = [Assessor(scenario, week, start) for week in weeks]
    best: Shielded | None = None
    spent = 0
    for times in BASES:
        limit = min(times * (1.0 - alpha), LOOSEST)
        base = optimise(bare, alpha, cap=limit, evaluations=evaluations // len(BASES), seed=seed, told=told)
        spent += base.evaluations
        for budget in reversed(BUDGETS):
            guard = guard_of(scenario, "shield", budget)
            risks = [Assessor(scenario, week, start, guard=guard).assess(base.rates) for week in weeks]
            worst = max(1.0 if risk.placement.rejects else risk.c_hot_r for risk in risks)
            if worst > cap:
                continue
            saved = float(np.mean([risk.placement.s_cores or 0.0 for risk in risks]))
            if best is None or saved > best.s_cores:
                best = Shielded(base.rates, budget, saved, worst, spent)
                told(f"{saved:.2%} saved at risk {worst:.2%} behind a shield of {budget:g}")
            break
    return best
