"""Reads job logs in the Standard Workload Format into traces (autoscaler specification §7.3)."""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import numpy as np

from domain.errors import BadInput, TraceError
from domain.units import HOUR_S
from domain.workload import Trace, make_trace

_FIELDS = 18
_READ = {
    1: "job number",
    2: "submit time",
    4: "run time",
    5: "allocated processors",
    8: "requested processors",
    11: "status",
}
_FAILED, _PARTIAL = (0, 5), (2, 3, 4)
"""Statuses of failed and cancelled jobs, and of one part of a job that was swapped out."""
_MOST_PROCESSORS = 1_000_000
_TELL_EVERY = 5_000


class WidthRule(StrEnum):
    """What a w-core job becomes: w one-core jobs; none if wider than the largest VM; the same work narrower."""

    SPLIT = "split"
    CAP = "cap"
    MOLD = "mold"


class SkipReason(StrEnum):
    """Why a line gave no job."""

    HEADER = "header"
    BLANK = "blank"
    NO_RUN_TIME = "no_run_time"
    NO_PROCESSORS = "no_processors"
    NO_SUBMIT_TIME = "no_submit_time"
    PARTIAL_EXECUTION = "partial_execution"
    STATUS = "status"
    OUTSIDE_WINDOW = "outside_window"
    TOO_WIDE = "too_wide"
    THINNED = "thinned"


@dataclass(frozen=True, slots=True)
class SwfOptions:
    """The conversion of a log to a trace.

    width_rule, largest_vm_cores: see `WidthRule`. drop_failed: leave out jobs of status 0 and 5 (failed, cancelled).
    from_s, hours: window of submit times on the log's own clock; None: from the first job that ran, to the last.
    time_scale: divides arrivals. run_scale: multiplies run times. thin: probability of keeping a job (after splitting,
    so that a wide job shrinks rather than vanishes), drawn from `seed`. Arrivals count from `from_s`, and from the
    first kept job where that is None.
    """

    width_rule: WidthRule = WidthRule.SPLIT
    largest_vm_cores: int = 8
    drop_failed: bool = False
    from_s: float | None = None
    hours: float | None = None
    time_scale: float = 1.0
    run_scale: float = 1.0
    thin: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("largest_vm_cores", "time_scale", "run_scale"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise BadInput(name, getattr(self, name), "give a number above 0")
        if self.hours is not None and not self.hours > 0:
            raise BadInput("hours", self.hours, "give hours above 0, or none for the whole log")
        if self.from_s is not None and not math.isfinite(self.from_s):
            raise BadInput("from_s", self.from_s, "give seconds on the log's clock, or none for its first job")
        if not 0 < self.thin <= 1:
            raise BadInput("thin", self.thin, "give a probability above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class SwfReport:
    """Counts of a reading: lines, recorded jobs kept, jobs of the trace (split and thinned), dropped ones by reason."""

    lines: int
    kept: int
    trace_jobs: int
    dropped: dict[SkipReason, int]


@dataclass(frozen=True, slots=True)
class LogJob:
    """A job of a log: number, seconds of the log's clock at submission, seconds of the run, cores."""

    number: int
    submit_s: float
    run_s: float
    processors: int


def read_swf(
    path: Path,
    options: SwfOptions | None = None,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Trace, SwfReport]:
    """Read a log (plain or .gz) line by line; TraceError names file, line and field of a malformed line.

    progress: called now and then with the number of lines read. Jobs are sorted by (submit time, number), since some
    logs are not; a number that occurs twice is numbered anew.
    """
    options = options or SwfOptions()
    drops: Counter[SkipReason] = Counter()
    try:
        with _open(path) as stream:
            lines_read = stream if progress is None else _counted(stream, progress)
            recorded = sorted(_recorded(lines_read, path, options, drops), key=lambda job: (job.submit_s, job.number))
    except (OSError, EOFError, zlib.error) as fault:
        raise TraceError(
            f"log {path.name}", str(fault), "give a readable SWF file, plain or gzip-compressed"
        ) from fault
    return trace_of(recorded, options, drops, name or path.name.removesuffix(".gz").removesuffix(".swf"))


def trace_of(
    recorded: list[LogJob], options: SwfOptions, drops: Counter[SkipReason], name: str
) -> tuple[Trace, SwfReport]:
    """Return recorded jobs, sorted, as a trace under the options; drops: counts of earlier reasons, added to."""
    lines = len(recorded) + sum(drops.values())
    recorded = _window(recorded, options, drops)
    jobs = list(_widths(_renumbered(recorded), options, drops))
    keep = np.random.default_rng(options.seed).random(len(jobs)) < options.thin
    drops[SkipReason.THINNED] += int((~keep).sum())
    jobs = [job for job, kept in zip(jobs, keep, strict=True) if kept]
    start = jobs[0].submit_s if jobs and options.from_s is None else 0.0
    trace = make_trace(
        name,
        [(job.submit_s - start) / options.time_scale for job in jobs],
        [job.run_s * options.run_scale for job in jobs],
        job_id=np.array([job.number for job in jobs], dtype=np.int64),
        width=np.array([job.processors for job in jobs], dtype=np.int64),
    )
    return trace, SwfReport(lines, len(recorded), trace.jobs, {why: count for why, count in drops.items() if count})


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open("r", encoding="utf-8", errors="replace")


def _counted(stream: Iterable[str], progress: Callable[[int], None]) -> Iterator[str]:
    for number, line in enumerate(stream):
        if number % _TELL_EVERY == 0:
            progress(number)
        yield line


def _recorded(stream: Iterable[str], path: Path, options: SwfOptions, drops: Counter[SkipReason]) -> Iterator[LogJob]:
    for number, line in enumerate(stream, start=1):
        text = line.strip()
        if not text or text.startswith(";"):
            drops[SkipReason.HEADER if text else SkipReason.BLANK] += 1
            continue
        fields = text.split()
        where = f"{path.name} line {number}"
        if len(fields) < _FIELDS:
            raise TraceError(
                f"{where}: fields", len(fields), f"the format has {_FIELDS} fields: mend or remove the line"
            )
        values = {i: _number(fields[i - 1], where, f"field {i} ({field})") for i, field in _READ.items()}
        used = 5 if values[5] > 0 else 8
        processors = int(values[used])
        if processors > _MOST_PROCESSORS:
            raise TraceError(f"{where}: field {used} ({_READ[used]})", processors, f"give at most {_MOST_PROCESSORS}")
        if values[11] in _PARTIAL:
            # The job has a line of status 0 or 1 too, with the sum of its parts.
            drops[SkipReason.PARTIAL_EXECUTION] += 1
        elif values[2] < 0:
            drops[SkipReason.NO_SUBMIT_TIME] += 1
        elif values[4] <= 0:
            drops[SkipReason.NO_RUN_TIME] += 1
        elif processors <= 0:
            drops[SkipReason.NO_PROCESSORS] += 1
        elif options.drop_failed and values[11] in _FAILED:
            drops[SkipReason.STATUS] += 1
        else:
            yield LogJob(int(values[1]), values[2], values[4], processors)


def _number(text: str, where: str, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(f"{where}: {field}", text, "give a number, -1 where unknown")
    return value


def _window(jobs: list[LogJob], options: SwfOptions, drops: Counter[SkipReason]) -> list[LogJob]:
    """Keep the window and count submit times from its start."""
    if not jobs:
        return jobs
    start = jobs[0].submit_s if options.from_s is None else options.from_s
    end = math.inf if options.hours is None else start + options.hours * HOUR_S
    inside = [replace(job, submit_s=job.submit_s - start) for job in jobs if start <= job.submit_s < end]
    drops[SkipReason.OUTSIDE_WINDOW] += len(jobs) - len(inside)
    return inside


def _renumbered(jobs: list[LogJob]) -> list[LogJob]:
    """Give later holders of a number that occurs twice a new one."""
    seen: set[int] = set()
    following = max((job.number for job in jobs), default=0) + 1
    out = []
    for job in jobs:
        if job.number in seen:
            job = replace(job, number=following)
            following += 1
        seen.add(job.number)
        out.append(job)
    return out


def _widths(jobs: list[LogJob], options: SwfOptions, drops: Counter[SkipReason]) -> Iterator[LogJob]:
    """Apply the width rule; the pieces of split jobs get the numbers after the largest one."""
    following = max((job.number for job in jobs), default=0) + 1
    for job in jobs:
        if options.width_rule is WidthRule.SPLIT and job.processors > 1:
            for _ in range(job.processors):
                yield replace(job, number=following, processors=1)
                following += 1
        elif job.processors <= options.largest_vm_cores:
            yield job
        elif options.width_rule is WidthRule.MOLD:
            stretched = job.run_s * job.processors / options.largest_vm_cores
            yield replace(job, processors=options.largest_vm_cores, run_s=stretched)
        else:
            drops[SkipReason.TOO_WIDE] += 1
