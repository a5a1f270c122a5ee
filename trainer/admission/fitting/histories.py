"""What a table of virtual machines tells of each deployment: requests, cores ended, hours, size (specification §9.1-2).

All virtual machines of a deployment that are created at one instant are one request; the first is its initial size.
The table is read as Azure published it in 2017, streaming, every row that is left out counted. No header, eleven
columns: vmid, subscriptionid, deploymentid, vmcreated, vmdeleted (seconds from the start of the trace), maxcpu, avgcpu,
p95maxcpu, vmcategory, vmcorecount, vmmemory. Plain or .gz.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import TraceError
from domain.units import HOUR_S

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    *("vmid", "subscriptionid", "deploymentid", "vmcreated", "vmdeleted", "maxcpu", "avgcpu", "p95maxcpu"),
    *("vmcategory", "vmcorecount", "vmmemory"),
)
NUMBERS = ("vmcreated", "vmdeleted", "vmcorecount")
REASONS = (
    *("wrong number of columns", "missing id", "not a number", "negative time"),
    *("deleted before created", "cores not a whole number above 0"),
)
LONGEST_S = 2**31
FIRST_LINES = 5
"""So many line numbers are kept for every reason."""
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"

OnProgress = Callable[[int, int], None]
"""Called with the bytes read and those there are."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rows left out for one reason: how many, and the lines of the first."""

    count: int
    first_lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VmTable:
    """The rows that can be used, one virtual machine each; times in seconds from the start of the trace."""

    deployment: NDArray[np.int32]
    """Number of the deployment, from 0 in order of appearance."""
    created_s: NDArray[np.int64]
    deleted_s: NDArray[np.int64]
    cores: NDArray[np.int64]
    deployments: int
    subscriptions: int
    lines: int
    rejected: dict[str, Rejection]
    """By reason, only those that occurred."""

    @property
    def machine_hours(self) -> float:
        """Hours that all machines ran inside the window."""
        return float((self.deleted_s - self.created_s).sum()) / HOUR_S

    @property
    def core_hours(self) -> float:
        """Hours that all cores ran inside the window."""
        return float((self.cores * (self.deleted_s - self.created_s)).sum()) / HOUR_S


class _Numbering:
    """Numbers texts in order of appearance, a batch at a time."""

    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}

    def of(self, column: pa.Array) -> NDArray[np.int32]:
        coded = column.dictionary_encode()
        numbers = [self.known.setdefault(text, len(self.known)) for text in coded.dictionary.to_pylist()]
        found: NDArray[np.int32] = np.array(numbers, dtype=np.int32)[coded.indices.to_numpy(zero_copy_only=False)]
        return found


class _Rejects:
    """Counts rows left out, and knows the lines of rows that the parser has numbered without them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.lines: dict[str, list[int]] = {}
        self.odd_lines: list[int] = []

    def note(self, reason: str, lines: list[int], count: int) -> None:
        if count:
            self.counts[reason] = self.counts.get(reason, 0) + count
            kept = self.lines.setdefault(reason, [])
            kept.extend(lines[: FIRST_LINES - len(kept)])

    def odd(self, row: Any) -> str:
        self.odd_lines.append(row.number)
        return "skip"

    def line_of(self, row: int) -> int:
        """Return the line of a row by its number from 0 among the rows with eleven columns."""
        line = row + 1
        while True:
            moved = row + 1 + bisect_right(self.odd_lines, line)
            if moved == line:
                return line
            line = moved

    def result(self) -> dict[str, Rejection]:
        self.note("wrong number of columns", self.odd_lines[:FIRST_LINES], len(self.odd_lines))
        return {
            reason: Rejection(self.counts[reason], tuple(self.lines[reason]))
            for reason in REASONS
            if reason in self.counts
        }


def read_vm_table(path: Path, on_progress: OnProgress | None = None) -> VmTable:
    """Read a table of virtual machines; rows that make no sense are left out and counted.

    Raises TraceError for a file that cannot be read or has no row to use, and for core counts in buckets such as ">24",
    which a later publication has: sizes are not in them.
    """
    import pyarrow as pa
    from pyarrow import csv

    if not path.is_file():
        raise TraceError("TRACE", str(path), "give a file that exists")
    rejects, of_deployment, of_owner = _Rejects(), _Numbering(), _Numbering()
    parts: list[tuple[NDArray[Any], ...]] = []
    rows, size = 0, path.stat().st_size
    names = ("subscriptionid", "deploymentid", *NUMBERS)
    try:
        with pa.OSFile(str(path)) as raw:
            source = pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw
            reader = csv.open_csv(
                source,
                read_options=csv.ReadOptions(use_threads=False, block_size=8 << 20, column_names=COLUMNS),
                parse_options=csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=rejects.odd),
                convert_options=csv.ConvertOptions(
                    include_columns=names,
                    column_types={name: pa.string() if name in NUMBERS else pa.binary() for name in names},
                    strings_can_be_null=False,
                ),
            )
            for batch in reader:
                parts.append(_usable(path, batch, rows, rejects, of_deployment, of_owner))
                rows += batch.num_rows
                if on_progress is not None:
                    on_progress(min(raw.tell(), size), size)
    except (pa.ArrowInvalid, OSError) as error:
        told_by_parser = str(error).splitlines()[0]
        raise TraceError(
            str(path), path.name, f"give a CSV of eleven columns, plain or .gz: {told_by_parser}"
        ) from None
    rejected = rejects.result()
    if not sum(len(part[0]) for part in parts):
        reasons = ", ".join(f"{reason} {rows.count}" for reason, rows in rejected.items())
        raise TraceError(str(path), path.name, f"give a table with usable rows; left out: {reasons}")
    deployment, created, deleted, cores = (np.concatenate(column) for column in zip(*parts, strict=True))
    lines = rows + len(rejects.odd_lines)
    return VmTable(deployment, created, deleted, cores, len(of_deployment.known), len(of_owner.known), lines, rejected)


def _usable(
    path: Path, batch: pa.RecordBatch, before: int, rejects: _Rejects, of_deployment: _Numbering, of_owner: _Numbering
) -> tuple[NDArray[Any], ...]:
    """Return deployment, created, deleted and cores of the usable rows of a batch."""
    import pyarrow.compute as pc

    bad = np.zeros(batch.num_rows, dtype=bool)

    def reject(reason: str, found: NDArray[np.bool_]) -> None:
        found = found & ~bad
        some = np.flatnonzero(found)
        rejects.note(reason, [rejects.line_of(before + int(row)) for row in some[:FIRST_LINES]], len(some))
        bad[some] = True

    ids = batch.column("deploymentid")
    reject("missing id", pc.equal(pc.binary_length(ids), 0).to_numpy(zero_copy_only=False))
    values = {name: _numbers(path, batch.column(name), name, before, rejects) for name in NUMBERS}
    wrong = np.zeros(batch.num_rows, dtype=bool)
    for column in values.values():
        wrong |= ~np.isfinite(column) | (np.abs(column) > LONGEST_S)
    reject("not a number", wrong)
    values = {name: np.where(wrong, 0.0, column) for name, column in values.items()}
    created, deleted, cores = (values[name] for name in NUMBERS)
    reject("negative time", (created < 0.0) | (deleted < 0.0))
    reject("deleted before created", deleted < created)
    reject("cores not a whole number above 0", (cores < 1.0) | (cores != np.floor(cores)))
    good = ~bad
    # Numbered after the rejects: a deployment whose rows are all left out is none.
    some = ids.filter(good)
    of_owner.of(batch.column("subscriptionid").filter(good))
    return (
        of_deployment.of(some),
        *(np.rint(column[good]).astype(np.int64) for column in (created, deleted, cores)),
    )


def _numbers(path: Path, texts: pa.Array, name: str, before: int, rejects: _Rejects) -> NDArray[np.float64]:
    """Return the numbers of a column, NaN for what is none; refuse buckets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        cast: NDArray[np.float64] = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
        return cast
    except pa.ArrowInvalid:
        pass
    if name == "vmcorecount":
        buckets = np.flatnonzero(pc.match_substring_regex(texts, r"^\s*[<>]").to_numpy(zero_copy_only=False))
        if len(buckets):
            row = int(buckets[0])
            raise BucketedCores(path, rejects.line_of(before + row), texts[row].as_py())
    fit = pc.match_substring_regex(texts, _NUMBER)
    trimmed = pc.utf8_trim_whitespace(pc.if_else(fit, texts, "nan"))
    numbers: NDArray[np.float64] = pc.cast(trimmed, pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


class BucketedCores(TraceError):
    """Cores are given in buckets, as in the publication of 2019."""

    def __init__(self, path: Path, line: int, value: str) -> None:
        remedy = "give the table of 2017, which has exact core counts; this is of a later publication, in buckets"
        super().__init__(f"{path.name} line {line}, vmcorecount (column 10)", value, remedy)


Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
COARSEST_S = 300
SHUTDOWN_VMS = 3
"""So many machines that end at a deployment's last instant are a shutdown (specification §9.4)."""


@dataclass(frozen=True, slots=True)
class Histories:
    """One row per deployment that began inside the window, arrays (N,); hours."""

    began_h: Floats
    """From the start of the window."""
    hours: Floats
    """Lifetime inside the window."""
    initial: Counts
    """Cores of the first request."""
    scale_outs: Counts
    """Requests after the first."""
    activated: Counts
    """Cores of all requests."""
    ended: Counts
    """Cores ended inside the window."""
    core_hours: Floats
    peak: Counts
    """Most cores at a time."""
    dead: NDArray[np.bool_]
    """Whether every machine ended inside the window."""
    last_vms: Counts
    """Machines that ended at the last instant, 0 where the deployment lives on."""
    last_cores: Counts
    window_h: float
    grid_h: float
    """Step of the clock of the table."""
    truncated: int
    """Deployments left out: there when the window began, or come at its last mark."""

    def __len__(self) -> int:
        return len(self.hours)

    @property
    def extra(self) -> Counts:
        """Sum of (cores - 1) over all requests, the first too."""
        return self.activated - self.scale_outs - 1

    @property
    def shut_down(self) -> NDArray[np.bool_]:
        """Whether the last instant ended three machines or more."""
        return self.dead & (self.last_vms >= SHUTDOWN_VMS)

    def some(self, chosen: NDArray[np.bool_] | Counts) -> Histories:
        """Return the deployments chosen by a mask or by their numbers."""
        names = [field.name for field in fields(self) if field.name not in ("window_h", "grid_h", "truncated")]
        columns = {name: getattr(self, name)[chosen] for name in names}
        return Histories(**columns, window_h=self.window_h, grid_h=self.grid_h, truncated=self.truncated)


def histories_of(table: VmTable) -> Histories:
    """Return what became of each deployment of a table (specification §9.1-2).

    The window ends at the last mark in the table, where machines that still run have their end. A machine that ends in
    the step of the clock in which it began is taken to have run for half a step. Deployments that were there at time 0
    are left out: they are the longer-lived of those that began before. Raises TraceError when none is left.
    """
    end_s = int(max(table.created_s.max(), table.deleted_s.max()))
    step_s = int(np.gcd(np.gcd.reduce(table.created_s), np.gcd.reduce(table.deleted_s)))
    step_s = min(max(step_s, 1), COARSEST_S)
    first = np.full(table.deployments, np.iinfo(np.int64).max)
    np.minimum.at(first, table.deployment, table.created_s)
    # Without machines a deployment cannot be known of, and one that begins at the end has no time to tell anything.
    kept = (first > 0) & (first < end_s)
    if not kept.any():
        raise TraceError("TRACE", len(first), "give a table with deployments that begin after time 0")
    number = np.cumsum(kept) - 1
    rows = np.flatnonzero(kept[table.deployment])
    owner = number[table.deployment[rows]]
    created, deleted, cores = table.created_s[rows], table.deleted_s[rows], table.cores[rows]
    count = int(kept.sum())
    alive = deleted >= end_s
    hours = np.where(deleted > created, deleted - created, 0.5 * step_s) / HOUR_S

    def added(weights: NDArray[np.generic] | None) -> Floats:
        return np.bincount(owner, weights=weights, minlength=count).astype(np.float64)

    initial, requests = _requests(owner, created, cores, count)
    last = np.zeros(count, dtype=np.int64)
    np.maximum.at(last, owner, deleted)
    dead = last < end_s
    at_last = (deleted == last[owner]) & dead[owner]
    began = first[kept]
    lived = np.where(dead, np.where(last > began, last - began, 0.5 * step_s), end_s - began) / HOUR_S
    return Histories(
        began_h=began / HOUR_S,
        hours=lived,
        initial=initial,
        scale_outs=requests - 1,
        activated=added(cores).astype(np.int64),
        ended=added(np.where(alive, 0, cores)).astype(np.int64),
        core_hours=added(cores * hours),
        peak=_peaks(owner, created, deleted, cores, count),
        dead=dead,
        last_vms=added(at_last).astype(np.int64),
        last_cores=added(np.where(at_last, cores, 0)).astype(np.int64),
        window_h=end_s / HOUR_S,
        grid_h=step_s / HOUR_S,
        truncated=int((~kept).sum()),
    )


def _requests(owner: Counts, created: Counts, cores: Counts, count: int) -> tuple[Counts, Counts]:
    """Return the cores of the first request and the number of requests of each deployment."""
    key = (owner.astype(np.int64) << 32) | created
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    sizes = np.add.reduceat(cores[order], starts)
    of = owner[order][starts]
    requests = np.bincount(of, minlength=count)
    return sizes[np.cumsum(requests) - requests], requests


def _peaks(owner: Counts, created: Counts, deleted: Counts, cores: Counts, count: int) -> Counts:
    """Return the most cores at a time; at one instant machines end before others begin."""
    # In half seconds, so that a machine that ends at once ends after it began.
    starts, ends = 2 * created + 1, np.where(deleted > created, 2 * deleted, 2 * created + 2)
    key = (np.concatenate((owner, owner)).astype(np.int64) << 34) | np.concatenate((starts, ends))
    order = np.argsort(key, kind="stable")
    change = np.concatenate((cores, -cores))[order]
    total = np.cumsum(change)
    rows = 2 * np.bincount(owner, minlength=count)
    begins = np.cumsum(rows) - rows
    # Every machine comes and goes, so that the running total is 0 where the next deployment begins.
    peaks: Counts = np.maximum.reduceat(total, begins)
    return peaks
