"""Deferrable jobs, what a schedule of them is worth, and an independent check of schedules (deferral specification §1).

Cores and durations are whole numbers; a step is an hour, counted from 0. A job that starts in step t runs in steps t to
t + duration - 1 without interruption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput

Ints = NDArray[np.int64]

W1 = 2.0
"""What a step of delay costs, in core-steps of revenue."""
W2 = 10.0
"""What a core-step above the capacity costs, in core-steps of revenue."""

MOST_CORES = 1_000_000
MOST_STEPS = 1_000_000
"""A job larger or longer than this is a mistake; a million of such jobs still sum up in 64 bits."""
LAST_STEP = 1_000_000_000
FIELDS = ("cores", "duration", "earliest", "latest", "submitted")
CLAMPED, UNLIKELY = "clamped", "unlikely"
"""Flags of an accepted job: submitted after its earliest start; larger than any capacity seen lately."""


class JobExpired(BadInput):
    """The job's latest start has passed when it is submitted."""


class Job(NamedTuple):
    """One job; `Jobs` states the units."""

    cores: int
    duration: int
    earliest: int
    latest: int
    submitted: int


class Jobs(NamedTuple):
    """Jobs by number, 0 to N - 1: int64 [N] each.

    A job that is submitted after its earliest start can start from its submission; its delay counts from `earliest`.
    """

    cores: Ints
    duration: Ints
    """Steps that it runs."""
    earliest: Ints
    latest: Ints
    """Steps between which it may start, both included."""
    submitted: Ints
    """The step from which it is known."""

    @property
    def size(self) -> int:
        """Return N; len() is the number of columns."""
        return int(self.cores.size)

    @property
    def revenue(self) -> Ints:
        """Return the core-steps of each job, [N]: what its start earns (§1.1)."""
        return self.cores * self.duration

    def take(self, numbers: Ints) -> Jobs:
        """Return the jobs of these numbers, in their order."""
        return Jobs(*(column[numbers] for column in self))


class Score(NamedTuple):
    """What a schedule is worth (§1.2)."""

    utilisation: int
    """Core-steps of the jobs that start, in full."""
    delay: int
    """Steps between earliest and actual start, summed over the jobs that start."""
    violation: int
    """Core-steps above the capacity."""
    total: float
    """utilisation - W1 delay - W2 violation."""
    started: int
    expired: int
    """Jobs that never start."""
    expired_core_steps: int

    @property
    def delay_charge(self) -> float:
        """Return W1 delay, the figure of the tables of §9."""
        return W1 * self.delay


def jobs_of(rows: Iterable[Iterable[int]]) -> Jobs:
    """Return jobs from rows in the order of `FIELDS`, unchecked."""
    table = np.array([tuple(row) for row in rows], dtype=np.int64).reshape(-1, len(FIELDS))
    return Jobs(*(np.ascontiguousarray(column) for column in table.T))


def check_job(
    fields: Mapping[str, object], *, clamp_late: bool = False, largest: int | None = None, name: str = ""
) -> tuple[Job, tuple[str, ...]]:
    """Return the job that the fields describe, and its flags (§12).

    clamp_late: take a job that is submitted after its earliest start, and flag it. largest: the most cores seen free
    lately; a job with more is taken and flagged. name: put before the field in errors. Raises BadInput naming the
    field, JobExpired when the latest start is before the submission.
    """
    cores = _whole(fields, "cores", name, 1, MOST_CORES)
    duration = _whole(fields, "duration", name, 1, MOST_STEPS)
    earliest, latest, submitted = (_whole(fields, field, name, 0, LAST_STEP) for field in FIELDS[2:])
    if latest < earliest:
        raise BadInput(f"{name}latest", latest, f"give earliest, which is {earliest}, or a later step")
    if latest < submitted:
        raise JobExpired(f"{name}latest", latest, f"expired: give the step of submission, {submitted}, or a later one")
    if submitted > earliest and not clamp_late:
        remedy = f"give the step of submission, {submitted}, or a later one, or accept a late job by clamp_late"
        raise BadInput(f"{name}earliest", earliest, remedy)
    flags = [CLAMPED] * (submitted > earliest) + [UNLIKELY] * (largest is not None and cores > largest)
    return Job(cores, duration, earliest, latest, submitted), tuple(flags)


def _whole(fields: Mapping[str, object], field: str, name: str, least: int, most: int) -> int:
    value = fields.get(field)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise BadInput(f"{name}{field}", value, "give a whole number")
    if not math.isfinite(value) or value != math.floor(value):
        raise BadInput(f"{name}{field}", value, "give a whole number")
    if not least <= value <= most:
        raise BadInput(f"{name}{field}", value, f"give {least} to {most}")
    return int(value)


def occupancy(jobs: Jobs, start: Ints, steps: int) -> Ints:
    """Return the cores of running jobs in each of the steps, [steps]; start: [N], -1 for jobs that never start."""
    change = np.zeros(steps + 1, dtype=np.int64)
    on = np.flatnonzero(start >= 0)
    np.add.at(change, np.minimum(start[on], steps), jobs.cores[on])
    # A job of many steps must not overflow: what ends beyond the horizon ends at it.
    np.subtract.at(change, np.minimum(start[on] + jobs.duration[on], steps), jobs.cores[on])
    return np.cumsum(change[:-1])


def objective(jobs: Jobs, start: Ints, capacity: Ints) -> Score:
    """Return what a schedule is worth (§1.2).

    start: [N], the step in which each job starts, -1 for never. capacity: [T] cores. Revenue counts in full at the
    start, also of a job that runs beyond the horizon; violations count in steps 0 to T - 1 (§6, point 14).
    """
    on = start >= 0
    revenue = jobs.revenue
    utilisation = int(revenue[on].sum())
    delay = int((start - jobs.earliest)[on].sum())
    violation = int(np.maximum(occupancy(jobs, start, capacity.size) - capacity, 0).sum())
    return Score(
        utilisation=utilisation,
        delay=delay,
        violation=violation,
        total=utilisation - W1 * delay - W2 * violation,
        started=int(on.sum()),
        expired=int((~on).sum()),
        expired_core_steps=int(revenue[~on].sum()),
    )
