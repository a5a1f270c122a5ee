"""Rates that hold on unseen weeks, alone or behind a shield: fitted on known, checked on redrawn ones (§12.4-5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.rates import SHIELD, RateGuard, next_level
from domain.rules.oversubscription.risk import clopper_pearson_upper
from simulator.oversubscription.layout import guard_of
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Assessor, sample
from trainer.kit.checkpoint import package_versions
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import (
    GuardedPolicy,
    OversubscriptionPolicy,
    RatesFile,
    Task,
    scenario_sha256,
    write_rates,
)
from trainer.oversubscription.search import EVALUATIONS, TAIL, Rule, optimise
from trainer.oversubscription.unseen import CALIBRATION, arrivals_of, unseen_week

Floats = NDArray[np.float64]

TIGHTENED = 0.6
"""The search may take up this share of the allowed risk on the worst known week."""
BASES = (1.0, 3.0, 10.0)
"""A base breaks the promise in at most so many times 1 - alpha of the weeks, before the shield."""
LOOSEST = 0.5
"""No base breaks it more often: what stands in the machines is past repair (§12.4)."""
BUDGETS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.06, 0.1)
"""Expected hot hours of a machine and day from which a rate is raised; none below is as safe and saves less."""


@dataclass(frozen=True, slots=True, eq=False)
class ShieldFit:
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
    on_progress: Callable[[str], None],
) -> ShieldFit | None:
    """Return base and budget that save most on the mean of the weeks, the worst of them within `cap`; None for none."""
    bare = [Assessor(scenario, week, start) for week in weeks]
    best: ShieldFit | None = None
    spent = 0
    for times in BASES:
        limit = min(times * (1.0 - alpha), LOOSEST)
        base = optimise(
            bare, alpha, cap=limit, evaluations=evaluations // len(BASES), seed=seed, on_progress=on_progress
        )
        spent += base.evaluations
        for budget in reversed(BUDGETS):
            guard = guard_of(scenario, "shield", budget)
            risks = [Assessor(scenario, week, start, guard=guard).assess(base.rates) for week in weeks]
            worst = max(1.0 if risk.placement.rejects else risk.c_hot_r for risk in risks)
            if worst > cap:
                continue
            saved = float(np.mean([risk.placement.s_cores or 0.0 for risk in risks]))
            if best is None or saved > best.s_cores:
                best = ShieldFit(base.rates, budget, saved, worst, spent)
                on_progress(f"{saved:.2%} saved at risk {worst:.2%} behind a shield of {budget:g}")
            break
    return best


REDRAWN = 8
"""Weeks drawn anew that the shield has to keep safe beside the scenario's own."""


@dataclass(frozen=True, slots=True)
class LearnedShield:
    """A policy behind its shield, with the cores saved and the worst risk of the weeks it was fitted on."""

    policy: GuardedPolicy
    s_cores: float
    worst: float
    weeks: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return it for `run.json`; a pool of the agent takes the budget as its own."""
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
        shielded = GuardedPolicy(f"{SHIELD}:base=({policy.name}),b={budget:g}", policy, SHIELD, budget)
        played = [judge(shielded, task, episodes=1).as_data() for task in tasks]
        worst = max(1.0 if one["rejects"] else float(one["c_hot_r_analytic"]) for one in played)
        if worst <= TIGHTENED * (1.0 - alpha):
            saved = float(np.mean([one["s_cores"] or 0.0 for one in played]))
            return LearnedShield(shielded, saved, worst, tuple(week.name for week in weeks))
    return None


OnProgress = Callable[[str], None]

LOOSENED = 3.0
"""What a shield stands on may break the promise so many times as often: risk that is left for it to take away."""
AUTO = "auto"
HELD_OUT_WEEKS, HELD_OUT_EPISODES = 4, 300
FIRST_EPISODE = 2_000_000_011


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedRates:
    """Rates (N,) and the checks that they passed, for the file."""

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
    on_progress: OnProgress = lambda _: None,
) -> CalibratedRates:
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
    on_progress(f"searching on {', '.join(names)}")
    rates, spent, feasible, budget = np.ones(scenario.subscribers), 0, False, None
    if shield == AUTO:
        chosen = fit_shield(
            scenario, read, start, alpha, cap=limit, evaluations=evaluations, seed=seed, on_progress=on_progress
        )
        if chosen is not None:
            rates, spent, feasible, budget = chosen.rates, chosen.evaluations, True, chosen.budget
    else:
        bare = [Assessor(scenario, week, start) for week in read]
        found = optimise(bare, alpha, cap=limit, evaluations=evaluations, seed=seed, on_progress=on_progress)
        rates, spent, feasible = found.rates, found.evaluations, found.feasible
        budget = None if shield is None else float(shield)
    guard = None if budget is None else guard_of(scenario, SHIELD, budget)
    known = [Assessor(scenario, week, start, guard=guard) for week in read]
    arrivals = arrivals_of(scenario, names)
    fresh = [unseen_week(arrivals, seed * HELD_OUT_WEEKS + i, CALIBRATION) for i in range(HELD_OUT_WEEKS)]
    assessors = [Assessor(scenario, week, start, guard=guard) for week in fresh]
    raised = 0
    while True:
        on_progress(f"holding to {HELD_OUT_WEEKS} redrawn weeks, {raised} rates raised")
        bad = [_bad_weeks(assessor, rates) for assessor in assessors]
        upper = clopper_pearson_upper(sum(bad), HELD_OUT_EPISODES * HELD_OUT_WEEKS)
        by_week = {name: assessor.c_hot_r(rates) for name, assessor in zip(names, known, strict=True)}
        # A higher rate moves VMs to other machines, so a week that was safe may no longer be: all are asked again.
        if (upper <= 1.0 - alpha and max(by_week.values()) <= 1.0 - alpha) or np.all(rates >= 1.0):
            break
        rates, raised = _one_up([*known, *assessors], rates), raised + 1
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
    return CalibratedRates(rates, bool(safe), facts, budget)


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
    on_progress: OnProgress = lambda _: None,
) -> CalibratedRates:
    """Return the rates that save most on one week at risk 1 - alpha: the published protocol.

    reserve: share of that risk which is left to what the assessment is off by; the publication keeps none. rho:
    correlation among the VMs of a subscriber that the risk reckons with (§12.8).
    """
    assessor = Assessor(scenario, scenario.week(week), start, rho=rho)
    cap = (1.0 - reserve) * (1.0 - alpha)
    found = optimise([assessor], alpha, cap=cap, evaluations=evaluations, seed=seed, rule=rule, on_progress=on_progress)
    facts = {
        "weeks": [week],
        "cap": cap,
        "evaluations": found.evaluations,
        "c_hot_r_assessed": {week: found.risk},
        "s_cores": {week: found.s_cores},
    }
    return CalibratedRates(found.rates, found.feasible, facts)


def write_tuned(
    scenario: Scenario,
    method: str,
    weeks: Sequence[str],
    path: Path,
    options: dict[str, Any],
    reserve: dict[str, Any] | None,
) -> dict[str, Any]:
    """Find constant rates, write them to a file, and return its data with `feasible`.

    method: its name in the file. options: start, alpha, evaluations, seed and on_progress. reserve: the cap of a known
    week's risk and the shield of calibrated rates; None for the best rates of the first week alone.
    """
    if reserve is None:
        found = fit_static(scenario, weeks[0] if weeks else scenario.weeks[0], **options)
    else:
        found = calibrate(scenario, weeks=weeks, **options, **reserve)
    rates = RatesFile(
        name=str(path),
        scenario=scenario.name,
        scenario_sha256=scenario_sha256(scenario),
        start=options["start"],
        alpha=options["alpha"],
        actions=scenario.actions,
        subscribers=tuple(str(n) for n in range(scenario.subscribers)),
        rates=tuple(found.rates.tolist()),
        guard=None if found.budget is None else RateGuard(SHIELD, found.budget),
        calibration={"method": method, "seed": options["seed"], **found.facts},
        packages=package_versions(),
    )
    write_rates(rates, path)
    return rates.as_data() | {"feasible": found.feasible}


def _bad_weeks(assessor: Assessor, rates: Floats) -> int:
    """Return how many of the judged episodes of a week break the promise."""
    placed = assessor.assess(rates).placement
    seeds = np.arange(FIRST_EPISODE, FIRST_EPISODE + HELD_OUT_EPISODES)
    return sample(placed, usage_of("gauss", assessor.scenario, assessor.week), seeds).violations


def _saved(assessor: Assessor, rates: Floats) -> float:
    return assessor.assess(rates).placement.s_cores or 0.0


def _one_up(assessors: Sequence[Assessor], rates: Floats) -> Floats:
    """Return the rates with that subscriber one level up whose step leaves the worst week the least risk."""
    actions, best, least = assessors[0].scenario.actions, rates, np.inf
    for n, rate in enumerate(rates.tolist()):
        if rate >= 1.0:
            continue
        step = rates.copy()
        step[n] = next_level(rate, actions)
        risk = max(assessor.c_hot_r(step) for assessor in assessors)
        if risk < least:
            best, least = step, risk
    return best
