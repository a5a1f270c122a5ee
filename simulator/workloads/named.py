"""Workloads by name: one text names a generated trace, a recorded window or a user's file (autoscaler spec §7).

Traces are saved as a CSV of jobs, and a JSON with their origin (§7.4).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, TypeVar

from domain.errors import BadInput, TraceError
from domain.workload import Trace, make_trace
from simulator.workloads.recorded import WINDOWS, nasa_day, nasa_hour, window
from simulator.workloads.swf import SwfOptions, WidthRule, read_swf
from simulator.workloads.synthetic import BatchOrder, CoevolutionVariant, coevolution, train_fit, train_rand, train_text

Parameters = dict[str, str]
Choice = TypeVar("Choice", bound=StrEnum)

_REAL = frozenset({"arrival_s", "service_s", "ram_gb", "pause_s"})
_LOG_NUMBERS = ("from_s", "hours", "time_scale", "run_scale", "thin")


def workload_of(text: str, largest_vm_cores: int = 8) -> Trace:
    """Return the trace that a text such as `train-text`, `train-rand:7`, `jobs.csv` or `log.swf.gz:hours=24` names.

    After the first colon follow `name=value` pairs separated by commas; a lone value is the seed (of the batch traces:
    the order of their batches). largest_vm_cores: where the width rules of an SWF log cut. Raises BadInput, which lists
    what there is, for an unknown name or parameter, and TraceError for a file that cannot be used.
    """
    name, parameters = _split(text)
    if name.endswith((".swf", ".swf.gz")):
        trace = _log(Path(name), parameters, largest_vm_cores)
    elif name.endswith((".csv", ".csv.gz")):
        trace = _csv(Path(name))
    elif name in _NAMED:
        trace = _NAMED[name](parameters)
    else:
        raise BadInput(
            "--workload", text, f"give {', '.join(workload_names())}, FILE.csv, FILE.csv.gz, FILE.swf or FILE.swf.gz"
        )
    if parameters:
        raise BadInput("--workload", text, f"{name} has no parameter {next(iter(parameters))!r}")
    return trace


def workload_names() -> tuple[str, ...]:
    """Return the names that are not files, for help and messages."""
    return tuple(_NAMED)


def _split(text: str) -> tuple[str, Parameters]:
    """Part a name from its parameters; a lone value is filed under the empty name."""
    name, colon, rest = text.strip().partition(":")
    parameters: Parameters = {}
    for pair in rest.split(",") if colon else ():
        key, equals, value = pair.partition("=")
        parameters.update({key.strip(): value.strip()} if equals else {"": key.strip()})
    return name.strip(), parameters


def _take_choice(parameters: Parameters, name: str, kind: type[Choice], default: Choice) -> Choice:
    """Take one of an enumeration's values; hyphens are as good as underscores."""
    given = parameters.pop(name, default.value)
    try:
        return kind(given.replace("-", "_"))
    except ValueError:
        raise BadInput(f"--workload {name or 'order'}", given, f"choose one of {', '.join(kind)}") from None


def _take_whole(parameters: Parameters, name: str, default: int) -> int:
    given = parameters.pop(name, str(default))
    try:
        value = int(given)
    except ValueError:
        value = -1
    if value < 0:
        raise BadInput(f"--workload {name or 'seed'}", given, "give a whole number of 0 or more")
    return value


def _take_real(parameters: Parameters, name: str) -> float:
    given = parameters.pop(name)
    try:
        return float(given)
    except ValueError:
        raise BadInput(f"--workload {name}", given, "give a number") from None


def _seed(parameters: Parameters) -> int:
    return _take_whole(parameters, "seed" if "seed" in parameters else "", 0)


def _batches(make: Callable[[BatchOrder, int], Trace]) -> Callable[[Parameters], Trace]:
    def made(parameters: Parameters) -> Trace:
        order = _take_choice(parameters, "order" if "order" in parameters else "", BatchOrder, BatchOrder.ALTERNATING)
        return make(order, _take_whole(parameters, "seed", 0))

    return made


def _coevolution(parameters: Parameters) -> Trace:
    variant = _take_choice(parameters, "variant", CoevolutionVariant, CoevolutionVariant.WHOLE_VM)
    generations = _take_whole(parameters, "generations", 20)
    return coevolution(_seed(parameters), generations=generations, variant=variant)


def _recorded(name: str) -> Callable[[Parameters], Trace]:
    return lambda _: window(name)


def _log(path: Path, parameters: Parameters, largest_vm_cores: int) -> Trace:
    width = _take_choice(parameters, "width", WidthRule, WidthRule.SPLIT)
    seed = _take_whole(parameters, "seed", 0)
    numbers: dict[str, Any] = {name: _take_real(parameters, name) for name in _LOG_NUMBERS if name in parameters}
    options = replace(SwfOptions(width_rule=width, largest_vm_cores=largest_vm_cores, seed=seed), **numbers)
    return read_swf(path, options)[0]


def _csv(path: Path) -> Trace:
    """Read a CSV of jobs: verified where the side file of a saved trace lies beside it, unverified otherwise."""
    if path.with_name(path.name + ".json").exists():
        return load_trace(path)
    try:
        with _opened(path) as stream:
            return _plain_csv(path, csv.reader(stream))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as fault:
        raise TraceError(f"trace {path.name}", str(fault), "give a readable CSV of jobs in UTF-8") from fault


def _opened(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _plain_csv(path: Path, rows: Iterator[list[str]]) -> Trace:
    header = [name.strip() for name in next(rows, [])]
    strange = [name for name in header if name not in WHOLE | _REAL]
    missing = [name for name in ("arrival_s", "service_s") if name not in header]
    if strange or missing or len(set(header)) != len(header):
        remedy = "name arrival_s and service_s, and at will job_id, width, ram_gb, stage, release_after, pause_s"
        raise TraceError(f"{path.name} line 1: columns", ",".join(header), remedy)
    columns = read_columns(path, header, rows)
    arrival_s, service_s = columns.pop("arrival_s"), columns.pop("service_s")
    return make_trace(path.stem, arrival_s, service_s, serial_fraction=0.0, **columns)


_NAMED: Mapping[str, Callable[[Parameters], Trace]] = {
    "train-text": _batches(train_text),
    "train-fit": _batches(train_fit),
    "train-rand": lambda parameters: train_rand(_seed(parameters)),
    "coevolution": _coevolution,
    "nasa": lambda parameters: nasa_hour(seed=_take_whole(parameters, "seed", 1993))[0],
    "nasa-day": lambda parameters: nasa_day(seed=_take_whole(parameters, "seed", 1993))[0],
    **{name: _recorded(name) for name in WINDOWS},
}


_COLUMNS = ("job_id", "arrival_s", "service_s", "width", "ram_gb")
_STAGED_COLUMNS = ("stage", "release_after", "pause_s")
WHOLE = frozenset({"job_id", "width", "stage", "release_after"})
"""Columns of whole numbers."""


def save_trace(
    trace: Trace, path: Path, *, generator: str, version: str, seed: int | None, parameters: Mapping[str, object]
) -> str:
    """Write `path` (CSV, UTF-8, LF, sorted) and its side file `<path>.json`; return the SHA-256 of the CSV.

    A trace with stages has three more columns. Numbers are written so that they read back bit for bit.
    """
    columns = _COLUMNS + (_STAGED_COLUMNS if trace.staged else ())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(map(repr, getattr(trace, column).tolist()) for column in columns), strict=True))
    content = text.getvalue().encode("utf-8")
    digest = hashlib.sha256(content).hexdigest()
    side = {
        "name": trace.name,
        "generator": generator,
        "version": version,
        "seed": seed,
        "parameters": dict(parameters),
        "serial_fraction": trace.serial_fraction,
        "jobs": trace.jobs,
        "sha256": digest,
    }
    path.write_bytes(content)
    _side_file(path).write_text(json.dumps(side, indent=2, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
    return digest


def load_trace(path: Path) -> Trace:
    """Read a saved trace; TraceError when a file is missing or malformed, or the CSV does not match its side file."""
    side = origin_of(path)
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise TraceError(f"trace {path.name}", str(fault), "give a CSV written by save_trace") from fault
    digest = hashlib.sha256(content).hexdigest()
    if side.get("sha256") != digest:
        raise TraceError(
            f"{_side_file(path).name}: sha256", side.get("sha256"), f"{path.name} has {digest}: it was changed"
        )
    if path.name.endswith(".gz"):
        content = gzip.decompress(content)
    rows = csv.reader(io.StringIO(content.decode("utf-8")))
    header = tuple(next(rows, ()))
    if header not in (_COLUMNS, _COLUMNS + _STAGED_COLUMNS):
        raise TraceError(f"{path.name} line 1: columns", ",".join(header), f"give {','.join(_COLUMNS)}")
    columns = read_columns(path, header, rows)
    arrival_s, service_s = columns.pop("arrival_s"), columns.pop("service_s")
    serial_fraction = side.get("serial_fraction", 0.0)
    if not isinstance(serial_fraction, float | int):
        raise TraceError(f"{_side_file(path).name}: serial_fraction", serial_fraction, "give a share in 0..1")
    return make_trace(
        str(side.get("name", path.stem)), arrival_s, service_s, serial_fraction=float(serial_fraction), **columns
    )


def read_columns(path: Path, header: Sequence[str], rows: Iterable[list[str]]) -> dict[str, list[float]]:
    """Return the columns of a CSV of jobs from the rows below its header; TraceError names file, line and column."""
    columns: dict[str, list[float]] = {name: [] for name in header}
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise TraceError(f"{path.name} line {line}: fields", len(row), f"give {len(header)} fields")
        for name, value in zip(header, row, strict=True):
            try:
                columns[name].append(int(value) if name in WHOLE else float(value))
            except ValueError:
                raise TraceError(f"{path.name} line {line}: {name}", value, "give a number") from None
    return columns


def _side_file(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def origin_of(path: Path) -> dict[str, object]:
    """Return the side file of a saved trace: name, generator, version, seed, parameters, jobs, sha256 and the rest.

    Raises TraceError when it is missing or no JSON object.
    """
    side_file = _side_file(path)
    try:
        side = json.loads(side_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise TraceError(
            f"side file {side_file.name}", str(fault), "keep the JSON that was saved with the CSV"
        ) from fault
    if not isinstance(side, dict):
        raise TraceError(f"side file {side_file.name}", type(side).__name__, "give a JSON object")
    return side
