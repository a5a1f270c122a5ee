"""What learning every week brings on recorded logs: the shipped scorer, a rule tuned once, `learn` weekly, hindsight.

Logs of benchmarks/logs at full length and in real time, in the `live-like` world, each at some scalings of load and
each also with a change in the middle: from then on jobs take CHANGED times as long, one of CHANGED is kept, so that
the work stays, and they come in bunches every BUNCHED_S. A week is played from an empty fleet to the end of its jobs.

    shipped       the release scorer beside the queue rule's shipped setting, frozen
    tuned once    the queue rule, tuned on the first week
    learn         after each week one round on the last WEEKS_KEPT weeks with the functions of `trimtab learn
                  autoscaling`: the rule is tuned and the scorer in use fine-tuned on the first windows. The cheapest
                  on the next, of both, the release and the rule alone, is held to what decides now by the gate, on the
                  later two fifths, in the weeks in which the account of alpha allows a test. The setting of the rule,
                  which a round writes for people to set, is set here
    hindsight     the setting of the queue rule that costs least on the very week

After each week the watch plays it on other boots, as what decided and as what decided before the last promotion; more
than REGRET dearer takes the promotion back. The record of a round is the trace itself: nothing is lost between
simulator and ledger here (`tests/trainer/learning` has that way). Week one is left out of all figures: nothing is
learnt before it.

learn_vs_shipped, learn_vs_once, learn_vs_hindsight: cost of `learn` by those, mean over logs, scalings and changes.
shipped_vs_hindsight: the same of the shipped one. halfway: what `learn_vs_shipped` would be at half of the distance to
hindsight. worst_week: the greatest ratio of `learn` to shipped in a week. promotions, rolled_back: how many.
regretted_promotions: those that a later week regrets by more than REGRET, and that the watch left in place.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import Target, arguments, progress, report
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.units import DAY_S, HOUR_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.branching import BranchedEpisodes
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import SwfOptions, read_swf
from trainer.autoscaling.lessons import HORIZONS_S, IDLE_S, Loads, cut_out, loads_of, rule_for_loads
from trainer.autoscaling.scorer import FINE, THE_RULE, Policy, Recipe, Scorer, costs_of, own_plan
from trainer.autoscaling.scorer_runs import SHIPPED_SCORER, run, scorer_named
from trainer.kit.checkpoint import plain
from trainer.kit.files import code_version, replace_file
from trainer.learning.fleet import SEEDS
from trainer.promotion.alpha import Spent, left, next_s
from trainer.promotion.gate import Limits, Trial, judge

WEEK_S = 7.0 * DAY_S
LOGS_FOLDER = Path(__file__).parent / "logs"
WEEKS_KEPT = 4
"""`trimtab learn` uses the last 28 days."""
CHANGED, BUNCHED_S = 3, 4.0 * HOUR_S
REGRET = 0.02
BOOTS, WATCH_BOOTS = 4, 8
"""Boot seeds of a played week, and of the watch: of two, a week of long jobs costs up to 3 % more or less."""
WEEK_SEED, JUDGED_SEED, WATCH_SEED = 3_700_000_000, 3_600_000_000, 3_500_000_000
"""The first of a week, of the gate, and of the watch."""
HELD_OUT_SHARE = 0.4
THIN_SEED = 17
SOURCES = (
    "domain",
    "simulator",
    "trainer/autoscaling",
    "trainer/learning",
    "trainer/promotion",
    "benchmarks/learning.py",
)


@dataclass(frozen=True, slots=True)
class Log:
    """A recorded log: its file, weeks, and mean shares of the cores of the fleet that its scalings offer."""

    name: str
    file: str
    weeks: int
    loads: tuple[float, float, float]


LOGS = (
    Log("nasa", "NASA-iPSC-1993-3.1-cln.swf.gz", 13, (0.25, 0.15, 0.38)),
    Log("hpc2n", "HPC2N-2002-first-jobs.swf.gz", 8, (0.35, 0.2, 0.5)),
)
"""The first scaling is that of the short form."""
CONFIG = preset("live-like")


@dataclass(frozen=True, slots=True)
class Deciding:
    """What decides: a setting of the queue rule, and the scorer beside it, None where the rule decides alone."""

    rule: RuleSetting
    scorer: Scorer | None = None

    @property
    def policy(self) -> Policy:
        """Weights, margin and limit of idle minutes."""
        return THE_RULE if self.scorer is None else self.scorer.policy

    def costs(self, traces: Sequence[Trace], seed: int, boots: int) -> list[float]:
        """Return dollars of each trace, the mean over boot seeds."""
        return [float(cost) for cost in costs_of(CONFIG, self.rule, traces, [self.policy], seed, boots, map)[0]]

    def week(self, trace: Trace, number: int) -> float:
        """Return dollars of one week."""
        return self.costs([trace], WEEK_SEED + 10 * number, BOOTS)[0]


@cache
def whole(log: Log, load: float) -> Trace:
    """Return a log as one-core jobs, thinned to offer so much of the fleet's cores in the mean, or whole."""
    every, _ = read_swf(LOGS_FOLDER / log.file, SwfOptions(from_s=0.0, hours=log.weeks * 168.0))
    share = min(load * CONFIG.max_cores * log.weeks * WEEK_S / every.work_core_s, 1.0)
    return kept(every, np.random.default_rng(THIN_SEED).random(every.jobs) <= share, f"{log.name} at {load:g}")


def kept(trace: Trace, which: np.ndarray[Any, np.dtype[np.bool_]], name: str) -> Trace:
    """Return some jobs of a trace."""
    return make_trace(name, trace.arrival_s[which], trace.service_s[which])


def changed(trace: Trace, from_s: float) -> Trace:
    """Return the trace whose jobs from a moment on are longer, fewer and bunched."""
    later = trace.arrival_s >= from_s
    which = ~later | (np.random.default_rng(THIN_SEED + 1).random(trace.jobs) < 1.0 / CHANGED)
    arrival_s = np.where(later, np.floor(trace.arrival_s / BUNCHED_S) * BUNCHED_S + BUNCHED_S / 2.0, trace.arrival_s)
    service_s = np.where(later, CHANGED * trace.service_s, trace.service_s)
    order = np.argsort(arrival_s[which], kind="stable")
    return make_trace(f"{trace.name}, changed", arrival_s[which][order], service_s[which][order])


def spans_of(trace: Trace, count: int, span_s: float, name: str) -> list[Trace]:
    """Return the jobs span by span, one of them a trace; a span with fewer than two jobs is left out."""
    places = (trace.arrival_s // span_s).astype(int)
    return [
        cut_out(trace, k * span_s, (k + 1) * span_s, f"{trace.name} {name} {k + 1}")
        for k in range(count)
        if (places == k).sum() > 1
    ]


def in_hindsight(week: Trace) -> RuleSetting:
    """Return the setting of the queue rule that costs least on this very week."""
    settings = [RuleSetting(*one) for one in product(sorted({*HORIZONS_S, RuleSetting().horizon_s}), IDLE_S)]
    costs = [BranchedEpisodes(CONFIG, week, one).play(WEEK_SEED).cost for one in settings]
    return settings[int(np.argmin(costs))]


def one_round(
    record: Trace, now: Deciding, recipe: Recipe, place: Path, account: dict[str, Spent], at_s: float
) -> tuple[Deciding | None, str]:
    """Return what a round on this record puts into use, None when what decides now stays, and why.

    account: of the tests so far, to which this round's is added. at_s: the end of the record.
    """
    if next_s(account, at_s) > at_s:
        return None, "too little alpha is left"
    try:
        cut = loads_of([record])
    except BadInput:
        return None, "too little is recorded"
    windows = [*cut.learnt, *cut.left_out]
    count = len(windows) - max(round(HELD_OUT_SHARE * len(windows)), 1)
    held_out, end_s = windows[count:], cut.window_s * int(windows[count].name.rpartition("#")[2])
    inner = inner_loads(record, windows[:count], cut.window_s, end_s)
    rule = rule_for_loads(CONFIG, inner, 0.0)
    release = scorer_named(SHIPPED_SCORER)
    start = now.scorer or release
    trained = run(own_plan(CONFIG, inner, rule, recipe, 0, start), place)
    tried = {"the release": Deciding(rule, release), "the scorer in use": Deciding(rule, start)}
    alone = Deciding(rule)
    # Neither was trained on any of these windows: together they tell more than those that choose.
    if sum(alone.costs(windows[:count], JUDGED_SEED, 1)) < sum(
        tried["the release"].costs(windows[:count], JUDGED_SEED, 1)
    ):
        tried["the tuned rule"] = alone
    if trained.figures["own/used"]:
        tried["new weights"] = Deciding(rule, trained)
    costs = {name: sum(one.costs(inner.left_out, JUDGED_SEED, SEEDS)) for name, one in tried.items()}
    best = min(costs, key=lambda name: costs[name])
    if costs[best] >= sum(now.costs(inner.left_out, JUDGED_SEED, SEEDS)):
        return None, f"{best} does not cost less on the windows that choose"
    here, there = (one.costs(held_out, JUDGED_SEED, SEEDS) for one in (now, tried[best]))
    trials = [Trial(w.name, "own", w.name, 0, n, s) for w, n, s in zip(held_out, here, there, strict=True)]
    alpha = left(account, at_s)
    account[record.name] = Spent(at_s, alpha)
    judged = judge(trials, Limits(1.0 - alpha))
    if not judged.passed:
        return None, f"{best}: {'; '.join(judged.reasons)}"
    return tried[best], f"{best}, {judged.overall.relative.mean:+.1%} on the held-out windows"


def inner_loads(record: Trace, earlier: Sequence[Trace], window_s: float, end_s: float) -> Loads:
    """Return the earlier windows as loads; the later two fifths of them judge new weights."""
    count = len(earlier) - max(round(HELD_OUT_SHARE * len(earlier)), 1)
    until_s = min(window_s * int(earlier[count].name.rpartition("#")[2]), end_s)
    return Loads((cut_out(record, 0.0, until_s, "part"),), tuple(earlier[:count]), tuple(earlier[count:]), window_s)


@dataclass(slots=True)
class Week:
    """Dollars of a week from the second one on, and what happened after it."""

    shipped: float
    once: float
    learn: float
    hindsight: float
    before: float | None
    promoted: str = ""
    rolled_back: bool = False


def play(log: Log, load: float, with_change: bool, recipe: Recipe, place: Path) -> list[Week]:
    """Play all weeks of a log at a scaling."""
    trace = whole(log, load)
    if with_change:
        trace = changed(trace, math.floor(log.weeks / 2) * WEEK_S)
    weeks = spans_of(trace, log.weeks, WEEK_S, "week")
    shipped = Deciding(RuleSetting(), scorer_named(SHIPPED_SCORER))
    first_days = tuple(spans_of(weeks[0], 7, DAY_S, "day"))
    once = Deciding(rule_for_loads(CONFIG, Loads((weeks[0],), first_days, (), DAY_S), 0.0))
    now, before = shipped, None
    found: list[Week] = []
    account: dict[str, Spent] = {}
    for number, week in enumerate(weeks[1:], start=1):
        first = max(number - WEEKS_KEPT, 0)
        record = cut_out(trace, first * WEEK_S, number * WEEK_S, f"{trace.name} to week {number}")
        if found and found[-1].rolled_back:
            why, promoted = "rolled back", None
        else:
            promoted, why = one_round(record, now, recipe, place / f"week-{number}", account, number * WEEK_S)
        if promoted is not None:
            before, now = now, promoted
        row = Week(
            shipped.week(week, number),
            once.week(week, number),
            now.week(week, number),
            Deciding(in_hindsight(week)).week(week, number),
            None if before is None else before.week(week, number),
            why if promoted is not None else "",
        )
        if before is not None:
            lived, other = (one.costs([week], WATCH_SEED, WATCH_BOOTS)[0] for one in (now, before))
            if lived > (1.0 + REGRET) * other:
                now, before, row.rolled_back = before, None, True
        found.append(row)
        progress(
            f"{trace.name} week {number + 1}: learn {row.learn:.2f} $, shipped {row.shipped:.2f}, once {row.once:.2f}, "
            f"hindsight {row.hindsight:.2f}; {why}{'; rolled back after it' if row.rolled_back else ''}"
        )
    return found


def kept_play(log: Log, load: float, with_change: bool, recipe: Recipe, directory: Path) -> list[Week]:
    """Play, or read what was played by the same code and recipe."""
    facts = {"recipe": plain(asdict(recipe)), "code": code_version(SOURCES), "start": scorer_named(SHIPPED_SCORER).seed}
    name = f"{log.name}-{load:g}{'-changed' if with_change else ''}"
    path = directory / f"{name}.json"
    if path.is_file():
        data = json.loads(path.read_bytes())
        if data["facts"] == json.loads(json.dumps(facts)):
            return [Week(**row) for row in data["weeks"]]
    with tempfile.TemporaryDirectory() as place:
        weeks = play(log, load, with_change, recipe, Path(place))
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"facts": facts, "weeks": [asdict(week) for week in weeks]}, indent=1) + "\n")
    return weeks


def figures_of(plays: Sequence[Sequence[Week]]) -> dict[str, float]:
    """Return the figures; every play counts alike."""

    def mean(ours: str, theirs: str) -> float:
        sums = [[sum(getattr(week, name) for week in weeks) for name in (ours, theirs)] for weeks in plays]
        return float(np.mean([one / other for one, other in sums]))

    every = [week for weeks in plays for week in weeks]
    shipped = mean("shipped", "hindsight")
    regretted = sum(
        week.before is not None and week.learn > (1.0 + REGRET) * week.before and not week.rolled_back for week in every
    )
    return {
        "learn_vs_shipped": mean("learn", "shipped"),
        "learn_vs_once": mean("learn", "once"),
        "learn_vs_hindsight": mean("learn", "hindsight"),
        "shipped_vs_hindsight": shipped,
        "halfway": 1.0 - max(1.0 - mean("hindsight", "shipped"), 0.0) / 2.0,
        "worst_week": max(week.learn / week.shipped for week in every),
        "promotions": float(sum(bool(week.promoted) for week in every)),
        "rolled_back": float(sum(week.rolled_back for week in every)),
        "regretted_promotions": float(regretted),
        "weeks": float(len(every)),
    }


def cases(full: bool, most_weeks: int | None) -> Iterator[tuple[Log, float, bool]]:
    """Yield logs, scalings and whether there is a change; the short form has one scaling."""
    for log in LOGS:
        short = log if most_weeks is None else replace(log, weeks=min(log.weeks, most_weeks))
        for load in log.loads if full else log.loads[:1]:
            for with_change in (False, True):
                yield short, load, with_change


def main(given: Sequence[str] | None = None) -> int:
    """Play and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--full", action="store_true", help="three scalings of load instead of one")
    parser.add_argument("--keep", type=Path, help="keeps what was played, so that a run that was stopped goes on")
    parser.add_argument("--lessons", type=int, help=f"lessons of each round of a training (default {FINE.rounds[0]})")
    parser.add_argument("--weeks", type=int, help="at most so many weeks of each log")
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    recipe = FINE if asked.lessons is None else replace(FINE, rounds=(asked.lessons,) * len(FINE.rounds))
    with tempfile.TemporaryDirectory() as scratch:
        directory = asked.keep or Path(scratch)
        plays = {
            f"{log.name} {load:g}{' changed' if with_change else ''}": kept_play(
                log, load, with_change, recipe, directory
            )
            for log, load, with_change in cases(asked.full, asked.weeks)
        }
    figures = figures_of(list(plays.values()))
    each = {name: f"learn/shipped {figures_of([weeks])['learn_vs_shipped']:.3f}" for name, weeks in plays.items()}
    return report(
        "learning",
        figures,
        as_json=asked.json,
        packages=("torch", "numba", "numpy"),
        targets=(
            Target("learn_vs_shipped", max(0.97, figures["halfway"])),
            Target("worst_week", 1.01),
            Target("regretted_promotions", 0.0),
        ),
        notes={"lessons": "+".join(map(str, recipe.rounds)), **each},
    )


if __name__ == "__main__":
    sys.exit(main())
