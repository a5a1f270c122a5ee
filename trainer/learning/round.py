"""One round of learning for a fleet: from what was recorded to a rule's setting, a scorer, a report, and the gate.

    record    the minutes are kept in the folder
    fidelity  the simulator must be true to them (`trainer.learning.fidelity`)
    rule      the queue rule is tuned on the earlier windows
    lessons   as many as the budget allows
    scorer    a scorer is fine-tuned on the earlier windows
    judge     all play the held-out windows, under the fleet's own limits
    report    what people read
    gate      the scorer against what decides now (`trainer.promotion.gate`), where it is the cheapest of those judged;
              or the shipped one, which a fleet whose load has changed again may need back

Each stage is done once; a round that was stopped at any moment goes on with the first that is not. Nothing is in use
before the gate has let it pass, and the gate changes the pointer whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.models.card import ScorerCard
from agent.models.directory import Then, moment_s
from agent.models.file import load_model
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from domain.units import MINUTE_S
from simulator.autoscaling.branching import RuleSetting
from simulator.autoscaling.configuration import RemovalMode
from trainer.autoscaling.baselines.clairvoyant import Unavailable, solve
from trainer.autoscaling.evaluation.contenders import ANYWHERE, Contender, queue_rule
from trainer.autoscaling.evaluation.suite import Case, suite
from trainer.autoscaling.evaluation.suite import World as SuiteWorld
from trainer.autoscaling.fleets import LEAST_WINDOWS, LEFT_OUT
from trainer.autoscaling.scorer import Lesson, Recipe, Samples, Trained, gather
from trainer.autoscaling.scorer_runs import RELEASE, run, shipped_scorer, start_of
from trainer.autoscaling.scorer_tuning import FINE, Loads, OwnLessons, own_plan, tuned_rule
from trainer.kit.intervals import compare
from trainer.learning.fidelity import check_fidelity
from trainer.learning.minutes import Span, span_of
from trainer.learning.recent import FAMILY
from trainer.learning.replay import Loop, play
from trainer.learning.stages import Budget, Stage, Tell, ask_gate, check_minutes, cpu_s, go_on, not_asked, plain
from trainer.learning.state import State
from trainer.learning.subject import Learner
from trainer.learning.windows import Windows
from trainer.promotion.autoscaling import fleet_gate
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Gate, Limits, Term

NOW, RULE, SCORER, SHIPPED = "decides now", "tuned rule", "scorer", "shipped scorer"
SEEDS, JUDGING_SEED = 3, 2_500_000_000
"""Boot seeds of each held-out window, and the first of them."""
LESSONS_SHARE = 0.5
"""Share of what is left of the budget that the training may take; judging and the gate need the rest."""
FEWEST_LESSONS = 4
"""Lessons of a round of data aggregation; with a budget for fewer no scorer is trained."""
FIT = 0.15
"""See `trainer.autoscaling.scorer_runs.FIT`."""
OPEN_S = 20.0
"""Seconds of a processor that a bound may take."""

Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """How a round is done.

    cpu_s: seconds of a processor, in all and over all resumptions. recipe: of the scorer; its rounds are shortened to
    the budget. seeds: boot seeds of the replay and of each held-out window. suite: groups of the short suite that the
    gate runs too, against forgetting. bounds: held-out windows whose clairvoyant bound is asked for. start: the scorer
    to go on from where no model decides. limits: of the gate. probation_hours: how long what passes runs as a shadow
    before it may decide, 0 for not at all. then: what follows its probation.
    """

    cpu_s: float = 600.0
    recipe: Recipe = FINE
    seeds: int = SEEDS
    suite: tuple[str, ...] = ("T3",)
    suite_seeds: int = 3
    bounds: int = 2
    start: str = RELEASE
    limits: Limits = field(default_factory=Limits)
    probation_hours: float = 0.0
    then: Then = Then.PROMOTE

    def __post_init__(self) -> None:
        check_minutes(self.cpu_s)
        if not 0.0 <= self.probation_hours < math.inf:
            raise BadInput("--probation-hours", self.probation_hours, "give hours, 0 for no probation")

    @property
    def facts(self) -> dict[str, Any]:
        """What results depend on."""
        return {"recipe": asdict(self.recipe), "seeds": self.seeds, "suite": list(self.suite), "start": self.start}


@dataclass(slots=True)
class Round:
    """A round under way. now: the time for the record, as the models directory writes it."""

    learner: Learner
    windows: Windows
    state: State
    settings: RoundSettings
    directory: ModelsWriter
    shelf: ModelShelf
    now: str
    try_only: bool = False
    tell: Tell = lambda line: None

    def go_on(self) -> dict[str, Any]:
        """Do every stage that is not done, and return the results by stage.

        Ends after `fidelity` where the simulator is not true. Raises BudgetUsed, and BadInput where the gate refuses to
        compare; what is done is kept.
        """
        stages: dict[str, Stage] = {
            "fidelity": self._fidelity,
            "rule": self._rule,
            "lessons": self._lessons,
            "scorer": self._scorer,
            "judge": self._judge,
            "report": self._report,
            "gate": self._gate,
        }
        return go_on(
            self.state,
            stages,
            self.settings.cpu_s,
            self.tell,
            lambda name, found: name == "fidelity" and not found["holds"],
        )

    def _fidelity(self, budget: Budget) -> dict[str, Any]:
        found = check_fidelity(
            self.learner.loop,
            self.learner.config,
            self.windows.stretches,
            self.windows.replayed,
            seeds=self.settings.seeds,
            spread=budget.spread,
        )
        about = {"holds": found.holds, "off": found.off, "named": found.named, "sentence": found.sentence}
        return plain({**asdict(found), **about})

    def _rule(self, budget: Budget) -> dict[str, Any]:
        """Tune the rule as the simulator's policies are tuned, then choose its form under the fleet's own limits."""
        loads = self._loads()
        found = tuned_rule(self.learner.config, loads, self.learner.typical_core_s, budget.spread)
        # The agent waits for proposals in a row before it gives VMs back: that is idle time too.
        patience_s = (self.learner.loop.limits.in_periods - 1) * MINUTE_S
        now = self._now_setting()
        tried = list(dict.fromkeys([now, found, replace(found, idle_s=max(found.idle_s - patience_s, 0.0))]))
        spans = self._earlier_replayed()
        costs = [sum(self._cost(RULE, one, span, 0, budget) for span in spans) for one in tried]
        best = tried[int(np.argmin(costs))]
        return {"setting": asdict(best), "tried": [{**asdict(o), "cost": c} for o, c in zip(tried, costs, strict=True)]}

    def _lessons(self, budget: Budget) -> dict[str, Any]:
        """Choose the lessons of each round; kept apart from the training, so that one that goes on has the same."""
        if len(self.windows.earlier) < 2 * LEAST_WINDOWS:
            missing = 2 * LEAST_WINDOWS - len(self.windows.earlier)
            return {"rounds": None, "why": f"{missing} more earlier windows are needed to learn and choose on"}
        lessons = OwnLessons(self.learner.config, self.setting, self._loads())
        recipe, start = self.settings.recipe, self._start()
        for number in range(2):
            # The first lesson compiles; the second one takes what all others take.
            begun_s = cpu_s()
            gather(lessons(number, 1), recipe, start.weights, recipe.explore[0], Samples())
        lesson_s = max(cpu_s() - begun_s, 1e-4)
        left_s = LESSONS_SHARE * max(budget.left_s - budget.used_s, 0.0)
        each_s = lesson_s * (1.0 + FIT * (start.weights[0].shape[0] + len(recipe.rounds)))
        share = min(left_s / (each_s * sum(recipe.rounds)), 1.0)
        rounds = [int(share * count) for count in recipe.rounds]
        if min(rounds) < min(FEWEST_LESSONS, *recipe.rounds):
            return {"rounds": None, "why": "the budget is too small for lessons: give more --cpu-minutes"}
        return {"rounds": rounds, "why": ""}

    def _scorer(self, budget: Budget) -> dict[str, Any]:
        chosen = self.state.stages["lessons"]
        if chosen["rounds"] is None:
            return {"model": None, "why": chosen["why"]}
        rule, loads, start = self.setting, self._loads(), self._start()
        recipe = replace(self.settings.recipe, rounds=tuple(chosen["rounds"]))
        plan = own_plan(self.learner.config, loads, rule, recipe, 0, start)
        lessons = OwnLessons(self.learner.config, rule, loads)
        trained = run(replace(plan, lessons=_Bounded(lessons, budget.check)), self.place, resume=True)
        (model,) = self.place.glob("*.onnx")
        used = bool(trained.figures["own/used"])
        return plain(
            {"model": model.name, "why": "", "used": used, "figures": dict(trained.figures), "lessons": recipe.rounds}
        )

    def _judge(self, budget: Budget) -> dict[str, Any]:
        """Let all play the held-out windows, and return dollars by policy, window and seed."""
        names = [NOW, RULE, *self._scorers]
        spans = [span for span in self.windows.replayed if span.name in {one.name for one in self.windows.held_out}]
        costs = {
            name: [
                [self._cost(name, self.setting, span, seed, budget) for seed in range(self.settings.seeds)]
                for span in spans
            ]
            for name in names
        }
        means = {name: np.mean(rows, axis=1) for name, rows in costs.items()}
        against = {name: asdict(compare(means[name], means[NOW])) for name in names if name != NOW}
        return plain(
            {
                "windows": [span.name for span in spans],
                "recorded": [span.cost for span in spans],
                "costs": costs,
                "means": {name: row.tolist() for name, row in means.items()},
                "against_now": against,
                "bounds": self._bounds(budget),
                "now": self.policy_now,
            }
        )

    def _report(self, budget: Budget) -> dict[str, Any]:
        from trainer.learning.report import write_round

        return {"files": [path.name for path in write_round(self)]}

    def _gate(self, budget: Budget) -> dict[str, Any]:
        """Hand the cheapest scorer to the gate; a promotion after which the round stopped is found, not repeated."""
        model, why = self._challenger()
        if model is None:
            return not_asked(why)
        subject, hours = Subject(AUTOSCALING, self.learner.fleet), self.settings.probation_hours
        term = Term(moment_s(self.now), hours, self.settings.then) if hours > 0.0 else None
        place = (model, model.name, self.directory, subject, load_model)
        return ask_gate(*place, self._fleet_gate, budget, at=self.now, try_only=self.try_only, term=term)

    def _fleet_gate(self) -> Gate:
        cases = self._cases()
        setting = self.setting
        text = f"queue-rule:horizon_s={setting.horizon_s:g},idle_s={setting.idle_s:g},skip_cooling=true"
        text += f",job_core_s={setting.job_core_s:g}" if setting.job_core_s else ""
        known = queue_rule(SuiteWorld.LIVE_LIKE)
        rule = Contender(known.label, {**known.texts, FAMILY: text, ANYWHERE: text})
        facts = {"groups": ",".join(self.settings.suite), "short": True, "recent": len(self.windows.held_out)}
        facts |= {"world": self.learner.world, "round": self.state.facts.get("record", "")}
        return fleet_gate(cases, self.settings.limits, facts=facts, rule=lambda: rule)

    def _challenger(self) -> tuple[Path | None, str]:
        """Return the file that goes to the gate; None, and why, where what decides now or the tuned rule is as good."""
        tried, scorer = dict(self._scorers), self.state.stages["scorer"]
        why = scorer["why"]
        if SCORER in tried and not scorer["used"] and names_model(self.policy_now):
            why = "new weights are not surely better than those in use"
            del tried[SCORER]
        means = {name: float(np.mean(row)) for name, row in self.state.stages["judge"]["means"].items()}
        best = min(tried, key=lambda name: means[name], default=None)
        if best is None:
            return None, why
        dearer = [name for name in (NOW, RULE) if means[best] >= means[name]]
        if not dearer:
            return tried[best], ""
        if why:
            return None, why
        than = " and ".join(f"the {name}" if name == RULE else "the policy in use" for name in dearer)
        return None, f"under the fleet's own limits it does not cost less than {than} on the held-out windows"

    @property
    def _scorers(self) -> dict[str, Path]:
        """The files of the scorers that are judged: the one of this round, and the shipped one where it is another."""
        found = {} if self.model is None else {SCORER: self.model}
        shipped = shipped_scorer()
        if names_model(self.policy_now) and sha_of(self.policy_now) != shipped.stem:
            found[SHIPPED] = shipped
        return found

    @property
    def setting(self) -> RuleSetting:
        """The setting of the queue rule that was found."""
        return RuleSetting(**self.state.stages["rule"]["setting"])

    @property
    def model(self) -> Path | None:
        """The file of the scorer, None where none was trained."""
        name = self.state.stages.get("scorer", {}).get("model")
        return None if name is None else self.place / str(name)

    @property
    def place(self) -> Path:
        """The folder of the scorer's training."""
        return self.state.folder / "scorer"

    @property
    def policy_now(self) -> str:
        """What decided the newest minute."""
        return self.learner.recorded.minutes[-1].policy

    def _now_setting(self) -> RuleSetting:
        """Return the setting of the queue rule that the fleet has now."""
        loop, terms = self.learner.loop, self.learner.recorded.terms
        horizon_s = terms.horizon_s if terms is not None else RuleSetting().horizon_s
        return RuleSetting(horizon_s, loop.idle_s, self.learner.typical_core_s)

    def _cost(self, name: str, setting: RuleSetting, span: Span, seed: int, budget: Budget) -> float:
        """Return dollars of a window under one of the policies and the fleet's own limits."""
        budget.check()
        loop, policy = self.learner.loop, self.policy_now
        if name != NOW:
            terms = None if loop.terms is None else replace(loop.terms, horizon_s=setting.horizon_s)
            loop = replace(loop, idle_s=setting.idle_s, terms=terms)
            expected = setting.job_core_s or (terms.job_core_s if terms is not None else 120.0)
            policy = f"queue-rule:horizon_s={setting.horizon_s:g},job_core_s={expected:g}"
        if name in (SCORER, SHIPPED):
            policy = f"model:{self._scorers[name]}"
        return _dollars(loop, self.learner, span, policy, JUDGING_SEED + seed)

    def _earlier_replayed(self) -> list[Span]:
        names = {span.name for span in self.windows.earlier}
        found = [span for span in self.windows.replayed if span.name in names]
        return found[:: max(len(found) // 6, 1)][:6]

    def _loads(self) -> Loads:
        """Return the earlier windows as loads; the later two fifths of them judge the weights before they are used.

        The held-out windows of the round take no part.
        """
        earlier = self.windows.earlier
        kept = len(earlier) - max(round(LEFT_OUT * len(earlier)), 1)
        until_s = earlier[kept].start_s
        job_core_s = self.learner.recorded.job_core_s
        assert job_core_s is not None
        parts = []
        for stretch in self.learner.recorded.stretches:
            before = [minute for minute in stretch if minute.end_s <= until_s]
            if len(before) > 1 and (part := span_of("part", before, job_core_s).trace).jobs > 1:
                parts.append(part)
        learnt, left_out = (tuple(span.trace for span in some) for some in (earlier[:kept], earlier[kept:]))
        return Loads(tuple(parts), learnt, left_out, self.windows.window_s)

    def _start(self) -> Trained:
        """Return the scorer in use, else the one to start from."""
        if names_model(self.policy_now):
            model = self.shelf.policy(self.policy_now, self.learner.loop.fleet).model
            if isinstance(model.card, ScorerCard):
                found = self.directory.path / f"{model.name}.onnx"
                return start_of(str(found)) if found.is_file() else start_of(RELEASE)
        return start_of(self.settings.start)

    def _cases(self) -> list[Case]:
        """Return the held-out windows as cases of the gate, and those of the short suite."""
        config = self.learner.config
        found = []
        for span in self.windows.held_out:
            limits = zip(span.first.requested, config.minimum, config.limits, strict=True)
            initial = tuple(min(max(there, low), high) for there, low, high in limits)
            world = replace(config, initial=initial, max_steps=span.steps + 20_000)
            found += [
                Case(f"{FAMILY} {span.name} boot {seed}", FAMILY, self.learner.world, world, span.trace, seed)
                for seed in range(self.settings.seeds)
            ]
        return [*found, *suite(self.settings.suite, short=True, seeds=self.settings.suite_seeds)]

    def _bounds(self, budget: Budget) -> list[dict[str, Any]]:
        """Return what no policy beats on some held-out windows: in a world without rests and with VMs gone at once.

        What may be done in the fleet's own world may be done in that one at no higher cost.
        """
        found: list[dict[str, Any]] = []
        for span in self.windows.held_out[: self.settings.bounds]:
            budget.check()
            config = replace(self.learner.config, cooldown_s=0.0, removal_mode=RemovalMode.IMMEDIATE)
            try:
                bound = solve(config, span.trace, single=False, time_limit_s=OPEN_S, relaxed=True).bound
                found.append({"window": span.name, "bound": bound})
            except Unavailable as reason:
                found.append({"window": span.name, "unavailable": reason.remedy})
        return found


@dataclass(frozen=True, slots=True)
class _Bounded:
    """Lessons that end with the budget."""

    lessons: OwnLessons
    check: Callable[[], None]

    def __call__(self, first: int, count: int) -> Iterator[Lesson]:
        for lesson in self.lessons(first, count):
            self.check()
            yield lesson


def _dollars(loop: Loop, learner: Learner, span: Span, policy: str, seed: int) -> float:
    limits = zip(span.first.requested, learner.config.limits, strict=True)
    config = replace(learner.config, initial=tuple(min(there, limit) for there, limit in limits))
    policies = [policy] * len(span.policies)
    return play(loop, config, span.trace, policies, seed, span.first.end_s, lead=span.lead).cost
