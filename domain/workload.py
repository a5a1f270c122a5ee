"""The workload of a fleet: one job, and a trace of many as read-only columns with a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domain.errors import TraceError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WHOLE_VM = 0
"""Width of a job that takes every core of the VM it runs on."""
NO_STAGE = -1
"""`release_after` of a job that waits for no other job."""
DEFAULT_RAM_GB = 0.13


@dataclass(frozen=True, slots=True)
class Job:
    """One independent, restartable job (autoscaler specification §2.1).

    arrival_s: seconds from the start of the trace. service_s: seconds on `width` cores of speed 1 (for a whole-VM job:
    core-seconds). width: cores, or WHOLE_VM. ram_gb: memory while it runs.
    """

    job_id: int
    arrival_s: float
    service_s: float
    width: int = 1
    ram_gb: float = DEFAULT_RAM_GB


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Jobs in columns of one length, sorted by (stage, arrival, id); build one with `make_trace`.

    job_id, arrival_s, service_s, width, ram_gb: as in `Job`. stage: number of the stage a job belongs to.
    release_after: the stage whose last job's end releases this job, or NO_STAGE; a released job arrives pause_s later
    and its arrival_s is 0. serial_fraction: share of a whole-VM job that runs on one core whatever the VM has. digest:
    SHA-256 over all columns and serial_fraction, not over the name. Raises TraceError, which names trace, column, job
    and remedy.
    """

    name: str
    job_id: Ints
    arrival_s: Floats
    service_s: Floats
    width: Ints
    ram_gb: Floats
    stage: Ints
    release_after: Ints
    pause_s: Floats
    serial_fraction: float = 0.0
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        columns = (
            self.job_id,
            self.arrival_s,
            self.service_s,
            self.width,
            self.ram_gb,
            self.stage,
            self.release_after,
            self.pause_s,
        )
        if any(column.shape != (self.job_id.size,) for column in columns):
            raise TraceError(
                f"trace {self.name}: column lengths", [c.shape for c in columns], "give 1-D columns of one length"
            )
        self._check_values()
        self._check_stages()
        text = hashlib.sha256(repr(float(self.serial_fraction)).encode("ascii"))
        for column in columns:
            column.setflags(write=False)
            text.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
        object.__setattr__(self, "digest", text.hexdigest())

    def _refuse(self, column: str, wrong: NDArray[np.bool_], remedy: str) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            value = getattr(self, column)[first].item()
            raise TraceError(f"trace {self.name}: {column} of job {int(self.job_id[first])}", value, remedy)

    def _check_values(self) -> None:
        self._refuse("arrival_s", ~(np.isfinite(self.arrival_s) & (self.arrival_s >= 0)), "give seconds, 0 or more")
        self._refuse("service_s", ~(np.isfinite(self.service_s) & (self.service_s > 0)), "give seconds above 0")
        self._refuse("width", self.width < 0, "give 1 or more cores, or 0 for a whole VM")
        self._refuse("ram_gb", ~(np.isfinite(self.ram_gb) & (self.ram_gb >= 0)), "give gigabytes, 0 or more")
        self._refuse("pause_s", ~(np.isfinite(self.pause_s) & (self.pause_s >= 0)), "give seconds, 0 or more")
        order = np.argsort(self.job_id, kind="stable")
        repeated = np.zeros(self.job_id.size, dtype=bool)
        repeated[order[1:]] = np.diff(self.job_id[order]) == 0
        self._refuse("job_id", repeated, "give each job a unique id")
        if not 0.0 <= self.serial_fraction <= 1.0:
            raise TraceError(f"trace {self.name}: serial_fraction", self.serial_fraction, "give a share in 0..1")
        expected = np.lexsort((self.job_id, self.arrival_s, self.stage))
        if not np.array_equal(expected, np.arange(self.job_id.size)):
            raise TraceError(f"trace {self.name}: order of jobs", "unsorted", "build the trace with make_trace")

    def _check_stages(self) -> None:
        released = self.release_after != NO_STAGE
        self._refuse("stage", self.stage < 0, "number stages from 0")
        self._refuse(
            "arrival_s", released & (self.arrival_s != 0), "a released job arrives pause_s after its release: give 0"
        )
        known = np.isin(self.release_after, self.stage)
        wrong = released & ~(known & (self.release_after < self.stage))
        self._refuse("release_after", wrong, "name an earlier stage that has jobs, or -1")

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return int(self.job_id.size)

    @property
    def staged(self) -> bool:
        """Whether some job is released by the end of others."""
        return bool((self.release_after != NO_STAGE).any())

    @property
    def work_core_s(self) -> float:
        """Core-seconds of all jobs on cores of speed 1 (a whole-VM job without its serial loss)."""
        return float((np.maximum(self.width, 1) * self.service_s).sum())


def make_trace(
    name: str,
    arrival_s: ArrayLike,
    service_s: ArrayLike,
    *,
    job_id: ArrayLike | None = None,
    width: ArrayLike = 1,
    ram_gb: ArrayLike = DEFAULT_RAM_GB,
    stage: ArrayLike = 0,
    release_after: ArrayLike = NO_STAGE,
    pause_s: ArrayLike = 0.0,
    serial_fraction: float = 0.0,
) -> Trace:
    """Build a sorted trace from columns or constants; without ids the jobs are numbered from 1 in the given order."""
    arrivals = np.atleast_1d(np.asarray(arrival_s, dtype=np.float64))
    jobs = arrivals.size
    ids = np.arange(1, jobs + 1, dtype=np.int64) if job_id is None else np.asarray(job_id, dtype=np.int64)

    def whole(column: ArrayLike) -> Ints:
        return np.broadcast_to(np.asarray(column, dtype=np.int64), (jobs,))

    def real(column: ArrayLike) -> Floats:
        return np.broadcast_to(np.asarray(column, dtype=np.float64), (jobs,))

    stages = whole(stage)
    order = np.lexsort((ids, arrivals, stages))
    return Trace(
        name=name,
        job_id=ids[order],
        arrival_s=arrivals[order],
        service_s=real(service_s)[order],
        width=whole(width)[order],
        ram_gb=real(ram_gb)[order],
        stage=stages[order],
        release_after=whole(release_after)[order],
        pause_s=real(pause_s)[order],
        serial_fraction=float(serial_fraction),
    )


def trace_of(name: str, jobs: Iterable[Job]) -> Trace:
    """Build a trace of single jobs."""
    rows = list(jobs)
    return make_trace(
        name,
        [job.arrival_s for job in rows],
        [job.service_s for job in rows],
        job_id=[job.job_id for job in rows],
        width=[job.width for job in rows],
        ram_gb=[job.ram_gb for job in rows],
    )
