"""One round of learning for a pool: from what was recorded to rates behind a shield, a report, and the gate.

    record   the earlier and the later weeks of the record, as scenario folders, each with the usage measured in it
    now      what decides when the round begins
    fidelity what ran, replayed on the later weeks, must reserve what was recorded (`trainer.learning.promise_fidelity`)
    plan     how many assessments a search may take
    rates    constant rates calibrated on the earlier weeks, alone, and together with the shield before them
    judge    both, and what decides now, on the later weeks and on weeks redrawn from them, with the later usage
    report   what people read
    gate     the rates and their shield against what decides now (`trainer.promotion.gate`), where they are the best

The bound are the constant rates that the later weeks themselves allow. Stages are done once, see
`trainer.learning.stages`; nothing is in use before the gate has let it pass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from domain.rules.oversubscription.rates import NO_MARGIN, SHIELD, Margin, RateGuard
from domain.rules.oversubscription.risk import clopper_pearson_upper
from domain.subject import Subject
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor
from trainer.kit.checkpoint import package_versions
from trainer.kit.intervals import compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.pools import RecordedPool, export_scenario
from trainer.learning.promise_fidelity import is_not_true, pool_fidelity
from trainer.learning.report import DATA_FILE, PAGE_FILE, write_folder
from trainer.learning.stages import Budget, Stage, Tell, ask_gate, check_minutes, cpu_s, go_on, not_asked, plain
from trainer.learning.state import State
from trainer.learning.windows import TooLittle
from trainer.oversubscription.calibration import AUTO, Calibrated, calibrate
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import RatesFile, Task, policy_of, scenario_sha256, write_rates
from trainer.oversubscription.search import optimise
from trainer.oversubscription.trials import SEED, policy_text
from trainer.oversubscription.unseen import EVALUATION, arrivals_of, unseen_week
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Gate, Limits, Term
from trainer.promotion.oversubscription import guarded, pool_gate

OVERSUBSCRIPTION: Final = "oversubscription"
EARLIER, LATER = PARTS = "earlier", "later"
NOW, RULE, LEARNT, BOUND = "decides now", "tuned rates", "rates and shield", "bound"
LATER_SHARE: Final = 0.4
"""Of the weeks that are recorded, the latest, as of fleets (`trainer.learning.windows`)."""
LEAST_WEEKS: Final = 4
START: Final = "warm"
"""A pool's week begins with the VMs that are there."""
OF_FILES: Final = ("learned", "rates", "model")
"""Policies of the settings that are files."""
SEARCHES: Final = 5.0
"""Searches that a round makes, in those of constant rates on the earlier weeks."""
FIRST_REDRAWN: Final = 3_000


@dataclass(frozen=True, slots=True)
class PoolInUse:
    """What decides for a pool now: a policy's text, as `simulate` has it; budget and margin: of its shield."""

    pool: str
    policy: str
    budget: float
    alpha: float
    margin: Margin = NO_MARGIN


@dataclass(frozen=True, slots=True)
class PoolRound:
    """How a round is done.

    cpu_s: seconds of a processor over all resumptions. evaluations: fewest and most of a search; between them the
    budget decides. episodes: of usage on each week. redrawn: weeks drawn anew from the later ones.
    """

    cpu_s: float = 600.0
    evaluations: tuple[int, int] = (200, 3000)
    episodes: int = 300
    redrawn: int = 4
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_minutes(self.cpu_s)


def keep_weeks(folder: Path, read: Callable[[], RecordedPool]) -> str:
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


@dataclass(slots=True)
class OversubscriptionRound:
    """A round under way; the weeks are in the folder of its state. now: the time for the record of the gate.

    term: of the probation of what passes, None where it decides at once.
    opted_out: subscribers that are reserved in full whatever is learnt. verify: refuses a file that the pool's settings
    do not permit.
    """

    in_use: PoolInUse
    opted_out: frozenset[str]
    state: State
    settings: PoolRound
    directory: ModelsWriter
    verify: Callable[[Path], object]
    now: str
    try_only: bool = False
    tell: Tell = lambda line: None
    term: Term | None = None

    def go_on(self) -> dict[str, Any]:
        """Do every stage that is not done, and return the results by stage.

        Ends after `fidelity` where the simulator is not true. Raises BudgetUsed, and BadInput where the gate refuses to
        compare; what is done is kept.
        """
        if "now" in self.state.stages:
            # What the round itself promoted before it was stopped is not what it is compared with.
            held = self.state.stages["now"]
            self.in_use = PoolInUse(**held | {"margin": Margin(**held["margin"])})
        stages: dict[str, Stage] = {
            "now": lambda budget: asdict(self.in_use),
            "fidelity": self._fidelity,
            "plan": self._plan,
            "rates": self._rates,
            "judge": self._judge,
            "report": self._report,
            "gate": self._gate,
        }
        return go_on(self.state, stages, self.settings.cpu_s, self.tell, is_not_true)

    @property
    def model(self) -> Path:
        """The file of the learnt rates and their shield."""
        return self.state.folder / "rates.json"

    def _fidelity(self, budget: Budget) -> dict[str, Any]:
        """Replay the later weeks in which nothing but the newest policy decided."""
        later = self._scenario(LATER)
        recorded = json.loads((self.state.folder / LATER / f"{later.name}.json").read_bytes())["recorded"]
        policy, share = str(recorded["policy"]), float(recorded["share_of_vms"])
        # A file that was in use stands for itself; which one decided is in the settings, not in the record.
        words = in_words({"policy": policy})
        ran = self.in_use.policy if policy.partition(":")[0] in OF_FILES else words
        weeks = [
            (name, share * week["requested"], share * week["reserved"])
            for name, week in recorded["weeks"].items()
            if week.get("policies", [policy]) == [policy]
        ]
        if not weeks:
            sentence = f"no later week of pool {self.in_use.pool} had one policy: its simulator was not checked"
            return {"holds": True, "off": 0.0, "named": "", "quantities": {}, "sentence": sentence}
        text = guarded(ran, self.in_use.budget, self.in_use.margin)
        found = pool_fidelity(later, text, weeks, START, self.in_use.alpha, budget)
        return plain(found.as_data(f"pool {self.in_use.pool}"))

    def _plan(self, budget: Budget) -> dict[str, Any]:
        """Choose how long a search is; kept apart, so that a round that goes on has the same."""
        scenario = self._scenario(EARLIER)
        bare = [Assessor(scenario, scenario.week(name), START) for name in scenario.weeks]
        rates = np.full(scenario.subscribers, 0.5)
        bare[0].c_hot_r(rates)
        begun_s = cpu_s()
        for assessor in bare:
            assessor.c_hot_r(rates)
        each_s = max(cpu_s() - begun_s, 1e-4)
        fewest, most = self.settings.evaluations
        affordable = int(max(budget.left_s - budget.used_s, 0.0) / (SEARCHES * each_s))
        return {"assessment_s": each_s, "evaluations": min(max(affordable, fewest), most)}

    def _rates(self, budget: Budget) -> dict[str, Any]:
        """Calibrate on the earlier weeks; find what the later ones would have allowed."""
        scenario, later = self._scenario(EARLIER), self._scenario(LATER)

        def searched(shield: str | None) -> Calibrated:
            return calibrate(
                scenario,
                start=START,
                alpha=self.in_use.alpha,
                evaluations=self._evaluations,
                shield=shield,
                on_progress=lambda _: budget.check(),
            )

        found = {RULE: searched(None), LEARNT: searched(AUTO)}
        bare = [Assessor(later, later.week(name), START) for name in later.weeks]
        given: dict[str, Any] = {"evaluations": self._evaluations, "on_progress": lambda _: budget.check()}
        bound = optimise(bare, self.in_use.alpha, **given)
        rules = {name: {**asdict(one), "rates": self._with_opted_out(one.rates)} for name, one in found.items()}
        allowed = self._with_opted_out(bound.rates)
        rules[BOUND] = {"rates": allowed, "feasible": bound.feasible, "budget": None, "facts": {}}
        learnt = found[LEARNT]
        guard = None if learnt.budget is None else RateGuard(SHIELD, learnt.budget)
        write_rates(
            RatesFile(
                name=str(self.model),
                scenario=scenario.name,
                scenario_sha256=scenario_sha256(scenario),
                start=START,
                alpha=self.in_use.alpha,
                actions=scenario.actions,
                subscribers=self._names,
                rates=tuple(rules[LEARNT]["rates"]),
                guard=guard,
                calibration={"method": "learn", **learnt.facts},
                packages=package_versions(),
            ),
            self.model,
        )
        return plain(rules)

    def _judge(self, budget: Budget) -> dict[str, Any]:
        """Play all on the later weeks, on redrawn ones, and once on the usage that was measured."""
        later, found = self._scenario(LATER), self.state.stages["rates"]
        before = self.in_use.budget, self.in_use.margin
        texts = {
            NOW: guarded(self.in_use.policy, *before),
            RULE: guarded(self._text(RULE), *before),
            LEARNT: guarded(str(self.model), *before),
            BOUND: self._text(BOUND),
        }
        arrivals = arrivals_of(later)
        drawn = [unseen_week(arrivals, FIRST_REDRAWN + n, EVALUATION) for n in range(self.settings.redrawn)]
        weeks = [*(later.week(name) for name in later.weeks), *drawn]
        reserved, broken, replayed = {}, {}, {}
        for name, text in texts.items():
            rows = [self._played(text, later, week, budget) for week in weeks]
            reserved[name] = [1.0 - saved for saved, _ in rows]
            broken[name] = [count for _, count in rows]
            replayed[name] = [self._replayed(text, later, week) for week in later.weeks]
        episodes = self.settings.episodes
        upper = {
            name: clopper_pearson_upper(min(sum(row), episodes * len(weeks)), episodes * len(weeks))
            for name, row in broken.items()
        }
        recorded = json.loads((self.state.folder / LATER / f"{later.name}.json").read_bytes())["recorded"]["weeks"]
        return plain(
            {
                "weeks": [week.name for week in weeks],
                "texts": texts,
                "reserved": reserved,
                "hot": {name: [count / episodes for count in row] for name, row in broken.items()},
                "upper_95": upper,
                "keeps": {name: bool(high <= 1.0 - self.in_use.alpha) for name, high in upper.items()},
                "replayed_hot_hours": replayed,
                "recorded_hot_hours": [recorded[name]["hot_hours"] for name in later.weeks],
                "recorded_reserved": [
                    recorded[name]["reserved"] / max(recorded[name]["requested"], 1e-9) for name in later.weeks
                ],
                "feasible": {name: one["feasible"] for name, one in found.items()},
                "against_now": {n: asdict(compare(row, reserved[NOW])) for n, row in reserved.items() if n != NOW},
            }
        )

    def _report(self, budget: Budget) -> dict[str, Any]:
        write_folder(self.state.folder, page(self), {"facts": self.state.facts, **self.state.stages})
        return {"files": [PAGE_FILE, DATA_FILE]}

    def _gate(self, budget: Budget) -> dict[str, Any]:
        """Hand the rates to the gate; a promotion after which the round was stopped is found, not repeated."""
        why = self.objection()
        if why:
            return not_asked(why)
        subject = Subject(OVERSUBSCRIPTION, self.in_use.pool)
        name = f"{hashlib.sha256(self.model.read_bytes()).hexdigest()}.json"
        place = (self.model, name, self.directory, subject, self.verify, lambda: self._pool_gate(budget))
        return ask_gate(*place, budget, at=self.now, try_only=self.try_only, term=self.term)

    def _pool_gate(self, budget: Budget) -> Gate:
        later = self._scenario(LATER)
        return pool_gate(
            later,
            self.settings.limits,
            now=self.in_use.policy,
            budget=self.in_use.budget,
            margin=self.in_use.margin,
            alpha=self.in_use.alpha,
            start=START,
            weeks=later.weeks,
            drawn=max(self.settings.redrawn, 1),
            episodes=self.settings.episodes,
            tuned=self._text(BOUND),
            on_progress=lambda _: budget.check(),
        )

    def objection(self) -> str:
        """Return why the learnt rates do not go to the gate, "" where they do."""
        judged = self.state.stages["judge"]
        if not judged["feasible"][LEARNT]:
            return "no rates and no shield keep the promise in the earlier weeks"
        if not judged["keeps"][LEARNT]:
            return (
                f"on the later weeks up to {judged['upper_95'][LEARNT]:.1%} would have too many hot hours, more than "
                f"the promised {1.0 - self.in_use.alpha:.1%}"
            )
        mean = {name: float(np.mean(row)) for name, row in judged["reserved"].items()}
        if judged["keeps"][NOW] and mean[LEARNT] >= mean[NOW]:
            return "on the later weeks they do not reserve less than the policy in use"
        if judged["keeps"][RULE] and mean[LEARNT] > mean[RULE]:
            return f"on the later weeks they reserve more than the {RULE}"
        return ""

    @property
    def _evaluations(self) -> int:
        return int(self.state.stages["plan"]["evaluations"])

    @property
    def _names(self) -> tuple[str, ...]:
        path = self.state.folder / EARLIER / f"{self.in_use.pool}.json"
        return tuple(json.loads(path.read_bytes())["subscribers"])

    def _scenario(self, part: str) -> Scenario:
        return scenario_of(str(self.state.folder / part / f"{self.in_use.pool}.json"))

    def _with_opted_out(self, rates: Sequence[float] | np.ndarray[Any, Any]) -> list[float]:
        """Return rates with those that may not be oversold at 1, which leaves more room than was reckoned with."""
        pairs = zip(self._names, np.asarray(rates).tolist(), strict=True)
        return [1.0 if name in self.opted_out else float(rate) for name, rate in pairs]

    def _text(self, name: str) -> str:
        return policy_text(np.array(self.state.stages["rates"][name]["rates"]), None)

    def _played(self, text: str, scenario: Scenario, week: Week, budget: Budget) -> tuple[float, int]:
        """Return the share of cores saved in a week, and how many of its episodes have too many hot hours."""
        budget.check()
        episodes = self.settings.episodes
        task = Task(scenario, week, START, self.in_use.alpha)
        judged = judge(policy_of(text), task, episodes=episodes, seed=SEED)
        return judged.s_cores or 0.0, episodes if judged.placement.rejects else judged.sampled.violations

    def _replayed(self, text: str, scenario: Scenario, week: str) -> int:
        """Return the hot hours of a week with the usage that was measured in it; what was not measured is drawn."""
        usage = f"replay:{self.state.folder / LATER / f'{scenario.name}_{week}_usage.csv.gz'}"
        task = Task(scenario, scenario.week(week), START, self.in_use.alpha)
        return int(judge(policy_of(text), task, usage=usage, episodes=1, seed=SEED).sampled.hot_hours[0])


def page(work: OversubscriptionRound) -> str:
    """Return the page of a round."""
    judged, found = work.state.stages["judge"], work.state.stages["rates"]
    facts = {"pool": work.in_use.pool, "decides now": work.in_use.policy, "weeks judged on": ", ".join(judged["weeks"])}
    rows = []
    for name in judged["texts"]:
        against = judged["against_now"].get(name)
        rows.append(
            [
                escape(name),
                f"{np.mean(judged['reserved'][name]):.1%}",
                "" if against is None else f"{against['relative']['mean']:+.1%}",
                f"{max(judged['hot'][name]):.1%}",
                chip(judged["keeps"][name], f"at most {judged['upper_95'][name]:.1%}"),
                " ".join(map(str, judged["replayed_hot_hours"][name])),
            ]
        )
    head = ["", "cores reserved", "against now", "hot in the worst week", "all weeks, 95 %", "hot hours, replayed"]
    words = (
        f"Weeks of the later part and weeks redrawn from them, {work.settings.episodes} episodes of usage each, as "
        f"measured in the later part. Promised: at most {1.0 - work.in_use.alpha:.1%} with too many hot hours. "
        f"Replayed: with the usage that was measured; recorded were "
        f"{' '.join(map(str, judged['recorded_hot_hours']))} hot hours."
    )
    rates = [
        [escape(name), *(f"{found[label]['rates'][n]:g}" for label in (RULE, LEARNT, BOUND))]
        for n, name in enumerate(work._names)
    ]
    shield = found[LEARNT]["budget"]
    behind = "no shield" if shield is None else f"a shield of {shield:g} hot hours of a machine and day"
    sections = [
        Section("use", "The later weeks", f'<p class="soft">{escape(words)}</p>{table(head, rows)}'),
        Section("rates", "The rates", f"<p>Behind {behind}.</p>{table(['', RULE, LEARNT, BOUND], rates)}"),
    ]
    return document(f"The learning record of pool {work.in_use.pool}", sections, facts)


def in_words(data: Mapping[str, Any]) -> str:
    """Return a policy of the agent's settings as the simulator has it; `policy` as recorded."""
    kind, _, given = str(data["policy"]).partition(":")
    texts = {"moving-average": "ma", "static": f"grid:{given}", "rates": given, "model": given}
    return texts.get(kind, "none")
