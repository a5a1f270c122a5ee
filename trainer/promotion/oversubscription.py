"""The gate of pools: models and files of rates on weeks that no model was trained on, behind the guard of the agent.

The weeks are those of a scenario that are named as held out, and weeks redrawn from its requests (oversubscription
specification §12.5): the packaged scenario, or a folder of the pool's own usage. A policy's cost is the share that it
reserves of the cores requested, or of their hours, or that it uses of the machines, by the objective. It keeps the
promise when the upper end of the 95 % interval of the share of weeks with too many hot hours is at most 1 - alpha. The
best tuned rule is the static one calibrated on the scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agent.oversubscription.rule_model import CORE_HOURS, CORES, MACHINES
from domain.errors import BadInput
from domain.rules.oversubscription.rates import NO_MARGIN, SHIELD, Margin
from domain.rules.oversubscription.risk import clopper_pearson_upper
from simulator.oversubscription.scenario import Scenario
from trainer.oversubscription.calibration import calibrate
from trainer.oversubscription.episodes import Performance, judge
from trainer.oversubscription.evaluation import SEED, policy_text
from trainer.oversubscription.policies import (
    RatesFile,
    RuleRates,
    Task,
    margin_text,
    policy_of,
    read_json,
    scenario_sha256,
    shipped_rates,
)
from trainer.oversubscription.unseen import EVALUATION, arrivals_of, unseen_week
from trainer.promotion.gate import CHALLENGER, CHAMPION, TUNED, Gate, Limits, PolicyCosts, Verdict, verdict

FIRST_DRAWN = 1_000
"""Number of the first redrawn week; `trimtab evaluate oversubscription` shows those before it."""


def pool_gate(
    scenario: Scenario,
    limits: Limits,
    *,
    now: str,
    budget: float,
    margin: Margin = NO_MARGIN,
    alpha: float = 0.95,
    start: str = "cold",
    weeks: Sequence[str] = (),
    drawn: int = 8,
    episodes: int = 300,
    evaluations: int = 1_500,
    tuned: str = "",
    objective: str = CORES,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Gate:
    """Return the gate of pools. now: the policy that decides where there is no champion.

    budget, margin: of the agent's shield.

    weeks: of the scenario, held out. drawn: how many are redrawn. episodes: of usage on each week. evaluations: weeks
    assessed by the search for the best tuned rule, where none comes with the scenario. tuned: that rule, as `simulate`
    has it, where it is known, as of a pool in which not everybody may be oversold; "" to find it.
    """
    if drawn < 1 or episodes < 1:
        raise BadInput("weeks", (drawn, episodes), "give at least one redrawn week and one episode of each")
    arrivals = arrivals_of(scenario, [week for week in scenario.weeks if week not in weeks])
    held = [("held out", scenario.week(name)) for name in weeks]
    held += [("redrawn", unseen_week(arrivals, FIRST_DRAWN + n, EVALUATION)) for n in range(drawn)]

    def played(text: str) -> PolicyCosts:
        on_progress(text)
        judged = [
            judge(policy_of(text), Task(scenario, w, start, alpha), episodes=episodes, seed=SEED) for _, w in held
        ]
        broken = sum(one.sampled.violations + episodes * (one.placement.rejects > 0) for one in judged)
        upper = clopper_pearson_upper(min(broken, episodes * len(held)), episodes * len(held))
        costs = [(f, w.name, cost_of(one, objective)) for (f, w), one in zip(held, judged, strict=True)]
        return PolicyCosts(tuple(costs), upper, 1.0 - alpha)

    def gate(challenger: Path, champion: Path | None) -> Verdict:
        best = tuned or _tuned(scenario, start, alpha, evaluations, on_progress)
        given = {CHALLENGER: str(challenger), CHAMPION: now if champion is None else str(champion), TUNED: best}
        texts = {label: guarded(text, budget, margin) for label, text in given.items()}
        runs = {label: played(text) for label, text in texts.items()}
        facts = {
            "champion": {"policies": {"*": now}} if champion is None else {},
            "tuned": Path(texts[TUNED]).name,
            "suite": {
                "scenario": scenario.name,
                "sha256": scenario_sha256(scenario),
                "weeks": [week.name for _, week in held],
                "episodes": episodes,
                "start": start,
                "objective": objective,
            },
        }
        label = now if champion is None else "champion"
        room = {
            "alpha": alpha,
            "budget": budget,
            "drift_level": margin.level,
            "drift_hours": float(margin.turn_h),
            "drift_spread": margin.spread,
        }
        return verdict("oversubscription", runs, limits, label, facts, more=room)

    return gate


def cost_of(judged: Performance, objective: str) -> float:
    """Return the cost of a week by an objective: shares of cores, of core-hours, or of machines.

    Machines: the mean of their peak and of their mean number.
    """
    placed = judged.placement
    if objective == MACHINES:
        return (placed.peak_machines + placed.machines_in_use) / (2.0 * placed.scenario.machines)
    saved = placed.s_core_hours if objective == CORE_HOURS else judged.s_cores
    return 1.0 - (saved or 0.0)


def guarded(text: str, budget: float, margin: Margin = NO_MARGIN) -> str:
    """Return the policy as the agent runs it: with the budget of its own guard, else of the agent's shield.

    margin: of the pool's settings, which holds before any shield. Rates behind a filter are judged without it, which
    makes them look riskier than they are.
    """
    if text.startswith("shield:"):
        return text
    held = read_json(Path(text)) if text.endswith(".json") else None
    guard = held.file.guard if isinstance(held, RuleRates) else held.guard if isinstance(held, RatesFile) else None
    if isinstance(held, RatesFile) and guard is not None and (margin == NO_MARGIN or guard.kind != SHIELD):
        return text
    allowed = budget if guard is None else margin.budget(guard.budget)
    return f"{SHIELD}:base=({text}),b={allowed:g}{margin_text(margin)}"


def _tuned(scenario: Scenario, start: str, alpha: float, evaluations: int, on_progress: Callable[[str], None]) -> str:
    shipped = shipped_rates(scenario, start)
    if shipped is not None:
        return shipped.name
    found = calibrate(scenario, start=start, alpha=alpha, evaluations=evaluations, on_progress=on_progress)
    return policy_text(found.rates, None)
