"""Why C2MARL as published does not hold here: its parts are replaced one by one, with the same CPU seconds each.

Forms, each with one change to an earlier one:

    rates            the constant rates that every search begins at; nothing is learnt
    paper            VDN with primal-dual, preset `paper`, on one week: a rate by subscriber and hour
    paper-weeks      `paper` on many weeks
    hour-week        `paper` with its estimator replaced: the same action and observation, one week; CMA-ES over
                     parameters, scored by the chance of a broken promise without sampling
    hour-weeks       `hour-week` on many weeks
    request-weeks    `hour-weeks` with an action for each request; the observation is taken again for it
    machine-weeks    `request-weeks` with the observation of the machine that best fit would take at each level: the
                     rule of `--preset machine`
    machine-week     `machine-weeks` on one week

The hour forms take the first level of at least b_n + d(t mod 24) + v o, with o the seven entries of the subscriber's
published observation; request-weeks has the request in place of the requests of its hour. One week: the scenario's
first. Many: the pool of `--preset machine`, or for VDN 40 redrawn and all known weeks, of which each episode draws one.
No form sees the hour of the week. Linear forms have fewer parameters than the published networks.

Rule, written before the runs: every form gets --cpu-s seconds of one core and seed. A short measurement turns them into
numbers of generations or episodes; these and the seconds they took are in the notes. A form is judged on --unseen
weeks of the evaluation stream twice: as trained, and at the smallest common offset of its rates, in steps of .02, with
which the worst of 16 redrawn and the known validation weeks has at most .9 of the allowed risk and their mean at most
.5. Saved cores, core-hours and machines compare only at that equal promise (`..._safe_...`); hot: the chance that a
week breaks it, without sampling. Figures are means over the seeds, `hot_worst` is the worst week of all seeds.

The estimator, on redrawn weeks. From the constant rates, one rate of one subscriber and hour is lowered by one level.
`credit` is the mean gain of the reward by it. `noise_over_credit` is the standard deviation of the published return
(discount .9, hot hours sampled, 5 % explored rates), averaged over its hours, divided by that credit, at the break-even
price of a hot hour; `..._at_limit` at 100, the price at which `paper` ends. `exact_noise_over_credit` has the exact
chance in place of sampled hot hours. `reroll` is the standard deviation over decisions of the change in expected hot
hours of the week, without any sampling, divided by the share of one decision in the change by all of them; `moved_vms`
the VMs that then land on another machine. `search_noise` is the standard error of the mean change, divided by that
mean, where one subscriber is lowered in all hours of ten weeks: the median over subscribers.

With --directory, finished rows are stored in ablation.jsonl, and the same command continues from them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.kernel.text import columns
from benchmarks.report import arguments, progress, report
from domain.rules.oversubscription.request_rule import NEUTRAL, RequestRule
from domain.rules.oversubscription.usage import moments_of
from simulator.compilation import compiled
from simulator.oversubscription.batch import OversubscriptionBatch, observe_cluster
from simulator.oversubscription.engine import assess_hour, clear, depart, one, place, place_rows, prefill
from simulator.oversubscription.layout import (
    Cluster,
    Copies,
    Floats,
    Guard,
    Tables,
    Weeks,
    cluster_layout,
    empty_copies,
    stack,
    unguarded,
)
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor, Placement, count_at_least, placement_of
from trainer.kit.files import code_version
from trainer.oversubscription import c2marl, rule_training
from trainer.oversubscription.evaluation import ResultsFile
from trainer.oversubscription.rule_runs import MEAN, WORST
from trainer.oversubscription.rule_training import (
    DAY,
    Played,
    Stage,
    best_point,
    decoded,
    first_point,
    raised,
    start_rates,
    training_weeks,
    validation_weeks,
)
from trainer.oversubscription.unseen import TRAINING, arrivals_of, unseen_week

SOURCES = (
    *("domain/rules/oversubscription", "domain/observations/oversubscription.py", "simulator/oversubscription"),
    *(f"trainer/oversubscription/{name}.py" for name in ("c2marl", "evolution", "rule_training", "unseen")),
    "benchmarks/oversubscription_ablation.py",
)
OBSERVED = 7
ALPHA, REDRAWN, VALIDATION = 0.95, 40, 16
OFFSETS = tuple(round(0.02 * i, 2) for i in range(41))
MEASURES = ("cores", "core_hours", "machines")
GAMMA, EXPLORED, LIMIT_PRICE, WEEKS = 0.9, 0.05, 100.0, 10


@dataclass(frozen=True, slots=True)
class Form:
    """What a policy decides for, and by."""

    name: str
    network: bool = False
    request: bool = False
    machine: bool = False
    many: bool = False


FORMS = (
    Form("rates"),
    Form("paper", network=True),
    Form("paper-weeks", network=True, many=True),
    Form("hour-week"),
    Form("hour-weeks", many=True),
    Form("request-weeks", request=True, many=True),
    Form("machine-weeks", request=True, machine=True, many=True),
    Form("machine-week", request=True, machine=True),
)
Play = Callable[[int, float], Played]
"""A learnt policy on the week at an index, with an offset of its rates."""


# A rate by the subscriber's observation, for an hour or for each request.


@compiled
def _play(
    copies: Copies,
    weeks: Weeks,
    cluster: Cluster,
    guard: Guard,
    tables: Tables,
    warm: bool,
    request: bool,
    wanted: Floats,
    weights: Floats,
    offset: float,
    by_hour: Floats,
) -> float:
    """Play one week and return the chance that the promise is broken; wanted: (hours, N), weights: (7,)."""
    state = one(copies, 0)
    clear(state, cluster, 0, np.uint64(0))
    books, count = state.books[0], wanted.shape[1]
    capacity = np.array([cluster.cores, cluster.memory, cluster.network]) * cluster.machines
    seen, local = np.zeros(9, np.float32), np.zeros((1, 9), np.float32)
    rates, asked = np.ones(count), np.zeros((1, 3))
    if warm:
        prefill(state, weeks, cluster, guard, tables)
    for t in range(by_hour.shape[0]):
        books.hour = t
        depart(state, weeks, cluster, guard, tables)
        # An action for the hour is one for each subscriber; one for a request is for its own subscriber.
        first, last = (weeks.first[0, t], weeks.first[0, t + 1]) if request else (0, count)
        for at in range(first, last):
            n = weeks.subscriber[0, at] if request else at
            asked[0] = weeks.asked[0, t, n]
            if request:
                asked[0, 0], asked[0, 1], asked[0, 2] = weeks.cores[0, at], weeks.memory[0, at], weeks.network[0, at]
            observe_cluster(state.present[n : n + 1], asked, t % 24, capacity, seen, local)
            need = wanted[t, n]
            for j in range(weights.size):
                need += weights[j] * local[0, j]
            rates[n] = 1.0
            for level in guard.levels:
                if level >= need:
                    rates[n] = min(level + offset, 1.0)
                    break
            if request:
                place_rows(state, weeks, cluster, guard, tables, guard.kind, (at, at + 1), rates)
        if not request:
            place(state, weeks, cluster, guard, tables, rates)
        by_hour[t] = assess_hour(state, cluster, tables)
    return count_at_least(by_hour, cluster.violation_hours)


def row_of(placed: Placement, risk: float) -> tuple[float, ...]:
    """Return a week's row of Played; no objective here counts the machines that are saved."""
    hot = 1.0 if placed.rejects else risk
    used = (float(placed.peak_machines), placed.machines_in_use)
    return placed.s_cores or 0.0, placed.s_core_hours or 0.0, *used, np.nan, hot


class BySubscriber:
    """Weeks on which parameters b (N), d (4), v (7) are played again and again."""

    def __init__(self, scenario: Scenario, weeks: Sequence[Week], start: str, *, request: bool) -> None:
        self.scenario, self.weeks = scenario, weeks
        self._guard, self._cluster = unguarded(scenario), cluster_layout(scenario)
        self._how = (start == "warm", request)
        self._tables = Tables(*moments_of(scenario.mu, scenario.sd), 0.0)
        self._stacked = [stack(scenario, [week]) for week in weeks]
        sizes = (scenario.subscribers, max(one.cores.shape[1] for one in self._stacked))
        self._copies = empty_copies(1, *sizes, self._cluster, self._guard, observed=True)

    def play(self, point: Floats, chosen: Sequence[int], offset: float = 0.0) -> Played:
        """Play the point on the weeks at these indices, each rate raised by an offset."""
        base, day, weights = np.split(point, [len(point) - DAY - OBSERVED, len(point) - OBSERVED])
        hours = self.scenario.hours
        wanted, by_hour = RequestRule(base, np.zeros(0), day, NEUTRAL).wanted(np.arange(hours)), np.zeros(hours)
        rows = []
        for at in chosen:
            world = (self._copies, self._stacked[at], self._cluster, self._guard, self._tables)
            risk = _play(*world, *self._how, wanted, weights, offset, by_hour)
            rows.append(row_of(placement_of(self.scenario, self.weeks[at], self._copies, 0), risk))
        return Played(*np.array(rows).T)


def parametric(form: Form, scenario: Scenario, weeks: Sequence[Week], start: str) -> Callable[..., Played]:
    """Return what plays a point of a search on weeks by their index."""
    if not form.machine:
        return BySubscriber(scenario, weeks, start, request=form.request).play
    stage = Stage(scenario, weeks, start)

    def play(point: Floats, chosen: Sequence[int], offset: float = 0.0) -> Played:
        return stage.play(raised(decoded(point, scenario.subscribers), offset), chosen)

    return play


# Training.


def seconds_of(work: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of a piece of work, after a first time that compiles it."""
    work()
    since = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - since) / times


def searched(form: Form, config: rule_training.Config, seconds: float) -> tuple[Floats, dict[str, Any]]:
    """Search within the seconds, and return the point with what it took."""
    scenario = scenario_of(config.scenario)
    weeks = training_weeks(scenario, config) if form.many else [scenario.week(scenario.weeks[0])]
    play, rates = parametric(form, scenario, weeks, config.start), np.array(start_rates(scenario, config).rates)
    first = first_point(rates, False) if form.machine else np.concatenate([rates, np.zeros(DAY + OBSERVED)])
    if form.name == "rates":
        return first, {"cpu_s": 0.0}
    drawn = list(range(min(config.drawn, len(weeks))))
    generation = config.population * seconds_of(lambda: play(first, drawn), 2)
    whole, stages = seconds / generation, sum(config.generations)
    counts = tuple(max(1, round(whole * count / stages)) for count in config.generations)
    found = best_point(replace(config, generations=counts), first, np.full(len(weeks), np.nan), play)
    return found.point, {"cpu_s": found.cpu_s, "generations": list(counts)}


def learnt(form: Form, config: rule_training.Config, seconds: float) -> tuple[c2marl.Policy, dict[str, Any]]:
    """Train the published networks within the seconds, and return the greedy policy with what it took."""
    scenario = scenario_of(config.scenario)
    given: dict[str, Any] = {"scenario": config.scenario, "start": config.start, "seed": config.seed}
    if form.many:
        given |= {"weeks": scenario.weeks, "redrawn": REDRAWN, "validation": VALIDATION}
    asked = c2marl.preset("paper", **given)
    torch.set_num_threads(1)
    learner = c2marl.Learner(asked, scenario)
    episode = seconds_of(lambda: (learner.play(), learner.learn()), 3)
    episode += seconds_of(learner.evaluate, 1) / asked.evaluate_every
    asked = replace(asked, episodes=max(1, round(seconds / episode)))
    since = time.process_time()
    found = c2marl.train(asked, scenario=scenario)
    network, levels = c2marl.network_of(asked, scenario), np.array(scenario.actions)
    network.load_state_dict(dict(found.weights))

    def policy(local: NDArray[np.float32]) -> Floats:
        with torch.no_grad():
            rates: Floats = levels[network.sides_of(torch.from_numpy(local)).argmax(dim=2).numpy()]
        return rates

    spent = {"cpu_s": time.process_time() - since, "episodes": found.episodes, "price": found.price}
    return policy, spent


def greedy(policy: c2marl.Policy, scenario: Scenario, week: Week, start: str, offset: float) -> Played:
    """Play a policy that sets rates by subscriber and hour on a week, each rate raised by an offset."""
    batch = OversubscriptionBatch(scenario, [week], 1, start=start)
    batch.reset(np.zeros(1, np.int64))
    chances = np.zeros(scenario.hours)
    for t in range(scenario.hours):
        chances[t] = batch.step_rates(np.minimum(policy(batch.local) + offset, 1.0))[2][0]
    return Played(*np.array([row_of(batch.placement(0), count_at_least(chances, scenario.violation_hours))]).T)


# Judgement.


def together(rows: Sequence[Played]) -> Played:
    """Return the weeks of several results as one."""
    return Played(*(np.concatenate([getattr(row, name) for row in rows]) for name in Played.__slots__))


def safe_offset(play: Play, weeks: int, alpha: float) -> float:
    """Return the smallest offset that passes on the validation weeks at indices below `weeks`, else the largest."""
    allowed = 1.0 - alpha
    for offset in OFFSETS:
        risks: list[float] = []
        while len(risks) < weeks and max(risks, default=0.0) <= WORST * allowed:
            risks.append(float(play(len(risks), offset).risk[0]))
        if max(risks) <= WORST * allowed and float(np.mean(risks)) <= MEAN * allowed:
            return offset
    return OFFSETS[-1]


def figures_of(played: Played) -> dict[str, float]:
    """Return means over the weeks, and the worst risk."""
    means = {name: float(getattr(played, name).mean()) for name in MEASURES}
    return means | {"hot_mean": float(played.risk.mean()), "hot_worst": float(played.risk.max())}


def judged(form: Form, config: rule_training.Config, seconds: float, unseen: int) -> dict[str, Any]:
    """Train a form with a seed and return its figures, as trained and made safe."""
    scenario = scenario_of(config.scenario)
    validation, arrivals = validation_weeks(scenario, config), arrivals_of(scenario)
    weeks = [*validation, scenario.week(scenario.weeks[0]), *(unseen_week(arrivals, seed) for seed in range(unseen))]
    if form.network:
        policy, spent = learnt(form, config, seconds)

        def play(at: int, offset: float) -> Played:
            return greedy(policy, scenario, weeks[at], config.start, offset)
    else:
        point, spent = searched(form, config, seconds)
        on_weeks = parametric(form, scenario, weeks, config.start)

        def play(at: int, offset: float) -> Played:
            return on_weeks(point, [at], offset)

    offset, own = safe_offset(play, len(validation), config.alpha), len(validation)
    fresh = range(own + 1, len(weeks))
    return {
        "own": figures_of(play(own, 0.0)),
        "trained": figures_of(together([play(at, 0.0) for at in fresh])),
        "safe": figures_of(together([play(at, offset) for at in fresh])),
        "offset": offset,
        **spent,
    }


# Credit of an action, and noise of a return.


def lowered(rates: Floats, levels: Floats, n: int) -> Floats:
    """Return the rates (N,) with one level less for a subscriber."""
    changed = rates.copy()
    changed[n] = levels[max(int(np.searchsorted(levels, rates[n] - 1e-9)) - 1, 0)]
    return changed


def discounted(rewards: Floats) -> Floats:
    """Return the return from each hour on, (episodes, hours)."""
    returns = rewards.copy()
    for t in range(rewards.shape[1] - 2, -1, -1):
        returns[:, t] += GAMMA * returns[:, t + 1]
    return returns


def credit_of(config: rule_training.Config, decisions: int, episodes: int) -> dict[str, float]:
    """Return the figures of the estimator, see the head of this program."""
    scenario, levels = scenario_of(config.scenario), np.array(scenario_of(config.scenario).actions)
    week, rates = scenario.week(scenario.weeks[0]), np.array(start_rates(scenario, config).rates)
    hours, shape = scenario.hours, (scenario.hours, scenario.subscribers)
    lower = np.array([lowered(rates, levels, n)[n] for n in range(len(rates))])
    arrivals, draws = arrivals_of(scenario), np.random.default_rng(config.seed)
    pool = [Assessor(scenario, unseen_week(arrivals, seed, TRAINING), config.start) for seed in range(WEEKS)]
    known = [one.assess(rates) for one in pool]
    assessor, base, week = pool[0], known[0], pool[0].week
    asked = stack(scenario, [week]).asked[0, :, :, 0]
    open_to = np.argwhere((asked > 0.0) & (lower < rates))
    gains, changes, moved = [], [], []
    for t, n in draws.permutation(open_to)[:decisions].tolist():
        given = np.broadcast_to(rates, shape).copy()
        given[t, n] = lower[n]
        risk = assessor.assess(given)
        gains.append((rates[n] - lower[n]) * asked[t, n] / scenario.hourly_cores)
        changes.append(risk.expected_hot_hours - base.expected_hot_hours)
        moved.append(float((risk.placement.machine != base.placement.machine).sum()))
    # A subscriber that is lowered in all hours of a week: hot hours added, (N, weeks).
    added = np.array(
        [
            [one.assess(lowered(rates, levels, n)).expected_hot_hours - at.expected_hot_hours for one, at in pairs]
            for n, pairs in ((n, zip(pool, known, strict=True)) for n in range(len(rates)) if lower[n] < rates[n])
        ]
    )
    saved = float(((rates - lower) * asked.sum(axis=0)).sum()) / scenario.hourly_cores
    price = saved / float(added.mean(axis=1).sum())
    share = float(added.mean(axis=1).sum()) / len(open_to)
    error = added.std(axis=1, ddof=1) / np.sqrt(WEEKS) / np.abs(added.mean(axis=1))
    batch = OversubscriptionBatch(scenario, [week], episodes, start=config.start, cost="both")
    batch.reset(np.arange(episodes) + 7_000_000_001)
    rewards, hot, chance = (np.zeros((episodes, hours)) for _ in range(3))
    for t in range(hours):
        explored = draws.random((episodes, len(rates))) < EXPLORED
        given = np.where(explored, levels[draws.integers(len(levels), size=explored.shape)], rates)
        _, rewards[:, t], hot[:, t], _ = batch.step_rates(given)
        chance[:, t] = batch.chance
    credit = float(np.mean(gains))

    def noise(cost: Floats, weight: float) -> float:
        return float(discounted(rewards - weight * cost).std(axis=0).mean()) / credit

    return {
        "credit": credit,
        "price": price,
        "noise_over_credit": noise(hot, price),
        "noise_over_credit_at_limit": noise(hot, LIMIT_PRICE),
        "exact_noise_over_credit": noise(chance, price),
        "reroll": float(np.std(changes, ddof=1)) / abs(share),
        "moved_vms": float(np.mean(moved)),
        "search_noise": float(np.median(error)),
    }


# Program.


def rows_of(given: argparse.Namespace, results: ResultsFile) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of each form by seed: stored, or computed now."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in map(int, given.seeds.split(",")):
        config = rule_training.Config(given.scenario, start=given.start, alpha=ALPHA, seed=seed)
        config = replace(config, redrawn=REDRAWN, validation=VALIDATION)
        for form in FORMS:
            if given.forms and form.name not in given.forms.split(","):
                continue
            progress(f"{given.scenario}, {given.start}, seed {seed}: {form.name}")
            facts = {"form": asdict(form), "config": config.plain(), "cpu_s": given.cpu_s, "unseen": given.unseen}
            facts["program"] = code_version(SOURCES)
            made = results.of(facts, partial(judged, form, config, given.cpu_s, given.unseen))
            found.setdefault(form.name, []).append(made)
    return found


def table_of(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the rows as lines of text."""
    heads = ("form", "own week: saved, hot", "unseen: saved, hot mean, worst", "offset", "safe: cores, core-hours")
    rows: list[tuple[object, ...]] = [(*heads, "machines", "hot worst")]
    for name, seeds in found.items():
        own, trained, safe = ([seed[part] for seed in seeds] for part in ("own", "trained", "safe"))
        rows.append(
            (
                name,
                f"{_mean(own, 'cores'):.1%}, {_mean(own, 'hot_mean'):.1%}",
                f"{_mean(trained, 'cores'):.1%}, {_mean(trained, 'hot_mean'):.1%}, {_worst(trained):.1%}",
                "/".join(f"{seed['offset']:g}" for seed in seeds),
                f"{_mean(safe, 'cores'):.1%}, {_mean(safe, 'core_hours'):.1%}",
                f"{_mean(safe, 'machines'):.1f}",
                f"{_worst(safe):.1%}",
            )
        )
    return columns(rows)


def _mean(rows: Sequence[dict[str, float]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _worst(rows: Sequence[dict[str, float]]) -> float:
    return max(row["hot_worst"] for row in rows)


def main() -> int:
    """Train, judge, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=1)
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--scenario", default="internal_like", help="internal_like or azure_like")
    parser.add_argument("--start", default="cold", help="cold or warm (default cold)")
    parser.add_argument("--cpu-s", type=float, default=15.0, help="CPU seconds of each form and seed (default 15)")
    parser.add_argument("--seeds", default="0,1", help="separated by commas (default 0,1)")
    parser.add_argument("--unseen", type=int, default=20, help="unseen weeks (default 20)")
    parser.add_argument("--decisions", type=int, default=300, help="actions whose credit is measured (default 300)")
    parser.add_argument("--episodes", type=int, default=300, help="episodes whose noise is measured (default 300)")
    parser.add_argument("--forms", default="", help="only these, separated by commas (default all)")
    given = parser.parse_args()
    results = ResultsFile(None if given.directory is None else given.directory / "ablation.jsonl", resume=True)
    config = rule_training.Config(given.scenario, start=given.start, alpha=ALPHA)
    progress(f"{given.scenario}, {given.start}: credit of an action")
    figures: dict[str, float | None] = dict(credit_of(config, given.decisions, given.episodes))
    found = rows_of(given, results)
    for name, seeds in found.items():
        for part in ("trained", "safe"):
            rows, key = [seed[part] for seed in seeds], f"{name.replace('-', '_')}_{part}"
            figures |= {f"{key}_{one}": _mean(rows, one) for one in (*MEASURES, "hot_mean")}
            figures[f"{key}_hot_worst"] = _worst(rows)
    if not given.json:
        print("\n".join(table_of(found)))
    sizes = {name: getattr(given, name) for name in ("scenario", "start", "cpu_s", "seeds", "unseen")}
    packages = ("numba", "numpy", "torch")
    return report(
        "oversubscription_ablation", figures, as_json=given.json, packages=packages, notes=sizes | {"rows": found}
    )


if __name__ == "__main__":
    sys.exit(main())
