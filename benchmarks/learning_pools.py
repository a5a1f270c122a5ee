"""Hot weeks of oversold pools on eight unseen weeks, with a drift of usage: rates alone and behind a shield.

The weeks are drawn anew from the requests of a packaged scenario; no rates were tuned or held to them. The drift: level
and times of day of every subscriber change at once, as `trainer.oversubscription.unseen.shifted` draws them. Promised:
in at most 5 % of the weeks too many hot hours (three in 120).

Each week is cold and simulated by itself, with many episodes of usage. `steady`: usage as the scenario has it.
`drift`: it changes in the middle of the week; rates and shield go by the usage before, to the end. `after`: the whole
week is of the changed usage, which the shield knows and the rates do not. hot_*: share of episodes that break the
promise, in the worst of the weeks; upper_*: upper end of its 95 % interval; hot_mean_*: over all weeks; saved_*: cores
not reserved, saved_core_hours_*: the same by the hours of VMs.

`bare`: the rates of the file that ships, without its guard; `shipped`: the file; `strict`: its rates behind a shield
with the budget of 0.003; `ma`: moving average behind the same; `rule_alone`: the bundled rule for core-hours without a
shield; `rates_1`: full reservation. With the default settings of an agent, a budget of 0.003 and room for usual drifts:
`room_ma`, the default of a pool, `room_rates` and `room_rule`. With --learn a rule is trained as a pool's round does,
one seed, in about 60 processor seconds for each scenario: `learnt_alone` and `room_learnt`.

Rule for the form in which an agent uses a rule, written after a look at chances without sampling, in part on the same
eight weeks: hot weeks through an unknown change are not more than those of `ma`, in the mean and in the worst week;
after a known change none is above the promise. Of the forms that hold, the one with the usual shield is taken: rules
with other training pass it too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.rule_model import CORE_HOURS
from benchmarks.report import Target, arguments, progress, report
from domain.rules.oversubscription.rates import SHIELD, USUAL_BUDGET, USUAL_SPREAD, Margin
from domain.rules.oversubscription.risk import clopper_pearson_upper
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Placement, sample
from trainer.learning.pool_rule import config_of
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import (
    GuardedPolicy,
    OversubscriptionPolicy,
    RuleRates,
    Task,
    as_rates,
    policy_of,
    shipped_rates,
    shipped_rule,
)
from trainer.oversubscription.rule_training import decoded, train
from trainer.oversubscription.unseen import EVALUATION, arrivals_of, shifted, unseen_week

SCENARIOS = ("internal_like", "azure_like")
ALPHA = 0.95
FIRST_WEEK = 2_000
"""Number of the first unseen week; evaluations and the gate draw others."""
SEED = 6_000_000_007
"""First episode of usage."""
KINDS = ("steady", "drift", "after")
RULE = "machine:core-hours"


def policies(scenario: Scenario, *, learn: bool) -> dict[str, OversubscriptionPolicy]:
    """Return what ships for a scenario, with and without its guard, no overselling, and a rule that is learnt now."""
    found = shipped_rates(scenario, "cold")
    assert found is not None
    rates = as_rates(np.array(found.rates))
    room = f"b={USUAL_BUDGET:g},spread={USUAL_SPREAD:g}"
    made = {
        "bare": policy_of(rates),
        "shipped": found,
        "strict": policy_of(f"shield:base=({rates}),b={USUAL_BUDGET:g}"),
        "ma": policy_of(f"shield:base=(ma),b={USUAL_BUDGET:g}"),
        "rule_alone": policy_of(RULE),
        "room_ma": policy_of(f"shield:base=(ma),{room}"),
        "room_rates": policy_of(f"shield:base=({rates}),{room}"),
        "room_rule": policy_of(f"shield:base=({RULE}),{room}"),
        "rates_1": policy_of("none"),
    }
    if learn:
        progress(f"{scenario.name}: training a rule")
        alone = learnt_rule(scenario)
        shielded = GuardedPolicy("learnt", alone, SHIELD, USUAL_BUDGET, margin=Margin(spread=USUAL_SPREAD))
        made |= {"learnt_alone": alone, "room_learnt": shielded}
    return made


def learnt_rule(scenario: Scenario) -> RuleRates:
    """Return a rule for core-hours that is trained as in the round of a pool."""
    point = train(config_of(scenario.name, "cold", ALPHA, CORE_HOURS, {})).point
    bundled = shipped_rule(scenario.name, "cold", CORE_HOURS).file
    return RuleRates("learnt", replace(bundled, rule=decoded(point, scenario.subscribers)))


def hot_hours(
    placed: Placement, before: Scenario, after: Scenario, week: Week, seeds: NDArray[Any], change_h: int
) -> NDArray[np.int64]:
    """Return the hot hours of each episode, (E,), when usage changes at an hour of the week.

    Draws belong to the VM and the hour, so that the hours after the change are those of a whole week less its begin.
    """

    def hot(usage: Scenario, hours: int) -> NDArray[np.int64]:
        cut = replace(placed, scenario=replace(placed.scenario, hours=hours))
        return sample(cut, usage_of("gauss", usage, week), seeds).hot_hours

    whole = before.hours
    if change_h >= whole:
        return hot(before, whole)
    late = hot(after, whole)
    return late if change_h == 0 else hot(before, change_h) + late - hot(after, change_h)


def broken(
    policy: OversubscriptionPolicy, scenario: Scenario, week: Week, number: int, kind: str, seeds: NDArray[Any]
) -> tuple[int, float, float]:
    """Return how many episodes of a week break the promise, and the shares of cores and core-hours saved in it."""
    changed = shifted(scenario, number)
    known = changed if kind == "after" else scenario
    placed = judge(policy, Task(known, week, "cold", ALPHA), episodes=1).placement
    change_h = {"steady": scenario.hours, "drift": scenario.hours // 2, "after": 0}[kind]
    hot = hot_hours(placed, scenario, changed, week, seeds, change_h)
    count = len(seeds) if placed.rejects else int((hot >= scenario.violation_hours).sum())
    return count, placed.s_cores or 0.0, placed.s_core_hours or 0.0


def simulated(scenario: Scenario, weeks: int, episodes: int, *, learn: bool) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of a scenario, and the share of hot episodes week by week."""
    arrivals = arrivals_of(scenario)
    drawn = [unseen_week(arrivals, FIRST_WEEK + n, EVALUATION) for n in range(weeks)]
    seeds = np.arange(SEED, SEED + episodes)
    figures: dict[str, float] = {}
    by_week: dict[str, Any] = {}
    for name, policy in policies(scenario, learn=learn).items():
        for kind in KINDS:
            progress(f"{scenario.name} {name} {kind}")
            found = [broken(policy, scenario, week, FIRST_WEEK + n, kind, seeds) for n, week in enumerate(drawn)]
            counts = [count for count, _, _ in found]
            key = f"{scenario.name}_{name}_{kind}"
            by_week[key] = [round(count / episodes, 4) for count in counts]
            figures[f"hot_{key}"] = max(counts) / episodes
            figures[f"upper_{key}"] = clopper_pearson_upper(max(counts), episodes)
            figures[f"hot_mean_{key}"] = sum(counts) / (episodes * weeks)
            figures[f"saved_{key}"] = float(np.mean([saved for _, saved, _ in found]))
            figures[f"saved_core_hours_{key}"] = float(np.mean([saved for _, _, saved in found]))
    return figures, by_week


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--weeks", type=int, default=8, help="unseen weeks of each scenario (default 8)")
    parser.add_argument("--episodes", type=int, default=1000, help="of usage on each week (default 1000)")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="one of them (default both)")
    parser.add_argument("--learn", action="store_true", help="train a rule as a pool's round does, and judge it")
    asked = parser.parse_args(given)
    figures: dict[str, float] = {}
    weeks: dict[str, Any] = {}
    scenarios = asked.scenario or SCENARIOS
    for name in scenarios:
        found, by_week = simulated(scenario_of(name), max(1, asked.weeks), max(1, asked.episodes), learn=asked.learn)
        figures |= found
        weeks |= by_week
    promised = [f"hot_{name}_{label}_steady" for name in scenarios for label in ("shipped", "ma")]
    return report(
        "learning_pools",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy"),
        targets=[Target(figure, 1.0 - ALPHA) for figure in promised],
        notes={"weeks": asked.weeks, "episodes": asked.episodes, "start": "cold", "hot_by_week": weeks},
    )


if __name__ == "__main__":
    sys.exit(main())
