"""The cost of a fleet whose queue rule is tuned by itself, against the default, another default, and hindsight.

Cases are three days of a fleet under the agent's own rails (`benchmarks.lives`). Day 1 is lived under the default
and recorded as a ledger has it: jobs are rebuilt from that record, not known. At the ends of days 1 and 2 the tuner
(`trainer.learning.self_tuning`) may change the setting; every WATCH_HOURS the watch may take it back. Costs are those
of days 2 and 3.

    real     stretches of recorded logs, at several loads and run times, in three fleets; LCG-2005 has two days, each of
             which is stretched to three; lublin_256 is read where --logs has it
    drawn    `trainer.autoscaling.lessons.fleet_of` with 3 or 5 types and limits from 2 to 15, its loads one after the
             other for three days; those with at most MOST_JOBS jobs

Split before the runs: cases of `--set development` (even stretches, the first day of LCG, seeds from 600,000 on) are
for choosing the guards; those of `--set bars` (odd stretches, the second day, seeds from 700,000 on) give the figures.
Rule for choosing guards, written before the figures: of those with a worst case of at most 1.02, means within both
bars, and where nothing is to be gained at most 6 changes a year and at most one on 20 first nights, the one with the
fewest constants, then the lowest mean of drawn fleets; by the costs of development cases under a grid of settings,
replayed and true.
An interval is 95 % of the resamples of stretches, or of drawn fleets: cases of a stretch differ by load and fleet only.

drawn_ratio, real_ratio: means over cases of tuned / DEFAULT (150 s, idle 120 s); drawn_over_new_default,
real_over_new_default: over CANDIDATE (300 s, idle 0 s), which `benchmarks.rule_defaults` refused as a new default.
worst_ratio: of a case to DEFAULT; NAME_low, NAME_high: the interval. hindsight_*: the best of DEFAULT, CANDIDATE and
HINDSIGHT on the true days; scorer_*: the shipped scorer. false_promotions_per_year: of models at the gate
(`benchmarks.promotions`). false_changes_per_year: changes in a year of a tuner that begins with DEFAULT, although
nothing is to be gained: days of real cases under each setting, scaled so that all cost the same over the three days of
the case, are drawn one by one, and the last ones tuned on every night. false_nights_per_year: nights on which DEFAULT
would be changed; a lucky week of three days, drawn again and again, counts several times there. apart: largest
difference of `benchmarks.lives` from the agent's own decision.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.rails.base import RailLimits
from agent.rehearsal.virtual_time import START, fleet_of
from benchmarks.lives import Life, apart, simulate
from benchmarks.promotions import false_promotions_per_year
from benchmarks.report import Target, arguments, progress, report
from domain.fleet import VmType
from domain.rules.queue_rule import RuleSetting
from domain.snapshot import Terms
from domain.units import DAY_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import SwfOptions, read_swf
from trainer.autoscaling import lessons
from trainer.autoscaling.scorer_runs import shipped_scorer
from trainer.kit.files import code_version
from trainer.learning.lived_hours import loss_of
from trainer.learning.replay import Loop, play
from trainer.learning.self_tuning import MOST_DAYS, Costs, choose, guess_s, tune
from trainer.learning.subject import Learner, learner_of

Floats = NDArray[np.float64]

DAYS, DAY_MIN = 3, 1440
DEFAULT, CANDIDATE = RuleSetting(150.0, 120.0), RuleSetting(300.0, 0.0)
LOGS_FOLDER = Path(__file__).parent / "logs"
WATCH_HOURS = 8
HINDSIGHT = tuple(RuleSetting(horizon_s, 0.0) for horizon_s in (600.0, 1200.0, 2400.0, 4800.0))
DEVELOPMENT, BARS = "development", "bars"
DRAWN_SEEDS = {DEVELOPMENT: 600_000, BARS: 700_000}
DRAWN_TYPES, DRAWN_LIMITS = (3, 5), (2, 15)
MOST_JOBS = 4_500
EACH = {DEVELOPMENT: 16, BARS: 32}
"""Cases of each half."""
BOOT_SEED = 3_100_000_000
APART_CASES = 3
RESAMPLES = 4_000
NULL_YEARS = 6
NIGHTS = 365
GATE_YEARS = 35
"""Years of null challengers at the gate for each year of the tuner."""
SOURCES = (
    "domain",
    "simulator/autoscaling",
    "trainer/learning",
    "agent/rails",
    "agent/autoscaling",
    "benchmarks/lives.py",
)


@dataclass(frozen=True, slots=True)
class Log:
    """A log: its file, its days, and by how much its times are stretched."""

    name: str
    file: str
    days: int
    slower: float = 1.0


LOGS = (
    Log("nasa", "NASA-iPSC-1993-3.1-cln.swf.gz", 91),
    Log("hpc2n", "HPC2N-2002-first-jobs.swf.gz", 57),
    Log("lublin", "lublin_256.swf.gz", 88),
    Log("lcg", "LCG-2005-1-first48h.swf.gz", 2, 3.0),
)
SCALES = ((0.1, 1.0), (0.3, 1.0), (0.45, 3.0), (0.2, 0.3))
"""Share of the fleet's cores that a stretch offers, and times of the run times."""


@dataclass(frozen=True, slots=True)
class TestCase:
    """Three days of a fleet. half: real or drawn. cluster: its log and stretch, or its fleet."""

    name: str
    half: str
    cluster: str
    config: SimulationConfig
    trace: Trace
    seed: int
    sizes_known: bool = True

    @property
    def loop(self) -> Loop:
        """The agent's decision under its default rails."""
        limits = RailLimits()
        low, high = zip(*self.config.boot_ranges_s, strict=True)
        price, mean_s = self.config.waiting_price_per_hour, float(self.trace.service_s.mean())
        job_core_s = 120.0 if self.sizes_known else round(mean_s)
        terms = Terms(price, DEFAULT.horizon_s, job_core_s, limits.cooldown_out_s, low, high, DEFAULT.idle_s)
        return Loop(fleet_of(self.config), limits, terms, lag_s=5.0, sizes_known=self.sizes_known)

    def life(self) -> Life:
        """Return its begin."""
        start = replace(self.config, initial=self.config.minimum)
        return Life(self.loop, start, self.trace, DAYS * DAY_MIN, self.seed, START)


# Cases.


def fleets() -> tuple[tuple[str, SimulationConfig], ...]:
    """Return the fleets of the real half: `live-like`, five types of two families, and two types that boot slowly."""
    known = preset("live-like")

    def fleet(
        types: Sequence[tuple[int, float]], limits: Sequence[int], low_s: float, high_s: float
    ) -> SimulationConfig:
        kinds = tuple(VmType(f"type-{k}", c, 4.0 * c, price) for k, (c, price) in enumerate(types))
        least = (1, *(0 for _ in types[1:]))
        world = replace(known, types=kinds, limits=tuple(limits), minimum=least, initial=least, speed=())
        return replace(world, boot_low_s=low_s, boot_high_s=high_s, boot_lows_s=(), boot_highs_s=())

    five = fleet([(2, 0.086), (4, 0.17), (4, 0.172), (8, 0.344), (16, 0.68)], (8, 8, 6, 6, 3), 70.0, 150.0)
    slow = fleet([(4, 0.172), (8, 0.344)], (12, 10), 180.0, 420.0)
    return (
        ("live-like", known),
        ("five types", replace(five, waiting_price_per_hour=0.05)),
        ("slow boots", replace(slow, waiting_price_per_hour=0.1)),
    )


def real_cases(which: str, folders: Sequence[Path]) -> Iterator[TestCase]:
    """Yield cases of the logs in turn: of each its stretches of a set, with loads and fleets that differ."""
    each = [_of_log(log, which, path) for log in LOGS for path in [_found(log, folders)] if path is not None]
    number = 0
    while each:
        for cases in list(each):
            one = next(cases, None)
            if one is None:
                each.remove(cases)
            else:
                number += 1
                yield one


def _found(log: Log, folders: Sequence[Path]) -> Path | None:
    return next((folder / log.file for folder in folders if (folder / log.file).exists()), None)


def _of_log(log: Log, which: str, path: Path) -> Iterator[TestCase]:
    parity, span_days = int(which == BARS), DAYS / log.slower
    stretches = [n for n in range(int(log.days / span_days)) if n % 2 == parity]
    # Far apart first, so that few cases are of all of the log.
    order = [stretches[k] for k in np.random.default_rng(11).permutation(len(stretches))]
    for turn in range(4):
        for place, stretch in enumerate(order):
            kind = place + turn * (1 + len(order))
            load, run_scale = SCALES[kind % len(SCALES)]
            name, config = fleets()[(kind + turn) % 3]
            trace = _stretch(path, log, stretch * span_days, span_days, load * config.max_cores, run_scale)
            if trace is not None:
                case = f"{log.name} {stretch} load {load:g} runs {run_scale:g} {name}"
                yield TestCase(case, "real", f"{log.name} {stretch}", config, trace, BOOT_SEED + 100 * stretch + kind)


@cache
def _whole(path: Path) -> Trace:
    """Return a log as one-core jobs, on its own clock."""
    return read_swf(path, SwfOptions(from_s=0.0))[0]


def _stretch(path: Path, log: Log, from_day: float, days: float, cores: float, run_scale: float) -> Trace | None:
    """Return some days of a log, thinned to fill `cores` in the mean; None for fewer than 300 jobs."""
    whole = _whole(path)
    since, until = np.searchsorted(whole.arrival_s, [from_day * DAY_S, (from_day + days) * DAY_S])
    arrival_s = (whole.arrival_s[since:until] - from_day * DAY_S) * log.slower
    service_s = whole.service_s[since:until] * run_scale
    share = min(cores * DAYS * DAY_S / max(service_s.sum(), 1.0), MOST_JOBS / max(service_s.size, 1), 1.0)
    which = np.random.default_rng(17).random(service_s.size) <= share
    return make_trace(whole.name, arrival_s[which], service_s[which]) if which.sum() >= 300 else None


def drawn_cases(which: str) -> Iterator[TestCase]:
    """Yield cases of drawn fleets."""
    seed = DRAWN_SEEDS[which]
    while True:
        fleet = lessons.fleet_of(seed, DRAWN_TYPES, DRAWN_LIMITS)
        loads = int(np.ceil(DAYS * DAY_S / fleet.span_s))
        if fleet.trace(0).jobs * loads <= MOST_JOBS:
            parts = [fleet.trace(number) for number in range(loads)]
            arrivals = np.concatenate([k * fleet.span_s + part.arrival_s for k, part in enumerate(parts)])
            order = np.argsort(arrivals, kind="stable")
            lengths = np.concatenate([part.service_s for part in parts])
            trace = make_trace(f"fleet {seed}", arrivals[order], lengths[order])
            name = f"fleet {seed} {fleet.load}"
            yield TestCase(name, "drawn", name, fleet.config, trace, BOOT_SEED + seed, fleet.sizes_known)
        seed += 1


# One case.


@dataclass(slots=True)
class CaseResult:
    """Dollars of days 2 and 3. changes: horizon and idle seconds by day; found: the result of the tuner each night."""

    name: str
    half: str
    cluster: str
    default: float
    candidate: float
    tuned: float
    hindsight: float
    best: tuple[float, float]
    scorer: float | None = None
    changes: list[tuple[float, float]] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    rolled_back: int = 0


def learner(case: TestCase, life: Life) -> Learner:
    """Return the fleet as its ledger has it by now."""
    return learner_of(life.recorded(), None, ModelShelf(Path(".")))


def recorded_day(case: TestCase) -> Life:
    """Return a case after its first day, under DEFAULT."""
    life = case.life()
    life.live(DAY_MIN, DEFAULT)
    return life


def run_case(case: TestCase, with_scorer: bool) -> CaseResult:
    """Live a case in every way."""
    tuned, now, rolled_back, rests = recorded_day(case), DEFAULT, 0, False
    changes, nights, changed_s = [], [], 0.0
    for _ in range(DAYS - 1):
        if not rests:
            found = tune(learner(case, tuned), now, play=simulate)
            nights.append(asdict(found))
            if found.setting is not None and found.may_be_used:
                changed_s = changed_s if now != DEFAULT else tuned.now_s
                now = found.setting
        changes.append((now.horizon_s, now.idle_s))
        for _ in range(24 // WATCH_HOURS):
            tuned.live(60 * WATCH_HOURS, now)
            if now != DEFAULT and loss_of(learner(case, tuned), DEFAULT, changed_s, play=simulate).is_loss:
                now, rests, rolled_back = DEFAULT, True, rolled_back + 1
                changes.append((now.horizon_s, now.idle_s))
    costs = {setting: _later(case, setting) for setting in (DEFAULT, CANDIDATE, *HINDSIGHT)}
    best = min(costs, key=costs.__getitem__)
    return CaseResult(
        case.name,
        case.half,
        case.cluster,
        costs[DEFAULT],
        costs[CANDIDATE],
        sum(tuned.costs[DAY_MIN:]),
        costs[best],
        (best.horizon_s, best.idle_s),
        _scorer(case) if with_scorer else None,
        changes,
        nights,
        rolled_back,
    )


def _later(case: TestCase, setting: RuleSetting) -> float:
    life = case.life()
    for _ in range(DAYS * DAY_MIN):
        life.step(_policy(case, setting), setting.idle_s)
    return sum(life.costs[DAY_MIN:])


def _policy(case: TestCase, setting: RuleSetting) -> QueueRulePolicy:
    terms = case.loop.terms
    return QueueRulePolicy(setting.horizon_s, 120.0 if terms is None else terms.job_core_s)


def _scorer(case: TestCase) -> float:
    """Return the dollars of days 2 and 3 under the shipped scorer with the default."""
    loop = replace(case.loop, idle_s=DEFAULT.idle_s, models=ModelShelf(Path(".")))
    start = replace(case.config, initial=case.config.minimum)
    model = f"model:{shipped_scorer()}"
    played = play(loop, start, case.trace, (model,) * (DAYS * DAY_MIN), case.seed, START, lead=DAY_MIN)
    return played.cost


# Nothing to be gained.


def false_changes(cases: Sequence[TestCase], years: int) -> tuple[float, float]:
    """Return changes, and nights on which DEFAULT would be changed, per simulated year; cases: whose days are drawn."""
    changes = nights = 0
    for year in range(years):
        case = cases[year % len(cases)]
        now, days, guessed_s = DEFAULT, NullDays(case), guess_s(learner(case, recorded_day(case)))
        drawn = np.random.default_rng([23, year]).integers(DAYS, size=NIGHTS)
        for night in range(1, NIGHTS + 1):
            newest = drawn[:night][-round(MOST_DAYS) :].tolist()
            costs, count = days.of(newest), float(len(newest))
            nights += choose(DEFAULT, count, costs, guessed_s).setting is not None
            changed = choose(now, count, costs, guessed_s).setting
            changes += changed is not None
            now = changed or now
    return changes / years, nights / years


class NullDays:
    """The days of a case under each setting, with costs scaled so that all settings cost the same in the long run."""

    def __init__(self, case: TestCase) -> None:
        self._case, self._known = case, dict[RuleSetting, Floats]()

    def costs(self, setting: RuleSetting) -> Floats:
        """Return the dollars of each minute by day, shape (DAYS, 1440)."""
        if setting not in self._known:
            life = self._case.life()
            for _ in range(DAYS * DAY_MIN):
                life.step(_policy(self._case, setting), setting.idle_s)
            own = np.array(life.costs).reshape(DAYS, DAY_MIN)
            usual = own if setting == DEFAULT else self.costs(DEFAULT)
            self._known[setting] = own * usual.sum() / own.sum()
        return self._known[setting]

    def of(self, drawn: Sequence[int]) -> Costs:
        """Return the costs of these days, the oldest first, for the tuner."""

        def costs(setting: RuleSetting, days: float, seed: int, boots: float) -> Floats:
            return self.costs(setting)[list(drawn[-round(days) :])].reshape(-1)

        return costs


# Figures.


def interval(ratios: Sequence[float], clusters: Sequence[str]) -> tuple[float, float, float]:
    """Return the mean of the ratios and its interval: 95 % of the resamples of clusters."""
    names = sorted(set(clusters))
    sums = np.array([sum(r for r, c in zip(ratios, clusters, strict=True) if c == name) for name in names])
    counts = np.array([clusters.count(name) for name in names], dtype=np.float64)
    drawn = np.random.default_rng(3).integers(len(names), size=(RESAMPLES, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return float(np.mean(ratios)), low, high


def figures_of(results: Sequence[CaseResult]) -> dict[str, float | None]:
    """Return the figures of finished cases."""
    found: dict[str, float | None] = {}
    for half in ("drawn", "real"):
        own = [one for one in results if one.half == half]
        clusters = [one.cluster for one in own]
        ways: dict[str, list[float | None]] = {
            f"{half}_ratio": [one.tuned / one.default for one in own],
            f"{half}_over_new_default": [one.tuned / one.candidate for one in own],
            f"candidate_{half}": [one.candidate / one.default for one in own],
            f"hindsight_{half}": [one.hindsight / one.default for one in own],
            f"scorer_{half}": [None if one.scorer is None else one.scorer / one.default for one in own],
        }
        for name, values in ways.items():
            known = [value for value in values if value is not None]
            figures = interval(known, clusters) if known and len(known) == len(own) else (None, None, None)
            found |= dict(zip((name, f"{name}_low", f"{name}_high"), figures, strict=True))
    worst = [one.tuned / one.default for one in results]
    found["worst_ratio"] = max(worst, default=None)
    found["worst_over_new_default"] = max((one.tuned / one.candidate for one in results), default=None)
    found["changed_cases"] = sum(
        any(tuple(c) != (DEFAULT.horizon_s, DEFAULT.idle_s) for c in one.changes) for one in results
    )
    found["rolled_back"] = sum(one.rolled_back for one in results)
    return found


TARGETS = (
    Target("drawn_ratio", 0.85),
    Target("real_ratio", 0.99),
    Target("drawn_over_new_default", 0.92),
    Target("real_over_new_default", 1.0),
    Target("worst_ratio", 1.02),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the cases; exit status 1 for a missed target."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--cases", type=int, help="cases of each half (default: all of the set)")
    parser.add_argument("--set", choices=(DEVELOPMENT, BARS), default=BARS, help="cases to run (default: bars)")
    parser.add_argument("--logs", type=Path, help="a folder with further logs")
    parser.add_argument("--without-scorer", action="store_true", help="leave the shipped scorer out")
    parser.add_argument("--years", type=int, default=NULL_YEARS, help="simulated years in which nothing is gained")
    asked = parser.parse_args(given)
    count = asked.cases or EACH[asked.set]
    folders = [LOGS_FOLDER, *([asked.logs] if asked.logs else [])]
    real, drawn = (list(islice(found, count)) for found in (real_cases(asked.set, folders), drawn_cases(asked.set)))
    kept = Kept(asked.directory / "self_tuning.jsonl" if asked.directory else None)
    cases = [case for pair in zip_longest(drawn, real) for case in pair if case is not None]
    results = []
    for number, case in enumerate(cases, start=1):
        results.append(kept.result(case, not asked.without_scorer))
        one = results[-1]
        progress(f"{number} of {len(cases)}: {one.name}: {one.tuned / one.default:.3f}, {one.changes}")
    figures = figures_of(results)
    figures["apart"] = max(
        apart(case.loop, replace(case.config, initial=case.config.minimum), case.trace, DAY_MIN, DEFAULT, case.seed)
        for case in cases[:APART_CASES]
    )
    false = false_changes(real, asked.years) if asked.years else (None, None)
    figures["false_changes_per_year"], figures["false_nights_per_year"] = false
    gate = false_promotions_per_year(GATE_YEARS * asked.years, seed=0) if asked.years else None
    for name, end in (("", "mean"), ("_low", "low"), ("_high", "high")):
        figures[f"false_promotions_per_year{name}"] = None if gate is None else getattr(gate, end)
    notes = {"set": asked.set, "cases": [asdict(one) for one in results]}
    return report("self_tuning", figures, as_json=asked.json, packages=("numpy",), targets=TARGETS, notes=notes)


class Kept:
    """Results of cases in a file, so that a run that was stopped continues; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._version = path, code_version(SOURCES)
        self._known: dict[str, CaseResult] = {}
        for line in path.read_text("utf-8").splitlines() if path is not None and path.exists() else ():
            version, name, found = json.loads(line)
            if version == self._version:
                self._known[name] = CaseResult(**found)

    def result(self, case: TestCase, with_scorer: bool) -> CaseResult:
        """Return the result of a case, run where it is not known."""
        if case.name not in self._known or (with_scorer and self._known[case.name].scorer is None):
            self._known[case.name] = run_case(case, with_scorer)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([self._version, case.name, asdict(self._known[case.name])]) + "\n")
        return self._known[case.name]


if __name__ == "__main__":
    sys.exit(main())
