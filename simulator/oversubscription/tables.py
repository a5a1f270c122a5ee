"""Reads a scenario's tables: profiles and weeks of requests. A wrong value is answered with file, row and column."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, SampleRejected, TraceError
from domain.rules.oversubscription.usage import HOURS, SD_FLOOR, clean_sample, fill_profile, hold_gaps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REQUEST_COLUMNS = ("id", "sub", "cores", "mem_gb", "net_gbps", "t_arr", "t_dep", "warm_only")
PROFILE_COLUMNS = ("sub", "hour", "mu", "sd")
FARTHEST_H = 10_000_000
"""Hours beyond this, either way, are a mistake."""


class Requests(TypedDict):
    """Columns of a week as they stand in the file."""

    ids: Ints
    subscriber: Ints
    cores: Floats
    memory_gb: Floats
    network_gbps: Floats
    arrival: Ints
    departure: Ints
    warm_only: NDArray[np.bool_]


def weeks_in(folder: Path, name: str) -> tuple[str, ...]:
    """Return the names of the weeks there are, s0 before s21."""
    found = {
        path.name.removeprefix(f"{name}_").partition("_requests.csv")[0]
        for path in folder.glob(f"{name}_*_requests.csv*")
        if path.name.endswith((".csv", ".csv.gz"))
    }
    return tuple(sorted(found, key=lambda week: (len(week), week)))


def rows_of(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the place (file and row, from 1) and the numbers of each row of a CSV; raises TraceError.

    An empty cell is nan.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, ValueError) as error:
        raise TraceError(path.name, str(path), f"give a file that can be read: {error}") from None
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(f"{path.name}: header", ",".join(reader.fieldnames or ()), f"add column {', '.join(missing)}")
    for number, row in enumerate(reader, 1):
        place = f"{path.name}: row {number}"
        values: dict[str, float] = {}
        for column in columns:
            cell = (row[column] or "").strip()
            try:
                values[column] = float(cell) if cell else math.nan
            except ValueError:
                raise TraceError(f"{place}: {column}", cell, "give a number") from None
        yield place, values


def read_requests(
    folder: Path, name: str, week: str, subscribers: int, machine: tuple[float, float, float], hours: int
) -> Requests:
    """Return a week's columns (oversubscription specification §11).

    machine: cores, memory and network of one machine, which no VM may exceed. Raises TraceError with row and column.
    """
    path = folder / f"{name}_{week}_requests.csv"
    path = path if path.is_file() else path.with_name(path.name + ".gz")
    seen: set[int] = set()
    kept: list[dict[str, float]] = []
    for place, row in rows_of(path, REQUEST_COLUMNS):
        _check_request(place, row, subscribers, machine, hours)
        if row["id"] in seen:
            raise TraceError(f"{place}: id", int(row["id"]), "give every VM an id of its own")
        seen.add(int(row["id"]))
        kept.append(row)
    table = np.array([[row[column] for column in REQUEST_COLUMNS] for row in kept]).reshape(-1, len(REQUEST_COLUMNS))
    whole = {column: table[:, i].astype(np.int64) for i, column in enumerate(REQUEST_COLUMNS)}
    return Requests(
        ids=whole["id"],
        subscriber=whole["sub"],
        cores=table[:, 2].copy(),
        memory_gb=table[:, 3].copy(),
        network_gbps=table[:, 4].copy(),
        arrival=whole["t_arr"],
        departure=whole["t_dep"],
        warm_only=whole["warm_only"] == 1,
    )


def _check_request(
    place: str, row: dict[str, float], subscribers: int, machine: tuple[float, float, float], hours: int
) -> None:
    def wrong(column: str, remedy: str) -> TraceError:
        return TraceError(f"{place}: {column}", row[column], remedy)

    for column in REQUEST_COLUMNS:
        if not math.isfinite(row[column]):
            raise wrong(column, "give a finite number")
    for column in ("id", "sub", "t_arr", "t_dep", "warm_only"):
        if row[column] != math.floor(row[column]) or abs(row[column]) > 2.0**53:
            raise wrong(column, "give a whole number")
    if not 0 <= row["sub"] < subscribers:
        raise wrong("sub", f"give a subscriber of the profile, 0 to {subscribers - 1}")
    if row["warm_only"] not in (0, 1):
        raise wrong("warm_only", "give 0 or 1")
    if row["cores"] <= 0:
        raise wrong("cores", "give more than 0 cores")
    for column, most in zip(("cores", "mem_gb", "net_gbps"), machine, strict=True):
        if row[column] < 0:
            raise wrong(column, "give 0 or more")
        if row[column] > most:
            raise wrong(column, f"a machine has {most:g}: no VM can be larger")
    for column in ("t_arr", "t_dep"):
        if abs(row[column]) > FARTHEST_H:
            raise wrong(column, "count hours from the week's first midnight")
    if row["t_dep"] <= row["t_arr"]:
        raise wrong("t_dep", f"give an hour after t_arr, which is {row['t_arr']:g}")
    if row["warm_only"] == 1 and row["t_arr"] >= 0:
        raise wrong("t_arr", "a VM of the warm start arrives before hour 0")
    if row["warm_only"] == 0 and not 0 <= row["t_arr"] < hours:
        raise wrong("t_arr", f"a request arrives in hours 0 to {hours - 1}")


def read_profile(path: Path, subscribers: int) -> tuple[Floats, Floats]:
    """Return mu and sd, (N, 24); raises TraceError. Hours left out are pooled from their neighbours (§11)."""
    mu, sd = (np.full((subscribers, HOURS), np.nan) for _ in range(2))
    seen: set[tuple[int, int]] = set()
    for place, row in rows_of(path, PROFILE_COLUMNS):
        for column, end in (("sub", subscribers), ("hour", HOURS)):
            if not (row[column] == row[column] and row[column] == math.floor(row[column]) and 0 <= row[column] < end):
                raise TraceError(f"{place}: {column}", row[column], f"give a whole number from 0 to {end - 1}")
        at = int(row["sub"]), int(row["hour"])
        if at in seen:
            raise TraceError(f"{place}: hour", at[1], f"subscriber {at[0]} has it already")
        seen.add(at)
        for column, table in (("mu", mu), ("sd", sd)):
            if math.isinf(row[column]) or row[column] < 0 or row[column] > 1.05:
                raise TraceError(f"{place}: {column}", row[column], "give a share of the requested cores, 0 to 1.05")
            table[at] = row[column]
    mu, sd = fill_profile(mu), fill_profile(sd)
    bare = np.nonzero(np.isnan(mu).any(axis=1) | np.isnan(sd).any(axis=1))[0]
    if bare.size:
        raise BadInput(f"{path.name}: sub", int(bare[0]), "add at least one hour with mu and sd for the subscriber")
    return np.ascontiguousarray(np.minimum(mu, 1.0)), np.ascontiguousarray(np.maximum(sd, SD_FLOOR))


def read_usage(path: Path, ids: Ints, hours: int) -> Floats:
    """Return measured usage by row of a week and hour, nan where there is none, of a CSV with id, hour and usage.

    Values above 1 up to 1.05 are clipped, gaps of up to three hours are held. Raises TraceError.
    """
    rows = {int(vm): i for i, vm in enumerate(ids.tolist())}
    table = np.full((len(ids), hours), np.nan)
    for place, row in rows_of(path, ("id", "hour", "usage")):
        if row["id"] not in rows:
            raise TraceError(f"{place}: id", row["id"], "give the id of a VM of the week")
        if not (row["hour"] == math.floor(row["hour"]) and 0 <= row["hour"] < hours):
            raise TraceError(f"{place}: hour", row["hour"], f"give an hour from 0 to {hours - 1}")
        try:
            table[rows[int(row["id"])], int(row["hour"])] = clean_sample(row["usage"])
        except SampleRejected as error:
            raise TraceError(f"{place}: usage", row["usage"], error.remedy) from None
    for i in np.nonzero(~np.isnan(table).all(axis=1))[0]:
        table[i], _ = hold_gaps(table[i])
    return table
