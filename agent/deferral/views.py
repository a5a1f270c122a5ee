"""A pool as a policy sees it in a step: its jobs as arrays, and the same as plain data, from which it is seen again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from agent.deferral.records import JobRecord, Stage, StepRow
from domain.rules.deferral.choosing import Group, History, View
from domain.units import DAY_S, HOUR_S, HOURS_PER_DAY, HOURS_PER_WEEK

HISTORY_DAYS: Final = 28
"""What is remembered of the capacity."""
_EPOCH_WEEKDAY: Final = 3
"""1970-01-01 was a Thursday; Monday is 0."""
_INTS: Final = ("capacity", "free", "waiting", "cores_started", "jobs_started", "violation")


@dataclass(frozen=True, slots=True)
class IndexedView:
    """A view, and the id of each job in it by its number."""

    view: View
    ids: Mapping[int, str]


def moment_of(step: int, step_s: int) -> tuple[int, int]:
    """Return hour of day and weekday (0 is Monday) in which a step begins."""
    at = step * step_s
    return int(at // HOUR_S) % HOURS_PER_DAY, (int(at // DAY_S) + _EPOCH_WEEKDAY) % 7


def hour_of_week(step: int, step_s: int) -> int:
    """Return the hour of the week in which a step begins, 0 to 167."""
    hour, weekday = moment_of(step, step_s)
    return (weekday * HOURS_PER_DAY + hour) % HOURS_PER_WEEK


def seen_by(
    jobs: Iterable[JobRecord],
    rows: Sequence[StepRow],
    step: int,
    capacity: int,
    step_s: int,
    drain_by: int | None = None,
) -> IndexedView:
    """Return what a policy sees in a step.

    drain_by: a job that would run beyond this step is not offered. Jobs whose window is over are left out.
    """
    cur, fut, his = list[JobRecord](), list[JobRecord](), list[JobRecord]()
    for job in sorted(jobs, key=lambda job: job.number):
        if job.holds(step):
            his.append(job)
        elif job.stage is Stage.WAITING and job.latest >= step:
            begins = max(step, job.earliest)
            if drain_by is None or begins + job.duration <= drain_by:
                (cur if job.earliest <= step else fut).append(job)
    hour, weekday = moment_of(step, step_s)
    view = View(step, hour, weekday, capacity, _group(cur, step), _group(fut, step), _group(his, step), _history(rows))
    return IndexedView(view, {job.number: job.job_id for job in (*cur, *fut, *his)})


def _group(jobs: Sequence[JobRecord], step: int) -> Group:
    rows = [
        (
            job.number,
            job.cores,
            job.duration,
            job.earliest,
            job.latest,
            job.submitted,
            job.duration if job.free_from is None or job.start is None else job.free_from - step,
        )
        for job in jobs
    ]
    return _columns(rows)


def _columns(rows: Sequence[Sequence[int]]) -> Group:
    table = np.array(rows, dtype=np.int64).reshape(-1, len(Group._fields))
    return Group(*(np.ascontiguousarray(column) for column in table.T))


def _history(rows: Sequence[StepRow]) -> History:
    """Return the rows without holes: a step that was skipped, or whose cores are not known, has those before it."""
    table: list[tuple[float, ...]] = []
    last, known = None, 0
    for row in rows:
        if last is not None:
            table += [(known, known, 0, 0.0, 0.0, 0, 0, 0)] * min(row.step - last - 1, HISTORY_DAYS * HOURS_PER_DAY)
        last, known = row.step, known if row.capacity is None else row.capacity
        table.append(
            (
                known,
                known - row.held,
                row.waiting,
                row.mean_cores,
                row.mean_duration,
                row.running - row.held,
                row.started,
                row.violation,
            )
        )
    columns = np.array(table, dtype=np.float64).reshape(-1, len(History._fields)).T
    return _history_of(dict(zip(History._fields, columns, strict=True)))


def _history_of(columns: Mapping[str, Any]) -> History:
    found: dict[str, Any] = {
        name: np.array(columns[name], dtype=np.int64 if name in _INTS else np.float64) for name in History._fields
    }
    return History(**found)


def document_of(seen: IndexedView) -> dict[str, Any]:
    """Return what was seen as plain data."""
    view = seen.view
    return {
        "step": view.step,
        "hour": view.hour,
        "weekday": view.weekday,
        "capacity": view.capacity,
        **{name: _plain(getattr(view, name)) for name in ("cur", "fut", "his")},
        "history": {
            name: np.round(column, 6).tolist() for name, column in zip(History._fields, view.history, strict=True)
        },
        "ids": {str(number): name for number, name in seen.ids.items()},
    }


def seen_in(document: Mapping[str, Any]) -> IndexedView:
    """Return what `document_of` was given."""
    cur, fut, his = (_columns(document[name]) for name in ("cur", "fut", "his"))
    step, hour, weekday, capacity = (int(document[name]) for name in ("step", "hour", "weekday", "capacity"))
    view = View(step, hour, weekday, capacity, cur, fut, his, _history_of(document["history"]))
    return IndexedView(view, {int(number): name for number, name in document["ids"].items()})


def _plain(group: Group) -> list[list[int]]:
    return [list(row) for row in zip(*(column.tolist() for column in group), strict=True)]
