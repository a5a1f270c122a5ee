"""`trimtab evaluate admission`: rules of admission on the same runs, their fronts, gains with intervals, a report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
from trainer.commands.options import (
    TEXT,
    FormatOption,
    PlayersOption,
    PlayOnRayOption,
    Rows,
    YearsOption,
    epilog,
    show_tables,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from trainer.admission.experiments import Experiment
    from trainer.admission.figures import ExperimentResult
    from trainer.admission.table import Cell, Store

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
DEFAULT_PRESETS = ("K", "H")
SECONDS = {"zeroth": 0.12, "first": 2.0}
FULL_MOMENTS = 5.0
SECONDS_FORECAST = ((0, 2.5), (1, 5.0))
"""Rough CPU seconds of a three-year run on preset K, by the least prior observations; FULL_MOMENTS as often."""


def admission(
    preset: Annotated[
        list[str] | None, Option(metavar="T|H|K|FILE", help="Cluster and population; repeatable. Else K and H.")
    ] = None,
    experiment: Annotated[
        list[str] | None, Option(metavar="NAME", help="What to compare, see below; repeatable. Else all.")
    ] = None,
    ladder: Annotated[
        list[str] | None, Option(metavar="NAME", help="Only these rules of one experiment, such as zeroth; repeatable.")
    ] = None,
    runs: Annotated[int, Option(metavar="N", min=1, help="Runs per rule and threshold, seeds from 0 on.")] = 60,
    years: YearsOption = 3.0,
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Runs and report; runs that it holds are not played again.")
    ] = Path("admission-evidence"),
    workers: PlayersOption = 2,
    ray: PlayOnRayOption = None,
    plan: Annotated[bool, Option("--plan", help="Print the planned runs and their CPU time, and play none.")] = False,
    form: FormatOption = TEXT,
    as_json: JsonOption = False,
) -> None:
    """Play rules at several thresholds on the same runs, and compare them at equal risk and at equal utilisation.

    Thresholds and seeds are fixed beforehand, apart from those that `tune admission` uses. Every run is on disk before
    the next one counts: end the command when you like and give it again. A folder of other code, clusters or lengths is
    refused.
    """
    from trainer.admission.experiments import EXPERIMENTS, experiments_of
    from trainer.admission.figures import as_data, experiment_result
    from trainer.admission.report import write
    from trainer.admission.table import Crew, Store, comparison_seeds, configuration_of, run_cells
    from trainer.kit.progress import bars

    if not 0.0 < years <= 30.0:
        raise BadInput("--years", years, "give a number above 0 and up to 30")
    presets, hours, crew = preset or list(DEFAULT_PRESETS), years * HOURS_PER_YEAR, Crew(workers, ray)
    chosen = [e for name in presets for e in experiments_of(experiment or list(EXPERIMENTS), name, hours, ladder or ())]
    seeds = comparison_seeds(runs)
    if plan:
        _plan(chosen, None if not out.exists() else Store(out, configuration_of(presets, hours)), seeds, as_json)
        return
    store = Store(out, configuration_of(presets, hours))
    found: list[ExperimentResult] = []
    with bars(as_json) as shown:
        for one in chosen:
            total, left = len(one.cells) * len(seeds), sum(len(store.missing(cell, seeds)) for cell in one.cells)
            task = shown.add_task(f"{one.ladders[0].preset} {one.name}", total=total, completed=total - left)
            played = run_cells(store, one.cells, seeds, crew, partial(_advance, shown, task))
            found.append(experiment_result(one, played))
    files = write(out, found, store.configuration)
    if as_json:
        print_json(as_data(found, store.configuration))
    else:
        _show(found, files[0], form)


def _advance(shown: Progress, task: TaskID, _: Cell, runs: int) -> None:
    shown.advance(task, runs)


def _seconds(cell: Cell) -> float:
    """Return about how long one run takes."""
    known = SECONDS.get(cell.policy.partition(":")[0])
    if known is None or (cell.observations and known > SECONDS["zeroth"]):
        known = next(s for least, s in reversed(SECONDS_FORECAST) if cell.observations >= least)
    return known * (FULL_MOMENTS if ",moments=ab," in f"{cell.policy}," else 1.0) * cell.hours / 26_280.0


def _plan(chosen: Sequence[Experiment], store: Store | None, seeds: Sequence[int], as_json: bool) -> None:
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


def _show(found: Sequence[ExperimentResult], page: Path, form: str) -> None:
    from trainer.admission.figures import gain_text
    from trainer.admission.fronts import Metric

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
    show_tables(tables, [f"report: {page}"], form)
