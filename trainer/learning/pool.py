"""The round of an oversubscription pool: from its record to rates or a rule for each request, a report, and the gate.

    record   the earlier and the later weeks of the record, as scenario folders, each with the usage measured in it
    now      the policy in use when the round begins
    fidelity the recorded policy, replayed on the later weeks, must reserve the recorded cores
             (`trainer.learning.promise_fidelity`)
    plan     the number of assessments of a search
    rates    constant rates calibrated on the earlier weeks, alone, and together with their shield
    rule     a rule for each request, trained, chosen and released on the earlier weeks (`trainer.learning.pool_rule`)
    judge    these, and the policy in use, on the later weeks and on weeks redrawn from them, with the later usage
    report   for people
    gate     the rule, or the rates and their shield, against the policy in use (`trainer.promotion.gate`), whichever
             costs less by the pool's objective and may be promoted

The bound are the constant rates that the later weeks themselves allow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.recorded_hours import AT_RATES
from agent.oversubscription.rule_model import CORE_HOURS, CORES, MACHINES
from domain.rules.oversubscription.rates import NO_MARGIN, SHIELD, Margin, RateGuard
from domain.rules.oversubscription.risk import clopper_pearson_upper
from domain.subject import Subject
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor
from trainer.kit.checkpoint import package_versions
from trainer.kit.intervals import Comparison, compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.pool_rule import (
    MOST_GENERATIONS,
    TrainedRule,
    choice_s,
    config_of,
    generation_s,
    train_rule,
)
from trainer.learning.pools import PoolRecord, export_scenario
from trainer.learning.promise_fidelity import pool_fidelity
from trainer.learning.round import Budget, Round, Stages, Truth, cpu_s
from trainer.learning.state import StageResult, plain
from trainer.learning.windows import TooLittle
from trainer.oversubscription.calibration import AUTO, CalibratedRates, calibrate
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.evaluation import SEED, policy_text
from trainer.oversubscription.policies import RatesFile, Task, policy_of, read_rates, scenario_sha256, write_rates
from trainer.oversubscription.rule_training import Config
from trainer.oversubscription.search import optimise
from trainer.oversubscription.unseen import EVALUATION, arrivals_of, unseen_week
from trainer.promotion.gate import Gate, Limits
from trainer.promotion.oversubscription import cost_of, guarded, pool_gate

OVERSUBSCRIPTION: Final = "oversubscription"
EARLIER, LATER = PARTS = "earlier", "later"
NOW, RULE, LEARNT, BOUND = "decides now", "tuned rates", "rates and shield", "bound"
REQUESTS = "rule for each request"
OF_OBJECTIVE: Final = {CORES: "cores reserved", CORE_HOURS: "core-hours reserved", MACHINES: "machines in use"}
LATER_SHARE: Final = 0.4
"""Of the recorded weeks, the latest, as of fleets (`trainer.learning.windows`)."""
LEAST_WEEKS: Final = 4
START: Final = "warm"
"""A pool's week begins with the present VMs."""
OF_FILES: Final = ("learned", "rates", "rule", "model")
"""Policies of the settings that are files."""
SEARCHES: Final = 5.0
"""Searches of a round, in units of constant rates on the earlier weeks."""
FIRST_REDRAWN: Final = 3_000
JUDGED: Final = 5
"""Policies that are judged on the later weeks."""


@dataclass(frozen=True, slots=True)
class PoolInUse(StageResult):
    """The policy in use for a pool as a text of `simulate`; budget and margin: of its shield.

    objective: the saving by which policies are compared.

    It is the result of the first stage: a promotion of this very round is not compared with itself.
    """

    STAGE: ClassVar = "now"

    pool: str
    policy: str
    budget: float
    alpha: float
    margin: Margin = NO_MARGIN
    objective: str = CORES

    def guarded(self, text: str) -> str:
        """Return a policy as the agent runs it in the pool."""
        return guarded(text, self.budget, self.margin)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How a round is done.

    evaluations: fewest and most of a search; between them the
    budget decides. episodes: of usage on each week. redrawn: new draws of weeks from the later ones. generations:
    fewest and most of the search for a rule, by the budget. rule: fields of
    `rule_training.Config` in place of the defaults.
    """

    evaluations: tuple[int, int] = (200, 3000)
    episodes: int = 300
    redrawn: int = 4
    generations: tuple[int, int] = (6, MOST_GENERATIONS)
    rule: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


def keep_weeks(folder: Path, read: Callable[[], PoolRecord]) -> str:
    """Write the earlier and the later weeks into the folder, unless they are there; return the SHA-256 of all files.

    Raises TooLittle for fewer than LEAST_WEEKS weeks, and BadInput for none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = {part: folder / part for part in (EARLIER, LATER)}
    if not all(place.is_dir() for place in places.values()):
        recorded = read()
        found = export_scenario(recorded, folder / "whole")
        numbers = [int(name[1:]) for name in found["recorded"]["weeks"]]
        if len(numbers) < LEAST_WEEKS:
            raise TooLittle(
                f"pool {recorded.pool}: {len(numbers)} weeks of {recorded.horizon_h} h are recorded, {LEAST_WEEKS} are "
                "needed: wait for more, or give more --days"
            )
        later = max(round(LATER_SHARE * len(numbers)), 1)
        cut = numbers[-later]
        export_scenario(recorded, places[LATER], range(cut, numbers[-1] + 1))
        export_scenario(recorded, places[EARLIER], range(cut))
    digest = hashlib.sha256()
    for place in places.values():
        for path in sorted(place.iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SearchPlan(StageResult):
    """Seconds of one assessment of all weeks, the assessments of a search, and the generations of the rule's."""

    STAGE: ClassVar = "plan"

    assessment_s: float
    evaluations: int
    generations: int = MOST_GENERATIONS


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in the order of the subscribers, and whether they keep the promise. budget: of their shield, if any."""

    rates: tuple[float, ...]
    feasible: bool
    facts: Mapping[str, Any]
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Calibration(StageResult):
    """Rates by label; as data they are the mapping itself."""

    STAGE: ClassVar = "rates"

    found: Mapping[str, Rates]

    def as_data(self) -> dict[str, Any]:
        """Return the mapping as JSON data."""
        return {name: plain(asdict(one)) for name, one in self.found.items()}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the rates in the data of `as_data`."""
        return cls({name: Rates(**one) for name, one in data.items()})


@dataclass(frozen=True, slots=True)
class HeldOutResult(StageResult):
    """All policies on the later and the redrawn weeks, by label: a figure for each week, and the promise.

    reserved: cost by the objective, a share of cores, core-hours or machines. hot: share of episodes with too many
    hot hours. replayed_hot_hours, recorded_*: of the later weeks with the measured usage.
    """

    STAGE: ClassVar = "judge"

    weeks: tuple[str, ...]
    texts: Mapping[str, str]
    reserved: Mapping[str, tuple[float, ...]]
    hot: Mapping[str, tuple[float, ...]]
    upper_95: Mapping[str, float]
    keeps: Mapping[str, bool]
    replayed_hot_hours: Mapping[str, tuple[int, ...]]
    recorded_hot_hours: tuple[int, ...]
    recorded_reserved: tuple[float, ...]
    feasible: Mapping[str, bool]
    against_now: Mapping[str, Comparison]


@dataclass(slots=True, kw_only=True)
class PoolRound(Round):
    """A round under way; the weeks are in the folder of its state.

    opted_out: subscribers that are reserved in full.
    """

    in_use: PoolInUse
    opted_out: frozenset[str]
    settings: PoolSettings

    @property
    def subject(self) -> Subject:
        """The pool."""
        return Subject(OVERSUBSCRIPTION, self.in_use.pool)

    @property
    def model(self) -> Path:
        """The file of the learnt rates and their shield."""
        return self.state.folder / "rates.json"

    @property
    def rule(self) -> Path:
        """The file of the rule for each request."""
        return self.state.folder / "rule.json"

    @property
    def now(self) -> PoolInUse:
        """The policy in use when the round began."""
        return self.state.result(PoolInUse)

    def stages(self) -> Stages:
        """Return the stages before the report."""
        return {
            PoolInUse: lambda _: self.in_use,
            Truth: self._fidelity,
            SearchPlan: self._plan,
            Calibration: self._rates,
            TrainedRule: self._rule,
            HeldOutResult: self._judge,
        }

    def _fidelity(self, budget: Budget) -> Truth:
        """Replay the later weeks in which nothing but the newest policy decided."""
        later, recorded, now = self._scenario(LATER), self._recorded(), self.now
        # A replay of the rule has no hours of its constant rates.
        policy, share = str(recorded["policy"]).removesuffix(AT_RATES), float(recorded["share_of_vms"])
        # A file that was in use represents itself; its name is in the settings, not in the record.
        ran = now.policy if policy.partition(":")[0] in OF_FILES else in_words(policy)
        weeks = [
            (name, share * week["requested"], share * week["reserved"])
            for name, week in recorded["weeks"].items()
            if week.get("policies", [policy]) == [policy]
        ]
        if not weeks:
            sentence = f"no later week of pool {now.pool} had one policy: its simulator was not checked"
            return Truth(True, 0.0, "", {}, sentence)
        return pool_fidelity(later, now.guarded(ran), weeks, START, now.alpha, budget)

    def _plan(self, budget: Budget) -> SearchPlan:
        """Choose the length of a search; a separate stage, so that a round that resumes has the same."""
        scenario = self._scenario(EARLIER)
        bare = [Assessor(scenario, scenario.week(name), START) for name in scenario.weeks]
        rates = np.full(scenario.subscribers, 0.5)
        # The first call compiles.
        bare[0].c_hot_r(rates)
        begun_s = cpu_s()
        for assessor in bare:
            assessor.c_hot_r(rates)
        each_s = max(cpu_s() - begun_s, 1e-4)
        week_s, config = each_s / len(bare), self._config()
        weeks = len(self._scenario(LATER).weeks) + self.settings.redrawn
        reserved_s = choice_s(week_s, config, len(bare)) + JUDGED * weeks * self.settings.episodes * week_s
        # Of the rest the rates take one half at most, the rule the other.
        evaluations = budget.affordable(2.0 * SEARCHES * each_s, self.settings.evaluations, reserved_s)
        generation = 2.0 * generation_s(week_s, config)
        return SearchPlan(each_s, evaluations, budget.affordable(generation, self.settings.generations, reserved_s))

    def _rates(self, budget: Budget) -> Calibration:
        """Calibrate on the earlier weeks; find the rates that the later ones would have allowed."""
        scenario, later, alpha = self._scenario(EARLIER), self._scenario(LATER), self.in_use.alpha
        names, evaluations = self._names(), self.state.result(SearchPlan).evaluations

        def in_time(_: object) -> None:
            budget.check()

        def permitted(found: CalibratedRates) -> Rates:
            return Rates(self._with_opted_out(found.rates), found.feasible, found.facts, found.budget)

        rule, learnt = (
            permitted(
                calibrate(
                    scenario, start=START, alpha=alpha, evaluations=evaluations, shield=shield, on_progress=in_time
                )
            )
            for shield in (None, AUTO)
        )
        bare = [Assessor(later, later.week(name), START) for name in later.weeks]
        bound = optimise(bare, alpha, evaluations=evaluations, on_progress=in_time)
        allowed = Rates(self._with_opted_out(bound.rates), bound.feasible, {})
        write_rates(
            RatesFile(
                name=str(self.model),
                scenario=scenario.name,
                scenario_sha256=scenario_sha256(scenario),
                start=START,
                alpha=alpha,
                actions=scenario.actions,
                subscribers=names,
                rates=learnt.rates,
                guard=None if learnt.budget is None else RateGuard(SHIELD, learnt.budget),
                calibration={"method": "learn", **learnt.facts},
                packages=package_versions(),
            ),
            self.model,
        )
        return Calibration({RULE: rule, LEARNT: learnt, BOUND: allowed})

    def _config(self) -> Config:
        """Return the settings of the rule's training."""
        now = self.in_use
        return config_of(str(self._file(EARLIER)), START, now.alpha, now.objective, self.settings.rule)

    def _rule(self, budget: Budget) -> TrainedRule:
        """Train, choose and release a rule on the earlier weeks; without safe rates it falls back to 1.0 for all."""
        rates = read_rates(self.model)
        if not self._found[LEARNT].feasible:
            rates = replace(rates, rates=(1.0,) * len(rates.rates), guard=None)
        generations = self.state.result(SearchPlan).generations
        return train_rule(
            *(self._scenario(EARLIER), self._config(), generations, rates, self.opted_out),
            *(self.state.folder / "rule", self.rule, budget.check),
        )

    def _judge(self, budget: Budget) -> HeldOutResult:
        """Play all on the later weeks, on redrawn ones, and once on the measured usage."""
        later, found, now = self._scenario(LATER), self._found, self.now
        texts = {
            NOW: now.guarded(now.policy),
            RULE: now.guarded(_text(found[RULE])),
            LEARNT: now.guarded(str(self.model)),
            REQUESTS: now.guarded(str(self.rule)),
            BOUND: _text(found[BOUND]),
        }
        arrivals = arrivals_of(later)
        drawn = [unseen_week(arrivals, FIRST_REDRAWN + n, EVALUATION) for n in range(self.settings.redrawn)]
        weeks = [*(later.week(name) for name in later.weeks), *drawn]
        reserved, broken, replayed = {}, {}, {}
        for name, text in texts.items():
            rows = [self._played(text, later, week, budget) for week in weeks]
            reserved[name] = tuple(cost for cost, _ in rows)
            broken[name] = [count for _, count in rows]
            replayed[name] = tuple(self._replayed(text, later, week) for week in later.weeks)
        episodes = self.settings.episodes
        upper = {
            name: clopper_pearson_upper(min(sum(row), episodes * len(weeks)), episodes * len(weeks))
            for name, row in broken.items()
        }
        recorded = [self._recorded()["weeks"][name] for name in later.weeks]
        return HeldOutResult(
            tuple(week.name for week in weeks),
            texts,
            reserved,
            {name: tuple(count / episodes for count in row) for name, row in broken.items()},
            upper,
            {name: bool(high <= 1.0 - self.in_use.alpha) for name, high in upper.items()},
            replayed,
            tuple(week["hot_hours"] for week in recorded),
            tuple(week["reserved"] / max(week["requested"], 1e-9) for week in recorded),
            {name: one.feasible for name, one in found.items()} | {REQUESTS: self.state.result(TrainedRule).released},
            {name: compare(row, reserved[NOW]) for name, row in reserved.items() if name != NOW},
        )

    def challenger(self) -> Path | str:
        """Return the rule or the learnt rates, the cheaper on the later weeks, or why neither goes to the gate."""
        judged = self.state.result(HeldOutResult)
        files = {LEARNT: self.model, REQUESTS: self.rule}
        reasons = {name: self._refusal(name, judged) for name in files}
        good = [name for name, reason in reasons.items() if not reason]
        if not good:
            return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return files[min(good, key=lambda name: float(np.mean(judged.reserved[name])))]

    def _refusal(self, label: str, judged: HeldOutResult) -> str:
        """Return why rates or a rule do not go to the gate, "" where they do."""
        if not judged.feasible[label]:
            return "nothing was found that keeps the promise in weeks like the earlier ones"
        if not judged.keeps[label]:
            return (
                f"on the later weeks up to {judged.upper_95[label]:.1%} would have too many hot hours, more than "
                f"the promised {1.0 - self.in_use.alpha:.1%}"
            )
        mean = {name: float(np.mean(row)) for name, row in judged.reserved.items()}
        if judged.keeps[NOW] and mean[label] >= mean[NOW]:
            return "on the later weeks not cheaper than the policy in use"
        if judged.keeps[RULE] and mean[label] > mean[RULE]:
            return f"on the later weeks dearer than the {RULE}"
        return ""

    def gate(self, budget: Budget) -> Gate:
        """Return the gate on the later weeks and on redrawn ones."""
        later, now = self._scenario(LATER), self.now
        return pool_gate(
            later,
            self.settings.limits,
            now=now.policy,
            budget=now.budget,
            margin=now.margin,
            alpha=now.alpha,
            start=START,
            weeks=later.weeks,
            drawn=max(self.settings.redrawn, 1),
            episodes=self.settings.episodes,
            tuned=_text(self._found[BOUND]),
            objective=now.objective,
            on_progress=lambda _: budget.check(),
        )

    @property
    def _found(self) -> Mapping[str, Rates]:
        return self.state.result(Calibration).found

    def _file(self, part: str) -> Path:
        return self.state.folder / part / f"{self.in_use.pool}.json"

    def _names(self) -> tuple[str, ...]:
        return tuple(json.loads(self._file(EARLIER).read_bytes())["subscribers"])

    def _recorded(self) -> dict[str, Any]:
        """Return the facts of the later part of the record."""
        found: dict[str, Any] = json.loads(self._file(LATER).read_bytes())["recorded"]
        return found

    def _scenario(self, part: str) -> Scenario:
        return scenario_of(str(self._file(part)))

    def _with_opted_out(self, rates: NDArray[np.float64]) -> tuple[float, ...]:
        """Return rates with 1 for subscribers that may not be oversold, which leaves more room than in the search."""
        pairs = zip(self._names(), rates.tolist(), strict=True)
        return tuple(1.0 if name in self.opted_out else float(rate) for name, rate in pairs)

    def _played(self, text: str, scenario: Scenario, week: Week, budget: Budget) -> tuple[float, int]:
        """Return the cost of a week by the objective, and the number of its episodes with too many hot hours."""
        budget.check()
        episodes = self.settings.episodes
        task = Task(scenario, week, START, self.in_use.alpha)
        judged = judge(policy_of(text), task, episodes=episodes, seed=SEED)
        return cost_of(judged, self.now.objective), episodes if judged.placement.rejects else judged.sampled.violations

    def _replayed(self, text: str, scenario: Scenario, week: str) -> int:
        """Return the hot hours of a week with its measured usage; where nothing was measured it is drawn."""
        usage = f"replay:{self.state.folder / LATER / f'{scenario.name}_{week}_usage.csv.gz'}"
        task = Task(scenario, scenario.week(week), START, self.in_use.alpha)
        return int(judge(policy_of(text), task, usage=usage, episodes=1, seed=SEED).sampled.hot_hours[0])

    def page(self) -> str:
        """Return the page of the report."""
        judged, found, now = self.state.result(HeldOutResult), self._found, self.now
        facts = {"pool": now.pool, "decides now": now.policy, "weeks judged on": ", ".join(judged.weeks)}
        rows = []
        for name in judged.texts:
            against = judged.against_now.get(name)
            rows.append(
                [
                    escape(name),
                    f"{np.mean(judged.reserved[name]):.1%}",
                    "" if against is None else f"{against.relative.mean:+.1%}",
                    f"{max(judged.hot[name]):.1%}",
                    chip(judged.keeps[name], f"at most {judged.upper_95[name]:.1%}"),
                    " ".join(map(str, judged.replayed_hot_hours[name])),
                ]
            )
        head = [
            "",
            OF_OBJECTIVE[now.objective],
            "against now",
            "hot in the worst week",
            "all weeks, 95 %",
            "hot hours, replayed",
        ]
        words = (
            f"Weeks of the later part and weeks redrawn from them, {self.settings.episodes} episodes of usage each, as "
            f"measured in the later part. Promised: at most {1.0 - now.alpha:.1%} with too many hot hours. "
            f"Replayed: with the usage that was measured; recorded were "
            f"{' '.join(map(str, judged.recorded_hot_hours))} hot hours."
        )
        labels = (RULE, LEARNT, BOUND)
        rates = [
            [escape(name), *(f"{found[label].rates[n]:g}" for label in labels)] for n, name in enumerate(self._names())
        ]
        shield = found[LEARNT].budget
        behind = "no shield" if shield is None else f"a shield of {shield:g} hot hours of a machine and day"
        made = self.state.result(TrainedRule)
        rule = (
            f"Objective {made.objective}, seed {made.seed}, needs raised by {made.offset:g}; at most {made.worst:.1%} "
            f"hot in the worst week of its release, {made.changed:.1%} in weeks where usage changes "
            f"({made.rates_changed:.1%} by the rates). It {'passed' if made.released else 'did not pass'}."
        )
        sections = [
            Section("use", "The later weeks", f'<p class="soft">{escape(words)}</p>{table(head, rows)}'),
            Section("rates", "The rates", f"<p>Behind {behind}.</p>{table(['', *labels], rates)}"),
            Section("rule", "The rule for each request", f"<p>{escape(rule)}</p>"),
        ]
        return document(f"The learning record of pool {now.pool}", sections, facts)


def _text(found: Rates) -> str:
    return policy_text(np.array(found.rates), None)


def in_words(policy: str) -> str:
    """Return a policy of the agent's settings, or of its record, as the simulator has it."""
    kind, _, given = policy.removesuffix(AT_RATES).partition(":")
    texts = {"moving-average": "ma", "static": f"grid:{given}", "rates": given, "rule": given, "model": given}
    return texts.get(kind, "none")
