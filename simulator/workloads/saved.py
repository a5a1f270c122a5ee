"""Traces as files: a CSV of jobs, and a JSON that says where they came from (autoscaler specification §7.4)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path

from domain.errors import TraceError
from domain.workload import Trace, make_trace

_COLUMNS = ("job_id", "arrival_s", "service_s", "width", "ram_gb")
_STAGED_COLUMNS = ("stage", "release_after", "pause_s")
_WHOLE = frozenset({"job_id", "width", "stage", "release_after"})


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
    rows = list(csv.reader(io.StringIO(content.decode("utf-8"))))
    header = tuple(rows[0]) if rows else ()
    if header not in (_COLUMNS, _COLUMNS + _STAGED_COLUMNS):
        raise TraceError(f"{path.name} line 1: columns", ",".join(header), f"give {','.join(_COLUMNS)}")
    columns: dict[str, list[float]] = {column: [] for column in header}
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise TraceError(f"{path.name} line {line}: fields", len(row), f"give {len(header)} fields")
        for column, value in zip(header, row, strict=True):
            try:
                columns[column].append(int(value) if column in _WHOLE else float(value))
            except ValueError as fault:
                raise TraceError(f"{path.name} line {line}: {column}", value, "give a number") from fault
    arrival_s, service_s = columns.pop("arrival_s"), columns.pop("service_s")
    serial_fraction = side.get("serial_fraction", 0.0)
    if not isinstance(serial_fraction, float | int):
        raise TraceError(f"{_side_file(path).name}: serial_fraction", serial_fraction, "give a share in 0..1")
    return make_trace(
        str(side.get("name", path.stem)), arrival_s, service_s, serial_fraction=float(serial_fraction), **columns
    )


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
            f"side file {side_file.name}", str(fault), "keep the JSON that was saved beside the CSV"
        ) from fault
    if not isinstance(side, dict):
        raise TraceError(f"side file {side_file.name}", type(side).__name__, "give a JSON object")
    return side
