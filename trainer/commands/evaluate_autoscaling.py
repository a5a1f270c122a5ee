"""`trimtab evaluate autoscaling`: policies against each other on the suite T1 to T6, with intervals and a report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agent.commands.options import JsonOption, print_json
from agent.kernel.text import counted
from domain.errors import BadInput
from trainer.commands.options import (
    CSV,
    TEXT,
    FormatOption,
    OwnWorkloadsOption,
    Rows,
    SuiteSeedsOption,
    SuiteWorldOption,
    WorkersOption,
    epilog,
    show_tables,
    words_of,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from trainer.autoscaling.evaluation.contenders import Contender
    from trainer.autoscaling.evaluation.importance import Importance
    from trainer.autoscaling.evaluation.suite import Case
    from trainer.autoscaling.evaluation.summary import Summary
    from trainer.autoscaling.evaluation.table import Absence

FIGURES = (".pdf", ".svg", ".png")
EPILOG = epilog(
    """
Traces:
  T1 train-text   T2 train-fit   T3 random traces   T4 co-evolution (closed loop)
  T5 recorded logs   T6 shifts: slow boots, dearer VMs, longer jobs, an idle day,
  a burst of ten times a batch
""",
    """
Policies: any text of `trimtab simulate`, LABEL=TEXT, a MODEL.onnx, or @FILE.json
  with {"label": "text", "other": {"T1": "text", "*": "text"}}. Without any: the
  tuned baselines and the models that ship with the agent.
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


def autoscaling(
    policies: Annotated[
        list[str] | None, Option("--policies", metavar="TEXT", help="A policy, see below; repeatable.")
    ] = None,
    traces: Annotated[
        str | None, Option(metavar="T1,T2,...", help="Groups of traces, see below; else all, or your --workload alone.")
    ] = None,
    short: Annotated[bool, Option("--short", help="Few cases of each kind: minutes, not an evening.")] = False,
    seeds: SuiteSeedsOption = None,
    world: SuiteWorldOption = "live-like",
    workload: OwnWorkloadsOption = None,
    against: Annotated[
        str | None, Option(metavar="LABEL", help="Reference of the comparison; else the first policy.")
    ] = None,
    out: Annotated[Path | None, Option(metavar="FILE.html", help="Write the report.")] = None,
    figure: Annotated[
        Path | None, Option(metavar="FILE", help="Draw costs against the reference: .pdf, .svg or .png.")
    ] = None,
    form: FormatOption = TEXT,
    results: Annotated[
        Path | None, Option(metavar="FILE.csv", help="Keep one row per policy, trace and seed here.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue a results file that holds rows.")] = False,
    importance: Annotated[
        list[str] | None, Option(metavar="MODEL.onnx", help="Take each input from this model in turn; repeatable.")
    ] = None,
    repeats: Annotated[int, Option(help="Shuffles per input and case.", min=2)] = 20,
    curves: Annotated[
        list[Path] | None, Option(metavar="FOLDER", help="Training run whose curve the report shows; repeatable.")
    ] = None,
    workers: WorkersOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Run policies on the same traces and seeds, and compare them case by case.

    With --workload the jobs are yours, in any world. Without --policies they are then run by the queue rule and AWS
    target tracking tuned for them, the best constant fleet, rules without tuning, and the models that fit the fleet.

    Every measure of every run is kept in --results, and what is there already is not run again. The same code, policies
    and traces give the same figures.
    """
    from trainer.autoscaling.evaluation.contenders import contenders_of, default_contenders
    from trainer.autoscaling.evaluation.own import (
        FEW_SEEDS,
        SEEDS,
        constant_fleet,
        own_cases,
        own_contenders,
        own_world,
        told_contenders,
        tuned_rule,
    )
    from trainer.autoscaling.evaluation.pictures import comparison_figure
    from trainer.autoscaling.evaluation.suite import GROUPS, World, suite
    from trainer.autoscaling.evaluation.summary import summarise
    from trainer.autoscaling.evaluation.table import Results, evaluate
    from trainer.kit.drawing import check_plot_file
    from trainer.kit.progress import bars, counter

    own = own_world(world, workload or ())
    chosen = World.LIVE_LIKE if own is not None and world not in set(World) else World(world)
    if resume and results is None:
        raise BadInput("--resume", "without --results", "name the results file to continue")
    _check_writable(out)
    if figure is not None:
        check_plot_file(figure, FIGURES, "--figure")
    groups = words_of(traces) if traces is not None else [] if own is not None else [*GROUPS]
    if own is not None and groups and world not in set(World):
        raise BadInput("--traces", traces, f"leave it out in world {own.name}, or choose one of {', '.join(World)}")
    cases = suite(groups, short=short, world=chosen, seeds=seeds)
    if own is not None:
        cases += own_cases(own, workload or (), seeds or (FEW_SEEDS if short else SEEDS))
    contenders = contenders_of(policies) if policies else ()
    if own is not None:
        contenders = told_contenders(contenders, own)
    elif not policies and not importance:
        contenders = default_contenders(chosen)
    named = [*groups, *(workload or ())]
    kept = Results(results, resume=resume)
    with bars(as_json) as shown:
        if own is not None and not policies and not importance:
            rule = tuned_rule(own, workload or (), workers, counter(shown, "tuning the queue rule"))
            tracking = tuned_rule(
                *(own, workload or (), workers, counter(shown, "tuning target tracking")), name="target-tracking"
            )
            fleet = constant_fleet(own, workload or (), counter(shown, "trying constant fleets"))
            contenders = own_contenders(own, rule, (tracking, *fleet))
        summary = None
        if contenders:
            tasks = {
                c.label: shown.add_task(c.label, total=sum(c.text(x.group) is not None for x in cases))
                for c in contenders
            }
            done = evaluate(
                contenders, cases, kept, workers=workers, on_cases=lambda label, n: shown.advance(tasks[label], n)
            )
            if not done.rows:
                reasons = "; ".join(dict.fromkeys(absence.reason for absence in done.absences))
                raise BadInput(
                    "--policies", [c.label for c in contenders], f"none of them runs on {', '.join(named)}: {reasons}"
                )
            summary = summarise(done, against or contenders[0].label)
            if figure is not None:
                figure.write_bytes(comparison_figure(summary, figure.suffix.lower().removeprefix(".")))
        found = [_importance(shown, model, cases, repeats) for model in importance or ()]
        if out is not None:
            facts = {
                "traces": f"{len(cases)} cases of {', '.join(named)}{' (short form)' if short else ''}",
                "world of T3, T5, T6" if own is None else "world": chosen.value if own is None else own.name,
                "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            }
            _report(shown, out, contenders, cases, summary, found, curves or (), facts)
    if as_json:
        data = summary.as_data() if summary is not None else {}
        print_json(
            data
            | {
                "cases": len(cases),
                "world": chosen.value if own is None else own.name,
                "importance": [i.as_data() for i in found],
            }
        )
    else:
        _show(summary, found, [path for path in (out, figure) if path is not None], form)


def _check_writable(out: Path | None) -> None:
    """Refuse before hours of work, not after."""
    if out is not None and (out.suffix.lower() not in (".html", ".htm") or not out.absolute().parent.is_dir()):
        raise BadInput("--out", str(out), "give a file in a folder that is there, its name ending in .html")


def _importance(bars: Progress, model: str, cases: Sequence[Case], repeats: int) -> Importance:
    from trainer.autoscaling.evaluation.importance import importance_of

    task = bars.add_task(f"importance of the inputs of {Path(model).name[:16]}", total=None)
    return importance_of(
        Path(model), cases, repeats=repeats, on_progress=lambda done, of: bars.update(task, completed=done, total=of)
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
    from trainer.autoscaling.evaluation import pictures
    from trainer.autoscaling.evaluation.page import Extras, page

    importance = [(i.model[:12], i.words(), pictures.importance(i)) for i in found]
    if summary is None:
        out.write_text(page(None, Extras(importance=importance), facts), encoding="utf-8", newline="\n")
        return
    shown = pictures.shown_cases(cases)
    front = pictures.pareto_cases(cases)
    task = bars.add_task("plots", total=len(shown) * len(contenders) + pictures.pareto_runs(front))

    def on_progress(runs: int) -> None:
        bars.advance(task, runs)

    goals = {s.policy: s.cost.mean for s in summary.results if s.family == summary.families[0]}
    extras = Extras(
        by_group=pictures.by_group(contenders, summary, cases, on_progress),
        comparison=pictures.comparison(summary),
        pareto=pictures.pareto(contenders, front, summary, on_progress) if front else None,
        curves=pictures.learning_curves(curves, goals),
        importance=importance,
    )
    facts = facts | {"reference": summary.reference, "code": summary.code}
    out.write_text(page(summary, extras, facts), encoding="utf-8", newline="\n")


def _show(summary: Summary | None, found: Sequence[Importance], files: Sequence[Path], form: str) -> None:
    tables: list[tuple[str, Rows]] = []
    notes: list[str] = []
    if summary is not None:
        rows_of = _plain_rows if form == CSV else _shown_rows
        for family in summary.families:
            cases = max(s.cases for s in summary.results if s.family == family)
            title = family if form == CSV else f"{family} ({counted(cases, 'case')})"
            tables.append((title, rows_of(summary, family)))
        notes += _absent(summary)
    for importance in found:
        how = "shuffling adds" if importance.gain is None else "without it"
        tables.append((f"inputs of {importance.model[:12]}", [("input", how, "95 %"), *importance.lines()]))
        notes.append(f"  {importance.words()}")
    show_tables(tables, [*notes, *(f"written: {file}" for file in files)], form)


def _shown_rows(summary: Summary, family: str) -> Rows:
    rows: list[tuple[object, ...]] = [("policy", "cost", "against the reference", *_COLUMNS, "idle shutdown")]
    for s in (s for s in summary.results if s.family == family):
        against = s.stuck or ("reference" if s.policy == summary.reference else "-")
        if s.against is not None:
            r = s.against.relative
            against = f"{100 * r.mean:+.1f} % ({100 * r.low:+.1f} to {100 * r.high:+.1f})"
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
