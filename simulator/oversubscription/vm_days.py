"""Measured VM-days by owner from a file of yours, and the risk of usage that is correlated within a day (§9 B7).

The file is PlanetLab's five-minute table or Azure's readings: a .parquet or .csv with one row per VM-day (`slice` or
`owner`, then `s000` to `s287`, percent of the VM's CPU), or with one row per reading (`vm_id`, `timestamp` in seconds,
`avg_c` in hundredths of a percent, `owner`; without the last every VM is its own). Times may begin
anywhere, at the epoch too: days are counted from the first reading of the file.

Usage correlated within a day has its hot hours in bunches. By hours, a machine's chance is the normal tail corrected by
the third and fourth cumulants of its VMs' usage: few VMs with heavy tails need both. Over a day, a machine's load moves
around one level (a normal one, in place of the many of its VMs): given that level its hours are independent, and over
levels they are summed up. Days and machines are independent. Where two machines are likely in the same hour, their
chances are scaled to that of any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.risk import any_hot as _any_hot
from domain.rules.oversubscription.usage import Moments
from domain.units import HOUR_S, HOURS_PER_DAY
from simulator.compilation import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAMPLES_PER_DAY = 288
FEWEST_SAMPLES = 6
"""An hour with fewer of its twelve samples is missing, and its day is left out."""
_LONGEST_STEP_S = HOUR_S / FEWEST_SAMPLES
_LATEST_S = 1e11
"""Seconds since 1970 reach it in the year 5138; milliseconds did in 1973."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """VM-days of the owners that represent the subscribers, and their moments by hour of day."""

    days: Floats
    first: NDArray[np.int64]
    owners: tuple[str, ...]
    moments: Moments
    shape: DayShape


def pool_of(path: Path | None, profile: Floats) -> Pool:
    """Return the days of as many owners as the profile (N, 24) has subscribers; raises BadInput.

    Those with the most days are taken, and given to the subscribers in the order of their mean usage. Days stay
    whole, so the hours of a day are those of one VM.
    """
    if path is None:
        raise BadInput("usage", "bootstrap", "name the file: bootstrap:FILE.parquet")
    owner, days = _read(path)
    known = ~np.isnan(days).any(axis=1)
    owner, days = owner[known], days[known]
    names, counts = np.unique(owner, return_counts=True)
    subscribers = len(profile)
    if len(names) < subscribers:
        raise BadInput("usage", str(path), f"there are {len(names)} owners with whole days, {subscribers} are needed")
    most = names[np.lexsort((names, -counts))][:subscribers]
    by_level = sorted(most, key=lambda name: float(days[owner == name].mean()))
    named = [""] * subscribers
    for name, n in zip(by_level, np.argsort(profile.mean(axis=1), kind="stable").tolist(), strict=True):
        named[n] = str(name)
    parts = [days[owner == name] for name in named]
    centred = [part - part.mean(axis=0) for part in parts]
    moments = Moments(
        *(
            np.array([function(part, apart) for part, apart in zip(parts, centred, strict=True)])
            for function in (
                lambda part, _: part.mean(axis=0),
                lambda _, apart: (apart**2).mean(axis=0),
                lambda _, apart: (apart**3).mean(axis=0),
            )
        )
    )
    first = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
    whole = np.ascontiguousarray(np.concatenate(parts))
    return Pool(whole, first, tuple(named), moments, day_shape(*moments, parts))


def _read(path: Path) -> tuple[NDArray[Any], Floats]:
    """Return owners (D,) and hourly usage (D, 24) of a file's VM-days, nan where an hour is missing."""
    columns = _columns(path)
    samples = [f"s{i:03}" for i in range(SAMPLES_PER_DAY)]
    owner = columns.get("slice", columns.get("owner"))
    if owner is not None and all(name in columns for name in samples):
        table = np.stack([_numbers(path, name, columns) for name in samples], axis=1)
        return owner.astype(str), np.clip(table.reshape(-1, HOURS_PER_DAY, 12).mean(axis=2) / 100.0, 0.0, 1.0)
    if all(name in columns for name in ("vm_id", "timestamp", "avg_c")):
        return _from_readings(path, columns)
    raise BadInput("usage", str(path), "give columns slice, s000 to s287, or vm_id, timestamp, avg_c")


def _from_readings(path: Path, columns: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], Floats]:
    _, first, vm = np.unique(columns["vm_id"].astype(str), return_index=True, return_inverse=True)
    owner = columns.get("owner", columns["vm_id"]).astype(str)[first]
    at = _seconds(path, vm, _numbers(path, "timestamp", columns))
    share = np.clip(_numbers(path, "avg_c", columns) / 10_000.0, 0.0, 1.0)
    hour = ((at - at.min()) // HOUR_S).astype(np.int64)
    # Only days with a reading have a row: memory is bounded by the file, whatever times it has.
    most = int(hour.max()) // HOURS_PER_DAY + 1
    days, day = np.unique(vm * most + hour // HOURS_PER_DAY, return_inverse=True)
    slots = day * HOURS_PER_DAY + hour % HOURS_PER_DAY
    counts = np.bincount(slots, minlength=len(days) * HOURS_PER_DAY)
    sums = np.bincount(slots, weights=share, minlength=len(counts))
    hourly = np.where(counts >= FEWEST_SAMPLES, sums / np.maximum(counts, 1), np.nan).reshape(-1, HOURS_PER_DAY)
    return owner[days // most], hourly


def _seconds(path: Path, vm: Ints, at: Floats) -> Floats:
    """Return the times of readings, or raise BadInput where they cannot be seconds: no hour would have its samples."""
    if not (np.abs(at) < _LATEST_S).all():
        value = at[~(np.abs(at) < _LATEST_S)][0]
        raise BadInput("usage", str(path), f"timestamp has {value:.0f}: give seconds, not milliseconds")
    order = np.lexsort((at, vm))
    steps = np.diff(at[order])[np.diff(vm[order]) == 0]
    steps = steps[steps > 0.0]
    if steps.size and steps.min() > _LONGEST_STEP_S:
        remedy = f"readings of a VM are {steps.min():.0f} apart: give timestamps in seconds, not milliseconds, "
        raise BadInput("usage", str(path), remedy + f"and readings at most {_LONGEST_STEP_S:.0f} s apart")
    return at


def _numbers(path: Path, name: str, columns: dict[str, NDArray[Any]]) -> Floats:
    """Return a column as float64; BadInput names the first value that is no number."""
    column = columns[name]
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        value = next(one for one in column.tolist() if not _is_number(one))
        raise BadInput("usage", str(path), f"{name} has {value!r}: give a number in each row") from None


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            found = {name: table[name].to_numpy() for name in table.column_names}
        else:
            text = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")
            found = {name: np.atleast_1d(text[name]) for name in text.dtype.names or ()}
    except (OSError, ValueError) as error:
        raise BadInput("usage", str(path), f"give a .parquet or .csv that can be read: {error}") from None
    if not all(column.size for column in found.values()):
        raise BadInput("usage", str(path), "it has no row: give readings or VM-days")
    return found


any_hot = compiled(_any_hot)

NEGLIGIBLE = 1e-9
"""A day whose likeliest hour is below this counts as cool."""
MOST_ALIKE = 0.98
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_ROOT_2, _ROOT_2_PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


class DayShape(NamedTuple):
    """The VM-days of each subscriber, beside their moments. fourth: cumulant by hour of day, (N, 24).

    alike: mean correlation between two hours of one day, (N,).
    """

    mean: Floats
    variance: Floats
    third: Floats
    fourth: Floats
    alike: Floats


def day_shape(mean: Floats, variance: Floats, third: Floats, days: list[Floats]) -> DayShape:
    """Return the shape of each subscriber's VM-days, (D, 24) each, whose first three moments are known."""
    fourth = np.zeros_like(mean)
    alike = np.zeros(len(days))
    for n, part in enumerate(days):
        apart = part - part.mean(axis=0)
        fourth[n] = (apart**4).mean(axis=0) - 3.0 * variance[n] ** 2
        moving = variance[n] > 1e-18
        count = int(moving.sum())
        if count > 1:
            scaled = apart[:, moving] / np.sqrt(variance[n, moving])
            # Sums over all pairs of hours, each hour with itself left out.
            alike[n] = (float((scaled.sum(axis=1) ** 2).mean()) - count) / (count * (count - 1))
    return DayShape(mean, variance, third, fourth, np.clip(alike, 0.0, MOST_ALIKE))


@compiled
def _tail(z: float, skewness: float, kurtosis: float) -> float:
    """Return the chance to lie z standard deviations or more above the mean, to the second order (Edgeworth)."""
    if z > 38.0:
        return 0.0
    density = math.exp(-0.5 * z * z) / _ROOT_2_PI
    square = z * z
    corrected = skewness / 6.0 * (square - 1.0) + kurtosis / 24.0 * z * (square - 3.0)
    corrected += skewness * skewness / 72.0 * z * (square * square - 10.0 * square + 15.0)
    return min(max(0.5 * math.erfc(z / _ROOT_2) + density * corrected, 0.0), 1.0)


@compiled
def _threshold(chance: float) -> float:
    """Return the place beyond which a standard normal lies with this chance."""
    low, high = -8.0, 8.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        if 0.5 * math.erfc(middle / _ROOT_2) > chance:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@compiled
def _loads(
    machine: Ints, subscriber: Ints, cores: Floats, arrival: Ints, departure: Ints, shape: DayShape, loads: Floats
) -> None:
    """Add up what machines hold: by hour mean, variance, third and fourth cumulant, and variance times likeness."""
    hours = loads.shape[1]
    for i in range(machine.size):
        k, n, c = machine[i], subscriber[i], cores[i]
        if k < 0:
            continue
        for t in range(max(arrival[i], 0), min(departure[i], hours)):
            hour = t % HOURS_PER_DAY
            variance = c * c * shape.variance[n, hour]
            loads[k, t, 0] += c * shape.mean[n, hour]
            loads[k, t, 1] += variance
            loads[k, t, 2] += c * c * c * shape.third[n, hour]
            loads[k, t, 3] += c * c * c * c * shape.fourth[n, hour]
            loads[k, t, 4] += variance * shape.alike[n]


@compiled
def _add_day(chances: Floats, alike: float, nodes: Floats, weights: Floats, counts: Floats) -> None:
    """Fold a machine's day into the chances of so many hot hours; the last is for that many and more."""
    most = counts.size - 1
    day = np.zeros(most + 1)
    own, rest = math.sqrt(alike), math.sqrt(1.0 - alike)
    limits = np.array([_threshold(p) for p in chances])
    given = np.zeros(most + 1)
    for i in range(nodes.size):
        given[:] = 0.0
        given[0] = 1.0
        for limit in limits:
            p = 0.5 * math.erfc((limit - own * nodes[i]) / rest / _ROOT_2)
            given[most] += given[most - 1] * p
            for j in range(most - 1, 0, -1):
                given[j] = given[j] * (1.0 - p) + given[j - 1] * p
            given[0] *= 1.0 - p
        day += weights[i] * given
    before = counts.copy()
    counts[:] = 0.0
    for i in range(most + 1):
        for j in range(most + 1):
            counts[min(i + j, most)] += before[i] * day[j]


@compiled
def _chance(loads: Floats, threshold: float, limit: int, nodes: Floats, weights: Floats, by_machine: Floats) -> float:
    machines, hours = loads.shape[0], loads.shape[1]
    for k in range(machines):
        for t in range(hours):
            mean, variance = loads[k, t, 0], loads[k, t, 1]
            if variance <= 1e-30:
                by_machine[t, k] = 1.0 if mean >= threshold else 0.0
                continue
            sigma = math.sqrt(variance)
            skewness, kurtosis = loads[k, t, 2] / (variance * sigma), loads[k, t, 3] / (variance * variance)
            by_machine[t, k] = _tail((threshold - mean) / sigma, skewness, kurtosis)
    counts = np.zeros(limit + 1)
    counts[0] = 1.0
    scale = np.ones(hours)
    for t in range(hours):
        total = by_machine[t].sum()
        if total > 0.0:
            scale[t] = any_hot(by_machine[t]) / total
    for start in range(0, hours, HOURS_PER_DAY):
        end = min(start + HOURS_PER_DAY, hours)
        for k in range(machines):
            chances = by_machine[start:end, k] * scale[start:end]
            if chances.max() < NEGLIGIBLE:
                continue
            weight = (chances * loads[k, start:end, 1]).sum()
            alike = (chances * loads[k, start:end, 4]).sum() / weight if weight > 0.0 else 0.0
            _add_day(chances, min(alike, MOST_ALIKE), nodes, weights, counts)
    return float(counts[limit])


def correlated_risk(
    machine: Ints,
    vms: tuple[Ints, Floats, Ints, Ints],
    shape: DayShape,
    threshold: float,
    limit: int,
    by_machine: Floats,
) -> float:
    """Return the chance of `limit` hot hours in a week, and fill in each machine's by hour, (hours, machines).

    machine: of each VM, negative for none; vms: their subscribers, cores, arrivals and departures.
    """
    loads = np.zeros((by_machine.shape[1], by_machine.shape[0], 5))
    _loads(machine, *vms, shape, loads)
    return float(_chance(loads, threshold, limit, _NODES, _WEIGHTS, by_machine))
