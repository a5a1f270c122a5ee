"""`trimtab VERB admission`: deployments that ask to come into a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S, HOURS_PER_YEAR
from trainer.commands.admission_population import FitAdmission, PriceAdmission
from trainer.commands.endings import STATUSES_OF_GATE, STATUSES_OF_PROMISE, End
from trainer.commands.learn import PromiseLearning, gate_lines, round_end
from trainer.commands.options import (
    CHECKED_FOLDER,
    Bounds,
    Rows,
    Written,
    YearsOption,
    epilog,
)
from trainer.commands.promote import Promotion, one_of_settings
from trainer.commands.verb import Answer, ParallelVerb, TableVerb, Verb

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from agent.models.directory import Champion, Probationer
    from trainer.admission.report import ExperimentResult
    from trainer.admission.table import Cell, Runs
    from trainer.admission.tuning import Choice
    from trainer.learning.cluster import ClusterInUse, ClusterRound
    from trainer.learning.trial import Inspection, Promise, PromiseReplay
    from trainer.promotion.gate import Gate

__all__ = [
    "EvaluateAdmission",
    "FitAdmission",
    "LearnAdmission",
    "PriceAdmission",
    "PromoteAdmission",
    "SimulateAdmission",
    "TuneAdmission",
]


@dataclass(frozen=True, kw_only=True)
class SimulateAdmission(Verb):
    """Play a cluster that deployments ask to come into: how full it was, and how many scale-outs it refused.

    The same seed brings the same deployments whatever the policy, and the same figures to the last digit.
    """

    EPILOG = epilog(
        """
Presets:
  T   matched to a public trace; failures are rare
  H   heavy-tailed: few deployments grow very large
  K   long-lived deployments keep growing
  cluster.toml or .json, your own: `preset = "K"` and the differences
""",
        """
Policies:
  zeroth:14000   admit below 14,000 cores now
  first:16000    admit while fewer are expected at every time to come
  second:2.5     admit while the mean and 2.5 standard deviations fit
  second:p=0.1   the same by Cantelli's bound on the risk
  gamma:1e-3     admit while a gamma law exceeds the capacity with this chance
  sgamma:1e-4    the same by a shifted gamma law, with the third moment
  budget:3e-4    admit while this share of requests is forecast to fail
  Settings after commas:
  threshold=15000 (cores, for the capacity), marginal=1 (cores),
  a=0.7 (second: factor of kappa beyond a month; its square beyond a year),
  bands=1/1/1/0.7/0.49 (second: factors for a day, week, month, year, all),
  feedback=yes (budget), moments=ab_fast|ab|na|paper, fresh=ab,
  belief=exact|conjugate, grid=log|paper, tol=0.3, dead_band=6 (cores),
  reuse=6 (hours)
""",
        calls=(
            "trimtab simulate admission --preset H --policy zeroth:14000",
            "trimtab simulate admission --preset K --policy second:3,marginal=1 \\",
            "    --observations 1 --json",
            "trimtab simulate admission --policy second:2 --beside second:2,tol=0 --years 1",
            "trimtab simulate admission --policy zeroth:15000 --years 0.1 --log events.csv",
        ),
    )

    preset: Annotated[str, "T|H|K|FILE", "Cluster and population, see below."] = "K"
    policy: Annotated[str, "POLICY", "Rule that admits, see below."] = "second:2.5"
    observations: Annotated[int, "N", "How often each deployment was seen before it comes.", Bounds(min=0)] = 0
    labels: Annotated[str, "labelled|unlabelled", "Whether users name the kind of a deployment, one of two."] = (
        "labelled"
    )
    weights: Annotated[
        str,
        "posterior|static",
        "Of the two kinds of an unlabelled deployment: from its behaviour, or one half each for ever.",
    ] = "posterior"
    scale_outs: Annotated[
        str, "gaps|counts", "How scale-outs were seen before: waits between them, or counts in single hours."
    ] = "gaps"
    years: YearsOption = 3.0
    seed: Annotated[int, "Seed of the deployments and their lives.", Bounds(min=0)] = 0
    beside: Annotated[
        str | None,
        "POLICY",
        "Ask this rule too about each arrival that fits, in the same state of the cluster; without effect.",
    ] = None
    log: Annotated[
        Path | None, "FILE.csv|FILE.jsonl", "Write each event of the run, a line each.", Written((".csv", ".jsonl"))
    ] = None

    def run(self) -> Answer:
        """Play the cluster."""
        from simulator.admission import cluster_of, draw_run, rule_of
        from trainer.admission.playing import WEIGHTS, Play, play, write_log
        from trainer.kit.progress import phases

        rule, other = rule_of(self.policy), None if self.beside is None else rule_of(self.beside)
        about = f"playing {self.years:g} years of {self.preset} by {self.policy}"
        with phases(self.as_json) as on_phase:
            on_phase(f"{about}; the first run compiles the simulator")
            run = draw_run(
                cluster_of(self.preset),
                self.seed,
                observations=self.observations,
                hours=self.years * HOURS_PER_YEAR,
                labels=self.labels,
                weights=WEIGHTS[self.weights],
                scale_outs=self.scale_outs,
            )
            outcome = play(run, rule, other=other, log=self.log is not None)
        if self.log is not None:
            write_log(self.log, outcome)
        data = Play(run, self.policy, rule, outcome, self.beside).as_data()
        return Answer(data, _lines_played(data))


def _lines_played(data: dict[str, Any]) -> list[str]:
    cluster, hours = data["cluster"], data["hours"]
    taken = f"{data['utilisation']:.1%} of {cluster['capacity']:,}, at most {data['peak_cores']:,}"
    turned_away = f"{data['rejected_by_rule']:,} by the rule, {data['rejected_no_room']:,} for want of room"
    rows = [
        ("cores taken", taken),
        ("scale-outs refused", f"{data['failures']:,} of {data['requests']:,}, by month {data['sla_metric']:.2g}"),
        ("promised", f"at most {cluster['sla']:g} refused"),
        ("admitted", f"{data['admitted']:,} of {data['arrivals']:,} deployments"),
        ("turned away", turned_away),
        ("above 95 %", duration_text(data["crowded_h"] * HOUR_S)),
        ("inside at the end", f"{data['live_at_end']:,} deployments"),
        ("events", f"{data['events']:,} in {data['wall_s']:.2f} s, {data['refreshes']:,} forecasts recomputed"),
    ]
    if "beside" in data:
        found = data["beside"]
        alike = f"{found['alike_share']:.2%} alike" if found["asked"] else "no arrival to ask about"
        rows += [
            (f"beside {found['policy']}", f"{alike} of {found['asked']:,} asked"),
            ("", f"refused by {data['policy']} alone {found['only_rule_refuses']:,}"),
            ("", f"refused by {found['policy']} alone {found['only_beside_refuses']:,}"),
        ]
    heading = f"preset {data['preset']}, {data['policy']}, {data['observations']} observations, seed {data['seed']}"
    return [f"{heading}, {hours / HOURS_PER_YEAR:.3g} years", "", *columns(rows)]


@dataclass(frozen=True, kw_only=True)
class TuneAdmission(ParallelVerb):
    """Search for the threshold that fills the cluster most within its promise, by halving, on runs that all share.

    Two answers: `safe`, where the upper end of the one-sided 90 % interval keeps the promise, and `average`, where the
    mean does. Seeds are apart from those of `evaluate admission`: compare there.
    """

    EPILOG = epilog(
        """
Policies:
  zeroth, first         a threshold in cores, 0.3 to 1 of the capacity
  second                kappa, 40 down to 0
  a text with {}        a policy of `simulate admission`, {} for the tuned setting:
                        second:{},moments=paper or sgamma:{} or budget:{}
""",
        calls=(
            "trimtab tune admission --preset K --policy zeroth",
            'trimtab tune admission --preset H --policy "second:{},marginal=1" \\',
            "    --observations 5 --bracket 2,6 --workers 8 --out tuning",
        ),
    )

    policy: Annotated[str, "POLICY", "Rule to tune, see below."] = "second"
    preset: Annotated[str, "T|H|K|FILE", "Cluster and population."] = "K"
    sla: Annotated[float | None, "SHARE", "Scale-outs that may be refused; else the cluster's promise."] = None
    metric: Annotated[str, "primary|pooled", "Mean of months, or all together."] = "primary"
    observations: Annotated[int, "N", "Prior observations of each arrival.", Bounds(min=0)] = 0
    runs: Annotated[int, "N", "Runs to begin with.", Bounds(min=2)] = 40
    final_runs: Annotated[int, "N", "Runs that the result is held to.", Bounds(min=2)] = 500
    bracket: Annotated[str | None, "LOW,HIGH", "Thresholds to search between, else all."] = None
    years: YearsOption = 3.0
    out: Annotated[
        Path | None, "FOLDER", "Folder of runs; a run that it holds is not played again.", CHECKED_FOLDER
    ] = None

    def run(self) -> Answer:
        """Search for both answers."""
        from simulator.admission import cluster_of
        from trainer.admission.fronts import Metric
        from trainer.admission.table import Cell, Store, configuration_of, run_cells
        from trainer.admission.tuning import pieces_expected, scale_of, tune
        from trainer.kit.progress import bars

        hours, level = self.years * HOURS_PER_YEAR, cluster_of(self.preset).sla if self.sla is None else self.sla
        scale = scale_of(self.policy, self.preset, _bracket(self.bracket))
        store = Store(None if self.plan else self.out, configuration_of([self.preset], hours))
        crew = replace(self.crew, expected=2 * pieces_expected(scale, self.runs, self.final_runs))
        start = Cell(self.preset, scale.text(0), self.observations, hours=hours)
        counts: dict[str, Any] = {"metric": Metric(self.metric), "runs": self.runs, "final_runs": self.final_runs}
        with bars(self.as_json) as shown:
            task = shown.add_task("runs", total=None)

            def play(cell: Cell, seeds: Sequence[int]) -> Runs:
                shown.update(task, description=cell.policy)
                return run_cells(store, [cell], seeds, crew, lambda cell, count: shown.advance(task, count))[cell]

            choices = [tune(start, scale, level, play, wanted=wanted, **counts) for wanted in ("safe", "average")]
        about = {"sla": level, "metric": self.metric, "scale": asdict(scale), "choices": list(map(_as_data, choices))}
        return Answer({**about, **store.configuration}, _lines_tuned(choices, level))


def _as_data(choice: Choice) -> dict[str, Any]:
    from trainer.admission.report import result_data

    return {
        "wanted": choice.wanted,
        "policy": choice.policy,
        "upper_90": None if choice.policy is None else choice.upper,
        "standing": None if choice.result is None else result_data(choice.result),
        "tried": [{"policy": policy, "runs": runs, "kept": kept} for policy, runs, kept in choice.tried],
    }


def _bracket(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise BadInput("--bracket", text, "give two numbers with a comma, the lower one first, such as 1,4") from None
    return low, high


def _lines_tuned(choices: Sequence[Choice], level: float) -> list[str]:
    from trainer.admission.report import ends_text

    rows: list[tuple[object, ...]] = [("kept", "policy", "utilisation", "refused", "upper 90 %", "pooled", "runs fail")]
    for choice in choices:
        found = choice.result
        if found is None:
            rows.append((choice.wanted, "none keeps it", "-", "-", "-", "-", "-"))
            continue
        rows.append(
            (
                choice.wanted,
                choice.policy,
                f"{found.utilisation.value:.3f} {ends_text(found.utilisation)}",
                f"{found.primary.value:.2g} {ends_text(found.primary, form='.2g')}",
                f"{choice.upper:.2g}",
                f"{found.pooled.value:.2g}",
                f"{found.failing_runs} of {found.runs}",
            )
        )
    return [f"at most {level:g} of the scale-outs refused", *columns(rows)]


DEFAULT_PRESETS = ("K", "H")


@dataclass(frozen=True, kw_only=True)
class EvaluateAdmission(TableVerb, ParallelVerb):
    """Play rules at several thresholds on the same runs, and compare them at equal risk and at equal utilisation.

    Thresholds and seeds are fixed beforehand, apart from those that `tune admission` uses. Every run is on disk before
    the next one counts: end the command when you like and give it again. A folder of other code, clusters or lengths is
    refused.
    """

    EPILOG = epilog(
        """
Experiments:
  ordering       zeroth, first and second moment rules, 0 prior observations
  observations   second with 0, 1, 5 and 50, and accept-if-it-fits
  marginal       with and without the marginal heuristic
  labels         deployments whose type is named, or not
  variants       moments, tails, budget and banded kappa against second
""",
        calls=(
            "trimtab evaluate admission --preset K --runs 60 --experiment ordering",
            "trimtab evaluate admission --runs 500 --workers 16 --out evidence",
            "trimtab evaluate admission --runs 500 --plan",
        ),
    )

    preset: Annotated[list[str] | None, "T|H|K|FILE", "Cluster and population; repeatable. Else K and H."] = None
    experiment: Annotated[list[str] | None, "NAME", "What to compare, see below; repeatable. Else all."] = None
    ladder: Annotated[list[str] | None, "NAME", "Only these rules of one experiment, such as zeroth; repeatable."] = (
        None
    )
    runs: Annotated[int, "N", "Runs per rule and threshold, seeds from 0 on.", Bounds(min=1)] = 60
    years: YearsOption = 3.0
    out: Annotated[Path, "FOLDER", "Runs and report; runs that it holds are not played again.", CHECKED_FOLDER] = Path(
        "admission-evidence"
    )

    def run(self) -> Answer:
        """Play the runs that the folder lacks, and compare."""
        from trainer.admission.experiments import EXPERIMENTS, experiments_of
        from trainer.admission.report import as_data, experiment_result, write
        from trainer.admission.table import Store, comparison_seeds, configuration_of, run_cells
        from trainer.kit.progress import bars

        presets, hours = self.preset or list(DEFAULT_PRESETS), self.years * HOURS_PER_YEAR
        names, ladders = self.experiment or list(EXPERIMENTS), self.ladder or ()
        chosen = [one for preset in presets for one in experiments_of(names, preset, hours, ladders)]
        crew, seeds = self.crew, comparison_seeds(self.runs)
        configuration = configuration_of(presets, hours)
        store = Store(None if self.plan and not self.out.exists() else self.out, configuration)
        if self.plan:
            # Experiments that share cells share their runs.
            run_cells(store, list(dict.fromkeys(cell for one in chosen for cell in one.cells)), seeds, crew)
        found: list[ExperimentResult] = []
        with bars(self.as_json) as shown:
            for one in chosen:
                total, left = len(one.cells) * len(seeds), sum(len(store.missing(cell, seeds)) for cell in one.cells)
                task = shown.add_task(f"{one.ladders[0].preset} {one.name}", total=total, completed=total - left)
                played = run_cells(store, one.cells, seeds, crew, partial(_advance, shown, task))
                found.append(experiment_result(one, played))
        files = write(self.out, found, store.configuration)
        return Answer(as_data(found, store.configuration), [f"report: {files[0]}"], tables=_tables(found))


def _advance(shown: Progress, task: TaskID, _: Cell, runs: int) -> None:
    shown.advance(task, runs)


def _tables(found: Sequence[ExperimentResult]) -> list[tuple[str, Rows]]:
    from trainer.admission.fronts import Metric
    from trainer.admission.report import gain_text

    tables: list[tuple[str, Rows]] = []
    for one in found:
        first = next(iter(one.results.values()))[0]
        rows: list[tuple[object, ...]] = [("points of utilisation gained", "refused", "primary", "pooled")]
        for meeting in one.meetings:
            for g in (g for g in meeting.gains if g.metric is Metric.PRIMARY):
                pooled = next(x for x in meeting.gains if x.metric is Metric.POOLED and x.sla == g.sla)
                rows.append(
                    (f"{meeting.challenger} over {meeting.base}", f"{g.sla:g}", gain_text(g), gain_text(pooled))
                )
        tables.append((f"{one.preset}: {one.experiment.title} ({first.runs} runs)", rows))
    return tables


@dataclass(frozen=True, kw_only=True)
class PromoteAdmission(Promotion, ParallelVerb):
    """Let a file of a rule and a population decide for a cluster if it fills it more and keeps the promise.

    The file is what `trimtab fit admission` writes, with `rule` beside it. It runs against the rule that decides now
    and the best tuned one, on runs that no rule was tuned on. The cluster's RULE must be `learned`; the agent takes up
    a new champion when it starts.
    """

    DECISION = "admission"
    EPILOG = epilog(
        """
The gate: runs that no rule was tuned on.
  the promise kept for sure; fewer cores idle than by the policy in use, in 95 % of
  paired bootstrap resamples; at most 5 % more than by the best tuned rule.
  Else the policy in use stays.
""",
        STATUSES_OF_GATE,
        calls=(
            "trimtab promote admission main CLUSTER.json",
            "trimtab promote admission main CLUSTER.json --world K --tuned second:2.8",
        ),
    )

    world: Annotated[str, "T|H|K|FILE", "Population of deployments; else that of the file."] = ""
    against: Annotated[str, "RULE", "Policy in use without a champion, as `simulate` takes it."] = ""
    tuned: Annotated[str, "RULE", "The best tuned rule; else it is searched for."] = ""
    observations: Annotated[int, "N", "Prior observations of each arrival.", Bounds(min=0)] = 0
    runs: Annotated[int, "N", "Runs that all are held to.", Bounds(min=2)] = 100
    years: Annotated[float, "YEARS", "Length of a run.", Bounds(min=0.01, max=30.0)] = 3.0

    def check(self) -> None:
        """Raise BadInput for a cluster that the settings do not have."""
        cluster_of_settings(self.subject)

    def verify(self, path: Path) -> object:
        """Raise BadInput for a file that no cluster can decide by."""
        from agent.admission.settings import cluster_model_in

        return cluster_model_in(path)

    def gate(self) -> Gate:
        """Return runs of the cluster."""
        from trainer.promotion.admission import cluster_gate
        from trainer.promotion.gate import Limits

        now, sla, capacity = cluster_of_settings(self.subject)
        return cluster_gate(
            Limits(),
            now=self.against or now,
            world=self.world,
            tuned=self.tuned,
            sla=sla,
            capacity=capacity,
            observations=self.observations,
            runs=self.runs,
            hours=self.years * HOURS_PER_YEAR,
            workers=self.crew,
        )


def cluster_of_settings(name: str) -> tuple[str, float | None, int | None]:
    """Return a cluster's rule, promise and cores by the settings; the default rule where they have no clusters."""
    from agent.admission.settings import DEFAULT_KAPPA, LEARNED, SUBJECTS, rules_of
    from agent.settings import load_settings

    clusters = SUBJECTS.of(load_settings(os.environ))
    if not one_of_settings("cluster", name, [*clusters]):
        return f"second:{DEFAULT_KAPPA:g}", None, None
    cluster, rules = clusters[name], rules_of(name, clusters[name])
    text = cluster.rule if cluster.rule not in (None, LEARNED) else None
    marginal = "" if rules.text.startswith("zeroth") else f",marginal={rules.marginal_cores:g}"
    return text or rules.text + marginal, rules.sla, rules.capacity_cores


@dataclass(frozen=True, kw_only=True)
class LearnAdmission(PromiseLearning):
    """Learn from what a cluster's ledger recorded: fit its population, tune thresholds, judge them, ask the gate.

    The latest two fifths of the time are held out. The world fitted to them must give the cores that were taken, within
    5 % or what chance makes of it, or the quantity that is off is named. The population and the threshold of the
    earlier part are judged in that world, against what decides now and against a threshold of cores alone. What keeps
    the promise there and fills the cluster more goes to the gate; what passes is the cluster's champion, after its
    probation where there is one, and decides from the agent's next start on where the cluster's RULE is `learned`. A
    round that was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: the refused requests since a promotion of the
    last days are held to the promise, and it is rolled back where that is surely broken; a rule on probation is judged
    when its hours are over.
    """

    DECISION = "admission"
    EPILOG = epilog(
        STATUSES_OF_PROMISE,
        calls=(
            "trimtab learn admission main --ledger /var/lib/trimtab/ledger.db",
            "trimtab learn admission main --try --cpu-minutes 30 --out runs/learn/main",
            "trimtab learn admission main --probation-hours 168 --then approve",
            "trimtab learn admission main --export main.tar",
            "trimtab learn admission main --from main.tar --out runs/learn/main",
        ),
    )

    name: Annotated[str, Argument(metavar="CLUSTER", help="The key of the cluster.")]
    days: Annotated[float, "DAYS", "How many of the last days are used.", Bounds(min=0.1)] = 365.0
    years: Annotated[float, "YEARS", "Length of a simulated run."] = 1.0
    against: Annotated[str | None, "RULE", "Policy in use; else the champion, or that of the settings."] = None
    capacity: Annotated[int | None, "CORES", "Its cores; else as the settings.", Bounds(min=1)] = None
    sla: Annotated[float | None, "SHARE", "Scale-outs that may be refused; else as the settings."] = None

    def check(self) -> None:
        """Raise BadInput for an option that is wrong."""
        if self.sla is not None and not 0.0 < self.sla < 1.0:
            raise BadInput("--sla", self.sla, "give a share between 0 and 1, such as 1e-3")
        super().check()

    def write_export(self, path: Path) -> Answer:
        """Write the record and the policy in use."""
        from trainer.learning.cluster import PARTS

        names = tuple(f"{part}.csv.gz{end}" for part in PARTS for end in ("", ".json"))
        return self.export_parts(path, names, self.keep, asdict(self.in_use()))

    def case(self) -> Inspection:
        """Return the case for a look at the cluster's rules."""
        from agent.admission.settings import cluster_model_in
        from trainer.learning.cluster_trial import lived, replay
        from trainer.learning.round import Budget
        from trainer.learning.trial import Inspection

        def watched(champion: Champion) -> Promise | str:
            rule = cluster_model_in(self.models.file_of(champion.model)).rule
            return lived(self.source, self.name, champion, rule, self.in_use().sla)

        def replayed(one: Probationer) -> PromiseReplay:
            with TemporaryDirectory() as place:
                return replay(self.source, one, self.round_in(Path(place)), Budget(self.terms.cpu_s))

        return Inspection(self.subject, self.models, cluster_model_in, self.now_s, watched, replayed)

    def round(self) -> End:
        """Do a round."""
        self.set_aside()
        self.place_parts()
        work = self.round_in(self.folder)
        work.go_on()
        return round_end(work, _lines_round(work))

    def round_in(self, folder: Path) -> ClusterRound:
        """Return the round in a folder, with the record that it keeps there."""
        from trainer.learning.cluster import ClusterRound, ClusterSettings
        from trainer.learning.state import opened

        in_use, hours, digest = self.in_use(), self.years * HOURS_PER_YEAR, self.keep(folder)
        facts = {"cluster": in_use.cluster, "capacity": in_use.capacity, "sla": in_use.sla}
        return ClusterRound(
            in_use=in_use,
            settings=ClusterSettings(hours),
            state=opened(folder, {**facts, "record": digest, "hours": hours}),
            **self.round_arguments,
        )

    def keep(self, folder: Path) -> str:
        """Keep the record in a folder and return its digest."""
        from importlib.metadata import version

        from trainer.learning.cluster import keep_tables
        from trainer.learning.clusters import read_cluster

        return keep_tables(folder, partial(read_cluster, self.source, self.name), self.days, version("trimtab"))

    def in_use(self) -> ClusterInUse:
        """Return the policy in use: the champion, where the settings permit it, else that of the settings."""
        from agent.admission.settings import LEARNED, SUBJECTS, champion_of, rules_of
        from agent.settings import load_settings
        from domain.rules.admission.population import POPULATIONS
        from trainer.learning.cluster import ClusterInUse

        if self.given is not None:
            return _in_use_elsewhere(self.given.about)
        rule, promised, cores = cluster_of_settings(self.name)
        known = SUBJECTS.of(load_settings(os.environ)).get(self.name)
        population, learned = POPULATIONS["T"], None
        if known is not None:
            population, learned = rules_of(self.name, known).population, known.rule == LEARNED
        if learned is not False and any(one == self.subject for one in self.models.champions()):
            model = champion_of(self.models, self.name)
            rule, population = model.rule, model.population
        capacity = self.capacity or cores
        if capacity is None:
            raise BadInput("--capacity", None, f"no settings describe the cluster {self.name}: give its cores")
        return ClusterInUse(
            self.name, self.against or rule, population, capacity, self.sla or promised or 1e-3, learned
        )


def _in_use_elsewhere(about: Mapping[str, Any]) -> ClusterInUse:
    """Return what decides for a cluster by the file that its record came in; BadInput for a damaged one."""
    from domain.rules.admission.population import Population
    from trainer.learning.cluster import ClusterInUse

    try:
        given = dict(about)
        return ClusterInUse(**given | {"population": Population(**given["population"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("--from", "export.json", f"it does not name the present policy: {error}") from None


def _lines_round(work: ClusterRound) -> list[str]:
    from trainer.learning.cluster import LEARNT, HeldOutResult
    from trainer.learning.round import GateResult, Truth

    truth, name = work.state.result(Truth), work.in_use.cluster
    if not truth.holds:
        return [truth.sentence]
    judged = work.state.result(HeldOutResult)
    rows: list[tuple[object, ...]] = [("in the later world", "rule", "cores taken", "refused", "upper 90 %", "promise")]
    for label, rule in judged.rules.items():
        if rule is None:
            rows.append((label, "none keeps the promise", "-", "-", "-", "-"))
            continue
        use, refused = judged.utilisation[label].value, judged.refused[label].value
        kept = "kept" if judged.keeps[label] else "broken"
        rows.append((label, rule, f"{use:.2%}", f"{refused:.2g}", f"{judged.upper_90[label]:.2g}", kept))
    lines = [truth.sentence, *columns(rows), *gate_lines(work, str(judged.rules[LEARNT]), name)]
    if work.state.result(GateResult).promoted and work.in_use.learned is not True:
        once = f"it decides once TRIMTAB_CLUSTERS__{name}__RULE is `learned`, from the agent's next start on"
        lines.insert(-1, once)
    return lines
