"""The round of a fleet: from its record to a setting of the queue rule, a scorer, a report, and the gate.

record    the minutes are kept in the folder
fidelity  the simulator must be true to them (`trainer.learning.fidelity`)
rule      the queue rule is tuned on the earlier windows
lessons   as many as the budget allows
scorer    a scorer is fine-tuned on the earlier windows
choose    all play the windows that choose, under the fleet's own limits; the cheapest may be the challenger: the
scorer, or the bundled one, which a fleet whose load has changed again may need back
judge     all play the held-out windows, for people and for the gate
report    for people
gate      the challenger against the policy in use (`trainer.promotion.gate`), as far as alpha is left for a test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.models.card import ScorerCard
from agent.models.directory import moment_s, moment_text
from agent.models.file import load_model
from domain.rules.queue_rule import RuleSetting
from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S, HOUR_S, MINUTE_S
from simulator.autoscaling.configuration import RemovalMode
from trainer.autoscaling.baselines.clairvoyant import Unavailable, solve
from trainer.autoscaling.baselines.tuning import settings_of
from trainer.autoscaling.evaluation.suite import suite
from trainer.autoscaling.lessons import LEAST_WINDOWS, Lesson, Loads, OwnLessons, rule_for_loads
from trainer.autoscaling.scorer import FINE, FIT, Recipe, Scorer, own_plan, play_lessons
from trainer.autoscaling.scorer_runs import SHIPPED_SCORER, run, scorer_named, shipped_scorer
from trainer.kit.intervals import FEWEST_CASES, Comparison, compare
from trainer.kit.report import Section, chip, document, escape, lines, table
from trainer.learning.fidelity import Fidelity, check_fidelity, replayed
from trainer.learning.minutes import Span, span_of
from trainer.learning.recent import FAMILY
from trainer.learning.replay import Loop
from trainer.learning.round import Budget, Round, Stages, cpu_s
from trainer.learning.state import StageResult
from trainer.learning.subject import Learner
from trainer.learning.windows import Windows
from trainer.promotion.alpha import LEAST, Account, account_of, left, next_s
from trainer.promotion.autoscaling import fleet_gate
from trainer.promotion.directory import Verify
from trainer.promotion.gate import Gate, Limits, Trial, Verdict, digest

RULE_FILE = "rule.env"
WORTH = 0.03
"""Savings of the tuned rule from which on a round advises it."""
MONTH_S = 30.0 * DAY_S
NOW, RULE, SCORER, SHIPPED = "decides now", "tuned rule", "scorer", "shipped scorer"
SEEDS, JUDGING_SEED = 3, 2_500_000_000
"""Boot seeds of each held-out window, and the first of them."""
LESSONS_SHARE = 0.5
"""Share of the rest of the budget that the training may take; judging and the gate need the other part."""
FEWEST_LESSONS = 4
"""Lessons of a round of data aggregation; with a budget for fewer no scorer is trained."""
OPEN_S = 20.0
"""Seconds of a processor that a bound may take."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a round is done.

    recipe: of the scorer; its rounds are shortened to
    the budget. seeds: boot seeds of the replay and of each held-out window. suite: groups of the short suite that the
    gate runs too, against forgetting. bounds: number of held-out windows with a clairvoyant bound. start: the scorer to
    begin with where no model decides. limits: of the gate.
    """

    recipe: Recipe = FINE
    seeds: int = SEEDS
    suite: tuple[str, ...] = ("T3",)
    suite_seeds: int = 3
    bounds: int = 2
    start: str = SHIPPED_SCORER
    limits: Limits = field(default_factory=Limits)

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that results depend on."""
        return {"recipe": asdict(self.recipe), "seeds": self.seeds, "suite": list(self.suite), "start": self.start}


@dataclass(frozen=True, slots=True)
class TunedRule(StageResult):
    """The best setting of the queue rule, and all candidates with their costs."""

    STAGE: ClassVar = "rule"

    setting: RuleSetting
    tried: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class LessonPlan(StageResult):
    """The lessons of each round of data aggregation; None where no scorer is trained, and the reason."""

    STAGE: ClassVar = "lessons"

    rounds: tuple[int, ...] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ScorerRun(StageResult):
    """The file of the trained scorer; None without one, and the reason. used: whether it has the new weights."""

    STAGE: ClassVar = "scorer"

    model: str | None
    why: str
    used: bool | None = None
    figures: Mapping[str, float] | None = None
    lessons: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Choice(StageResult):
    """Dollars by policy on each window that chooses, the mean over boot seeds."""

    STAGE: ClassVar = "choose"

    windows: tuple[str, ...]
    means: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class HeldOutResult(StageResult):
    """Dollars of the held-out windows by policy, window and seed; means are over seeds.

    recorded: dollars of each window. bounds: of some windows, see `FleetRound._bounds`. now: the policy in use.
    """

    STAGE: ClassVar = "judge"

    windows: tuple[str, ...]
    recorded: tuple[float, ...]
    costs: Mapping[str, tuple[tuple[float, ...], ...]]
    means: Mapping[str, tuple[float, ...]]
    against_now: Mapping[str, Comparison]
    bounds: tuple[Mapping[str, Any], ...]
    now: str


@dataclass(slots=True, kw_only=True)
class FleetRound(Round):
    """A round under way.

    shelf: finds the models that decided. can_tune_itself: whether the agent tunes the fleet where SELF_TUNE is on.
    """

    learner: Learner
    windows: Windows
    settings: FleetSettings
    shelf: ModelShelf
    verify: Verify = load_model
    can_tune_itself: bool = False

    @property
    def subject(self) -> Subject:
        """The fleet."""
        return Subject(AUTOSCALING, self.learner.fleet)

    def stages(self) -> Stages:
        """Return the stages before the report."""
        return {
            Fidelity: self._fidelity,
            TunedRule: self._rule,
            LessonPlan: self._lessons,
            ScorerRun: self._scorer,
            Choice: self._choose,
            HeldOutResult: self._judge,
        }

    def _fidelity(self, budget: Budget) -> Fidelity:
        return check_fidelity(
            self.learner.loop,
            self.learner.config,
            self.windows.stretches,
            self.windows.replayed,
            seeds=self.settings.seeds,
            spread=budget.spread,
        )

    def _rule(self, budget: Budget) -> TunedRule:
        """Tune the rule as the simulator's policies are tuned, then choose its form under the fleet's own limits."""
        loads = self._loads()
        found = rule_for_loads(self.learner.config, loads, self.learner.typical_core_s, budget.spread)
        # The agent waits for proposals in a row before it gives VMs back: that is idle time too.
        patience_s = (self.learner.loop.limits.in_periods - 1) * MINUTE_S
        now = self._now_setting()
        tried = list(dict.fromkeys([now, found, replace(found, idle_s=max(found.idle_s - patience_s, 0.0))]))
        spans = self.windows.with_lead(self.windows.choosing)
        costs = [sum(self._cost(RULE, one, span, 0, budget) for span in spans) for one in tried]
        best = tried[int(np.argmin(costs))]
        return TunedRule(best, tuple({**asdict(one), "cost": cost} for one, cost in zip(tried, costs, strict=True)))

    def _lessons(self, budget: Budget) -> LessonPlan:
        """Choose the lessons of each round; a separate stage, so that a round that resumes has the same."""
        if len(self.windows.earlier) < 2 * LEAST_WINDOWS:
            missing = 2 * LEAST_WINDOWS - len(self.windows.earlier)
            return LessonPlan(None, f"{missing} more earlier windows are needed to learn and choose on")
        lessons = OwnLessons(self.learner.config, self.setting, self._loads())
        recipe, start = self.settings.recipe, self._start()
        for number in range(2):
            # The first lesson compiles; the second one takes the time of every other.
            begun_s = cpu_s()
            play_lessons(lessons(number, 1), recipe, start.weights, recipe.explore[0])
        lesson_s = max(cpu_s() - begun_s, 1e-4)
        left_s = LESSONS_SHARE * budget.left_s
        each_s = lesson_s * (1.0 + FIT * (start.weights[0].shape[0] + len(recipe.rounds)))
        share = min(left_s / (each_s * sum(recipe.rounds)), 1.0)
        rounds = tuple(int(share * count) for count in recipe.rounds)
        if min(rounds) < min(FEWEST_LESSONS, *recipe.rounds):
            return LessonPlan(None, "the budget is too small for lessons: give more --cpu-minutes")
        return LessonPlan(rounds)

    def _scorer(self, budget: Budget) -> ScorerRun:
        chosen = self.state.result(LessonPlan)
        if chosen.rounds is None:
            return ScorerRun(None, chosen.why)
        rule, loads, start = self.setting, self._loads(), self._start()
        recipe = replace(self.settings.recipe, rounds=chosen.rounds)
        plan = own_plan(self.learner.config, loads, rule, recipe, 0, start)
        lessons = OwnLessons(self.learner.config, rule, loads)
        trained = run(replace(plan, lessons=_LimitedLessons(lessons, budget.check)), self.place, resume=True)
        (model,) = self.place.glob("*.onnx")
        return ScorerRun(model.name, "", bool(trained.figures["own/used"]), dict(trained.figures), recipe.rounds)

    def _choose(self, budget: Budget) -> Choice:
        """Let all play the windows that choose."""
        spans = self.windows.with_lead(self.windows.choosing)
        means = {name: tuple(np.mean(rows, axis=1).tolist()) for name, rows in self._played(spans, budget).items()}
        return Choice(tuple(span.name for span in spans), means)

    def _played(self, spans: Sequence[Span], budget: Budget) -> dict[str, tuple[tuple[float, ...], ...]]:
        """Return dollars by policy, window and seed."""
        return {
            name: tuple(
                tuple(self._cost(name, self.setting, span, seed, budget) for seed in range(self.settings.seeds))
                for span in spans
            )
            for name in (NOW, RULE, *self._scorers)
        }

    def _judge(self, budget: Budget) -> HeldOutResult:
        """Let all play the held-out windows."""
        spans = self.windows.with_lead(self.windows.held_out)
        costs = self._played(spans, budget)
        means = {name: np.mean(rows, axis=1) for name, rows in costs.items()}
        return HeldOutResult(
            tuple(span.name for span in spans),
            tuple(span.cost for span in spans),
            costs,
            {name: tuple(row.tolist()) for name, row in means.items()},
            {name: compare(row, means[NOW]) for name, row in means.items() if name != NOW},
            self._bounds(budget),
            self.policy_now,
        )

    def gate(self, budget: Budget) -> Gate:
        """Return the gate: on the held-out windows under the fleet's own limits, and on the short suite."""
        cases = suite(self.settings.suite, short=True, seeds=self.settings.suite_seeds)
        facts = {"groups": ",".join(self.settings.suite), "short": True, "recent": len(self.windows.held_out)}
        facts |= {"world": self.learner.world, "round": self.state.facts.get("record", "")}
        facts |= {"rule": asdict(self.setting)}

        def gate(challenger: Path, champion: Path | None) -> Verdict:
            key = self._test(challenger.stem, champion)
            alpha = self._alpha(key)
            own = self._trials(challenger, champion, budget)
            limits = replace(self.settings.limits, probability=1.0 - alpha)
            found = fleet_gate(cases, limits, facts=facts, own=own)(challenger, champion)
            return replace(found, facts={**found.facts, "test": {"sha256": key, "alpha": alpha}})

        return gate

    def wait(self, challenger: Path | None = None) -> str:
        """Return until when alpha must accrue for a test, "" where one can be made now; see `trainer.promotion.alpha`.

        challenger: whose test is not a new one where it was made, as by a round that was stopped.
        """
        if challenger is not None:
            champion = self.directory.champion(self.subject)
            beaten = None if champion is None else self.directory.file_of(champion.model)
            if self._test(challenger.stem, beaten) in self._account:
                return ""
        now_s = moment_s(self.at)
        alpha, at_s = left(self._account, now_s), next_s(self._account, now_s)
        if at_s <= now_s:
            return ""
        return (
            f"of the error that tests of this fleet may make {alpha:.2%} is left, a test needs {LEAST:.0%}: the next "
            f"one can be made on {moment_text(at_s)}"
        )

    @property
    def _account(self) -> Account:
        return account_of(self.directory, self.subject)

    def _alpha(self, key: str) -> float:
        account = self._account
        return account[key].alpha if key in account else left(account, moment_s(self.at))

    def _test(self, challenger: str, champion: Path | None) -> str:
        """Return the digest of a test: the models, the windows that judge, and the world, idle time and rule there."""
        windows = [[span.name, span.trace.digest] for span in self.windows.held_out]
        models = [challenger, None if champion is None else champion.stem]
        setup = {"world": repr(self.learner.config), "idle_s": self.learner.loop.idle_s, "rule": asdict(self.setting)}
        return digest({"models": models, "windows": windows, **setup})

    def _trials(self, challenger: Path, champion: Path | None, budget: Budget) -> list[Trial]:
        """Return the runs of both on the held-out windows: those of the stage before, or played where it had none.

        Before the first promotion the champion is the tuned rule.
        """
        played, ours = self.state.result(HeldOutResult), None
        for name, file in self._scorers.items():
            ours = name if file.stem == challenger.stem else ours
        assert ours is not None
        if champion is None:
            theirs = played.costs[RULE]
        elif names_model(self.policy_now) and sha_of(self.policy_now) == champion.stem:
            theirs = played.costs[NOW]
        else:
            spans, seeds = self.windows.with_lead(self.windows.held_out), range(self.settings.seeds)
            theirs = tuple(tuple(self._run(f"model:{champion}", one, seed, budget) for seed in seeds) for one in spans)
        return [
            Trial(f"{FAMILY} {window} boot {seed}", FAMILY, window, 0, before, after)
            for window, olds, news in zip(played.windows, theirs, played.costs[ours], strict=True)
            for seed, (before, after) in enumerate(zip(olds, news, strict=True))
        ]

    def challenger(self) -> Path | str:
        """Return the cheapest scorer, or the reason why none goes to the gate."""
        candidates, scorer = dict(self._scorers), self.state.result(ScorerRun)
        why = scorer.why
        if SCORER in candidates and not scorer.used and names_model(self.policy_now):
            why = "new weights are not surely better than those in use"
            del candidates[SCORER]
        means = {name: float(np.mean(row)) for name, row in self.state.result(Choice).means.items()}
        best = min(candidates, key=lambda name: means[name], default=None)
        if best is None:
            return why
        dearer = [name for name in (NOW, RULE) if means[best] >= means[name]]
        if not dearer:
            return candidates[best]
        if why:
            return why
        than = " and ".join(f"the {name}" if name == RULE else "the policy in use" for name in dearer)
        return f"under the fleet's own limits it does not cost less than {than} on the windows that choose"

    @property
    def _scorers(self) -> dict[str, Path]:
        """The files of the scorers that are judged: the one of this round, and the bundled one where it is another."""
        model = self.state.result(ScorerRun).model
        found = {} if model is None else {SCORER: self.place / model}
        shipped = shipped_scorer()
        if names_model(self.policy_now) and sha_of(self.policy_now) != shipped.stem:
            found[SHIPPED] = shipped
        return found

    @property
    def setting(self) -> RuleSetting:
        """The tuned setting of the queue rule."""
        return self.state.result(TunedRule).setting

    @property
    def place(self) -> Path:
        """The folder of the scorer's training."""
        return self.state.folder / "scorer"

    @property
    def policy_now(self) -> str:
        """The policy of the newest minute."""
        return self.learner.recorded.minutes[-1].policy

    def _now_setting(self) -> RuleSetting:
        """Return the present setting of the fleet's queue rule."""
        loop, terms = self.learner.loop, self.learner.recorded.terms
        horizon_s = terms.horizon_s if terms is not None else RuleSetting().horizon_s
        return RuleSetting(horizon_s, loop.idle_s, self.learner.typical_core_s)

    def _cost(self, name: str, setting: RuleSetting, span: Span, seed: int, budget: Budget) -> float:
        """Return dollars of a window under one of the policies, as the fleet lives: a scorer with its present rule."""
        if name in (SCORER, SHIPPED):
            return self._run(f"model:{self._scorers[name]}", span, seed, budget)
        loop, policy = self.learner.loop, self.policy_now
        if name == RULE:
            terms = None if loop.terms is None else replace(loop.terms, horizon_s=setting.horizon_s)
            loop = replace(loop, idle_s=setting.idle_s, terms=terms)
            expected = setting.job_core_s or (terms.job_core_s if terms is not None else 120.0)
            policy = f"queue-rule:horizon_s={setting.horizon_s:g},job_core_s={expected:g}"
            span = span.without_idle
        return self._run(policy, span, seed, budget, loop)

    def _run(self, policy: str, span: Span, seed: int, budget: Budget, loop: Loop | None = None) -> float:
        """Return dollars of a window under a policy and the fleet's own limits; loop: with another setting."""
        budget.check()
        span = replace(span, policies=(policy,) * len(span.policies))
        return replayed((loop or self.learner.loop, self.learner.config, span, JUDGING_SEED + seed)).cost

    def _loads(self) -> Loads:
        """Return the earlier windows as loads; the windows that choose judge the weights before they are used.

        The held-out windows of the round take no part.
        """
        choosing = self.windows.choosing
        earlier, until_s = self.windows.earlier[: -len(choosing)], choosing[0].start_s
        job_core_s = self.learner.recorded.job_core_s
        assert job_core_s is not None
        parts = []
        for stretch in self.learner.recorded.stretches:
            before = [minute for minute in stretch if minute.end_s <= until_s]
            if len(before) > 1 and (part := span_of("part", before, job_core_s).trace).jobs > 1:
                parts.append(part)
        learnt, left_out = (tuple(span.trace for span in some) for some in (earlier, choosing))
        return Loads(tuple(parts), learnt, left_out, self.windows.window_s)

    def _start(self) -> Scorer:
        """Return the scorer in use, else that of the settings."""
        if names_model(self.policy_now):
            model = self.shelf.policy(self.policy_now, self.learner.loop.fleet).model
            if isinstance(model.card, ScorerCard):
                found = self.directory.path / f"{model.name}.onnx"
                return scorer_named(str(found)) if found.is_file() else scorer_named(SHIPPED_SCORER)
        return scorer_named(self.settings.start)

    def _bounds(self, budget: Budget) -> tuple[Mapping[str, Any], ...]:
        """Return lower bounds of the cost of some held-out windows: in a world without rests, with VMs gone at once.

        Every plan in the fleet's own world is possible in that one at no higher cost.
        """
        found: list[Mapping[str, Any]] = []
        for span in self.windows.held_out[: self.settings.bounds]:
            budget.check()
            config = replace(self.learner.config, cooldown_s=0.0, removal_mode=RemovalMode.IMMEDIATE)
            try:
                bound = solve(config, span.trace, single=False, time_limit_s=OPEN_S, relaxed=True).bound
                found.append({"window": span.name, "bound": bound})
            except Unavailable as reason:
                found.append({"window": span.name, "unavailable": reason.remedy})
        return tuple(found)

    def files(self) -> Mapping[str, str]:
        """Return the tuned rule as settings, where it costs less than the policy in use."""
        gain = self.state.result(HeldOutResult).against_now[RULE].relative
        return {RULE_FILE: self._rule_text()} if gain.mean < 0.0 else {}

    @property
    def advice(self) -> str:
        """The tuned rule where it is surely worth a change, for people; else ""."""
        gain = self.state.result(HeldOutResult).against_now[RULE]
        place = self.state.folder / RULE_FILE
        if not self.policy_now.startswith("queue-rule"):
            return ""
        return advice_of(gain, self.windows.window_s, place, can_tune_itself=self.can_tune_itself)

    def _rule_text(self) -> str:
        """Return the tuned rule as lines for the agent's environment, with its origin and its gain."""
        setting, fleet = self.setting, self.learner.fleet
        text = f"queue-rule:horizon_s={setting.horizon_s:g}"
        text += f",job_core_s={setting.job_core_s:g}" if setting.job_core_s else ""
        pairs = settings_of(text, fleet) | {f"TRIMTAB_FLEETS__{fleet}__IDLE_S": f"{setting.idle_s:g}"}
        if self.policy_now.partition(":")[0] != "queue-rule":
            # The rule complements a learned policy, which continues to decide.
            pairs.pop(f"TRIMTAB_FLEETS__{fleet}__POLICY")
        gain = self.state.result(HeldOutResult).against_now[RULE].relative
        settings = [
            f"# The queue rule tuned on the record of fleet {fleet}, world {self.learner.world}",
            f"# On {len(self.windows.held_out)} held-out windows: {gain.mean:+.1%} of the cost of the policy in use "
            f"(95 %: {gain.low:+.1%} to {gain.high:+.1%})",
            *(f"{name}={value}" for name, value in pairs.items()),
        ]
        return "\n".join(settings) + "\n"

    def page(self) -> str:
        """Return the page of the report."""
        windows = self.windows
        facts = {
            "fleet": self.learner.fleet,
            "world": self.learner.world,
            "decides now": self.policy_now,
            "windows": f"{len(windows.earlier) - len(windows.choosing)} to learn on, {len(windows.choosing)} to choose "
            f"on, {len(windows.held_out)} held out, "
            f"{windows.window_s / HOUR_S:.3g} h each",
        }
        sections = [
            Section("cost", "Cost on the held-out windows", _costs(self.state.result(HeldOutResult))),
            Section("truth", "Is the simulator true?", _truth(self.state.result(Fidelity))),
            Section("rule", "The queue rule", f"<p>{escape(self.advice)}</p>{lines(self._rule_text())}"),
            Section("scorer", "The scorer", _trained(self.state.result(ScorerRun), self.policy_now)),
        ]
        return document(f"The learning record of fleet {self.learner.fleet}", sections, facts)


def advice_of(gain: Comparison, window_s: float, place: Path, *, can_tune_itself: bool) -> str:
    """Return the savings of a tuned rule that is surely cheaper by `WORTH`, for people; else "".

    gain: its cost in windows of `window_s` seconds against the rule in use. place: of its lines of settings.
    can_tune_itself: whether the agent tunes the fleet where SELF_TUNE is on.
    """
    relative = gain.relative
    if relative.high > -WORTH or relative.cases < FEWEST_CASES:
        return ""
    dollars = -gain.difference.mean * MONTH_S / window_s
    saves = f"{-relative.mean:.1%} ({-relative.high:.1%} to {-relative.low:.1%}), ${dollars:.2f} a month"
    more = ", or SELF_TUNE=on, which such lines would end" if can_tune_itself else ""
    return f"the tuned rule saves {saves}, and does not decide: set the lines of {place}{more}"


@dataclass(frozen=True, slots=True)
class _LimitedLessons:
    """Lessons that end with the budget."""

    lessons: OwnLessons
    check: Callable[[], None]

    def __call__(self, first: int, count: int) -> Iterator[Lesson]:
        for lesson in self.lessons(first, count):
            self.check()
            yield lesson


def _costs(judged: HeldOutResult) -> str:
    names = list(judged.means)
    bounds = {one["window"]: one.get("bound") for one in judged.bounds}
    rows = []
    for place, window in enumerate(judged.windows):
        bound = bounds.get(window)
        cells = [f"{judged.means[name][place]:.4f} $" for name in names]
        rows.append([escape(window), f"{judged.recorded[place]:.4f} $", *cells, f"{bound:.4f} $" if bound else "—"])
    ratio = []
    for name, found in judged.against_now.items():
        r = found.relative
        enough = r.cases >= FEWEST_CASES
        cheaper = None if not enough or r.low <= 0.0 <= r.high else r.high < 0.0
        ratio.append(
            [
                escape(name),
                f"{1.0 + r.mean:.3f}",
                chip(cheaper, f"{r.mean:+.1%}"),
                f"{r.low:+.1%} to {r.high:+.1%}",
                f"{found.probability_lower:.1%}" if enough else chip(None, "no verdict"),
            ]
        )
    head = ["policy", "times the cost of the policy in use", "change", "95 %", "sure it is cheaper"]
    words = (
        "All play the same jobs and boots under the fleet's own limits; a window's figure is the mean over the boot "
        "seeds. The bound is a cost that no policy beats, in a world without rests. "
        f"From fewer than {FEWEST_CASES} windows there is no verdict; these are {len(judged.windows)}."
    )
    return (
        f'<p class="soft">{escape(words)}</p>{table(head, ratio)}{table(["window", "recorded", *names, "bound"], rows)}'
    )


def _truth(truth: Fidelity) -> str:
    rows = [
        [escape(one.name), f"{one.recorded:.4f} $", f"{one.replayed:.4f} $", f"{one.off:+.1%}"] for one in truth.windows
    ]
    return f"<p>{escape(truth.sentence)}.</p>{table(['window', 'recorded', 'replayed', 'off'], rows)}"


def _trained(found: ScorerRun, now: str) -> str:
    if found.model is None:
        return f"<p>None was trained: {escape(found.why)}.</p>"
    used = "new weights" if found.used else "the weights from before: the new ones were not surely better"
    lessons = "+".join(map(str, found.lessons or ()))
    rule = now.partition(":")[0]
    unused = "" if names_model(now) else f" It decides where POLICY is learned; {escape(rule)} decided last."
    return (
        f"<p>{escape(found.model)}: {escape(used)}; {lessons} lessons. The gate decides whether it is used.{unused}</p>"
    )
