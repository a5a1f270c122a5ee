"""`trimtab VERB deferral`: deferrable jobs in the capacity that on-demand work leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.kernel.text import columns, counted, duration_text
from domain.errors import BadInput
from trainer.commands.endings import STATUSES_OF_GATE
from trainer.commands.options import (
    Bounds,
    DeviceOption,
    ForceOption,
    PageOption,
    Rows,
    SetOption,
    Written,
    epilog,
    labelled,
)
from trainer.commands.promote import Promotion
from trainer.commands.train import Training
from trainer.commands.verb import Answer, ParallelVerb, TableVerb

if TYPE_CHECKING:
    from trainer.deferral.evaluation import Evaluation, Subject
    from trainer.deferral.playing import Play
    from trainer.kit.jobs import Job
    from trainer.promotion.gate import Gate


@dataclass(frozen=True, kw_only=True)
class SimulateDeferral(ParallelVerb):
    """Start deferrable jobs hour by hour: work done, delay, violations, jobs that expire.

    The same options give the same figures, for any number of workers. Every schedule passes a check that shares no code
    with the policies.
    """

    EPILOG = epilog(
        """
Policies:
  fifo  sjf  tetris  els     by submission, by duration, by alignment, by
                             latest start; fifo and sjf stop at the first job
                             that does not fit
  fifo:skip  sjf:skip        the same, passing over jobs without room
  knapsack  knapsack:alpha=0.3,beta=0
                             the most valuable set of jobs in each step
  rolling  rolling:steps=10,factor=0.7,margin=0.5
                             a plan of the next steps, solved in each step
  optimum                    all jobs and capacities known
  FILE.onnx  FILE.onnx:skip  a learned policy, from `trimtab train deferral`
""",
        """
Scenarios: valley, core2, core3, dur1, dur2, core2_fixed, realtime, bursty,
bursty_long, sched_drop. --world takes parameters of your own, those of valley
where the file names none.
""",
        calls=(
            "trimtab simulate deferral --policy fifo --seeds 0-99",
            "trimtab simulate deferral --policy knapsack --seeds 0 --plot week.svg",
            "trimtab simulate deferral --world mine.toml --policy fifo:skip --steps steps.csv",
            "trimtab simulate deferral --trace azure_like,LOG.swf.gz --policy knapsack --seeds 0-3",
        ),
    )

    scenario: Annotated[
        str | None, Option(metavar="NAME", help="Where jobs and capacity come from, see below.", show_default="valley")
    ] = None
    world: Annotated[Path | None, "FILE", "Parameters of a scenario of your own: a FILE.toml."] = None
    trace: Annotated[str | None, "SCENARIO,LOG", "Load of an oversubscription scenario, jobs of an SWF log."] = None
    policy: Annotated[str, "POLICY", "Policy that starts jobs, see below."] = "knapsack"
    seeds: Annotated[str, "SEEDS", "Episodes, such as 0-99 or 1,3,8-9."] = "0-9"
    steps: Annotated[Path | None, "FILE", "Write every step: .csv or .json.", Written((".csv", ".json"))] = None
    plot: Annotated[
        Path | None, "FILE", "Draw the first episode: .svg, .pdf or .png.", Written((".svg", ".pdf", ".png"))
    ] = None
    force: ForceOption = False

    def run(self) -> Answer:
        """Play the episodes."""
        from trainer.deferral.playing import draw, play, write_steps
        from trainer.kit.jobs import seeds_of
        from trainer.kit.progress import bars, counter

        subject, numbers = _subject(self.scenario, self.world, self.trace), seeds_of(self.seeds)
        with bars(self.as_json) as shown:
            played = play(subject, self.policy, numbers, counter(shown, self.policy), self.crew)
        if self.steps is not None:
            write_steps(played, self.steps)
        if self.plot is not None:
            draw(played, self.plot)
        return Answer(played.as_data(), _lines(played))


def _subject(scenario: str | None, world: Path | None, trace: str | None) -> Subject:
    from simulator.deferral.scenarios import read_scenario, scenario_of
    from trainer.deferral.evaluation import Subject, scenario_and_log, trace_subject

    given = [str(one) for one in (scenario, world, trace) if one is not None]
    if len(given) > 1:
        raise BadInput("--scenario, --world, --trace", ", ".join(given), "give one of them")
    if world is not None:
        return Subject(world.name, read_scenario(world))
    name = scenario or "valley"
    return Subject(name, scenario_of(name)) if trace is None else trace_subject(*scenario_and_log(trace))


def _lines(played: Play) -> list[str]:
    data = played.as_data()
    error = data["standard_error"]
    spread = "" if error is None else f", standard error {error:.1f}"
    rows = [
        ("total", f"{data['total']:,.1f} core-steps{spread}"),
        (
            "utilisation",
            f"{data['utilisation']:,.1f} of {data['offered']:,.1f} offered, capacity {data['capacity']:,.1f}",
        ),
        ("delay", f"{data['delay']:,.1f} steps, charged {data['delay_charge']:,.1f}"),
        ("violation", f"{data['violation']:,.2f} core-steps above the capacity"),
        ("jobs", f"{data['started']:,.1f} started, {data['expired']:,.1f} expired of {data['jobs']:,.1f}"),
        ("expired work", f"{data['expired_core_steps']:,.1f} core-steps"),
    ]
    if data["fallbacks"]:
        rows.append(("fallback", f"the knapsack decided {data['fallbacks']:,} steps in the place of the policy"))
    number = len(played.seeds)
    episodes = f"seed {played.seeds[0]}" if number == 1 else f"mean of {number} episodes"
    return [f"{played.subject}, {played.policy}, {episodes}", "", *columns(rows)]


SEEDS_OF_ALL = "0-4"
_OPTIONS = ("scenario", "method", "seed", "device")
"""Fields of the configuration with separate options."""


@dataclass(frozen=True, kw_only=True)
class TrainDeferral(Training):
    """Learn which deferrable jobs to start in the cores that on-demand work leaves free.

    The same settings and seed give the same weights. Exits with status 130 when stopped by Ctrl-C; --resume then goes
    on, bit for bit.
    """

    EPILOG = epilog(
        """
Presets: imitation (learn the worth of starts by the offline optimum's prices,
then PPO that is held near it; minutes), paper (PPO from nothing, as published;
hours: 500 iterations). Methods: full (OSDEC), aux-high, aux-low, attention,
reinforce, mlp, pointer; the last three have no imitation.
""",
        """
A network scores each job. Decoded as published (prefix) jobs start in that
order until one does not fit; skip passes over it; knapsack starts the most
valuable set that fits. Weights are chosen on seeds 1,000,000 to 1,000,039 and
reported on 0 to 99, compared with the per-step knapsack, which needs no training.
""",
        """
Written to --out: per method and seed checkpoints/, curve.csv,
tensorboard/, run.json and, for a set transformer, MODEL.onnx; and summary.json.
With --all every method and seed, and --resume continues with the unfinished ones.
""",
        calls=(
            "trimtab train deferral --seeds 0-4 --out valley",
            "trimtab train deferral --scenario sched_drop --method attention",
            "trimtab train deferral --preset paper --method mlp --set iterations=20",
            "trimtab train deferral --all --cpu-minutes 30 --out all --resume",
        ),
    )

    scenario: Annotated[str, "NAME[+NAME...]", "Learn on it; several take turns. See `simulate deferral --help`."] = (
        "valley"
    )
    method: Annotated[str, "NAME", "Method, see below."] = "full"
    preset: Annotated[str | None, "NAME", "imitation or paper; else imitation where there is one."] = None
    setting: SetOption = None
    device: DeviceOption = "cpu"
    every: Annotated[bool, "--all", f"Every method, as published and with imitation, seeds {SEEDS_OF_ALL}."] = False
    cpu_minutes: Annotated[float | None, "N", "CPU minutes after which a run ends; --resume continues."] = None
    report_seeds: Annotated[int, "Seeds of the report, from 0 on.", Bounds(min=2, max=100)] = 100

    def folder(self) -> Path:
        """Return the folder of the scenario."""
        return Path(".trimtab/deferral") / self.scenario

    def seeds_given(self) -> list[int]:
        """Return the seeds of --seeds, by default one, with --all SEEDS_OF_ALL."""
        from trainer.kit.jobs import seeds_of

        return seeds_of(SEEDS_OF_ALL) if self.every and not self.seeds else super().seeds_given()

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each method and seed."""
        from trainer.kit.progress import announce

        announce("train deferral: loading torch and the simulator", self.as_json)
        from trainer.deferral.runs import jobs_of, variants
        from trainer.deferral.set_transformer import IMITATION, PAPER, SETS, Config, preset
        from trainer.kit.device import device_of

        device_of(self.device, self.ray)
        if self.cpu_minutes is not None and not self.cpu_minutes > 0.0:
            raise BadInput("--cpu-minutes", self.cpu_minutes, "give a number above 0")
        changes = self.changes(Config, self.setting, _OPTIONS)
        if self.every:
            if changes or self.preset is not None:
                raise BadInput("--all", "with --set or --preset", "give one or the other: --all takes both presets")
            configs = [replace(one, device=self.device) for one in variants(self.scenario)]
        else:
            usual = IMITATION if self.method in SETS and self.method != "reinforce" else PAPER
            changes |= {"method": self.method, "scenario": self.scenario, "device": self.device}
            configs = [preset(self.preset or usual, **changes)]
        jobs = jobs_of(
            configs,
            self.seeds_given(),
            self.place,
            resume=self.resume,
            cpu_minutes=self.cpu_minutes,
            report_seeds=self.report_seeds,
        )
        fields = configs[0].plain() if len(configs) == 1 else {}
        return jobs, {name: value for name, value in fields.items() if name not in _OPTIONS}

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the totals of each method, and the best seed."""
        rows: list[tuple[object, ...]] = [
            ("method", "scenario", "decoding", "mean total", "± seeds", "best seed - knapsack")
        ]
        notes = []
        for name, found in summary["variants"].items():
            for scenario, kinds in found["reports"].items():
                for kind, one in kinds.items():
                    apart = one.get("best_against_knapsack")
                    words = "" if apart is None else f"{apart[0]:+.1f} [{apart[1]:+.1f}, {apart[2]:+.1f}]"
                    rows.append((name, scenario, kind, f"{one['mean']:.1f}", f"{one['std']:.1f}", words))
            time = f"{counted(len(found['seeds']), 'seed')}, {duration_text(sum(found['cpu_s']))} of one core"
            cut = "" if all(found["complete"]) else "; ended by --cpu-minutes, --resume continues"
            model = "no model file" if found["model"] is None else str(self.place / found["model"])
            notes.append(f"{name}: {time}{cut}; best: seed {found['best']}, {model}")
        return [*columns(rows), "", *notes]


SUFFIX = ".toml"
KEPT = {True: "yes", False: "NO", None: "no verdict"}


@dataclass(frozen=True, kw_only=True)
class EvaluateDeferral(TableVerb, ParallelVerb):
    """Play policies on the same weeks of deferrable jobs, and hold them to the optimum and to what was asked.

    The same options give the same figures, for any number of workers. With --out a report is written, with the
    tables of the paper beside ours, and the day as a picture.
    """

    EPILOG = epilog(
        """
Always compared: FIFO, SJF and Tetris, FIFO and SJF that skip jobs without room,
earliest latest start, the per-step knapsack, the rolling plan, the optimum.
Others: any policy of `trimtab simulate deferral`, also rolling:quantile=0.2 and
FILE.onnx; a LABEL that is given twice is one method with two seeds.
""",
        """
The rolling plan reads a forecast that is fitted to the training seeds of the
scenario. Each schedule passes an independent check before a figure is shown.
""",
        calls=(
            "trimtab evaluate deferral --scenario sched_drop --seeds 0-7",
            "trimtab evaluate deferral --scenario all --seeds 0-99 --workers 8 --out evidence",
            "trimtab evaluate deferral --scenario mine.toml --policies low=rolling:quantile=0.1",
            "trimtab evaluate deferral --runs FOLDER --seeds 0-99 --out evidence",
            "trimtab evaluate deferral --trace azure_like,LOG.swf.gz --seeds 0-7 --json",
        ),
    )

    scenario: Annotated[
        list[str] | None, "NAME|FILE|all", "valley, sched_drop, ..., a FILE.toml, or all; repeatable, else valley."
    ] = None
    trace: Annotated[
        list[str] | None, "SCENARIO,LOG", "Load of an oversubscription scenario, jobs of a log; repeatable."
    ] = None
    seeds: Annotated[str, "SEEDS", "Episodes, such as 0-99 or 1,3,8-9."] = "0-9"
    policies: Annotated[list[str] | None, "LABEL=POLICY", "One more; repeatable."] = None
    runs: Annotated[
        list[str] | None, "FOLDER", "An --out of `trimtab train deferral`, every method and seed; repeatable."
    ] = None
    out: PageOption = None

    def run(self) -> Answer:
        """Play the episodes of each scenario."""
        from trainer.deferral.evaluation import checks_of, contenders_of, evaluate, subjects_of
        from trainer.deferral.report import trained_in, write
        from trainer.kit.jobs import in_turn, seeds_of
        from trainer.kit.progress import phases

        numbers = seeds_of(self.seeds)
        trained, recorded = trained_in(self.runs or [])
        given = labelled("--policies", self.policies, "LABEL=POLICY, such as low=rolling:quantile=0.1")
        contenders = contenders_of([*given, *trained])
        subjects = subjects_of(self.scenario or ([] if self.trace else ["valley"]), self.trace or [])
        with phases(self.as_json) as on_phase:
            played = partial(evaluate, contenders=contenders, seeds=numbers, workers=self.crew, on_progress=on_phase)
            done = in_turn(played, subjects)
        checks = checks_of(done)
        files = [] if self.out is None else [str(file) for file in write(self.out, done, recorded)]
        data = {
            "checks": [check.as_data() for check in checks],
            "evaluations": [one.as_data() for one in done],
            "files": files,
        }
        asked = [("kept", "", "asked", "found"), *((KEPT[one.kept], one.key, one.asked, one.found) for one in checks)]
        notes = [*(columns(asked) if checks else ()), *(f"report: {file}" for file in files[:1])]
        return Answer(data, notes, tables=[_table(one) for one in done])


def _table(one: Evaluation) -> tuple[str, Rows]:
    from trainer.deferral.evaluation import REFERENCE

    rows: list[tuple[object, ...]] = [
        ("policy", "total", "s.e.", "utilisation", "delay", "violation", f"against {REFERENCE}", "of optimum")
    ]
    for own in one.figures:
        data, versus = own.as_data(), own.to_reference
        error = data["standard_error"]
        rows.append(
            (
                own.label,
                f"{own.total:.1f}",
                "" if error is None else f"{error:.1f}",
                f"{data['utilisation']:.1f}",
                f"{data['delay_charge']:.1f}",
                f"{data['violation']:.2f}",
                f"{versus.mean:+.1f} [{versus.low:+.1f}, {versus.high:+.1f}]",
                "" if own.to_optimum is None else f"{own.to_optimum:.2%}",
            )
        )
    head = (
        f"{one.subject.name}: {len(one.seeds)} episodes, {one.offered:.0f} core-steps wanted of {one.capacity:.0f} left"
    )
    return head, rows


@dataclass(frozen=True, kw_only=True)
class PromoteDeferral(Promotion, ParallelVerb):
    """Let a model lead in a deferral pool if it surely earns more than the policy in use, and than the rolling plan.

    The model is what `trimtab train deferral` exported. It decides where the pool's policy is `learned`; the agent
    takes it up with its next step.
    """

    DECISION = "deferral"
    EPILOG = epilog(
        """
The gate: episodes that no training, choice or report plays.
  it earns more than the policy in use, in 95 % of paired bootstrap resamples;
  likewise more than the rolling plan, which needs no training;
  in the mean of no scenario less than FIFO that skips.
  Else the policy in use stays.
""",
        STATUSES_OF_GATE,
        calls=(
            "trimtab promote deferral main MODEL.onnx --scenario mine.toml",
            "trimtab promote deferral main MODEL.onnx --scenario valley --workers 2 --try",
            "trimtab promote deferral main --rollback",
        ),
    )

    scenario: Annotated[list[str] | None, "NAME|FILE", "As `trimtab evaluate deferral` has them; repeatable."] = None
    trace: Annotated[list[str] | None, "SCENARIO,LOG", "Recorded load and jobs; repeatable."] = None
    episodes: Annotated[int, "Episodes of each scenario.", Bounds(min=8, max=1000)] = 30

    def verify(self, path: Path) -> object:
        """Raise ModelRefused for a file without a model of a pool."""
        from agent.deferral.model import load_score_model

        return load_score_model(path)

    def gate(self) -> Gate:
        """Return episodes of the scenarios and traces."""
        from trainer.deferral.evaluation import subjects_of
        from trainer.promotion.deferral import deferral_gate
        from trainer.promotion.gate import Limits

        subjects = subjects_of(self.scenario or ([] if self.trace else ["valley"]), self.trace or [])
        facts = {"scenarios": [one.name for one in subjects]}
        return deferral_gate(subjects, self.episodes, Limits(), workers=self.crew, facts=facts, quiet=self.as_json)
