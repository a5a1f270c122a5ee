"""Rates that hold on weeks nobody has seen: fitted on all known weeks, then held to redrawn ones (§12.4, §12.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.guards import SHIELD
from domain.rules.oversubscription.rates import next_level
from domain.rules.oversubscription.verdict import clopper_pearson_upper
from simulator.oversubscription.guard import guard_of
from simulator.oversubscription.sampling import sample
from simulator.oversubscription.scenario import Scenario
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Assessor
from trainer.oversubscription.policies.static import EVALUATIONS, TAIL, Rule, optimise
from trainer.oversubscription.shield_fit import fit_shield
from trainer.oversubscription.unseen import CALIBRATION, arrivals_of, unseen_week

Floats = NDArray[np.float64]
Told = Callable[[str], None]

TIGHTENED = 0.6
"""The search may take up this share of the allowed risk on the worst known week."""
LOOSENED = 3.0
"""What a shield stands on may break the promise so many times as often: risk that is left for it to take away."""
AUTO = "auto"
HELD_OUT_WEEKS, HELD_OUT_EPISODES = 4, 300
FIRST_EPISODE = 2_000_000_011


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """Rates (N,) and what they were held to, for the file."""

    rates: Floats
    feasible: bool
    facts: dict[str, Any]
    budget: float | None = None
    """Of the shield before the rates, None for none."""


def calibrate(
    scenario: Scenario,
    *,
    start: str,
    alpha: float,
    weeks: Sequence[str] = (),
    cap: float | None = None,
    evaluations: int = EVALUATIONS,
    shield: float | str | None = None,
    seed: int = 0,
    told: Told = lambda _: None,
) -> Calibrated:
    """Return constant rates whose worst known week keeps within `cap`, and which redrawn weeks confirm; BadInput.

    Known weeks are all of the scenario's unless some are named. cap: largest risk of any of them, a share TIGHTENED of
    1 - alpha when None. shield: expected hot hours of a machine and day from which a request's rate is raised; the
    rates below it may then be looser, LOOSENED times 1 - alpha, as the shield takes the rest. "auto" looks for rates
    and budget together, and holds both to the cap. While the upper bound on the share of bad weeks among
    HELD_OUT_WEEKS redrawn ones is above 1 - alpha, the subscriber whose step takes most risk away goes one level up.
    """
    if not 0.0 < alpha < 1.0:
        raise BadInput("alpha", alpha, "give a required probability between 0 and 1, such as 0.95")
    names = tuple(weeks) or scenario.weeks
    read = [scenario.week(name) for name in names]
    share = LOOSENED if isinstance(shield, float) else TIGHTENED
    limit = share * (1.0 - alpha) if cap is None else cap
    told(f"searching on {', '.join(names)}")
    rates, spent, feasible, budget = np.ones(scenario.subscribers), 0, False, None
    if shield == AUTO:
        chosen = fit_shield(scenario, read, start, alpha, cap=limit, evaluations=evaluations, seed=seed, told=told)
        if chosen is not None:
            rates, spent, feasible, budget = chosen.rates, chosen.evaluations, True, chosen.budget
    else:
        bare = [Assessor(scenario, week, start) for week in read]
        found = optimise(bare, alpha, cap=limit, evaluations=evaluations, seed=seed, told=told)
        rates, spent, feasible = found.rates, found.evaluations, found.feasible
        budget = None if shield is None else float(shield)
    guard = None if budget is None else guard_of(scenario, SHIELD, budget)
    known = [Assessor(scenario, week, start, guard=guard) for week in read]
    arrivals = arrivals_of(scenario, names)
    fresh = [unseen_week(arrivals, seed * HELD_OUT_WEEKS + i, CALIBRATION) for i in range(HELD_OUT_WEEKS)]
    held = [Assessor(scenario, week, start, guard=guard) for week in fresh]
    raised = 0
    while True:
        told(f"holding to {HELD_OUT_WEEKS} redrawn weeks, {raised} rates raised")
        bad = [_bad_weeks(assessor, rates) for assessor in held]
        upper = clopper_pearson_upper(sum(bad), HELD_OUT_EPISODES * HELD_OUT_WEEKS)
        by_week = {name: assessor.c_hot_r(rates) for name, assessor in zip(names, known, strict=True)}
        # A higher rate moves VMs to other machines, so a week that was safe may no longer be: all are asked again.
        if (upper <= 1.0 - alpha and max(by_week.values()) <= 1.0 - alpha) or np.all(rates >= 1.0):
            break
        rates, raised = _one_up([*known, *held], rates), raised + 1
    facts = {
        "weeks": list(names),
        "cap": limit,
        "evaluations": spent,
        "c_hot_r_assessed": by_week,
        "s_cores": {name: _saved(assessor, rates) for name, assessor in zip(names, known, strict=True)},
        "held_out": {
            "weeks": HELD_OUT_WEEKS,
            "episodes": HELD_OUT_EPISODES,
            "c_hot_r": [count / HELD_OUT_EPISODES for count in bad],
            "c_hot_r_upper_95": upper,
            "passed": bool(upper <= 1.0 - alpha),
        },
        "raised": raised,
    }
    safe = feasible and upper <= 1.0 - alpha and max(by_week.values()) <= 1.0 - alpha
    return Calibrated(rates, bool(safe), facts, budget)


def fit_static(
    scenario: Scenario,
    week: str,
    *,
    start: str,
    alpha: float,
    evaluations: int,
    seed: int,
    rule: Rule = TAIL,
    rho: float = 0.0,
    reserve: float = 0.0,
    told: Told,
) -> Calibrated:
    """Return the rates that save most on one week at risk 1 - alpha: the published protocol.

    reserve: share of that risk which is left to what the assessment is off by; the publication keeps none. rho:
    correlation among the VMs of a subscriber that the risk reckons with (§12.8).
    """
    assessor = Assessor(scenario, scenario.week(week), start, rho=rho)
    cap = (1.0 - reserve) * (1.0 - alpha)
    found = optimise([assessor], alpha, cap=cap, evaluations=evaluations, seed=seed, rule=rule, told=told)
    facts = {
        "weeks": [week],
        "cap": cap,
        "evaluations": found.evaluations,
        "c_hot_r_assessed": {week: found.risk},
        "s_cores": {week: found.s_cores},
    }
    return Calibrated(found.rates, found.feasible, facts)


def _bad_weeks(assessor: Assessor, rates: Floats) -> int:
    """Return how many of the held-out episodes of a week break the promise."""
    placed = assessor.assess(rates).placement
    seeds = np.arange(FIRST_EPISODE, FIRST_EPISODE + HELD_OUT_EPISODES)
    return sample(placed, usage_of("gauss", assessor.scenario, assessor.week), seeds).violations


def _saved(assessor: Assessor, rates: Floats) -> float:
    return assessor.assess(rates).placement.s_cores or 0.0


def _one_up(held: Sequence[Assessor], rates: Floats) -> Floats:
    """Return the rates with that subscriber one level up whose step leaves the worst week the least risk."""
    actions, best, least = held[0].scenario.actions, rates, np.inf
    for n, rate in enumerate(rates.tolist()):
        if rate >= 1.0:
            continue
        step = rates.copy()
        step[n] = next_level(rate, actions)
        risk = max(assessor.c_hot_r(step) for assessor in held)
        if risk < least:
            best, least = step, risk
    return best
