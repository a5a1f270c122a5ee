"""Which shield a learned policy is to stand behind: the loosest one that keeps every known week safe (§12.4, §12.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from domain.rules.oversubscription.guards import SHIELD
from simulator.oversubscription.scenario import Scenario, Week
from trainer.oversubscription.calibration import TIGHTENED
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task
from trainer.oversubscription.policies.base import OversubscriptionPolicy
from trainer.oversubscription.policies.guarded import Guarded
from trainer.oversubscription.shield_fit import BUDGETS
from trainer.oversubscription.unseen import CALIBRATION, arrivals_of, unseen_week

REDRAWN = 8
"""Weeks drawn anew that the shield has to keep safe beside the scenario's own."""


@dataclass(frozen=True, slots=True)
class LearnedShield:
    """A policy behind its shield, with the cores saved and the worst risk of the weeks it was fitted on."""

    policy: Guarded
    s_cores: float
    worst: float
    weeks: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return what is told of it; the budget is what a pool of the agent takes as its own."""
        return {
            "budget": self.policy.budget,
            "s_cores": self.s_cores,
            "worst": self.worst,
            "weeks": list(self.weeks),
        }


def fitting_weeks(scenario: Scenario) -> list[Week]:
    """Return all weeks of a scenario and REDRAWN more, on which neither learning nor choice nor report looks."""
    arrivals = arrivals_of(scenario)
    fresh = [unseen_week(arrivals, i, CALIBRATION) for i in range(REDRAWN)]
    return [*(scenario.week(name) for name in scenario.weeks), *fresh]


def fit_learned_shield(
    policy: OversubscriptionPolicy, scenario: Scenario, weeks: Sequence[Week], *, start: str, alpha: float
) -> LearnedShield | None:
    """Return the policy behind the largest of BUDGETS that leaves the worst week a share TIGHTENED of 1 - alpha.

    The risk is the assessed one. None where no budget is small enough, or every one leaves requests without a machine.
    """
    tasks = [Task(scenario, week, start, alpha) for week in weeks]
    for budget in sorted(BUDGETS, reverse=True):
        shielded = Guarded(f"{SHIELD}:base=({policy.name}),b={budget:g}", policy, SHIELD, budget)
        played = [judge(shielded, task, episodes=1).as_data() for task in tasks]
        worst = max(1.0 if one["rejects"] else float(one["c_hot_r_analytic"]) for one in played)
        if worst <= TIGHTENED * (1.0 - alpha):
            saved = float(np.mean([one["s_cores"] or 0.0 for one in played]))
            return LearnedShield(shielded, saved, worst, tuple(week.name for week in weeks))
    return None
