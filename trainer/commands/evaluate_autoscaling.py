"""`trimtab evaluate autoscaling`: policies against each other on the suite T1 to T6, with intervals and a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from agent.kernel.text import counted
from domain.errors import BadInput
from trainer.commands.options import (
    CSV,
    Bounds,
    OwnWorkloadsOption,
    Rows,
    SuiteSeedsOption,
    SuiteWorldOption,
    Written,
    epilog,
    words_of,
)
from trainer.commands.verb import Answer, ParallelVerb, TableVerb

if TYPE_CHECKING:
    from rich.progress import Progress

    from simulator.autoscaling.world_file import World as OwnWorld
    from trainer.autoscaling.evaluation.contenders import Contender
    from trainer.autoscaling.evaluation.importance import Importance
    from trainer.autoscaling.evaluation.results import Absence, Results
    from trainer.autoscaling.evaluation.suite import Case
    from trainer.autoscaling.evaluation.summary import Summary
    from trainer.kit.jobs import Workers


@dataclass(frozen=True, kw_only=True)
class EvaluateAutoscaling(TableVerb, ParallelVerb):
    """Run policies on the same traces and seeds, and compare them case by case.

    With --workload the jobs are yours, in any world. Without --policies they are then run by the queue rule and AWS
    target tracking tuned for them, the best constant fleet, rules without tuning, and the models that fit the fleet.

    Every measure of every run is kept in --results, and what is there already is not run again. The same code, policies
    and traces give the same figures.
    """

    EPILOG = epilog(
        """
Traces:
  T1 train-text   T2 train-fit   T3 random traces   T4 co-evolution (closed loop)
  T5 recorded logs   T6 shifts: slow boots, dearer VMs, longer jobs, an idle day,
  a burst of ten times a batch
""",
        """
Policies: any text of `trimtab simulate`, LABEL=TEXT, or @FILE.json
  with {"label": "text", "other": {"T1": "text", "*": "text"}}. queue-rule is the
  rule with its default settings, not tuned. Without any policy: the baselines tuned
  for the loads, and the models that ship with the agent.
""",
        calls=(
            "trimtab evaluate autoscaling --short --out report.html",
            "trimtab evaluate autoscaling --policies queue-rule --policies new=MODEL.onnx \\",
            "    --traces T3,T6 --results rows.csv --resume",
            "trimtab evaluate autoscaling --importance MODEL.onnx --traces T1 --short",
            "trimtab evaluate autoscaling --world my.toml --workload my.swf.gz:hours=24 --seeds 5 \\",
            "    --format latex --figure costs.pdf > costs.tex",
        ),
    )

    policies: Annotated[list[str] | None, "TEXT", "A policy, see below; repeatable."] = None
    traces: Annotated[str | None, "T1,T2,...", "Groups of traces, see below; else all, or your --workload alone."] = (
        None
    )
    short: Annotated[bool, "Few cases of each kind: minutes, not an evening."] = False
    seeds: SuiteSeedsOption = None
    world: SuiteWorldOption = "live-like"
    workload: OwnWorkloadsOption = None
    against: Annotated[str | None, "LABEL", "Reference of the comparison; else the first policy."] = None
    out: Annotated[
        Path | None,
        "FILE.html",
        "Write the report.",
        Written((".html", ".htm")),
    ] = None
    figure: Annotated[
        Path | None, "FILE", "Draw costs against the reference: .pdf, .svg or .png.", Written((".pdf", ".svg", ".png"))
    ] = None
    results: Annotated[Path | None, "FILE.csv", "Keep one row per policy, trace and seed here."] = None
    resume: Annotated[bool, "Continue where it was stopped, also a results file that holds rows."] = False
    importance: Annotated[list[str] | None, "NAME|FILE", "Take each input from this model in turn; repeatable."] = None
    repeats: Annotated[int, "Shuffles per input and case.", Bounds(min=2)] = 20
    curves: Annotated[list[Path] | None, "FOLDER", "Training run whose curve the report shows; repeatable."] = None

    def run(self) -> Answer:
        """Run the policies that the results do not hold, and compare them."""
        from trainer.autoscaling.evaluation.contenders import (
            FEW_SEEDS,
            SEEDS,
            contenders_in_world,
            contenders_of,
            default_contenders,
            own_cases,
            own_contenders,
            own_world,
        )
        from trainer.autoscaling.evaluation.results import Results
        from trainer.autoscaling.evaluation.suite import GROUPS, World, suite
        from trainer.kit.jobs import in_turn
        from trainer.kit.progress import bars

        jobs, suite_worlds = self.workload or [], set(World)
        own = own_world(self.world, jobs)
        chosen = World.LIVE_LIKE if own is not None and self.world not in suite_worlds else World(self.world)
        groups = words_of(self.traces) if self.traces is not None else [] if own is not None else [*GROUPS]
        if own is not None and groups and self.world not in suite_worlds:
            remedy = f"leave it out in world {own.name}, or choose one of {', '.join(World)}"
            raise BadInput("--traces", self.traces, remedy)
        cases = suite(groups, short=self.short, world=chosen, seeds=self.seeds)
        contenders = contenders_of(self.policies) if self.policies else ()
        if own is not None:
            cases += own_cases(own, jobs, self.seeds or (FEW_SEEDS if self.short else SEEDS))
            contenders = contenders_in_world(contenders, own)
        elif not self.policies and not self.importance:
            contenders = default_contenders(chosen)
        named, world = ", ".join([*groups, *jobs]), chosen.value if own is None else own.name
        file = self.results if not self.plan or (self.results and self.results.exists()) else None
        results = Results(file, resume=self.resume or self.plan)
        with bars(self.as_json) as shown:
            if own is not None and not self.policies and not self.importance:
                usual = partial(_usual, own, jobs, self.crew, shown)
                if self.plan:
                    (rule,) = contenders_in_world(contenders_of(["queue-rule"]), own)
                    compare = partial(_compared, own_contenders(own, rule), cases, results, self, shown, named)
                    steps: list[Callable[[], object]] = [usual, compare]
                    in_turn(lambda step: step(), steps)
                contenders = usual()
            summary = None
            if contenders:
                summary = _compared(contenders, cases, results, self, shown, named)
                if self.figure is not None:
                    from trainer.autoscaling.evaluation.report import comparison_figure

                    self.figure.write_bytes(comparison_figure(summary, self.figure.suffix.lower().removeprefix(".")))
            found = [_importance(shown, model, cases, self.repeats) for model in self.importance or ()]
            if self.out is not None:
                facts = {
                    "traces": f"{len(cases)} cases of {named}{' (short form)' if self.short else ''}",
                    "world of T3, T5, T6" if own is None else "world": world,
                    "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                }
                _report(shown, self.out, contenders, cases, summary, found, self.curves or (), facts)
        data = summary.as_data() if summary is not None else {}
        data |= {"cases": len(cases), "world": world, "importance": [one.as_data() for one in found]}
        tables, notes = _tables(summary, found, plain=self.form == CSV)
        return Answer(data, [*notes, *(f"written: {file}" for file in (self.out, self.figure) if file)], tables=tables)


def _usual(own: OwnWorld, jobs: Sequence[str], workers: Workers, shown: Progress) -> tuple[Contender, ...]:
    """Return the policies that run without --policies: tuned rules, the best constant fleet, and the shipped models."""
    from trainer.autoscaling.evaluation.contenders import constant_fleet, own_contenders, tuned_rule
    from trainer.kit.jobs import in_turn
    from trainer.kit.progress import counter

    def tuned(name: str) -> Contender:
        return tuned_rule(own, jobs, workers, counter(shown, f"tuning {name}"), name=name)

    rule, tracking = in_turn(tuned, ("queue-rule", "target-tracking"))
    return own_contenders(own, rule, (tracking, *constant_fleet(own, jobs, counter(shown, "trying constant fleets"))))


def _compared(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    results: Results,
    asked: EvaluateAutoscaling,
    shown: Progress,
    named: str,
) -> Summary:
    from trainer.autoscaling.evaluation.results import evaluate
    from trainer.autoscaling.evaluation.summary import summarise

    tasks = {
        c.label: shown.add_task(c.label, total=sum(c.text(x.group) is not None for x in cases)) for c in contenders
    }
    done = evaluate(
        contenders, cases, results, workers=asked.crew, on_cases=lambda label, n: shown.advance(tasks[label], n)
    )
    if not done.rows:
        reasons = "; ".join(dict.fromkeys(absence.reason for absence in done.absences))
        raise BadInput("--policies", [c.label for c in contenders], f"none of them runs on {named}: {reasons}")
    return summarise(done, asked.against or contenders[0].label)


def _importance(bars: Progress, model: str, cases: Sequence[Case], repeats: int) -> Importance:
    from agent.models.shipped import with_file
    from trainer.autoscaling.evaluation.importance import importance_of

    file = Path(with_file(model))
    task = bars.add_task(f"importance of the inputs of {file.name[:16]}", total=None)
    return importance_of(
        file, cases, repeats=repeats, on_progress=lambda done, of: bars.update(task, completed=done, total=of)
    )


def _report(
    bars: Progress,
    out: Path,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    summary: Summary | None,
    found: Sequence[Importance],
    curves: Sequence[Path],
    facts: dict[str, str],
) -> None:
    from trainer.autoscaling.evaluation import report
    from trainer.autoscaling.evaluation.report import Extras, page

    importance = [(i.model[:12], i.words(), report.importance(i)) for i in found]
    if summary is None:
        out.write_text(page(None, Extras(importance=importance), facts), encoding="utf-8", newline="\n")
        return
    shown = report.shown_cases(cases)
    front = report.pareto_cases(cases)
    task = bars.add_task("plots", total=len(shown) * len(contenders) + report.pareto_runs(front))

    def on_progress(runs: int) -> None:
        bars.advance(task, runs)

    goals = {s.policy: s.cost.mean for s in summary.results if s.family == summary.families[0]}
    extras = Extras(
        by_group=report.by_group(contenders, summary, cases, on_progress),
        comparison=report.comparison(summary),
        pareto=report.pareto(contenders, front, summary, on_progress) if front else None,
        curves=report.learning_curves(curves, goals),
        importance=importance,
    )
    facts = facts | {"reference": summary.reference, "code": summary.code}
    out.write_text(page(summary, extras, facts), encoding="utf-8", newline="\n")


def _tables(
    summary: Summary | None, found: Sequence[Importance], *, plain: bool
) -> tuple[list[tuple[str, Rows]], list[str]]:
    """Return the tables with the notes after them; plain: for other programs."""
    tables: list[tuple[str, Rows]] = []
    notes: list[str] = []
    if summary is not None:
        from trainer.autoscaling.evaluation.summary import few_cases

        for family in summary.families:
            cases = max(s.cases for s in summary.results if s.family == family)
            title = family if plain else f"{family} ({counted(cases, 'case')})"
            tables.append((title, (_plain_rows if plain else _shown_rows)(summary, family)))
        notes += [few] if (few := few_cases(summary)) else []
        notes += _absent(summary)
    for importance in found:
        how = "shuffling adds" if importance.gain is None else "without it"
        tables.append((f"inputs of {importance.model[:12]}", [("input", how, "95 %"), *importance.lines()]))
        notes.append(f"  {importance.words()}")
    return tables, notes


def _shown_rows(summary: Summary, family: str) -> Rows:
    rows: list[tuple[object, ...]] = [("policy", "cost", "against the reference", *_COLUMNS, "idle shutdown")]
    for s in (s for s in summary.results if s.family == family):
        against = s.stuck or ("reference" if s.policy == summary.reference else "-")
        if s.against is not None:
            r = s.against.relative
            interval = f" ({100 * r.low:+.1f} to {100 * r.high:+.1f})" if r.cases > 1 else ""
            against = f"{100 * r.mean:+.1f} %{interval}"
        idle = "-" if s.idle_worst_min is None else f"{s.idle_text} min"
        means = (form.format(**s.means) for form in _COLUMNS.values())
        rows.append((s.policy, f"{s.cost.mean:.2f} $", against, *means, idle))
    return rows


def _plain_rows(summary: Summary, family: str) -> Rows:
    """Return the figures of a family without units, for other programs; relative ones are shares."""
    ends = ("mean", "low", "high")
    titles = ("policy", "cases", *(f"cost_{end}" for end in ends), *(f"relative_{end}" for end in ends), "stuck")
    rows: list[tuple[object, ...]] = [(*titles, *next(iter(summary.results)).means)]
    for s in (s for s in summary.results if s.family == family):
        relative = [""] * 3 if s.against is None else [getattr(s.against.relative, end) for end in ends]
        rows.append((s.policy, s.cases, *(getattr(s.cost, end) for end in ends), *relative, s.stuck, *s.means.values()))
    return rows


def _absent(summary: Summary) -> list[str]:
    """Return a line for the contenders that ran nowhere, and one for each that missed some of the cases."""
    by_label: dict[str, list[Absence]] = {}
    for absence in summary.absences:
        by_label.setdefault(absence.label, []).append(absence)
    nowhere = [label for label in by_label if label not in summary.policies]
    # The reason begins with the model's digest.
    why = by_label[nowhere[0]][0].reason.rpartition(": ")[2] if nowhere else ""
    lines = [f"not run: {', '.join(nowhere)}: {why} (--json has each reason)"] if nowhere else []
    partly = {label: found for label, found in by_label.items() if label in summary.policies}
    return lines + [
        f"not run: {label} on {counted(len(found), 'case')}: {found[0].reason}" for label, found in partly.items()
    ]


_COLUMNS = {
    "rent": "{rent:.2f} $",
    "run time": "{run_time_min:.1f} min",
    "mean wait": "{mean_wait_s:.0f} s",
    "busy": "{utilisation:.0%}",
}
"""Titles, and how the means of a family are shown."""
