"""Plays the runs that are missing: here, in several processes, or on a Ray cluster; each piece is kept at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.admission import cluster_of, draw_run, play, rule_of
from trainer.admission.cells import Cell
from trainer.admission.table import Runs, Store
from trainer.kit.sweeps import Job, in_processes, on_ray

PIECE = 5
"""Runs of one job: seconds, so that little is lost when a call is ended."""

Told = Callable[[Cell, int], None]
"""Hears how many runs of a cell were finished."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Who plays: so many processes of this machine (1: this one), or a Ray cluster at an address."""

    workers: int = 1
    ray: str | None = None


def play_cell(data: Mapping[str, Any]) -> dict[str, Any]:
    """Play runs of one cell; data: `cell` (its fields) and `seeds`. Returns the columns of `Runs` as lists.

    Plain data in and out, so that another process or machine can be asked.
    """
    runs = runs_of(Cell(**data["cell"]), data["seeds"])
    return {name: column.tolist() for name, column in runs.as_data().items()}


def runs_of(cell: Cell, seeds: Sequence[int]) -> Runs:
    """Play one cell on these seeds (admission specification §2)."""
    cluster, rule = cluster_of(cell.preset), rule_of(cell.policy)
    more: dict[str, Any] = {"labels": cell.labels} if cell.labels else {}
    outcomes = [
        play(draw_run(cluster, seed, observations=cell.observations, hours=cell.hours, **more), rule) for seed in seeds
    ]
    return Runs.of(seeds, outcomes)


def jobs_of(store: Store, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Job]:
    """Return what is to be done, the first seeds of all cells before later ones: cells stay comparable on the way."""
    missing = {cell: set(store.missing(cell, seeds)) for cell in cells}
    jobs = []
    for start in range(0, len(seeds), PIECE):
        for cell in missing:
            piece = [seed for seed in seeds[start : start + PIECE] if seed in missing[cell]]
            if piece:
                jobs.append(Job(cell.name, {"cell": asdict(cell), "seeds": piece}))
    return jobs


def run_cells(
    store: Store,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    crew: Crew | None = None,
    told: Told = lambda cell, runs: None,
) -> dict[Cell, Runs]:
    """Return the runs of every cell on exactly these seeds; those that the store has are not played again.

    Raises trainer.kit.sweeps.JobFailed; what was finished before is kept.
    """
    crew = crew or Crew()
    jobs = jobs_of(store, cells, seeds)

    def keep(job: Job, answer: Mapping[str, Any]) -> None:
        cell = Cell(**job.data["cell"])
        store.add(cell, Runs.from_data(answer))
        told(cell, len(job.data["seeds"]))

    if crew.ray is not None and jobs:
        on_ray(play_cell, jobs, crew.ray, workers=crew.workers, told=keep)
    elif crew.workers > 1 and len(jobs) > 1:
        in_processes(play_cell, jobs, crew.workers, told=keep)
    else:
        for job in jobs:
            keep(job, play_cell(job.data))
    done: dict[Cell, Runs] = {}
    for cell in cells:
        runs = store.runs(cell)
        assert runs is not None
        done[cell] = runs.of_seeds(seeds)
    return done
