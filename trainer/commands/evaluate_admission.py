"""`trimtab evaluate admission`: rules of admission on the same runs, their fronts, gains with intervals, a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, duration_text, examples, print_json
from domain.errors import BadInput

if TYPE_CHECKING:
    from rich.progress import Progress

    from trainer.admission.campaign import Crew
    from trainer.admission.cells import Cell
    from trainer.admission.experiments import Experiment
    from trainer.admission.figures import Findings
    from trainer.admission.importance_study import Study
    from trainer.admission.table import Store

EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Experiments:",
                "  ordering       zeroth, first and second moment rules, 0 prior observations",
                "  observations   second with 0, 1, 5 and 50, beside accept-if-it-fits",
                "  marginal       with and without the marginal heuristic",
                "  labels         deployments whose type is named, or not",
                "  variants       moments, tails, budget and banded kappa against second",
            )
        ),
        examples(
            "trimtab evaluate admission --preset K --runs 60 --experiment ordering",
            "trimtab evaluate admission --runs 500 --workers 16 --out evidence",
            "trimtab evaluate admission --runs 500 --plan",
            "trimtab evaluate admission --preset H --importance zeroth:13500 --runs 2000",
        ),
    )
)
DEFAULT_PRESETS = ("K", "H")
SECONDS = {"zeroth": 0.12, "first": 2.0}
FULL_MOMENTS = 5.0
SECONDS_FORECAST = ((0, 2.5), (1, 5.0))
"""Rough CPU seconds of a three-year run on preset K, by the least prior observations; FULL_MOMENTS as often."""


def admission(
    preset: Annotated[
        list[str] | None, typer.Option(metavar="T|H|K|FILE", help="Cluster and population; repeatable. Else K and H.")
    ] = None,
    experiment: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="What to compare, see below; repeatable. Else all.")
    ] = None,
    ladder: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these rules of one experiment, such as zeroth; repeatable."),
    ] = None,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Runs per rule and threshold, seeds from 0 on.")] = 60,
    years: Annotated[float, typer.Option(metavar="YEARS", help="Length of a run.")] = 3.0,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Runs and report; runs that it holds are not played again.")
    ] = Path("admission-evidence"),
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes; cores of a local Ray.")] = 2,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS|local", help="Play on a Ray cluster.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be played and for how long, no more.")] = False,
    importance: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Ask whether runs are better drawn by how bad they look.")
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", min=100, help="With --importance: seeds to look at first.")] = 2000,
    pilot: Annotated[int, typer.Option(metavar="N", min=2, help="With --importance: runs per bucket first.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Play rules at several thresholds on the same runs, and compare them at equal risk and at equal utilisation.

    Thresholds and seeds are fixed beforehand, apart from those that `tune admission` uses. Every run is on disk before
    the next one counts: end the command when you like and give it again. A folder of other code, clusters or lengths is
    refused.
    """
    from trainer.admission.campaign import Crew, run_cells
    from trainer.admission.cells import Cell, comparison_seeds, configuration_of
    from trainer.admission.experiments import EXPERIMENTS, experiments_of
    from trainer.admission.figures import as_data, findings_of
    from trainer.admission.report import write
    from trainer.admission.table import Store

    if not 0.0 < years <= 30.0:
        raise BadInput("--years", years, "give a number above 0 and up to 30")
    presets, hours, crew = preset or list(DEFAULT_PRESETS), years * 8760.0, Crew(workers, ray)
    if importance is not None:
        if len(presets) > 1:
            raise BadInput("--importance", importance, "name one --preset with it")
        cell = Cell(presets[0], importance, hours=hours)
        store = Store(out, configuration_of(presets, hours))
        done = _importance(store, cell, runs, draws, pilot, crew, as_json)
        print_json(done.as_data()) if as_json else _show_study(done)
        return
    chosen = [e for name in presets for e in experiments_of(experiment or list(EXPERIMENTS), name, hours, ladder or ())]
    seeds = comparison_seeds(runs)
    if plan:
        _plan(chosen, None if not out.exists() else Store(out, configuration_of(presets, hours)), seeds, as_json)
        return
    store = Store(out, configuration_of(presets, hours))
    found: list[Findings] = []
    with bars(as_json) as shown:
        for one in chosen:
            with _task(shown, f"{one.ladders[0].preset} {one.name}", one.cells, store, seeds) as told:
                played = run_cells(store, one.cells, seeds, crew, told)
            found.append(findings_of(one, played))
    files = write(out, found, store.configuration)
    if as_json:
        print_json(as_data(found, store.configuration))
    else:
        _show(found, files[0])


@contextmanager
def bars(quiet: bool) -> Iterator[Progress]:
    """Show bars on standard error while it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Left())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as shown:
        yield shown


@contextmanager
def _task(
    shown: Progress, name: str, cells: Sequence[Cell], store: Store, seeds: Sequence[int]
) -> Iterator[Callable[[Cell, int], None]]:
    total = len(cells) * len(seeds)
    task = shown.add_task(name, total=total, completed=total - sum(len(store.missing(c, seeds)) for c in cells))
    yield lambda cell, runs: shown.advance(task, runs)


def _seconds(cell: Cell) -> float:
    """Return about how long one run takes."""
    known = SECONDS.get(cell.policy.partition(":")[0])
    if known is None or (cell.observations and known > SECONDS["zeroth"]):
        known = next(s for least, s in reversed(SECONDS_FORECAST) if cell.observations >= least)
    return known * (FULL_MOMENTS if ",moments=ab," in f"{cell.policy}," else 1.0) * cell.hours / 26_280.0


def _plan(chosen: Sequence[Experiment], store: Store | None, seeds: Sequence[int], as_json: bool) -> None:
    from agent.commands.output import columns, show

    rows: list[tuple[str, int, int, float]] = []
    seen: set[Cell] = set()
    for one in chosen:
        # Experiments that share cells share their runs.
        fresh = [cell for cell in one.cells if cell not in seen]
        seen.update(fresh)
        left = {cell: len(seeds) if store is None else len(store.missing(cell, seeds)) for cell in fresh}
        seconds = sum(count * _seconds(cell) for cell, count in left.items())
        rows.append((f"{one.ladders[0].preset} {one.name}", len(one.cells), sum(left.values()), seconds))
    if as_json:
        names = ("experiment", "cells", "runs", "cpu_s")
        print_json({"experiments": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    head: list[tuple[object, ...]] = [("experiment", "thresholds", "runs to play", "about, on one core")]
    table: list[tuple[object, ...]] = [(n, count, f"{left:,}", duration_text(s)) for n, count, left, s in rows]
    table.append(("all", "", f"{sum(row[2] for row in rows):,}", duration_text(sum(row[3] for row in rows))))
    show(columns([*head, *table]))


def _show(found: Sequence[Findings], page: Path) -> None:
    from agent.commands.output import columns, show
    from trainer.admission.figures import gain_text
    from trainer.admission.fronts import Metric

    lines: list[str] = []
    for one in found:
        first = next(iter(one.standings.values()))[0]
        lines.append(f"{one.preset}: {one.experiment.title} ({first.runs} runs)")
        rows: list[tuple[object, ...]] = [("points of utilisation gained", "refused", "primary", "pooled")]
        for meeting in one.meetings:
            for g in (g for g in meeting.gains if g.metric is Metric.PRIMARY):
                pooled = next(x for x in meeting.gains if x.metric is Metric.POOLED and x.sla == g.sla)
                rows.append(
                    (f"{meeting.challenger} over {meeting.base}", f"{g.sla:g}", gain_text(g), gain_text(pooled))
                )
        lines += [*columns(rows), ""]
    show([*lines, f"report: {page}"])


def _importance(store: Store, cell: Cell, runs: int, draws: int, pilot: int, crew: Crew, quiet: bool) -> Study:
    from trainer.admission.importance_study import study

    with bars(quiet) as shown:
        looks = shown.add_task("runs looked at", total=None)
        played = shown.add_task("runs played", total=None)
        return study(
            store,
            cell,
            runs=runs,
            draws=draws,
            pilot=pilot,
            crew=crew,
            told=lambda cell, count: shown.advance(played, count),
            looked=lambda count: shown.advance(looks, count),
        )


def _show_study(done: Study) -> None:
    from agent.commands.output import columns, show

    rows: list[tuple[object, ...]] = [("mean of a run", "plain", "weighted", "errors apart")]
    for pair in done.pairs:
        plain, weighted = (f"{m.value:.6g} ± {m.error:.2g}" for m in (pair.plain, pair.weighted))
        rows.append((pair.name, plain, weighted, f"{pair.errors_apart:.2f}"))
    verdict = "use them" if done.pays else "draw plainly"
    show(
        [
            *columns(rows),
            f"mean weight {done.mean_weight.value:.4f} ± {done.mean_weight.error:.2g}, effective size "
            f"{done.effective_size:.0f} of {done.runs}, {done.draws_per_run:.1f} draws a run",
            f"a weighted run is worth {done.worth:.2f} plain ones for the failure rate ({done.expected_worth:.2f} "
            f"expected from the pilot): {verdict}",
        ]
    )
