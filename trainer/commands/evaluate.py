"""`trimtab evaluate autoscaling`: policies against each other on the suite T1 to T6, with intervals and a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, examples, print_json
from domain.errors import BadInput
from trainer.commands import evaluate_admission, evaluate_oversubscription

if TYPE_CHECKING:
    from rich.progress import Progress

    from trainer.autoscaling.evaluation.contenders import Contender
    from trainer.autoscaling.evaluation.importance import Importance
    from trainer.autoscaling.evaluation.suite import Case
    from trainer.autoscaling.evaluation.summary import Summary

EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Traces:",
                "  T1 train-text   T2 train-fit   T3 random traces   T4 co-evolution (closed loop)",
                "  T5 recorded logs   T6 shifts: slow boots, dearer VMs, longer jobs, an idle day,",
                "  a burst of ten times a batch",
            )
        ),
        "\n".join(
            (
                "\b",
                "Policies: any text of `trimtab simulate`, LABEL=TEXT, a MODEL.onnx, or @FILE.json",
                '  with {"label": "text", "other": {"T1": "text", "*": "text"}}. Without any: the',
                "  tuned baselines and the models that ship with the agent.",
            )
        ),
        examples(
            "trimtab evaluate autoscaling --short --out report.html",
            "trimtab evaluate autoscaling --policies queue-rule --policies new=MODEL.onnx \\",
            "    --traces T3,T6 --results rows.csv --resume",
            "trimtab evaluate autoscaling --importance MODEL.onnx --traces T1 --short",
        ),
    )
)


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    evaluate = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Measure policies against each other on held-out traces.",
    )
    evaluate.command("autoscaling", epilog=EPILOG)(autoscaling)
    evaluate.command("admission", epilog=evaluate_admission.EPILOG)(evaluate_admission.admission)
    evaluate.command("oversubscription", epilog=evaluate_oversubscription.EPILOG)(
        evaluate_oversubscription.oversubscription
    )
    app.add_typer(evaluate, name="evaluate")


def autoscaling(
    policies: Annotated[
        list[str] | None, typer.Option("--policies", metavar="TEXT", help="A policy, see below; repeatable.")
    ] = None,
    traces: Annotated[
        str, typer.Option(metavar="T1,T2,...", help="Groups of traces, see below.")
    ] = "T1,T2,T3,T4,T5,T6",
    short: Annotated[bool, typer.Option("--short", help="Few cases of each kind: minutes, not an evening.")] = False,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="At most so many cases per family.", min=1)] = None,
    world: Annotated[str, typer.Option(metavar="live-like|training", help="The world of T3, T5 and T6.")] = "live-like",
    against: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Whom the others are compared with; else the first policy.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write the report.")] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Keep one row per policy, trace and seed here.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a results file that holds rows.")] = False,
    importance: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL.onnx", help="Shuffle each input of this model over time; repeatable."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Shuffles per input and case.", min=2)] = 20,
    curves: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="Training run whose curve the report shows; repeatable.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    as_json: JsonOption = False,
) -> None:
    """Run policies on the same traces and seeds, and compare them case by case.

    Every measure of every run is kept in --results, and what is there already is not run again. The same code, policies
    and traces give the same figures.
    """
    from trainer.autoscaling.evaluation.contenders import contenders_of
    from trainer.autoscaling.evaluation.defaults import default_contenders
    from trainer.autoscaling.evaluation.runs import evaluate
    from trainer.autoscaling.evaluation.suite import World, suite
    from trainer.autoscaling.evaluation.summary import summarise
    from trainer.autoscaling.evaluation.table import Results

    try:
        chosen = World(world)
    except ValueError:
        raise BadInput("--world", world, f"choose one of {', '.join(World)}") from None
    if resume and results is None:
        raise BadInput("--resume", "without --results", "name the results file to go on with")
    _check_writable(out)
    groups = [group.strip() for group in traces.split(",") if group.strip()]
    cases = suite(groups, short=short, world=chosen, seeds=seeds)
    contenders = contenders_of(policies) if policies else () if importance else default_contenders(chosen)
    kept = Results(results, resume=resume)
    with _bars(as_json) as bars:
        summary = None
        if contenders:
            tasks = {
                c.label: bars.add_task(c.label, total=sum(c.text(x.group) is not None for x in cases))
                for c in contenders
            }
            done = evaluate(
                contenders, cases, kept, workers=workers, told=lambda label, n: bars.advance(tasks[label], n)
            )
            if not done.rows:
                reasons = "; ".join(dict.fromkeys(absence.reason for absence in done.absences))
                raise BadInput("--policies", [c.label for c in contenders], f"none of them runs on {traces}: {reasons}")
            summary = summarise(done, against or contenders[0].label)
        found = [_importance(bars, model, cases, repeats) for model in importance or ()]
        if out is not None:
            facts = {
                "traces": f"{len(cases)} cases of {', '.join(groups)}{' (short form)' if short else ''}",
                "world of T3, T5, T6": chosen.value,
                "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            }
            _report(bars, out, contenders, cases, summary, found, curves or (), facts)
    if as_json:
        data = summary.as_data() if summary is not None else {}
        print_json(data | {"cases": len(cases), "world": chosen.value, "importance": [i.as_data() for i in found]})
    else:
        _show(summary, found, out)


def _check_writable(out: Path | None) -> None:
    """Refuse before hours of work, not after."""
    if out is not None and (out.suffix.lower() not in (".html", ".htm") or not out.absolute().parent.is_dir()):
        raise BadInput("--out", str(out), "give a file in a folder that is there, its name ending in .html")


@contextmanager
def _bars(quiet: bool) -> Iterator[Progress]:
    """Show bars on standard error while it is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        yield bars


def _importance(bars: Progress, model: str, cases: Sequence[Case], repeats: int) -> Importance:
    from trainer.autoscaling.evaluation.importance import importance_of

    task = bars.add_task(f"importance of the inputs of {Path(model).name[:16]}", total=None)
    return importance_of(
        Path(model), cases, repeats=repeats, told=lambda done, of: bars.update(task, completed=done, total=of)
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

    def told(runs: int) -> None:
        bars.advance(task, runs)

    goals = {s.policy: s.cost.mean for s in summary.standings if s.family == summary.families[0]}
    extras = Extras(
        by_group=pictures.by_group(contenders, summary, cases, told),
        comparison=pictures.comparison(summary),
        pareto=pictures.pareto(contenders, front, summary, told) if front else None,
        curves=pictures.learning_curves(curves, goals),
        importance=importance,
    )
    facts = facts | {"reference": summary.reference, "code": summary.code}
    out.write_text(page(summary, extras, facts), encoding="utf-8", newline="\n")


def _show(summary: Summary | None, found: Sequence[Importance], out: Path | None) -> None:
    from agent.commands.output import columns, show

    lines: list[str] = []
    if summary is not None:
        for family in summary.families:
            rows: list[tuple[object, ...]] = [_HEADER]
            for s in (s for s in summary.standings if s.family == family):
                against = "reference" if s.policy == summary.reference else "-"
                if s.against is not None:
                    r = s.against.relative
                    against = f"{100 * r.mean:+.1f} % ({100 * r.low:+.1f} to {100 * r.high:+.1f})"
                idle = (
                    "-" if s.idle_worst_min is None else f"{'' if s.idle_released else '> '}{s.idle_worst_min:.0f} min"
                )
                rows.append(
                    (
                        s.policy,
                        f"{s.cost.mean:.2f} $",
                        against,
                        f"{s.rent:.2f} $",
                        f"{s.run_time_min:.1f} min",
                        f"{s.mean_wait_s:.0f} s",
                        f"{s.utilisation:.0%}",
                        idle,
                    )
                )
            lines += [
                f"{family} ({max(s.cases for s in summary.standings if s.family == family)} cases)",
                *columns(rows),
                "",
            ]
        lines += [f"not run: {a.label} on {a.case}: {a.reason}" for a in summary.absences[:5]]
        if len(summary.absences) > 5:
            lines.append(f"  and {len(summary.absences) - 5} more (--json has all)")
    for importance in found:
        table = [("input", "shuffling adds", "95 %"), *importance.lines()]
        lines += [f"inputs of {importance.model[:12]}", *columns(table), f"  {importance.words()}", ""]
    if out is not None:
        lines.append(f"report: {out}")
    show(lines)


_HEADER = ("policy", "cost", "against the reference", "rent", "run time", "mean wait", "busy", "idle shutdown")
