"""The round of a cluster: from its record to a population, a threshold, a report, and the gate.

    record     the deployments of the earlier and of the later part of the record, as tables in the folder
    now        the rule in use when the round begins
    fit        the population of the earlier part, or the present one; that of the later part is the
               world of the judgement
    fidelity   that world must give the recorded cores (`trainer.learning.promise_fidelity`)
    plan       the number of simulated runs within the budget
    threshold  of `zeroth`, the rule of cores alone, and of `second`, in the earlier world
    judge      both, and the rule in use, in the later world, each with its own belief of the population
    report     for people
    gate       the learnt rule against the rule in use (`trainer.promotion.gate`), where it is the best

The bound is `second` with the threshold that is tuned in the later world itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from agent.admission.settings import cluster_model_in
from domain.errors import BadInput, TraceError
from domain.rules.admission.population import Population
from domain.subject import Subject
from domain.units import DAY_S, HOUR_S, HOURS_PER_YEAR
from simulator.admission import Cluster, cluster_of, draw_run, play, rule_of
from trainer.admission.fitting.fits import MarginalFit, fit_marginal, log_likelihood
from trainer.admission.fitting.histories import Histories, histories_of, read_vm_table
from trainer.admission.fitting.report import START, write_preset
from trainer.admission.fronts import result_of
from trainer.admission.table import Cell, Runs, Store, comparison_seeds, configuration_of, run_cells
from trainer.admission.tuning import ONE_SIDED_90, scale_of, tune
from trainer.kit.files import replace_file
from trainer.kit.intervals import Comparison, Estimate, compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.clusters import ClusterRecord, export_table
from trainer.learning.promise_fidelity import cluster_fidelity
from trainer.learning.round import Budget, Round, Stages, Truth, cpu_s
from trainer.learning.state import StageResult
from trainer.learning.windows import TooLittle
from trainer.promotion.admission import cluster_gate
from trainer.promotion.directory import Verify
from trainer.promotion.gate import Gate, Limits

ADMISSION: Final = "admission"
EARLIER, LATER = PARTS = "earlier", "later"
NOW, RULE, LEARNT, BOUND = "decides now", "tuned zeroth", "learnt", "bound"
LATER_SHARE: Final = 0.4
"""Of the recorded time, the latest, as of fleets (`trainer.learning.windows`)."""
LEAST: Final = {EARLIER: 100, LATER: 50}
"""Deployments that must have begun in a part: fewer do not describe their population."""
LOOKS: Final = 60.0
"""Runs of `second` in a round for each one that it is held to: two searches, the judgement, and the gate."""
AIMED: Final = 0.5
"""Share of the promise that thresholds are tuned to: at the limit of one part, half of them break it in the next."""


@dataclass(frozen=True, slots=True)
class ClusterInUse:
    """The rule in use for a cluster, its belief of the population, and the promise.

    learned: whether the settings let a promoted file decide; None where there are no settings of the cluster.
    """

    cluster: str
    rule: str
    population: Population
    capacity: int
    sla: float
    learned: bool | None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a round is done.

    hours: length of a simulated run. runs: fewest and most that a
    threshold is held to; between them the budget decides.
    """

    hours: float = HOURS_PER_YEAR
    runs: tuple[int, int] = (20, 200)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0.0 < self.hours <= 30.0 * HOURS_PER_YEAR:
            raise BadInput("--years", self.hours / HOURS_PER_YEAR, "give a number above 0 and up to 30")


def keep_tables(
    folder: Path, read: Callable[[float | None, float | None], ClusterRecord], days: float, version: str
) -> str:
    """Write the two parts of the record into the folder, unless they are there; return the SHA-256 of both.

    read: reads the record of a span. Raises TooLittle where too few deployments began in a part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {part: folder / f"{part}.csv.gz" for part in (LATER, EARLIER)}
    if not all(path.is_file() for path in files.values()):
        whole = read(None, None)
        since = max(whole.since, whole.until - days * DAY_S)
        cut = whole.until - LATER_SHARE * (whole.until - since)
        for part, (start, end) in {LATER: (cut, whole.until), EARLIER: (since, cut)}.items():
            try:
                side = export_table(read(start, end), files[part], version, {"cluster": whole.cluster})
                began = int(side["deployments"])
            except BadInput:
                began = 0
            if began < LEAST[part]:
                files[part].unlink(missing_ok=True)
                raise TooLittle(
                    f"cluster {whole.cluster}: {began} deployments began in the {part} part of "
                    f"{(whole.until - since) / HOUR_S:.1f} recorded hours, {LEAST[part]} are needed: wait for more, or "
                    "give more --days"
                )
    return hashlib.sha256(b"".join(files[part].read_bytes() for part in (EARLIER, LATER))).hexdigest()


@dataclass(frozen=True, slots=True)
class RuleInUse(StageResult):
    """The rule in use when the round begins; a promotion of this very round is not compared with itself."""

    STAGE: ClassVar = "now"

    rule: str
    population: Population


@dataclass(frozen=True, slots=True)
class Fit(StageResult):
    """The fits of both parts. population: from now on the belief: the earlier fit, or the present one.

    fresh: whether it is the earlier fit, by `is_fit_likelier`. scores: mean log-likelihood of a deployment of the later
    part.
    """

    STAGE: ClassVar = "fit"

    population: Population
    fresh: bool
    fits: Mapping[str, MarginalFit]
    deployments: Mapping[str, int]
    hours: Mapping[str, float]
    recorded: Mapping[str, Mapping[str, Any]]
    scores: Mapping[str, float | None]
    arrival_rate: Mapping[str, float]


def is_fit_likelier(earlier: Histories, now: Population) -> bool:
    """Return whether a fit describes new deployments of a cluster better than the present belief.

    A fit to the deployments that began first is compared on the others of the earlier part, which began in its latest
    LATER_SHARE; the later part is for the judgement alone. False where either is too small.
    """
    is_first = earlier.began_h < (1.0 - LATER_SHARE) * earlier.window_h
    first, choosing = earlier.some(is_first), earlier.some(~is_first)
    if not len(first) or not len(choosing):
        return False
    try:
        fitted = fit_marginal(first, START).population
    except TraceError:
        return False
    return log_likelihood(choosing, fitted) > log_likelihood(choosing, now)


@dataclass(frozen=True, slots=True)
class RunPlan(StageResult):
    """Seconds of one simulated run, and the number of runs that every threshold is held to."""

    STAGE: ClassVar = "plan"

    run_s: float
    runs: int


@dataclass(frozen=True, slots=True)
class Thresholds(StageResult):
    """The tuned rules by label, None where no threshold keeps the promise."""

    STAGE: ClassVar = "threshold"

    rules: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class HeldOutResult(StageResult):
    """All rules in the later world, by label: utilisation, share refused and its upper end, and the promise."""

    STAGE: ClassVar = "judge"

    runs: int
    rules: Mapping[str, str | None]
    utilisation: Mapping[str, Estimate]
    refused: Mapping[str, Estimate]
    upper_90: Mapping[str, float]
    keeps: Mapping[str, bool]
    against_now: Mapping[str, Comparison]


@dataclass(slots=True, kw_only=True)
class ClusterRound(Round):
    """A round under way; the tables are in the folder of its state."""

    in_use: ClusterInUse
    settings: ClusterSettings
    verify: Verify = cluster_model_in

    @property
    def subject(self) -> Subject:
        """The cluster."""
        return Subject(ADMISSION, self.in_use.cluster)

    def stages(self) -> Stages:
        """Return the stages before the report."""
        return {
            RuleInUse: lambda _: RuleInUse(self.in_use.rule, self.in_use.population),
            Fit: self._fit,
            Truth: self._fidelity,
            RunPlan: self._plan,
            Thresholds: self._threshold,
            HeldOutResult: self._judge,
        }

    def prepare(self) -> None:
        """Fit both parts and plan the runs, as far as necessary; raises as `go_on` does."""
        self.do({kind: work for kind, work in self.stages().items() if kind in (RuleInUse, Fit, RunPlan)})

    def held_out(self, rule: str, belief: Population | None, budget: Budget) -> Runs:
        """Return the runs of a rule in the world of the later part, the same ones for every rule; see `prepare`.

        belief: the population that the rule assumes, None for the world's own. Raises BudgetUsed.
        """
        return self._played(LATER, rule, belief, comparison_seeds(self._runs), budget)

    @property
    def model(self) -> Path:
        """The file of the learnt rule and its population."""
        return self.state.folder / "learnt.json"

    @property
    def now(self) -> RuleInUse:
        """The rule in use when the round began."""
        return self.state.result(RuleInUse)

    def _fit(self, budget: Budget) -> Fit:
        parts = {part: self._histories(part) for part in (EARLIER, LATER)}
        found, sides = {}, {part: self._side(part) for part in parts}
        for part, histories in parts.items():
            budget.check()
            try:
                found[part] = fit_marginal(histories, START)
            except TraceError as error:
                raise TooLittle(f"cluster {self.in_use.cluster}, the {part} part: {error}") from None
        now, later = self.now.population, parts[LATER]
        populations = {LEARNT: found[EARLIER].population, NOW: now, LATER: found[LATER].population}
        scores = {name: log_likelihood(later, population) / len(later) for name, population in populations.items()}
        fresh = is_fit_likelier(parts[EARLIER], now)
        believed = found[EARLIER].population if fresh else now
        for part, population in ((EARLIER, believed), (LATER, found[LATER].population)):
            offered = len(parts[part]) + sides[part]["recorded"]["turned_away"]
            rate = offered / parts[part].window_h
            world = Cluster(part, population, self.in_use.capacity, rate, self.in_use.sla)
            write_preset(self._world(part), world)
        return Fit(
            believed,
            fresh,
            found,
            {part: len(histories) for part, histories in parts.items()},
            {part: histories.window_h for part, histories in parts.items()},
            {part: side["recorded"] for part, side in sides.items()},
            scores,
            {part: cluster_of(str(self._world(part))).arrival_rate for part in parts},
        )

    def _fidelity(self, budget: Budget) -> Truth:
        world = cluster_of(str(self._world(LATER)))
        later, name = self._histories(LATER), self.in_use.cluster
        return cluster_fidelity(name, later, world.population, world.capacity, world.sla, budget)

    def _plan(self, budget: Budget) -> RunPlan:
        """Choose the number of runs; a separate stage, so that a round that resumes has the same."""
        self._played(EARLIER, "second:2.8", None, range(1), budget, hours=1.0)
        begun_s = cpu_s()
        self._played(EARLIER, "second:2.8", None, range(1), budget)
        run_s = max(cpu_s() - begun_s, 1e-3)
        return RunPlan(run_s, budget.affordable(LOOKS * run_s, self.settings.runs))

    def _threshold(self, budget: Budget) -> Thresholds:
        """Tune the rule of cores alone and the rule that looks ahead on the earlier world, the bound on the later."""
        return Thresholds(
            {
                RULE: self._tuned(EARLIER, "zeroth", AIMED, budget),
                LEARNT: self._tuned(EARLIER, "second", AIMED, budget),
                BOUND: self._tuned(LATER, "second", 1.0, budget),
            }
        )

    def _judge(self, budget: Budget) -> HeldOutResult:
        """Play the rule in use, the tuned rule, the learnt one and the bound in the world of the later part."""
        rules = {NOW: self.now.rule, **self._rules}
        beliefs = {NOW: self.now.population, LEARNT: self._believed, BOUND: None, RULE: None}
        cell = Cell(str(self._world(LATER)), "zeroth:1", hours=self.settings.hours)
        played = {name: self.held_out(rule, beliefs[name], budget) for name, rule in rules.items() if rule is not None}
        idle = {name: 1.0 - runs.utilisation for name, runs in played.items()}
        cells = {name: replace(cell, policy=str(rules[name])) for name in played}
        found = {name: result_of(cells[name], runs) for name, runs in played.items()}
        upper = {name: result_of(cells[name], runs, level=ONE_SIDED_90).primary.high for name, runs in played.items()}
        return HeldOutResult(
            self._runs,
            rules,
            {name: one.utilisation for name, one in found.items()},
            {name: one.primary for name, one in found.items()},
            upper,
            {name: bool(high <= self.in_use.sla) for name, high in upper.items()},
            {name: compare(row, idle[NOW]) for name, row in idle.items() if name != NOW},
        )

    def challenger(self) -> Path | str:
        """Write the learnt rule, or return the reason why it does not go to the gate."""
        why = self.objection()
        if why:
            return why
        world = cluster_of(str(self._world(LATER)))
        given = {**asdict(self._believed), "rule": self._rules[LEARNT]}
        given |= {"name": self.in_use.cluster, "capacity": world.capacity, "arrival_rate": world.arrival_rate}
        replace_file(self.model, json.dumps({**given, "sla": world.sla}, indent=1, sort_keys=True) + "\n")
        return self.model

    def gate(self, budget: Budget) -> Gate:
        """Return the gate in the world of the later part."""
        return cluster_gate(
            self.settings.limits,
            now=self.now.rule,
            world=str(self._world(LATER)),
            tuned=self._rules[BOUND] or "",
            sla=self.in_use.sla,
            runs=self._runs,
            hours=self.settings.hours,
        )

    def objection(self) -> str:
        """Return why the learnt rule does not go to the gate, "" where it does."""
        judged = self.state.result(HeldOutResult)
        if judged.rules[LEARNT] is None:
            return "no threshold of second keeps the promise in the earlier world"
        if not judged.keeps[LEARNT]:
            return (
                f"on the later part up to {judged.upper_90[LEARNT]:.2g} of the requests for more cores would be "
                f"refused, more than the promised {self.in_use.sla:g}"
            )
        use = {name: found.value for name, found in judged.utilisation.items()}
        fuller = [name for name in (NOW, RULE) if judged.keeps.get(name) and use[LEARNT] <= use[name]]
        if fuller:
            than = " and ".join("the policy in use" if name == NOW else f"the {name}" for name in fuller)
            return f"on the later part it does not fill the cluster more than {than}"
        return ""

    @property
    def _believed(self) -> Population:
        return self.state.result(Fit).population

    @property
    def _runs(self) -> int:
        return self.state.result(RunPlan).runs

    @property
    def _rules(self) -> Mapping[str, str | None]:
        return self.state.result(Thresholds).rules

    def _world(self, part: str) -> Path:
        return self.state.folder / f"{part}.json"

    def _histories(self, part: str) -> Histories:
        return histories_of(read_vm_table(self.state.folder / f"{part}.csv.gz"))

    def _side(self, part: str) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads((self.state.folder / f"{part}.csv.gz.json").read_bytes())
        return found

    def _tuned(self, part: str, kind: str, share: float, budget: Budget) -> str | None:
        """Return the most permissive threshold that keeps a share of the promise in a world, None without one.

        The runs are kept.
        """
        preset, hours = str(self._world(part)), self.settings.hours
        store = Store(self.state.folder / f"runs-{part}", configuration_of([preset], hours))

        def play(cell: Cell, seeds: Sequence[int]) -> Runs:
            for seed in store.missing(cell, seeds):
                budget.check()
                run_cells(store, [cell], [seed])
            return run_cells(store, [cell], seeds)[cell]

        scale = scale_of(kind, preset)
        cell = Cell(preset, scale.text(0), hours=hours)
        runs = self._runs
        return tune(cell, scale, share * self.in_use.sla, play, runs=max(runs // 2, 2), final_runs=runs).policy

    def _played(
        self,
        part: str,
        rule: str,
        belief: Population | None,
        seeds: Sequence[int],
        budget: Budget,
        hours: float | None = None,
    ) -> Runs:
        """Return runs of a rule in the world of a part.

        belief: the population that the rule assumes, None for the world's own. The simulator knows one power and one
        number of lifetimes, those of the world.
        """
        cluster, outcomes = cluster_of(str(self._world(part))), []
        own = cluster.population
        law = None if belief is None else replace(belief, power=own.power, lifetimes=own.lifetimes)
        for seed in seeds:
            budget.check()
            run = draw_run(cluster, seed, hours=hours or self.settings.hours)
            if law is not None and law != own:
                arrivals = run.arrivals.copy()
                arrivals["law"] = 1
                run = replace(run, laws=(law,), arrivals=arrivals)
            outcomes.append(play(run, rule_of(rule)))
        return Runs.of(list(seeds), outcomes)

    def page(self) -> str:
        """Return the page of the report."""
        fit, cluster = self.state.result(Fit), self.in_use.cluster
        parts = {
            part: f"{fit.deployments[part]:,} deployments in {fit.hours[part]:,.0f} h, "
            f"{fit.arrival_rate[part]:.3g} offered an hour"
            for part in (EARLIER, LATER)
        }
        facts = {"cluster": cluster, "decides now": self.now.rule, **parts}
        use = _use(self.state.result(HeldOutResult), self.in_use.sla)
        sections = [
            Section("use", "Utilisation in the world of the later part", use),
            Section("population", "The population", _population(fit)),
        ]
        return document(f"The learning record of cluster {cluster}", sections, facts)


def _use(judged: HeldOutResult, sla: float) -> str:
    rows = []
    for name, rule in judged.rules.items():
        if rule is None:
            rows.append([escape(name), "none keeps the promise", "", "", "", ""])
            continue
        against = judged.against_now.get(name)
        idle = "" if against is None else f"{against.relative.mean:+.1%}"
        promise = chip(judged.keeps[name], f"at most {judged.upper_90[name]:.2g}")
        figures = [f"{judged.utilisation[name].value:.2%}", f"{judged.refused[name].value:.2g}"]
        rows.append([escape(name), escape(rule), *figures, promise, idle])
    head = ["", "rule", "cores taken", "refused", "with 90 %", "cores idle, against now"]
    words = (
        f"Each rule believes in its own population and meets the same {judged.runs} runs. The promise: at most "
        f"{sla:g} of the requests for more cores refused. The bound is tuned in the very world that it is judged in."
    )
    return f'<p class="soft">{escape(words)}</p>{table(head, rows)}'


def _population(fit: Fit) -> str:
    errors, later = fit.fits[EARLIER].relative_errors, asdict(fit.fits[LATER].population)
    rows = [
        [escape(name), f"{value:.4g}", f"{np.nan_to_num(errors.get(name, 0.0)):.2g}", f"{later[name]:.4g}"]
        for name, value in asdict(fit.population).items()
    ]
    origin = "fitted to the earlier part" if fit.fresh else "the present one, which a fit to that part does not beat"
    scores = fit.scores
    words = (
        f"It is {origin}. Log-likelihood of a deployment of the later part: {scores[LEARNT]:.4f} by the earlier fit, "
        f"{scores[NOW]:.4f} by the present belief, {scores[LATER]:.4f} by its own fit."
    )
    return f"<p>{escape(words)}</p>{table(['', 'believed', 'relative error', 'later part alone'], rows)}"
