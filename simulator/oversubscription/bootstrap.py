"""Measured VM-days by owner, from a file of yours: PlanetLab's five-minute table or Azure's readings.

A .parquet or .csv with one row per VM-day (`slice` or `owner`, then `s000` to `s287`, percent of the VM's CPU), or with
one row per reading (`vm_id`, `timestamp` in seconds, `avg_c` in hundredths of a percent, `owner`; without the
last every VM is its own).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.usage import HOURS, Moments
from simulator.oversubscription.bunching import DayShape, day_shape

Floats = NDArray[np.float64]

SAMPLES_PER_DAY = 288
FEWEST_SAMPLES = 6
"""An hour with fewer of its twelve samples is missing, and its day is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """VM-days of the owners that stand in for the subscribers, and their moments by hour of day."""

    days: Floats
    first: NDArray[np.int64]
    owners: tuple[str, ...]
    moments: Moments
    shape: DayShape


def pool_of(path: Path | None, profile: Floats) -> Pool:
    """Return the days of as many owners as the profile (N, 24) has subscribers; raises BadInput.

    Those with the most days are taken, and given to the subscribers in the order of their mean usage. Whole days are
    kept, so a VM's usage hangs together within a day.
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
        table = np.stack([np.asarray(columns[name], dtype=np.float64) for name in samples], axis=1)
        return np.asarray(owner).astype(str), np.clip(table.reshape(-1, HOURS, 12).mean(axis=2) / 100.0, 0.0, 1.0)
    if all(name in columns for name in ("vm_id", "timestamp", "avg_c")):
        return _from_readings(columns)
    raise BadInput("usage", str(path), "give columns slice, s000 to s287, or vm_id, timestamp, avg_c")


def _from_readings(columns: dict[str, Any]) -> tuple[NDArray[Any], Floats]:
    vm = np.asarray(columns["vm_id"]).astype(str)
    owner = np.asarray(columns.get("owner", vm)).astype(str)
    hour = np.asarray(columns["timestamp"], dtype=np.float64).astype(np.int64) // 3600
    share = np.clip(np.asarray(columns["avg_c"], dtype=np.float64) / 10_000.0, 0.0, 1.0)
    names, which = np.unique(vm, return_inverse=True)
    last = int(hour.max()) // HOURS + 1
    slots = which * last * HOURS + hour
    counts = np.bincount(slots, minlength=len(names) * last * HOURS)
    sums = np.bincount(slots, weights=share, minlength=len(counts))
    hourly = np.where(counts >= FEWEST_SAMPLES, sums / np.maximum(counts, 1), np.nan).reshape(-1, HOURS)
    owners = dict(zip(vm.tolist(), owner.tolist(), strict=True))
    return np.repeat(np.array([owners[name] for name in names.tolist()]), last), hourly


def _columns(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            return {name: table[name].to_numpy() for name in table.column_names}
        text = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")
        return {name: text[name] for name in text.dtype.names or ()}
    except (OSError, ValueError) as error:
        raise BadInput("usage", str(path), f"give a .parquet or .csv that can be read: {error}") from None
