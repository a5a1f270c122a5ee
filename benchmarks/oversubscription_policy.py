"""The bundled rules for each request, the moving average and the bundled rates, on weeks that nothing was chosen on.

For each setting (internal-like and azure-like, cold and warm): the four packaged weeks, and redrawn weeks of the
evaluation stream. The rule of an objective is named after it: `_over_ma` compares the cores saved by the rule for
cores on the packaged weeks, as the publication does; `_over_ma_core_hours` those of the rule for core-hours by
core-hours; `_over_ma_machines` the machines in use at once at most, of the moving average over those of the rule for
machines. `azure_...` is the lesser of cold and warm. `worst_week_hot` is the worst week of every bundled rule, without
sampling and sampled. `core_hours_policy_gain` is the least over the settings of the points of core-hours that the rule
for them saves more than the bundled rates behind their guard, on the redrawn weeks. A rule that does not ship gives
null, and so does a gain without redrawn weeks. `machines_at_equal_risk_ratio` is that of
`benchmarks.oversubscription_equal_risk`, of the filter that learns each VM's level; null without episodes. With
--setting the other settings are left out, and figures that need them are null.

The notes have each policy's figures; by setting the least number of machines at once that any policy needs (`bound`,
see `least_machines`), and how many a warm start has before any request; and the risk of the packaged weeks where usage
changes: profiles that have shifted (levels by 15 %, days by up to 2 hours; rule and shield see the new ones), VMs of a
subscriber that move together (rho 0.05), and VMs that keep their level (psi 0.85, sampled).

The whole run takes about ten processor minutes. With --directory each policy of a setting is written to policy.jsonl
when it is finished, and the same command continues from there, as does the ratio at equal risk from equal_risk.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from agent.oversubscription.rule_model import CORE_HOURS, OBJECTIVES
from benchmarks.oversubscription_equal_risk import finished_in, machines_at_equal_risk
from benchmarks.report import arguments, progress, report
from domain.errors import BadInput
from domain.rules.oversubscription.risk import count_at_least, hot_probability
from domain.rules.oversubscription.usage import moments_of
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Assessor, sample
from trainer.kit.files import code_version
from trainer.oversubscription.policies import SHIPPED, OversubscriptionPolicy, Task, policy_of
from trainer.oversubscription.unseen import arrivals_of, shifted, unseen_week

SETTINGS = tuple((name, start) for name in ("internal_like", "azure_like") for start in ("cold", "warm"))
ALPHA = 0.95
MEASURES = ("s_cores", "s_core_hours", "machines")
FIRST_WEEK = 120
"""Of the redrawn weeks: no earlier rule was judged on it; the rules of the first searches were on 100 to 119."""
FIRST_EPISODE = 6_000_000_011
PROFILES, CORRELATION, PERSISTENT = 4, 0.05, "persistent:psi=0.85"
EQUAL_WEEKS, EQUAL_EPISODES = 8, 5


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's week."""

    week: str
    s_cores: float
    s_core_hours: float
    machines: float
    """At once at most; `in_use` in the mean of the hours."""
    in_use: float
    hot: float
    """The greater of the chance without sampling and, where it was sampled, the share of the episodes."""


def play(policy: OversubscriptionPolicy, scenario: Scenario, start: str, week: Week, episodes: int) -> Row:
    """Play a week; episodes: 0 for the chance without sampling alone."""
    plan = policy.plan(Task(scenario, week, start))
    if plan.schedule is None:
        raise BadInput("policy", policy, "give one whose placement does not depend on usage")
    risk = Assessor(scenario, week, start, guard=plan.guard).assess(plan.schedule)
    placed, hot = risk.placement, 1.0 if risk.placement.rejects else risk.c_hot_r
    if episodes:
        seeds = np.arange(FIRST_EPISODE, FIRST_EPISODE + episodes)
        hot = max(hot, sample(placed, usage_of("gauss", scenario, week), seeds).c_hot_r)
    saved = (placed.s_cores or 0.0, placed.s_core_hours or 0.0)
    return Row(week.name, *saved, float(placed.peak_machines), placed.machines_in_use, hot)


def stressed(
    policy: OversubscriptionPolicy, scenario: Scenario, start: str, weeks: Sequence[Week], episodes: int
) -> dict[str, float]:
    """Return the risk of the mean and the worst of the weeks under other usage than that of the training."""
    moved = [shifted(scenario, seed) for seed in range(PROFILES)]
    by_kind: dict[str, list[float]] = {
        "shifted": [play(policy, profile, start, week, 0).hot for profile in moved for week in weeks],
        "correlated": [],
        "persistent": [],
    }
    for week in weeks:
        plan = policy.plan(Task(scenario, week, start))
        assert plan.schedule is not None
        together = Assessor(scenario, week, start, rho=CORRELATION, guard=plan.guard).assess(plan.schedule)
        by_kind["correlated"].append(together.c_hot_r)
        if episodes:
            seeds = np.arange(FIRST_EPISODE, FIRST_EPISODE + episodes)
            lasting = sample(together.placement, usage_of(PERSISTENT, scenario, week), seeds)
            by_kind["persistent"].append(lasting.c_hot_r)
    return {
        f"{kind}_{name}": round(float(fold(risks)), 4)
        for kind, risks in by_kind.items()
        if risks
        for name, fold in (("mean", np.mean), ("worst", np.max))
    }


def least_machines(scenario: Scenario, start: str, week: Week) -> int:
    """Return a lower bound on the machines at once of any policy that keeps the promise with a chance of 0.95.

    Usage of every hour is split evenly over all machines, as if VMs moved freely: the chance of a hot hour then is
    1 - (1 - p)^K, and the least K is taken with which the promise holds.
    """
    first = 0 if start == "warm" else week.warm
    vms = (week.subscriber[first:], np.maximum(week.arrival[first:], 0), week.departure[first:])
    totals, moments = np.zeros((3, scenario.hours)), moments_of(scenario.mu, scenario.sd)
    for power, moment in enumerate((moments.mean, moments.variance, moments.third)):
        weight = week.cores[first:] ** (power + 1)
        for hour in range(scenario.hours):
            there = (vms[1] <= hour) & (hour < vms[2])
            totals[power, hour] = moment[vms[0][there], hour % HOURS_PER_DAY] @ weight[there]
    for machines in range(1, scenario.machines + 1):
        one = [hot_probability(m, v, third, scenario.threshold) for m, v, third in (totals / machines).T.tolist()]
        if count_at_least(1.0 - (1.0 - np.array(one)) ** machines, scenario.violation_hours) <= 1.0 - ALPHA:
            return machines
    return scenario.machines


def filled(scenario: Scenario, week: Week) -> int:
    """Return the machines that a warm start has before any request."""
    machine = Assessor(scenario, week, "warm").assess(np.ones(scenario.subscribers)).placement.machine[: week.warm]
    return len(np.unique(machine[machine >= 0]))


def mean(rows: Sequence[Row], measure: str) -> float:
    """Return the mean of a measure."""
    return float(np.mean([getattr(row, measure) for row in rows]))


def line(rows: Sequence[Row]) -> dict[str, float]:
    """Return a policy's means, rounded, and its worst week."""
    found = {measure: round(mean(rows, measure), 4) for measure in (*MEASURES, "in_use")}
    return found | {"hot_worst": round(max(row.hot for row in rows), 4)}


def shipped(scenario: str, start: str) -> dict[str, str]:
    """Return the text of each policy of a setting, by label; only the rules that ship."""
    files = {objective: SHIPPED / "rules" / f"{scenario}-{start}-{objective}.json" for objective in OBJECTIVES}
    rules = {objective: str(path) for objective, path in files.items() if path.is_file()}
    return {"ma": "ma", "rates": str(SHIPPED / f"{scenario}-{start}.json"), **rules}


def ratio(known: dict[tuple[str, str], dict[str, list[Row]]], name: str, start: str, at: int) -> float | None:
    """Return the gain of the rule of an objective over the moving average in a setting, by its measure."""
    rows, measure = known.get((name, start), {}), MEASURES[at]
    if OBJECTIVES[at] not in rows:
        return None
    rule, average = mean(rows[OBJECTIVES[at]], measure), mean(rows["ma"], measure)
    return average / rule if measure == "machines" else rule / average


def least(values: Sequence[float | None]) -> float | None:
    """Return the least value, None where one is missing."""
    found = [value for value in values if value is not None]
    return min(found) if len(found) == len(values) else None


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A setting with the packaged weeks, the redrawn ones, and the episodes that sample a rule."""

    scenario: Scenario
    start: str
    reserved: Sequence[Week]
    unseen: Sequence[Week]
    episodes: int

    def judged(self, label: str, text: str) -> dict[str, Any]:
        """Return the rows of a policy on the packaged and on the redrawn weeks, and its risk where usage changes."""
        policy, sampled = policy_of(text), self.episodes if label in OBJECTIVES else 0
        found: dict[str, Any] = {
            part: [asdict(play(policy, self.scenario, self.start, week, sampled)) for week in weeks]
            for part, weeks in (("reserved", self.reserved), ("unseen", self.unseen))
        }
        return found | {"changed": stressed(policy, self.scenario, self.start, self.reserved, self.episodes)}

    def bound(self) -> dict[str, dict[str, float]]:
        """Return the least machines that any policy needs, and those that a warm start has before any request."""
        found: dict[str, dict[str, float]] = {}
        for part, weeks in (("reserved", self.reserved), ("unseen", self.unseen)):
            if weeks:
                least = [least_machines(self.scenario, self.start, week) for week in weeks]
                found[part] = {"least": float(np.mean(least))}
            if weeks and self.start == "warm":
                found[part]["filled"] = float(np.mean([filled(self.scenario, week) for week in weeks]))
        return found


def main() -> int:
    """Play, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=1)
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--unseen", type=int, default=20, help="redrawn weeks by setting (default 20)")
    parser.add_argument("--first-week", type=int, default=FIRST_WEEK, help=f"their first (default {FIRST_WEEK})")
    names = ["-".join(setting) for setting in SETTINGS]
    parser.add_argument("--setting", choices=names, action="append", help="one of them (default all)")
    parser.add_argument("--episodes", type=int, default=1000, help="drawn weeks of usage, rules alone (default 1000)")
    given = parser.parse_args()
    results = finished_in(given.directory, "policy.jsonl")
    known: dict[tuple[str, str], dict[str, list[Row]]] = {}
    notes: dict[str, Any] = {"episodes": given.episodes}
    worst, gains = [], []
    played = [setting for setting in SETTINGS if "-".join(setting) in (given.setting or names)]
    for name, start in played:
        scenario = scenario_of(name)
        arrivals = arrivals_of(scenario)
        reserved = [scenario.week(week) for week in scenario.weeks]
        fresh = [unseen_week(arrivals, given.first_week + i) for i in range(given.unseen)]
        world = World(scenario, start, reserved, fresh, given.episodes)
        facts: dict[str, Any] = {"setting": [name, start], "unseen": given.unseen, "episodes": given.episodes}
        facts["first_week"] = given.first_week
        facts["program"] = code_version(("benchmarks/oversubscription_policy.py",))
        known[name, start], saved = {}, {}
        notes[f"{name} {start} bound"] = results.of(facts, world.bound)
        for label, text in shipped(name, start).items():
            progress(f"{name}, {start}: {label}")
            own = facts | {"policy": label, "file": code_version((text,))}
            found = results.of(own, partial(world.judged, label, text))
            rows, unseen = ([Row(**row) for row in found[part]] for part in ("reserved", "unseen"))
            known[name, start][label] = rows
            if unseen:
                saved[label] = mean(unseen, "s_core_hours")
            notes[f"{name} {start} {label}"] = {
                "reserved": line(rows),
                **({"unseen": line(unseen)} if unseen else {}),
                "changed": found["changed"],
            }
            if label in OBJECTIVES:
                worst.append(max(row.hot for row in [*rows, *unseen]))
        if CORE_HOURS in saved:
            gains.append(100.0 * (saved[CORE_HOURS] - saved["rates"]))
    figures: dict[str, float | None] = {}
    for at, ending in enumerate(("", "_core_hours", "_machines")):
        for start in ("cold", "warm"):
            figures[f"internal_{start}_over_ma{ending}"] = ratio(known, "internal_like", start, at)
        figures[f"azure_over_ma{ending}"] = least([ratio(known, "azure_like", start, at) for start in ("cold", "warm")])
    figures["worst_week_hot"] = max(worst, default=None)
    figures["core_hours_policy_gain"] = min(gains) if len(gains) == len(SETTINGS) else None
    whole = given.episodes > 0 and len(played) == len(SETTINGS)
    equal = machines_at_equal_risk(EQUAL_WEEKS, EQUAL_EPISODES, given.directory) if whole else None
    figures["machines_at_equal_risk_ratio"] = equal
    return report("oversubscription_policy", figures, as_json=given.json, packages=("numba", "numpy"), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
