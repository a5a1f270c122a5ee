"""One round of learning for a cluster: from what was recorded to a population, a threshold, a report, and the gate.

    record     the deployments of the earlier and of the later part of the record, as tables in the folder
    now        what decides when the round begins
    fit        the population behind the earlier part; that behind the later part is the world of the judging
    fidelity   that world must give the cores that were taken (`trainer.learning.promise_fidelity`)
    plan       how many simulated runs the budget allows
    threshold  of `zeroth`, the rule that looks at nothing but cores, and of `second`, on the earlier world
    judge      both, and what decides now, in the later world, each believing in its own population
    report     what people read
    gate       the learnt rule against what decides now (`trainer.promotion.gate`), where it is the best of those judged

The bound is `second` with the threshold that the later world itself leads to. Stages are done once, see
`trainer.learning.stages`; nothing is in use before the gate has let it pass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.admission.settings import cluster_model_in
from domain.errors import BadInput, TraceError
from domain.rules.admission.population import Population
from domain.subject import Subject
from domain.units import DAY_S, HOUR_S, HOURS_PER_YEAR
from simulator.admission import Cluster, cluster_of, draw_run, play, rule_of
from trainer.admission.fitting.fits import fit_marginal, log_likelihood
from trainer.admission.fitting.histories import Histories, histories_of, read_vm_table
from trainer.admission.fitting.report import START, write_preset
from trainer.admission.fronts import result_of
from trainer.admission.table import Cell, Runs, Store, comparison_seeds, configuration_of, run_cells
from trainer.admission.tuning import ONE_SIDED_90, scale_of, tune
from trainer.kit.files import replace_file
from trainer.kit.intervals import compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.clusters import RecordedCluster, export_table
from trainer.learning.promise_fidelity import cluster_fidelity, is_not_true
from trainer.learning.report import DATA_FILE, PAGE_FILE, write_folder
from trainer.learning.stages import Budget, Stage, Tell, ask_gate, check_minutes, cpu_s, go_on, not_asked, plain
from trainer.learning.state import State
from trainer.learning.windows import TooLittle
from trainer.promotion.admission import cluster_gate
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Gate, Limits, Term

ADMISSION: Final = "admission"
EARLIER, LATER = PARTS = "earlier", "later"
NOW, RULE, LEARNT, BOUND = "decides now", "tuned zeroth", "learnt", "bound"
LATER_SHARE: Final = 0.4
"""Of the time that is recorded, the latest, as of fleets (`trainer.learning.windows`)."""
LEAST: Final = {EARLIER: 100, LATER: 50}
"""Deployments that must have begun in a part: fewer say too little of their population."""
LOOKS: Final = 60.0
"""Runs of `second` that a round plays for each one that it is held to: two searches, judging, and the gate."""
AIMED: Final = 0.5
"""Share of the promise that thresholds are tuned to: at the limit of one part, half of them break it in the next."""


@dataclass(frozen=True, slots=True)
class InUse:
    """What decides for a cluster now: its rule, the population that it believes in, and the promise.

    learned: whether the settings let a promoted file decide; None where there are no settings of the cluster.
    """

    cluster: str
    rule: str
    population: Population
    capacity: int
    sla: float
    learned: bool | None


@dataclass(frozen=True, slots=True)
class ClusterRound:
    """How a round is done.

    cpu_s: seconds of a processor over all resumptions. hours: length of a simulated run. runs: fewest and most that a
    threshold is held to; between them the budget decides.
    """

    cpu_s: float = 600.0
    hours: float = HOURS_PER_YEAR
    runs: tuple[int, int] = (20, 200)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_minutes(self.cpu_s)
        if not 0.0 < self.hours <= 30.0 * HOURS_PER_YEAR:
            raise BadInput("--years", self.hours / HOURS_PER_YEAR, "give a number above 0 and up to 30")


def keep_tables(
    folder: Path, read: Callable[[float | None, float | None], RecordedCluster], days: float, version: str
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


@dataclass(slots=True)
class AdmissionRound:
    """A round under way; the tables are in the folder of its state. now: the time for the record of the gate.

    term: of the probation of what passes, None where it decides at once.
    """

    in_use: InUse
    state: State
    settings: ClusterRound
    directory: ModelsWriter
    now: str
    try_only: bool = False
    tell: Tell = lambda line: None
    term: Term | None = None

    def go_on(self) -> dict[str, Any]:
        """Do every stage that is not done, and return the results by stage.

        Ends after `fidelity` where the simulator is not true. Raises BudgetUsed, TooLittle where a part shows no core
        that ended or no request for more, and BadInput where the gate refuses to compare; what is done is kept.
        """
        if "now" in self.state.stages:
            # What the round itself promoted before it was stopped is not what it is compared with.
            held = self.state.stages["now"]
            self.in_use = replace(self.in_use, rule=held["rule"], population=Population(**held["population"]))
        stages: dict[str, Stage] = {
            "now": lambda budget: {"rule": self.in_use.rule, "population": asdict(self.in_use.population)},
            "fit": self._fit,
            "fidelity": self._fidelity,
            "plan": self._plan,
            "threshold": self._threshold,
            "judge": self._judge,
            "report": self._report,
            "gate": self._gate,
        }
        return go_on(self.state, stages, self.settings.cpu_s, self.tell, is_not_true)

    def prepare(self) -> None:
        """Fit both parts and plan the runs, where that is not done; raises as `go_on` does."""
        stages: dict[str, Stage] = {"fit": self._fit, "plan": self._plan}
        go_on(self.state, stages, self.settings.cpu_s, self.tell)

    def held_out(self, rule: str, belief: Population | None, budget: Budget) -> Runs:
        """Return the runs of a rule in the world of the later part, the same ones for every rule; see `prepare`.

        belief: what the rule takes the population for, None for the world's own. Raises BudgetUsed.
        """
        return self._played(LATER, rule, belief, comparison_seeds(self._runs), budget)

    @property
    def model(self) -> Path:
        """The file of the learnt rule and its population."""
        return self.state.folder / "learnt.json"

    def _fit(self, budget: Budget) -> dict[str, Any]:
        """Fit both parts. What is believed from now on is the earlier fit, unless the present one says more."""
        parts = {part: self._histories(part) for part in (EARLIER, LATER)}
        found, sides = {}, {part: self._side(part) for part in parts}
        for part, histories in parts.items():
            budget.check()
            try:
                found[part] = fit_marginal(histories, START)
            except TraceError as error:
                raise TooLittle(f"cluster {self.in_use.cluster}, the {part} part: {error}") from None
        later = parts[LATER]
        scores = {
            name: log_likelihood(later, population) / len(later)
            for name, population in (
                (LEARNT, found[EARLIER].population),
                (NOW, self.in_use.population),
                (LATER, found[LATER].population),
            )
        }
        fresh = scores[LEARNT] > scores[NOW]
        believed = found[EARLIER].population if fresh else self.in_use.population
        for part in parts:
            offered = len(parts[part]) + sides[part]["recorded"]["turned_away"]
            world = Cluster(
                part,
                believed if part == EARLIER else found[LATER].population,
                self.in_use.capacity,
                offered / parts[part].window_h,
                self.in_use.sla,
            )
            write_preset(self._world(part), world)
        return plain(
            {
                "population": asdict(believed),
                "fresh": fresh,
                "fits": {part: asdict(one) for part, one in found.items()},
                "deployments": {part: len(histories) for part, histories in parts.items()},
                "hours": {part: histories.window_h for part, histories in parts.items()},
                "recorded": {part: side["recorded"] for part, side in sides.items()},
                "scores": scores,
                "arrival_rate": {part: cluster_of(str(self._world(part))).arrival_rate for part in parts},
            }
        )

    def _fidelity(self, budget: Budget) -> dict[str, Any]:
        world = cluster_of(str(self._world(LATER)))
        found = cluster_fidelity(self._histories(LATER), world.population, world.capacity, world.sla, budget)
        return plain(found.as_data(f"cluster {self.in_use.cluster}"))

    def _plan(self, budget: Budget) -> dict[str, Any]:
        """Choose the runs that every threshold is held to; kept apart, so that a round that goes on has the same."""
        self._played(EARLIER, "second:2.8", None, range(1), budget, hours=1.0)
        begun_s = cpu_s()
        self._played(EARLIER, "second:2.8", None, range(1), budget)
        run_s = max(cpu_s() - begun_s, 1e-3)
        affordable = int(max(budget.left_s - budget.used_s, 0.0) / (LOOKS * run_s))
        fewest, most = self.settings.runs
        return {"run_s": run_s, "runs": min(max(affordable, fewest), most)}

    def _threshold(self, budget: Budget) -> dict[str, Any]:
        """Tune the rule of cores alone and the one that looks ahead on the earlier world, the bound on the later."""
        return plain(
            {
                "rules": {
                    RULE: self._tuned(EARLIER, "zeroth", AIMED, budget),
                    LEARNT: self._tuned(EARLIER, "second", AIMED, budget),
                    BOUND: self._tuned(LATER, "second", 1.0, budget),
                }
            }
        )

    def _judge(self, budget: Budget) -> dict[str, Any]:
        """Play what decides now, the tuned rule, the learnt one and the bound in the world of the later part."""
        rules = {NOW: self.in_use.rule, **self.state.stages["threshold"]["rules"]}
        beliefs = {NOW: self.in_use.population, LEARNT: self._believed, BOUND: None, RULE: None}
        cell = Cell(str(self._world(LATER)), "zeroth:1", hours=self.settings.hours)
        played = {name: self.held_out(rule, beliefs[name], budget) for name, rule in rules.items() if rule is not None}
        idle = {name: 1.0 - runs.utilisation for name, runs in played.items()}
        found = {name: result_of(replace(cell, policy=str(rules[name])), runs) for name, runs in played.items()}
        upper = {
            name: result_of(replace(cell, policy=str(rules[name])), runs, level=ONE_SIDED_90).primary.high
            for name, runs in played.items()
        }
        return plain(
            {
                "runs": self._runs,
                "rules": rules,
                "utilisation": {name: asdict(one.utilisation) for name, one in found.items()},
                "refused": {name: asdict(one.primary) for name, one in found.items()},
                "upper_90": upper,
                "keeps": {name: bool(high <= self.in_use.sla) for name, high in upper.items()},
                "against_now": {n: asdict(compare(row, idle[NOW])) for n, row in idle.items() if n != NOW},
            }
        )

    def _report(self, budget: Budget) -> dict[str, Any]:
        write_folder(self.state.folder, page(self), {"facts": self.state.facts, **self.state.stages})
        return {"files": [PAGE_FILE, DATA_FILE]}

    def _gate(self, budget: Budget) -> dict[str, Any]:
        """Hand the learnt rule to the gate; a promotion after which the round was stopped is found, not repeated."""
        why = self.objection()
        if why:
            return not_asked(why)
        world = cluster_of(str(self._world(LATER)))
        given = {**asdict(self._believed), "rule": self.state.stages["threshold"]["rules"][LEARNT]}
        given |= {"name": self.in_use.cluster, "capacity": world.capacity, "arrival_rate": world.arrival_rate}
        replace_file(self.model, json.dumps({**given, "sla": world.sla}, indent=1, sort_keys=True) + "\n")
        subject = Subject(ADMISSION, self.in_use.cluster)
        name = f"{hashlib.sha256(self.model.read_bytes()).hexdigest()}.json"
        place = (self.model, name, self.directory, subject, cluster_model_in, self._cluster_gate)
        return ask_gate(*place, budget, at=self.now, try_only=self.try_only, term=self.term)

    def _cluster_gate(self) -> Gate:
        return cluster_gate(
            self.settings.limits,
            now=self.in_use.rule,
            world=str(self._world(LATER)),
            tuned=self.state.stages["threshold"]["rules"][BOUND] or "",
            sla=self.in_use.sla,
            runs=self._runs,
            hours=self.settings.hours,
        )

    def objection(self) -> str:
        """Return why the learnt rule does not go to the gate, "" where it does."""
        judged = self.state.stages["judge"]
        if judged["rules"][LEARNT] is None:
            return "no threshold of second keeps the promise in the earlier world"
        if not judged["keeps"][LEARNT]:
            return (
                f"on the later part up to {judged['upper_90'][LEARNT]:.2g} of the requests for more cores would be "
                f"refused, more than the promised {self.in_use.sla:g}"
            )
        use = {name: found["value"] for name, found in judged["utilisation"].items()}
        fuller = [name for name in (NOW, RULE) if judged["keeps"].get(name) and use[LEARNT] <= use[name]]
        if fuller:
            than = " and ".join("the policy in use" if name == NOW else f"the {name}" for name in fuller)
            return f"on the later part it does not fill the cluster more than {than}"
        return ""

    @property
    def _believed(self) -> Population:
        return Population(**self.state.stages["fit"]["population"])

    @property
    def _runs(self) -> int:
        return int(self.state.stages["plan"]["runs"])

    def _world(self, part: str) -> Path:
        return self.state.folder / f"{part}.json"

    def _histories(self, part: str) -> Histories:
        return histories_of(read_vm_table(self.state.folder / f"{part}.csv.gz"))

    def _side(self, part: str) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads((self.state.folder / f"{part}.csv.gz.json").read_bytes())
        return found

    def _tuned(self, part: str, kind: str, share: float, budget: Budget) -> str | None:
        """Return the most permissive threshold that keeps a share of the promise in a world, None where none does.

        Runs that were played are kept.
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

        belief: what the rule takes the population for, None for the world's own. The simulator knows one power and one
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


def page(work: AdmissionRound) -> str:
    """Return the page of a round."""
    fit, judged = work.state.stages["fit"], work.state.stages["judge"]
    parts = {
        part: f"{fit['deployments'][part]:,} deployments in {fit['hours'][part]:,.0f} h, "
        f"{fit['arrival_rate'][part]:.3g} offered an hour"
        for part in (EARLIER, LATER)
    }
    facts = {"cluster": work.in_use.cluster, "decides now": work.in_use.rule, **parts}
    sections = [
        Section("use", "Utilisation in the world of the later part", _use(judged, work.in_use.sla)),
        Section("population", "The population", _population(fit)),
    ]
    return document(f"The learning record of cluster {work.in_use.cluster}", sections, facts)


def _use(judged: Mapping[str, Any], sla: float) -> str:
    rows = []
    for name, rule in judged["rules"].items():
        if rule is None:
            rows.append([escape(name), "none keeps the promise", "", "", "", ""])
            continue
        use, refused = judged["utilisation"][name], judged["refused"][name]
        against = judged["against_now"].get(name)
        idle = "" if against is None else f"{against['relative']['mean']:+.1%}"
        promise = chip(judged["keeps"][name], f"at most {judged['upper_90'][name]:.2g}")
        cells = [escape(name), escape(rule), f"{use['value']:.2%}", f"{refused['value']:.2g}", promise, idle]
        rows.append(cells)
    head = ["", "rule", "cores taken", "refused", "with 90 %", "cores idle, against now"]
    words = (
        f"Each rule believes in its own population and meets the same {judged['runs']} runs. The promise: at most "
        f"{sla:g} of the requests for more cores refused. The bound is tuned in the very world that it is judged in."
    )
    return f'<p class="soft">{escape(words)}</p>{table(head, rows)}'


def _population(fit: Mapping[str, Any]) -> str:
    chosen, scores = fit["population"], fit["scores"]
    errors = fit["fits"][EARLIER]["relative_errors"]
    rows = [
        [
            escape(name),
            f"{value:.4g}",
            f"{errors.get(name) or 0.0:.2g}",
            f"{fit['fits'][LATER]['population'][name]:.4g}",
        ]
        for name, value in chosen.items()
    ]
    origin = "fitted to the earlier part" if fit["fresh"] else "the present one, which describes the later part better"
    words = (
        f"It is {origin}. Log-likelihood of a deployment of the later part: {scores[LEARNT]:.4f} by the earlier fit, "
        f"{scores[NOW]:.4f} by the present belief, {scores[LATER]:.4f} by its own fit."
    )
    return f"<p>{escape(words)}</p>{table(['', 'believed', 'relative error', 'later part alone'], rows)}"
