"""Predicted against realised risk: on the scenario's profiles, and on usage that was measured (specification §9 B7)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from domain.rules.oversubscription.verdict import clopper_pearson_upper
from simulator.oversubscription.sampling import sample
from simulator.oversubscription.scenario import Week
from simulator.oversubscription.usage import UsageModel, usage_of
from simulator.oversubscription.weekly import Assessor
from trainer.oversubscription.policies import Task, policy_of
from trainer.oversubscription.policies.static import optimise
from trainer.oversubscription.trials import SEED, Floats, Trials, content_of

Point = dict[str, Any]

MEASURED_RISKS = (0.05, 0.15, 0.25)
"""Rates for measured usage are fitted to these predicted risks."""


def calibration_points(trials: Trials, weeks: Sequence[Week], bases: Sequence[str], seed: int = 0) -> list[Point]:
    """Return predicted and realised risk of rates beside those of the bases, on weeks in turn; the first is the own."""
    draws, actions, points = np.random.default_rng(seed), np.array(trials.scenario.actions), []
    task = Task(trials.scenario, weeks[0], trials.start)
    rates_of = [
        plan.schedule[0] for plan in (policy_of(base).plan(task) for base in bases) if plan.schedule is not None
    ]
    for i in range(trials.extent.points):
        base = rates_of[i // len(weeks) % len(rates_of)]
        at = np.array([int(np.abs(actions - rate).argmin()) for rate in base])
        moved = np.where(draws.random(len(at)) < 0.25, draws.integers(-1, 3, len(at)), 0)
        rates, week = actions[np.clip(at + moved, 0, len(actions) - 1)], weeks[i % len(weeks)]
        facts = {"risk": rates.tolist(), "episodes": trials.extent.long_episodes}
        trials.told(f"risk of {i + 1} of {trials.extent.points} rates")
        made = partial(_point, trials, week, rates, usage_of("gauss", trials.scenario, week))
        points.append(trials.keep(week, facts, made) | {"unseen": i % len(weeks) > 0})
    return points


def measured_points(trials: Trials, path: Path) -> list[Point]:
    """Return the same for VM-days of a file, on the own week: rates fitted to its moments; raises BadInput."""
    scenario = trials.scenario
    week = scenario.week(scenario.weeks[0])
    text = f"bootstrap:{path}"
    model = usage_of(text, scenario, week)
    assessor = Assessor(scenario, week, trials.start, model.moments, shape=model.shape)
    search: dict[str, Any] = {"evaluations": trials.extent.evaluations}

    def fitted(risk: float) -> Point:
        trials.told(f"{path.name} at risk {risk:.0%}")
        rates = optimise([assessor], 1.0 - risk, **search).rates
        return _point(trials, week, rates, model) | {"file": path.name, "asked": risk, "rates": rates.tolist()}

    facts = {"measured": content_of(text), "episodes": trials.extent.long_episodes, **search}
    return [trials.keep(week, facts | {"risk": risk}, partial(fitted, risk)) for risk in MEASURED_RISKS]


def _point(trials: Trials, week: Week, rates: Floats, model: UsageModel) -> Point:
    risk = Assessor(trials.scenario, week, trials.start, model.moments, shape=model.shape).assess(rates)
    sampled = sample(risk.placement, model, np.arange(SEED, SEED + trials.extent.long_episodes))
    return {
        "week": week.name,
        "episodes": sampled.episodes,
        "predicted": float(risk.c_hot_r),
        "realised": sampled.c_hot_r,
        "upper_95": clopper_pearson_upper(sampled.violations, sampled.episodes),
        "predicted_hot_hours": risk.expected_hot_hours,
        "realised_hot_hours": float(sampled.hot_hours.mean()),
        "s_cores": risk.placement.s_cores,
        "machines": risk.placement.peak_machines,
    }
