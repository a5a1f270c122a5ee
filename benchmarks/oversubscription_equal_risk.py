"""Machines that policies of oversubscription need at equal measured risk, on weeks that nothing was chosen on.

Cold starts of internal-like and azure-like weeks; usage is drawn, independent by the hour (gauss) or with a level that
each VM keeps (psi 0.85), or is of measured VM-days (`--days FILE`, as `bootstrap:FILE` reads them). Eight redrawn weeks
of the evaluation stream judge; their episodes are those of every policy.

Two measures of risk, both sampled. *Hot machine-hours*: of the hours in which machines have VMs, the share in which one
is hot. *Hot weeks*: the share of weeks with too many hot hours, of which the promise allows 5 %. Each policy is played
over a sweep of its knob, and its peak machines are interpolated over the logarithm of the risk (no hot hour counts as
half a one). A risk beyond the sweep gives null.

Rules, written before the runs.

1. Peak predictors (N-sigma, RC-like, the larger of both): a grid of N, percentile, window and warm-up, the published
setting among them, is played on four weeks of the training stream. The setting with the fewest machines among those
without a hot week there is *chosen*. The knob is the frontier of the grid: settings that no other beats in both hot
machine-hours and machines on the training weeks, at most five of them. Each is judged once. The oracle has no knob.
`..._over_max`: machines of the bundled rates (times a factor) or of the rule for requested cores (an offset to its
needs) over those of the larger of both predictors, at EQUAL hot machine-hours in 10,000; interval over weeks.

2. `machines_at_equal_risk_ratio`: under persistent usage, machines of the filter that learns each VM's level over those
of the bundled rates without their guard (times a factor), both at 5 % hot weeks; the greater of both scenarios. The bar
is 0.80. The agent's beliefs stay in its shield in any case; RISK_FILTER becomes the default of pools only if the bar is
met in both scenarios with the upper end of its interval below 0.85 and if the agent's own form of it needs no more
machines than its shield on azure-like weeks through usual drifts.

3. Hour of day: machines of the filter that sees all 24 hours over those of one to which every hour is the day's worst,
at equal hot machine-hours; and how far below the mean of machines' own daily peaks the peak of perfectly mixed machines
lies, which bounds what a choice of complementary VMs can add. Memory as requested: the fullest machine of any policy.

4. Measured days (`--days`): rates are found for them on one training week, and rates and filter know the moments of all
days of the file. The grid has N 0 and the percentile 10 in addition, the offsets of the rule are wider, and
`..._over_rc_like` compares with RC-like alone. `rule, shield` is the rule behind the usual shield, as in an agent; its
usual budget is 0.003. This was added after a first run: on PlanetLab's days neither the larger
of both predictors nor the rule had a setting at the risk that is compared.

With --directory each setting of a policy is written to equal_risk.jsonl when it is finished, and the same command
continues from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Target, arguments, progress, report
from domain.rules.oversubscription.peaks import PeakPredictor
from domain.rules.oversubscription.rates import LOWEST_RATE
from domain.rules.oversubscription.usage import Moments, moments_of
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.layout import guard_of
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import UsageModel, usage_of
from simulator.oversubscription.weekly import Assessor, Placement, sample
from trainer.kit.files import code_version
from trainer.kit.intervals import Estimate, bootstrap
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.evaluation import ResultsFile
from trainer.oversubscription.policies import (
    OversubscriptionPolicy,
    RuleRates,
    Task,
    as_rates,
    policy_of,
    shipped_rates,
    shipped_rule,
)
from trainer.oversubscription.search import optimise
from trainer.oversubscription.unseen import TRAINING, arrivals_of, unseen_week

Floats = NDArray[np.float64]

SCENARIOS = ("internal_like", "azure_like")
FILE = "equal_risk.jsonl"
PROGRAM = ("benchmarks/oversubscription_equal_risk.py",)
BUNDLED = "trainer/oversubscription/shipped"
PERSISTENT = "persistent:psi=0.85"
FIRST_EPISODE = 7_000_000_001
TRAINED_ON, TRAINED_EPISODES, MOST_ON_FRONTIER = 4, 3, 5
CHEAP = 4
"""Times the episodes of policies whose placement no usage changes."""
EQUAL, ALLOWED, BAR = 1e-4, 0.05, 0.80
RESAMPLES = 400
DEVIATIONS = (0.5, 1.0, 2.0, 3.0, 5.0)
PERCENTILES = (30.0, 50.0, 70.0, 90.0, 99.0)
WINDOWS = ((10, 3), (24, 2))
FACTORS = (0.8, 0.9, 0.95, 1.0, 1.1, 1.25)
OFFSETS = (-0.12, -0.06, -0.03, 0.0, 0.08)
DAY_DEVIATIONS, DAY_PERCENTILES = (0.0, *DEVIATIONS), (10.0, *PERCENTILES)
DAY_OFFSETS = (-0.6, -0.4, -0.2, -0.12, 0.0, 0.2, 0.4)
BUDGETS = (0.001, 0.003, 0.01, 0.03, 0.1)
LEVEL_BUDGETS = (0.003, 0.02, 0.06, 0.2)
GUARDS = {
    "filter": ("filter:rate=0.2,b={}", BUDGETS, CHEAP),
    "filter, levels": ("filter:rate=0.2,b={},posterior=true", LEVEL_BUDGETS, 1),
    "shield, levels": ("shield:base=grid:0.2,b={},posterior=true", LEVEL_BUDGETS, 1),
    "rule, shield": ("shield:base=(machine:cores),b={},spread=2.5", LEVEL_BUDGETS, CHEAP),
}
"""Texts, budgets, and the factor on the episodes."""
DAY_RISKS = (0.4, 0.15, 0.05, 0.01)
"""Risks of the training week at which rates for measured days are found."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A policy at one setting of its knob, by week, (weeks,): sums over the episodes where not stated otherwise."""

    name: str
    hot: Floats
    """Hot machine-hours."""
    hours: Floats
    """Machine-hours with VMs; those of the first episode for each."""
    hot_weeks: Floats
    episodes: int
    machines: Floats
    """At most at once, mean of the episodes."""
    s_cores: Floats
    s_core_hours: Floats
    memory: float
    """Of the fullest machine, as a share of its memory."""

    def as_data(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        """Return what JSON data describe."""
        given: dict[str, Any] = {
            name: np.array(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**given)

    def columns(self, measure: str) -> Floats:
        """Return what is hot, of how much, and machines, by week, (weeks, 3); measure: `hours` or `weeks`."""
        every = np.full(len(self.hot), float(self.episodes))
        hot, of = (self.hot, self.hours) if measure == "hours" else (self.hot_weeks, every)
        return np.stack((hot, of, self.machines), axis=1)

    def line(self) -> dict[str, Any]:
        """Return the figures over all weeks."""
        every = np.arange(len(self.hot))
        return {
            "setting": self.name,
            "machines": round(float(self.machines.mean()), 2),
            "cores": round(float(self.s_cores.mean()), 4),
            "core_hours": round(float(self.s_core_hours.mean()), 4),
            "hot_hours_per_10000": round(1e4 * float(self.hot.sum() / self.hours.sum()), 3),
            "hot_weeks": round(float(self.hot_weeks.sum()) / (self.episodes * len(every)), 4),
            "memory": round(self.memory, 3),
        }


def fullest_memory(placed: Placement) -> float:
    """Return the largest share of memory that a machine holds in any hour of a week."""
    week, there, fullest = placed.week, placed.machine >= 0, 0.0
    for t in range(placed.scenario.hours):
        alive = there & (week.arrival <= t) & (week.departure > t)
        memory = np.bincount(placed.machine[alive], weights=week.memory_gb[alive])
        fullest = max(fullest, float(memory.max(initial=0.0)))
    return fullest / placed.scenario.machine_memory_gb


def play(
    name: str,
    policy: OversubscriptionPolicy,
    scenario: Scenario,
    weeks: Sequence[Week],
    usage: str | UsageModel,
    episodes: int,
) -> Played:
    """Play the same episodes of each week."""
    rows: list[tuple[float, ...]] = []
    for week in weeks:
        judged = judge(policy, Task(scenario, week), usage=usage, episodes=episodes, seed=FIRST_EPISODE)
        rows.append(_row(judged.placement, judged.sampled, judged.peak_machines, judged.s_cores or 0.0))
    return _played(name, rows, episodes)


def _row(placed: Placement, sampled: Any, machines: float, s_cores: float) -> tuple[float, ...]:
    hot, weeks = float(sampled.hot_machine_hours.sum()), float(sampled.violations)
    hours, memory = float(placed.machine_hours * sampled.episodes), fullest_memory(placed)
    return hot, hours, weeks, machines, s_cores, placed.s_core_hours or 0.0, memory


def _played(name: str, rows: Sequence[tuple[float, ...]], episodes: int) -> Played:
    hot, hours, hot_weeks, machines, s_cores, s_core_hours, memory = np.array(rows).T
    return Played(name, hot, hours, hot_weeks, episodes, machines, s_cores, s_core_hours, float(memory.max()))


def at_risk(means: Floats, risk: float, weeks: int) -> float:
    """Return the machines at a risk, nan beyond the sweep. means: of the columns of each setting, (settings, 3)."""
    x = np.log(np.maximum(means[:, 0], 0.5 / weeks) / means[:, 1])
    order = np.lexsort((means[:, 2], x))
    # Of settings with one risk the fewest machines count; more risk never needs more of them.
    machines = np.minimum.accumulate(means[order, 2])
    return float(np.interp(np.log(risk), x[order], machines, left=np.nan, right=np.nan))


def ratio_at(policy: Sequence[Played], reference: Sequence[Played], measure: str, risk: float) -> Estimate:
    """Return the machines of a policy over those of a reference at one risk, with the interval over weeks."""
    columns = [one.columns(measure) for one in (*policy, *reference)]
    weeks, first = len(columns[0]), len(policy)

    def statistic(means: Floats) -> Floats:
        settings = means.reshape(len(means), -1, 3)
        pairs = [(at_risk(one[:first], risk, weeks), at_risk(one[first:], risk, weeks)) for one in settings]
        return np.array([a / b for a, b in pairs])

    return bootstrap(np.concatenate(columns, axis=1), statistic, resamples=RESAMPLES)


def grid(*, days: bool) -> dict[str, list[PeakPredictor]]:
    """Return the settings that are tried, by predictor; days: of measured ones."""
    nothing: tuple[None, ...] = (None,)
    deviations, percentiles = (DAY_DEVIATIONS, DAY_PERCENTILES) if days else (DEVIATIONS, PERCENTILES)
    kinds = {"n_sigma": (deviations, nothing), "rc_like": (nothing, percentiles), "max": (deviations, percentiles)}
    return {
        kind: [PeakPredictor(n, q, *window) for n in many for q in shares for window in WINDOWS]
        for kind, (many, shares) in kinds.items()
    }


def text_of(one: PeakPredictor) -> str:
    """Return the policy's text."""
    given = {"n": one.deviations, "percentile": one.percentile, "window_h": one.window_h, "warmup_h": one.warmup_h}
    return "peak:" + ",".join(f"{name}={value:g}" for name, value in given.items() if value is not None)


def selected(tried: Sequence[Played]) -> tuple[str, list[str]]:
    """Return the chosen setting and the frontier, by rule 1; the safest is chosen where each has a hot week."""
    risk = [float(one.hot.sum() / one.hours.sum()) for one in tried]
    machines = [float(one.machines.mean()) for one in tried]
    safe = [i for i, one in enumerate(tried) if not one.hot_weeks.any()] or [int(np.argmin(risk))]
    chosen = min(safe, key=lambda i: machines[i])
    frontier, fewest = [], np.inf
    for i in sorted(range(len(tried)), key=lambda i: (risk[i], machines[i])):
        if machines[i] < fewest:
            frontier.append(tried[i].name)
            fewest = machines[i]
    # Evenly spread, both ends among them.
    spread = np.unique(np.linspace(0, len(frontier) - 1, min(len(frontier), MOST_ON_FRONTIER)).round().astype(int))
    return tried[chosen].name, [frontier[i] for i in spread]


def finished_in(directory: Path | None, name: str) -> ResultsFile:
    """Return the finished results of a directory, which a run continues from; None: nothing is stored."""
    return ResultsFile(None if directory is None else directory / name, resume=True)


class World:
    """A scenario with its usage: weeks to choose on and to judge on, and the sweeps played so far."""

    def __init__(self, name: str, usage: str, weeks: int, episodes: int, *, small: bool, finished: ResultsFile) -> None:
        """Begin without sweeps. finished: results of an earlier run, which are not played again."""
        self.scenario, self.usage, self.episodes, self.small = scenario_of(name), usage, episodes, small
        self._finished = finished
        self.days = usage.startswith("bootstrap")
        arrivals = arrivals_of(self.scenario)
        self.weeks = [unseen_week(arrivals, seed) for seed in range(weeks)]
        # A file is read once, not for each policy and week.
        self.model = usage_of(usage, self.scenario, self.weeks[0]) if self.days else usage
        self.training = [unseen_week(arrivals, seed, TRAINING) for seed in range(1 if small else TRAINED_ON)]
        self.sweeps: dict[str, list[Played]] = {}
        self.chosen: dict[str, str] = {}

    def sweep(self, label: str, policies: Sequence[tuple[str, OversubscriptionPolicy]], weight: int = 1) -> None:
        """Play settings of a policy on the weeks that judge; weight: episodes of those that cost little."""
        progress(f"{self.scenario.name}, {self.usage}: {label}")
        self.sweeps[label] = [
            self._play(name, policy, self.weeks, weight * self.episodes)
            for name, policy in (policies[:2] if self.small else policies)
        ]
        progress("\n".join(str(one.line()) for one in self.sweeps[label]))

    def _play(self, name: str, policy: OversubscriptionPolicy, weeks: Sequence[Week], episodes: int) -> Played:
        """Play a policy on the weeks; its name and the world's facts name the result."""
        return self._result(
            name, weeks, episodes, lambda: play(name, policy, self.scenario, weeks, self.model, episodes)
        )

    def _result(self, name: str, weeks: Sequence[Week], episodes: int, make: Callable[[], Played]) -> Played:
        facts = {"world": [self.scenario.name, self.usage], "policy": name, "episodes": episodes}
        shipped = (f"{BUNDLED}/{self.scenario.name}-cold.json", f"{BUNDLED}/rules/{self.scenario.name}-cold-cores.json")
        facts |= {"weeks": len(weeks), "training": weeks is self.training, "of": code_version((*PROGRAM, *shipped))}
        return Played.of(self._finished.of(facts, lambda: make().as_data()))

    def predictors(self) -> None:
        """Choose the predictors' settings by rule 1 and judge them."""
        for kind, settings in grid(days=self.days).items():
            progress(f"{self.scenario.name}, {self.usage}: choosing {kind}")
            tried = [
                self._play(text, policy_of(text), self.training, TRAINED_EPISODES)
                for text in map(text_of, settings[:2] if self.small else settings)
            ]
            self.chosen[kind], frontier = selected(tried)
            self.sweep(kind, [(text, policy_of(text)) for text in dict.fromkeys([*frontier, self.chosen[kind]])])
        self.sweep("oracle", [("peak:oracle=true", policy_of("peak:oracle=true"))])

    def rates(self) -> None:
        """Play the bundled rates times a factor; to measured days, rates that are found for them."""
        shipped = shipped_rates(self.scenario, "cold")
        assert shipped is not None
        rates = [(f"rates x {factor:g}", _rates(factor * np.array(shipped.rates))) for factor in FACTORS]
        if self.days:
            rates = [(f"rates of risk {risk:g}", self._fitted(risk)) for risk in DAY_RISKS]
        self.sweep("rates", rates, weight=CHEAP)

    def rule(self) -> None:
        """Play the rule for each request with an offset to its needs."""
        rule = shipped_rule(self.scenario.name, "cold", "cores")
        base = rule.file.rule.base
        offsets = DAY_OFFSETS if self.days else OFFSETS
        moved = [replace(rule.file, rule=replace(rule.file.rule, base=base + offset)) for offset in offsets]
        rules = [(f"rule {offset:+g}", RuleRates("rule", file)) for offset, file in zip(offsets, moved, strict=True)]
        self.sweep("rule", rules, weight=CHEAP)

    def _fitted(self, risk: float) -> OversubscriptionPolicy:
        week, scenario = self.training[0], self.scenario
        model = usage_of(self.usage, scenario, week)
        assessor = Assessor(scenario, week, "cold", model.moments, shape=model.shape)
        return _rates(optimise([assessor], 1.0 - risk, evaluations=20 if self.small else 300).rates)

    def guard(self, label: str) -> None:
        """Play a filter or shield of `GUARDS` over its budgets."""
        text, budgets, weight = GUARDS[label]
        texts = [text.format(budget) for budget in budgets]
        self.sweep(label, [(one, policy_of(one)) for one in texts], weight)

    def blind(self) -> None:
        """Play a filter to which each hour is the day's worst (rule 3)."""
        scenario = self.scenario
        progress(f"{scenario.name}, {self.usage}: filter, blind to the hour")
        seen = moments_of(scenario.mu, scenario.sd)
        worst = Moments(*(np.repeat(one.max(axis=1, keepdims=True), HOURS_PER_DAY, axis=1) for one in seen))
        none, episodes = np.full(scenario.subscribers, 0.2), CHEAP * self.episodes
        seeds = np.arange(FIRST_EPISODE, FIRST_EPISODE + episodes)

        def played(budget: float) -> Played:
            guard, rows = guard_of(scenario, "filter", budget), []
            for week in self.weeks:
                placed = Assessor(scenario, week, "cold", worst, guard=guard).assess(none).placement
                drawn = sample(placed, usage_of(self.usage, scenario, week), seeds)
                rows.append(_row(placed, drawn, float(placed.peak_machines), placed.s_cores or 0.0))
            return _played(f"b={budget:g}", rows, episodes)

        budgets = BUDGETS[:2] if self.small else (*BUDGETS, 1.0, 3.0, 8.0)
        sweep = [self._result(f"blind {one:g}", self.weeks, episodes, partial(played, one)) for one in budgets]
        progress("\n".join(str(one.line()) for one in sweep))
        self.sweeps["filter, blind"] = sweep

    def unmixed(self) -> float:
        """Return the peak of the pool's mean usage over the mean of machines' own, by the filter (rule 3).

        Weighted by the hours of the week in which machines have VMs.
        """
        scenario, apart, mixed = self.scenario, 0.0, 0.0
        mean = moments_of(scenario.mu, scenario.sd).mean
        for week in self.weeks:
            policy = policy_of(f"filter:rate=0.2,b={BUDGETS[1]}")
            plan = policy.plan(Task(scenario, week))
            assert plan.schedule is not None
            placed = Assessor(scenario, week, guard=plan.guard).assess(plan.schedule).placement
            for t in range(HOURS_PER_DAY, scenario.hours, 6):
                alive = (placed.machine >= 0) & (week.arrival <= t) & (week.departure > t)
                load = np.zeros((placed.opened, HOURS_PER_DAY))
                np.add.at(load, placed.machine[alive], week.cores[alive, None] * mean[week.subscriber[alive]])
                apart, mixed = apart + load.max(axis=1).sum(), mixed + load.sum(axis=0).max()
        return float(mixed / apart)

    def lines(self) -> dict[str, Any]:
        """Return every figure for the notes."""
        return {label: [one.line() for one in sweep] for label, sweep in self.sweeps.items()} | {"chosen": self.chosen}


def _rates(rates: Floats) -> OversubscriptionPolicy:
    return policy_of(as_rates(np.clip(rates, LOWEST_RATE, 1.0)))


def machines_at_equal_risk(weeks: int, episodes: int, directory: Path | None) -> float | None:
    """Return the figure of rule 2 alone, None where a risk lies beyond a sweep; directory: as `--directory`."""
    found, finished = [], finished_in(directory, FILE)
    for name in SCENARIOS:
        world = World(name, PERSISTENT, weeks, episodes, small=False, finished=finished)
        world.rates()
        world.guard("filter, levels")
        found.append(ratio_at(world.sweeps["filter, levels"], world.sweeps["rates"], "weeks", ALLOWED).value)
    return None if np.isnan(found).any() else max(found)


def main() -> int:
    """Play, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=1)
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--weeks", type=int, default=8, help="weeks that judge (default 8)")
    parser.add_argument("--episodes", type=int, default=5, help="episodes of each (default 5; four times where cheap)")
    parser.add_argument("--days", type=Path, action="append", default=[], help="a file of measured VM-days; repeatable")
    parser.add_argument("--only", choices=SCENARIOS, help="one scenario (default: both)")
    parser.add_argument("--usage", help="one usage: gauss, persistent, or the stem of a file (default: all)")
    parser.add_argument("--small", action="store_true", help="two settings of each policy")
    given = parser.parse_args()
    finished = finished_in(given.directory, FILE)
    names = [given.only] if given.only else list(SCENARIOS)
    figures: dict[str, float | None] = {}
    notes: dict[str, Any] = {"weeks": given.weeks, "episodes": given.episodes}

    def put(name: str, found: Estimate) -> None:
        # An undefined figure was beyond a sweep.
        for ending, value in (("", found.value), ("_low", found.low), ("_high", found.high)):
            figures[name + ending] = None if np.isnan(value) else value

    usages = [("persistent", PERSISTENT), ("gauss", "gauss")]
    usages += [(path.stem, f"bootstrap:{path}") for path in given.days]
    usages = [(label, usage) for label, usage in usages if given.usage in (None, label)]
    for name in names:
        for label, usage in usages:
            world = World(name, usage, given.weeks, given.episodes, small=given.small, finished=finished)
            guards = ["filter", "filter, levels", "shield, levels"] if label == "persistent" else ["filter"]
            guards += ["rule, shield"] * world.days
            world.rates()
            for guard in guards:
                world.guard(guard)
            world.rule()
            world.predictors()
            if label == "gauss":
                world.blind()
            sweeps, prefix = world.sweeps, f"{name}_{label}"
            for policy in ("n_sigma", "rc_like", "rates", "rule", *GUARDS):
                if policy in sweeps:
                    key = policy.replace(", ", "_")
                    for other in sorted({"max", "rc_like"} - {policy}) if world.days else ["max"]:
                        put(f"{prefix}_{key}_over_{other}", ratio_at(sweeps[policy], sweeps[other], "hours", EQUAL))
            for policy in guards if label == "persistent" else ():
                key = policy.replace(", ", "_")
                put(f"{prefix}_{key}_over_rates", ratio_at(sweeps[policy], sweeps["rates"], "weeks", ALLOWED))
            if label == "gauss":
                figures[f"{prefix}_mixed_over_apart"] = world.unmixed()
                put(f"{prefix}_hour_over_blind", ratio_at(sweeps["filter"], sweeps["filter, blind"], "hours", EQUAL))
            notes[prefix] = world.lines()
            fullest = max(one.memory for sweep in sweeps.values() for one in sweep)
            figures[f"{prefix}_fullest_memory"] = fullest
            progress(str(figures))
    ratios = [figures.get(f"{name}_persistent_filter_levels_over_rates") for name in names]
    known = [ratio for ratio in ratios if ratio is not None]
    figures["machines_at_equal_risk_ratio"] = max(known) if len(known) == len(SCENARIOS) else None
    targets = (Target("machines_at_equal_risk_ratio", BAR),)
    packages = ("numba", "numpy")
    return report(
        "oversubscription_equal_risk", figures, as_json=given.json, packages=packages, targets=targets, notes=notes
    )


if __name__ == "__main__":
    sys.exit(main())
