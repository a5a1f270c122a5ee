"""Training runs: their directory, what they show while they learn, and many of them at once.

A run's directory holds `checkpoints/`, `curve.csv`, `tensorboard/`, the model, and at the end `run.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from trainer.kit.checkpoint import EXTENDABLE, Checkpoint, Checkpoints, OtherConfiguration, check_resumable
from trainer.kit.jobs import Job, Work, Workers, run_jobs
from trainer.kit.progress import (
    BAR,
    LINES,
    SILENT,
    Bar,
    Curve,
    Lines,
    Listener,
    Listeners,
    TensorBoard,
    Watch,
    log_of,
    write_line,
)

RUN_FILE, SUMMARY_FILE, CURVES_FILE = "run.json", "summary.json", "curves.svg"


def checkpoints_of(directory: Path, worker: int = 0) -> Checkpoints:
    """Return the checkpoints of a run, or those of another worker than its first."""
    return Checkpoints(directory / ("checkpoints" if worker == 0 else f"checkpoints-worker-{worker}"))


def listeners(data: Mapping[str, Any], resume: Checkpoint | None, cost: str) -> Listeners:
    """Return what follows a run: curve, log and TensorBoard in its directory, and what `show` asks for on the screen.

    data: directory, name, show (bar, lines or silent), and marks (what is shown beside the held-out figure `cost`).
    """
    directory, name, marks = Path(data["directory"]), data["name"], dict(data.get("marks", {}))
    files = [
        Curve(directory, 0 if resume is None else resume.update),
        TensorBoard(directory, None if resume is None else int(resume.progress["steps"])),
        Lines(name, marks, cost, log_of(directory, resumed=resume is not None)),
    ]
    return Listeners([*files, *on_screen(str(data.get("show", SILENT)), name, marks, cost)])


def on_screen(show: str, name: str, marks: Mapping[str, float], cost: str) -> list[Listener]:
    """Return the listeners that show a run on standard error: a bar, lines or none."""
    if show == BAR:
        return [Bar(name, marks, cost)]
    return [Lines(name, marks, cost, write_line)] if show == LINES else []


def check_directories(jobs: Sequence[Job], *, resume: bool, extendable: Iterable[str] = EXTENDABLE) -> None:
    """Raise BadInput when a run would go over another one, or resume one of another configuration."""
    for job in jobs:
        directory = Path(job.data["directory"])
        found = checkpoints_of(directory).last()
        if found is None:
            continue
        try:
            check_resumable(found, job.data["config"], directory, extendable)
        except OtherConfiguration:
            if resume:
                raise
        if not resume:
            raise BadInput("--out", str(directory), "it holds a run: give --resume to continue it, or another --out")


def run_all(
    work: Work,
    jobs: Sequence[Job],
    cost: str,
    steps_of: Callable[[Job], int],
    *,
    at_once: int,
    ray: str | None = None,
    cores: int = 1,
    silent: bool = False,
) -> list[dict[str, Any]]:
    """Run the jobs: a single one here, several in processes or on a Ray cluster; return their answers in order.

    cost: name of the figure with the held-out cost. steps_of: environment steps of a job. cores: of a local Ray, for
    each job. Raises JobFailed, WorkerLost.
    """
    live = sys.stderr.isatty()
    if ray is None and len(jobs) == 1:
        return [work({**jobs[0].data, "show": SILENT if silent else BAR if live else LINES})]
    marks = [job.data.get("marks", {}) for job in jobs]
    runs = [(job.name, Path(job.data["directory"]), steps_of(job)) for job in jobs]
    alike = marks[0] if all(other == marks[0] for other in marks) else {}
    with Watch(runs, alike, cost, live=live and not silent, quiet=silent) as watch:
        count = min(at_once, len(jobs)) * (1 if ray is None else cores)
        return run_jobs(work, jobs, Workers(count, ray), watch=watch.look)
