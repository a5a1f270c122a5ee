"""A cluster, its subscribers' usage profiles and weeks of VM requests: packaged, or from a folder of yours.

Errors in the tables name file, row and column.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, SampleRejected, TraceError
from domain.rules.oversubscription.rates import ACTIONS, check_actions, check_rate, violation_hours
from domain.rules.oversubscription.usage import HELD_H, SD_FLOOR, clean_sample, fill_profile
from domain.units import HOURS_PER_DAY

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


REQUEST_COLUMNS = ("id", "sub", "cores", "mem_gb", "net_gbps", "t_arr", "t_dep", "warm_only")
PROFILE_COLUMNS = ("sub", "hour", "mu", "sd")
FARTHEST_H = 10_000_000
"""Hours beyond this, either way, are a mistake."""


class Requests(TypedDict):
    """Columns of a week as in the file."""

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
    found: list[dict[str, float]] = []
    for place, row in rows_of(path, REQUEST_COLUMNS):
        _check_request(place, row, subscribers, machine, hours)
        if row["id"] in seen:
            raise TraceError(f"{place}: id", int(row["id"]), "give every VM another id")
        seen.add(int(row["id"]))
        found.append(row)
    table = np.array([[row[column] for column in REQUEST_COLUMNS] for row in found]).reshape(-1, len(REQUEST_COLUMNS))
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
    mu, sd = (np.full((subscribers, HOURS_PER_DAY), np.nan) for _ in range(2))
    seen: set[tuple[int, int]] = set()
    for place, row in rows_of(path, PROFILE_COLUMNS):
        for column, end in (("sub", subscribers), ("hour", HOURS_PER_DAY)):
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

    Values above 1 up to 1.05 are clipped, gaps of up to three hours get the value before. Raises TraceError.
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
        table[i] = hold_gaps(table[i])
    return table


PACKAGED = ("internal_like", "azure_like")
EXPLICIT = "packaged"
"""`packaged:NAME` is the packaged scenario, whatever folders there are."""
STARTS = ("cold", "warm")
_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, eq=False)
class Week:
    """One week of requests as columns: first the VMs of a warm start, then the requests by (arrival, id).

    A VM holds its machine in the hours arrival <= t < departure, counted from the week's first midnight.
    """

    name: str
    ids: Ints
    subscriber: Ints
    cores: Floats
    memory_gb: Floats
    network_gbps: Floats
    arrival: Ints
    departure: Ints
    warm: int
    """So many rows at the front exist at hour 0 in a warm start and are left out in a cold one."""

    @property
    def requests(self) -> int:
        """The number of VMs requested in the week."""
        return len(self.ids) - self.warm

    @property
    def requested_cores(self) -> float:
        """Cores requested in the week."""
        return float(self.cores[self.warm :].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """A cluster of equal machines and the subscribers that use it (oversubscription specification §1, §6)."""

    name: str
    folder: Path
    subscribers: int
    machines: int
    machine_cores: float
    machine_memory_gb: float
    machine_network_gbps: float
    beta: float
    """A machine is hot from this share of its cores in use."""
    violation_hours: int
    """So many hot hours break the promise."""
    hours: int
    actions: tuple[float, ...]
    prefill_rate: float
    """Rate of the VMs that a warm start begins with."""
    mu: Floats
    """Usage of one VM before clipping, by subscriber and hour of day, (N, 24); sd is its spread."""
    sd: Floats
    weeks: tuple[str, ...]
    _weeks: dict[str, Week] = field(default_factory=dict, repr=False, compare=False)

    @property
    def packaged(self) -> bool:
        """Whether it came with the program: reference figures are for these, not for others of the same name."""
        return self.folder == _DATA

    @property
    def threshold(self) -> float:
        """Cores in use from which a machine is hot."""
        return self.beta * self.machine_cores

    @property
    def hourly_cores(self) -> float:
        """Cores requested per hour in the first week: the unit of the reward."""
        return max(self.week(self.weeks[0]).requested_cores / self.hours, 1e-12)

    def week(self, name: str) -> Week:
        """Return a week by name, such as s0; BadInput for one that there is not, or whose file is wrong."""
        if name not in self._weeks:
            if name not in self.weeks:
                raise BadInput("week", name, f"choose one of {', '.join(self.weeks)}")
            machine = (self.machine_cores, self.machine_memory_gb, self.machine_network_gbps)
            table = read_requests(self.folder, self.name, name, self.subscribers, machine, self.hours)
            self._weeks[name] = week_of(name, **table)
        return self._weeks[name]


def week_of(name: str, **columns: Unpack[Requests]) -> Week:
    """Return a week from columns in any order."""
    order = np.lexsort((columns["ids"], columns["arrival"], ~columns["warm_only"]))
    in_order: dict[str, Any] = {
        key: column[order] for key, column in cast("dict[str, Ints]", columns).items() if key != "warm_only"
    }
    return Week(name, warm=int(columns["warm_only"].sum()), **in_order)


def scenario_of(text: str) -> Scenario:
    """Return a packaged scenario by name, or the one in a folder (or .json file) of yours; raises BadInput.

    A name that is both, a packaged scenario's and that of a folder here with a scenario in it, is refused: neither may
    silently replace the other. `./NAME` is the folder, `packaged:NAME` the packaged one.
    """
    path, (prefix, _, packaged) = Path(text), text.partition(":")
    if prefix == EXPLICIT and packaged in PACKAGED:
        return _packaged(packaged)
    if text in PACKAGED:
        if any(path.glob("*_profile.csv")):
            remedy = f"a packaged scenario and a folder here bear this name: give ./{text} or {EXPLICIT}:{text}"
            raise BadInput("scenario", text, remedy)
        return _packaged(text)
    if path.is_dir():
        found = sorted(path.glob("*.json"))
        if len(found) != 1:
            raise BadInput("scenario", text, f"keep one .json in the folder, or name the file; there are {len(found)}")
        path = found[0]
    if path.suffix != ".json" or not path.is_file():
        raise BadInput("scenario", text, f"give {', '.join(PACKAGED)} or a folder with NAME.json and its tables")
    return _read(path)


@functools.cache
def _packaged(name: str) -> Scenario:
    return _read(_DATA / f"{name}.json")


def _read(path: Path) -> Scenario:
    try:
        given: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("scenario", str(path), f"give a JSON file that can be read: {error}") from None
    if not isinstance(given, dict):
        raise BadInput("scenario", str(path), "give one object with the cluster's constants")
    where, name = path.name, path.stem
    subscribers = _whole(given, where, "n_subscribers")
    hours = _whole(given, where, "horizon_h", 120)
    beta = _positive(given, where, "beta", 0.6)
    if beta > 1.0:
        raise BadInput(f"{where}: beta", beta, "give a share of a machine's cores, up to 1")
    weeks = weeks_in(path.parent, name)
    if not weeks:
        raise BadInput("scenario", str(path), f"put {name}_WEEK_requests.csv in its folder")
    actions = given.get("actions", ACTIONS)
    if not isinstance(actions, list | tuple) or not all(isinstance(level, int | float) for level in actions):
        raise BadInput(f"{where}: actions", actions, "give a list of rates")
    mu, sd = read_profile(path.parent / f"{name}_profile.csv", subscribers)
    return Scenario(
        name=name,
        folder=path.parent,
        subscribers=subscribers,
        machines=_whole(given, where, "pms"),
        machine_cores=_positive(given, where, "pm_cores"),
        machine_memory_gb=_positive(given, where, "pm_mem_gb"),
        machine_network_gbps=_positive(given, where, "pm_net_gbps"),
        beta=beta,
        violation_hours=_whole(given, where, "delta_count", violation_hours(hours)),
        hours=hours,
        actions=check_actions(actions),
        prefill_rate=check_rate(f"{where}: warm_prefill_rate", _positive(given, where, "warm_prefill_rate", 1.0)),
        mu=mu,
        sd=sd,
        weeks=weeks,
    )


def _positive(given: dict[str, Any], where: str, name: str, default: float | None = None) -> float:
    value = given.get(name, default)
    if value is None:
        raise BadInput(f"{where}: {name}", None, "add it; see the README of the packaged scenarios")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise BadInput(f"{where}: {name}", value, "give a finite number above 0")
    return float(value)


def _whole(given: dict[str, Any], where: str, name: str, default: int | None = None) -> int:
    value = _positive(given, where, name, default)
    if value != int(value):
        raise BadInput(f"{where}: {name}", value, "give a whole number, 1 or more")
    return int(value)


def hold_gaps(hourly: Floats) -> Floats:
    """Return hourly usage whose gaps (nan) have the value before for up to three hours."""
    filled, missing = hourly.copy(), 0
    for t in range(hourly.size):
        missing = missing + 1 if math.isnan(hourly[t]) else 0
        if 0 < missing <= HELD_H and t >= missing:
            filled[t] = hourly[t - missing]
    return filled
