"""`trimtab evaluate admission`: rules of admission on the same runs, their fronts, gains with intervals, a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from agent.kernel.text import columns, duration_text
from domain.units import HOURS_PER_YEAR
from trainer.commands.options import Bounds, PlayersOption, PlayOnRayOption, Rows, YearsOption, epilog
from trainer.commands.verb import Answer, TableVerb

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from trainer.admission.experiments import Experiment
    from trainer.admission.figures import ExperimentResult
    from trainer.admission.table import Cell, Store

DEFAULT_PRESETS = ("K", "H")
SECONDS = {"zeroth": 0.12, "first": 2.0}
FULL_MOMENTS = 5.0
SECONDS_FORECAST = ((0, 2.5), (1, 5.0))
"""Rough CPU seconds of a three-year run on preset K, by the least prior observations; FULL_MOMENTS as often."""


@dataclass(frozen=True, kw_only=True)
class EvaluateAdmission(TableVerb):
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
    out: Annotated[Path, "FOLDER", "Runs and report; runs that it holds are not played again."] = Path(
        "admission-evidence"
    )
    workers: PlayersOption = 2
    ray: PlayOnRayOption = None
    plan: Annotated[bool, "Print the planned runs and their CPU time, and play none."] = False

    def run(self) -> Answer:
        """Play the runs that the folder lacks, and compare."""
        from trainer.admission.experiments import EXPERIMENTS, experiments_of
        from trainer.admission.figures import as_data, experiment_result
        from trainer.admission.report import write
        from trainer.admission.table import Crew, Store, comparison_seeds, configuration_of, run_cells
        from trainer.kit.progress import bars

        presets, hours = self.preset or list(DEFAULT_PRESETS), self.years * HOURS_PER_YEAR
        names, ladders = self.experiment or list(EXPERIMENTS), self.ladder or ()
        chosen = [one for preset in presets for one in experiments_of(names, preset, hours, ladders)]
        crew, seeds = Crew(self.workers, self.ray), comparison_seeds(self.runs)
        configuration = configuration_of(presets, hours)
        if self.plan:
            return _plan(chosen, Store(self.out, configuration) if self.out.exists() else None, seeds)
        store = Store(self.out, configuration)
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


def _seconds(cell: Cell) -> float:
    """Return about how long one run takes."""
    known = SECONDS.get(cell.policy.partition(":")[0])
    if known is None or (cell.observations and known > SECONDS["zeroth"]):
        known = next(s for least, s in reversed(SECONDS_FORECAST) if cell.observations >= least)
    return known * (FULL_MOMENTS if ",moments=ab," in f"{cell.policy}," else 1.0) * cell.hours / 26_280.0


def _plan(chosen: Sequence[Experiment], store: Store | None, seeds: Sequence[int]) -> Answer:
    rows: list[tuple[str, int, int, float]] = []
    seen: set[Cell] = set()
    for one in chosen:
        # Experiments that share cells share their runs.
        fresh = [cell for cell in one.cells if cell not in seen]
        seen.update(fresh)
        left = {cell: len(seeds) if store is None else len(store.missing(cell, seeds)) for cell in fresh}
        seconds = sum(count * _seconds(cell) for cell, count in left.items())
        rows.append((f"{one.ladders[0].preset} {one.name}", len(one.cells), sum(left.values()), seconds))
    names = ("experiment", "cells", "runs", "cpu_s")
    table: list[tuple[object, ...]] = [("experiment", "thresholds", "runs to play", "about, on one core")]
    table += [(name, count, f"{left:,}", duration_text(seconds)) for name, count, left, seconds in rows]
    table.append(("all", "", f"{sum(row[2] for row in rows):,}", duration_text(sum(row[3] for row in rows))))
    return Answer({"experiments": [dict(zip(names, row, strict=True)) for row in rows]}, columns(table))


def _tables(found: Sequence[ExperimentResult]) -> list[tuple[str, Rows]]:
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
    return tables
