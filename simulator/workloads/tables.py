"""Tables of other programs, CSV or Parquet with any column names, as traces of jobs and instances of placement."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from domain.errors import BadInput, TraceError
from domain.rules.placement.instance import Application, HostType, Instance, Release, Request
from domain.workload import Trace
from simulator.workloads.swf import LogJob, SkipReason, SwfOptions, SwfReport, trace_of

ENDINGS: Final = (".csv", ".csv.gz", ".parquet")
JOB_FIELDS: Final = {"submit": True, "runtime": False, "end": False, "cores": False}
REQUEST_FIELDS: Final = {
    **dict.fromkeys(("time", "cores", "memory"), True),
    **dict.fromkeys(("disk", "end", "application", "count"), False),
}
USAGE_FIELDS: Final = {
    **dict.fromkeys(("time", "vm", "cores", "usage"), True),
    **dict.fromkeys(("subscriber", "memory", "network"), False),
}
"""The fields of each kind of table, and whether one is needed."""
_EPOCHS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From these values on a time is in nanoseconds, microseconds, milliseconds; below, in seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table by field; `place` names file and row for messages."""

    place: str
    cells: Mapping[str, Any]

    def has(self, field: str) -> bool:
        """Return whether the row has a value of the field."""
        return self.cells.get(field) not in (None, "")

    def text(self, field: str, default: str = "") -> str:
        """Return a text, `default` where the row has none."""
        return str(self.cells[field]).strip() if self.has(field) else default

    def number(self, field: str, default: float = 0.0) -> float:
        """Return a finite number, a duration in seconds, `default` where the row has none; TraceError."""
        if not self.has(field):
            return default
        value = self.cells[field]
        try:
            found = value.total_seconds() if isinstance(value, timedelta) else float(value)
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            raise TraceError(f"{self.place}: {field}", value, "give a number")
        return found

    def time_s(self, field: str) -> float:
        """Return a time, ISO 8601 or a number, as seconds; without a zone it is in UTC. TraceError.

        Numbers are seconds of any clock; epoch times in milliseconds, microseconds and nanoseconds are known by size.
        """
        value = self.cells.get(field)
        if isinstance(value, str):
            value = _number_or_time(value.strip())
        if isinstance(value, datetime):
            return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
        number = math.nan if isinstance(value, str) else Row(self.place, {field: value}).number(field, math.nan)
        if math.isnan(number):
            remedy = "give a time such as 2026-03-01T12:00:00Z, or a number of seconds"
            raise TraceError(f"{self.place}: {field}", value, remedy)
        return number / next((unit for least, unit in _EPOCHS if abs(number) >= least), 1.0)


def _number_or_time(text: str) -> float | datetime | str:
    readers: tuple[Callable[[str], float | datetime], ...] = (float, datetime.fromisoformat)
    for read in readers:
        with suppress(ValueError):
            return read(text)
    return text


def columns_of(given: Sequence[str], fields: Mapping[str, bool]) -> dict[str, str]:
    """Return the column of each field that `FIELD=COLUMN` texts name; BadInput lists the fields there are."""
    found: dict[str, str] = {}
    for text in given:
        field, equals, column = (part.strip() for part in text.partition("="))
        if not equals or not column or field not in fields or field in found:
            raise BadInput("--column", text, f"give FIELD=COLUMN, each once, of the fields {', '.join(fields)}")
        found[field] = column
    return found


def rows_of_table(path: Path, columns: Mapping[str, str], fields: Mapping[str, bool]) -> Iterator[Row]:
    """Yield the rows of a CSV, plain or .gz, or a Parquet file; a field that no text names has a column of its name.

    Raises BadInput where a column is not there, TraceError for a file that cannot be read.
    """
    if not path.name.endswith(ENDINGS):
        raise BadInput("table", str(path), f"give a file that ends in {', '.join(ENDINGS)}")
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, columns, fields)
            return
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", newline="") as stream
        ):
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            chosen = _chosen(path, header, columns, fields)
            places = {field: header.index(column) for field, column in chosen.items()}
            for line, cells in enumerate(reader, start=2):
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise TraceError(f"{path.name} line {line}: fields", len(cells), f"give {len(header)} fields")
                yield Row(f"{path.name} line {line}", {field: cells[place] for field, place in places.items()})
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as fault:
        raise TraceError(f"table {path.name}", str(fault), "give a readable CSV in UTF-8, or a Parquet file") from fault


def _parquet(path: Path, columns: Mapping[str, str], fields: Mapping[str, bool]) -> Iterator[Row]:
    # It belongs to the extra `train`, as the numeric packages do.
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as fault:
        raise TraceError(f"table {path.name}", str(fault), "give a Parquet file") from fault
    chosen = _chosen(path, file.schema_arrow.names, columns, fields)
    number = 0
    for batch in file.iter_batches(columns=list(dict.fromkeys(chosen.values()))):
        for cells in batch.to_pylist():
            number += 1
            yield Row(f"{path.name} row {number}", {field: cells[column] for field, column in chosen.items()})


def _chosen(
    path: Path, header: Sequence[str], columns: Mapping[str, str], fields: Mapping[str, bool]
) -> dict[str, str]:
    """Return the column of each field that the table has."""
    for field, column in columns.items():
        if column not in header:
            raise BadInput("--column", f"{field}={column}", f"{path.name} has the columns {', '.join(header)}")
    found = {**{field: field for field in fields if field in header}, **columns}
    missing = [field for field, needed in fields.items() if needed and field not in found]
    if missing:
        remedy = f"give {' '.join(f'--column {field}=NAME' for field in missing)}; {path.name} has {', '.join(header)}"
        raise BadInput("--column", " ".join(f"{field}={name}" for field, name in columns.items()), remedy)
    return found


def read_jobs(
    path: Path, columns: Mapping[str, str], options: SwfOptions | None = None, name: str | None = None
) -> tuple[Trace, SwfReport]:
    """Return the jobs of a table as a trace, and the counts of rows kept and dropped, as `read_swf` does.

    Fields are submit (a time), runtime in seconds or end (a time; the job then ran from its submission), and cores, 1
    without a column. Raises BadInput and TraceError as `rows_of_table`.
    """
    drops: Counter[SkipReason] = Counter()
    jobs: list[LogJob] = []
    for number, row in enumerate(rows_of_table(path, columns, JOB_FIELDS), start=1):
        if number == 1 and not {"runtime", "end"} & set(row.cells):
            raise BadInput("--column", " ".join(columns), "give --column runtime=NAME in seconds, or --column end=NAME")
        submit_s = row.time_s("submit")
        run_s = row.number("runtime") if "runtime" in row.cells or not row.has("end") else row.time_s("end") - submit_s
        cores = row.number("cores", 1.0)
        if run_s <= 0.0:
            drops[SkipReason.NO_RUN_TIME] += 1
        elif cores <= 0.0:
            drops[SkipReason.NO_PROCESSORS] += 1
        else:
            jobs.append(LogJob(number, submit_s, run_s, math.ceil(cores)))
    jobs.sort(key=lambda job: (job.submit_s, job.number))
    return trace_of(jobs, options or SwfOptions(), drops, name or path.name.partition(".")[0])


def read_placement(
    path: Path, columns: Mapping[str, str], host: tuple[int, int, int], name: str | None = None
) -> Instance:
    """Return the requests of a table as an instance of placement, on hosts of one size without bound.

    host: cores, memory in GiB and disk in GB. Fields are time, cores, memory in GiB, disk in GB, end (a time),
    application and count; cores, memory and disk are those of one container, rounded up. Without applications,
    containers of one size are one. Raises BadInput where no host could take a container, and as `rows_of_table`.
    """
    rows = sorted(
        ((row.time_s("time"), row) for row in rows_of_table(path, columns, REQUEST_FIELDS)), key=lambda pair: pair[0]
    )
    applications: dict[str, Application] = {}
    requests, releases = [], []
    for number, (at_s, row) in enumerate(rows):
        demand = (
            max(1, math.ceil(row.number("cores"))),
            max(1, math.ceil(row.number("memory"))),
            max(1, math.ceil(row.number("disk"))),
        )
        if any(wanted > room for wanted, room in zip(demand, host, strict=True)):
            raise BadInput(row.place, "cores, memory, disk {}, {}, {}".format(*demand), "give larger hosts by --host")
        owner = row.text("application", "{}c{}g{}d".format(*demand))
        if applications.setdefault(owner, Application(owner, demand)).demand != demand:
            # The same application in another size is another one.
            owner = f"{owner} {'-'.join(map(str, demand))}"
            applications.setdefault(owner, Application(owner, demand))
        since_s = at_s - rows[0][0]
        count = max(1, round(row.number("count", 1.0)))
        requests.append(Request(f"r{number}", owner, count, since_s))
        if row.has("end"):
            ends_s = max(row.time_s("end") - rows[0][0], since_s)
            releases += [Release(f"r{number}", index, ends_s) for index in range(count)]
    releases.sort(key=lambda release: release.at_s)
    return Instance(
        name or path.name.partition(".")[0],
        (HostType("host", host),),
        tuple(applications.values()),
        tuple(requests),
        tuple(releases),
    )
