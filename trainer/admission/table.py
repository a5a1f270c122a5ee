"""The figures of many runs of one cell, column by column, and the folder that keeps them between calls."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput
from simulator.admission import Outcome
from trainer.admission.cells import Cell

CONFIGURATION, RUNS = "configuration.json", "runs"
Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one cell, first axis the run (admission specification §7); months of 730 hours on the second axis."""

    seed: Column
    utilisation: Column
    utilisation_by_month: Column
    requests: Column
    failures: Column
    arrivals: Column
    admitted: Column
    unfit: Column
    arrivals_by_class: Column
    admitted_by_class: Column
    peak_cores: Column
    crowded_h: Column
    live: Column
    events: Column
    refreshes: Column
    wall_s: Column
    horizons: Column
    """(runs, horizons), the same in every row."""
    binding: Column
    """(runs, horizons): arrivals that the rule refused, by the horizon that was found to fail."""
    bucket: Column
    """Bucket of importance sampling, -1 for a run that was drawn plainly."""
    weight: Column

    def __len__(self) -> int:
        return len(self.seed)

    @classmethod
    def of(cls, seeds: Sequence[int], outcomes: Sequence[Outcome]) -> Self:
        """Put outcomes side by side, each with the seed that it came from."""
        given: dict[str, ArrayLike] = {
            "seed": np.asarray(seeds, dtype=np.int64),
            "bucket": np.full(len(seeds), -1, dtype=np.int64),
            "weight": np.ones(len(seeds)),
        }
        for field in fields(cls):
            if field.name not in given:
                given[field.name] = [getattr(outcome, field.name) for outcome in outcomes]
        return cls(**{name: np.asarray(column) for name, column in given.items()})

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Build the table from lists or arrays by field."""
        return cls(**{field.name: np.asarray(data[field.name]) for field in fields(cls)})

    def as_data(self) -> dict[str, Column]:
        """Return the columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def where(self, chosen: Column) -> Self:
        """Return some rows: a mask, or places in the order that is wanted."""
        return type(self).from_data({name: column[chosen] for name, column in self.as_data().items()})

    def of_seeds(self, seeds: Iterable[int]) -> Self:
        """Return the rows of these seeds, in their order; KeyError for a seed that is not there."""
        places = {int(seed): place for place, seed in enumerate(self.seed)}
        return self.where(np.array([places[seed] for seed in seeds], dtype=np.int64))

    def weighted(self, buckets: Mapping[int, int], weights: Mapping[int, float]) -> Self:
        """Return the same runs with the bucket and the weight of each seed."""
        seeds = self.seed.tolist()
        columns = self.as_data()
        columns["bucket"] = np.array([buckets[seed] for seed in seeds], dtype=np.int64)
        columns["weight"] = np.array([weights[seed] for seed in seeds])
        return type(self).from_data(columns)

    def joined(self, other: Self) -> Self:
        """Return both tables as one in the order of seeds; a seed in both is taken from this one."""
        fresh = other.where(~np.isin(other.seed, self.seed))
        theirs = fresh.as_data()
        both = type(self).from_data({n: np.concatenate([c, theirs[n]]) for n, c in self.as_data().items()})
        return both.where(np.argsort(both.seed, kind="stable"))


class Store:
    """Runs by cell, in a folder of one .npz file per cell; every call of `add` is on disk when it returns.

    Raises BadInput when the folder holds runs of another configuration, with the differences.
    """

    def __init__(self, folder: Path | None, configuration: Mapping[str, Any]) -> None:
        """Open or make the folder (None: keep runs in memory only)."""
        self._folder = folder
        self._kept: dict[Cell, Runs] = {}
        self.configuration = dict(configuration)
        if folder is None:
            return
        file = folder / CONFIGURATION
        if file.exists():
            self.configuration = _merged(folder, _read_configuration(file), configuration)
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        _write(file, (json.dumps(self.configuration, indent=2, sort_keys=True) + "\n").encode("utf-8"))

    def runs(self, cell: Cell) -> Runs | None:
        """Return what is known of a cell; raises BadInput for a file that cannot be read."""
        if cell in self._kept:
            return self._kept[cell]
        if self._folder is None or not (file := self._file(cell)).exists():
            return None
        try:
            with file.open("rb") as content, np.load(content, allow_pickle=False) as found:
                runs = Runs.from_data(found)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadInput("runs", str(file), f"delete the file, its runs are then played again: {error}") from None
        self._kept[cell] = runs
        return runs

    def missing(self, cell: Cell, seeds: Iterable[int]) -> list[int]:
        """Return the seeds of which nothing is known yet, in their order."""
        runs = self.runs(cell)
        known = set() if runs is None else set(runs.seed.tolist())
        return [seed for seed in seeds if seed not in known]

    def add(self, cell: Cell, runs: Runs) -> None:
        """Keep runs of a cell beside those that are known."""
        known = self.runs(cell)
        joined = runs if known is None else known.joined(runs)
        self._kept[cell] = joined
        if self._folder is not None:
            file = self._file(cell)
            scratch = file.with_suffix(".part.npz")
            with scratch.open("wb") as out:
                columns: dict[str, Any] = {"cell": np.array(json.dumps(asdict(cell))), **joined.as_data()}
                np.savez_compressed(out, **columns)
            os.replace(scratch, file)

    def _file(self, cell: Cell) -> Path:
        assert self._folder is not None
        return self._folder / RUNS / f"{cell.key}.npz"


def _read_configuration(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("folder", str(file), f"give a folder whose {CONFIGURATION} can be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("clusters"), dict):
        raise BadInput("folder", str(file), "give a folder that this command has made, or a new one")
    return found


def _merged(folder: Path, kept: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of both; clusters that only one of them has are no difference."""
    clusters = kept["clusters"]
    shared = {name: cluster for name, cluster in wanted["clusters"].items() if name in clusters}
    before, now = _flat({**kept, "clusters": {name: clusters[name] for name in shared}}), _flat(wanted)
    unknown = {f"clusters.{name}." for name in wanted["clusters"] if name not in clusters}
    now = {name: value for name, value in now.items() if not any(name.startswith(prefix) for prefix in unknown)}
    differences = [
        f"{name} was {before.get(name)}, is {now.get(name)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if differences:
        remedy = f"it holds runs of another configuration ({'; '.join(differences)}); give another folder"
        raise BadInput("folder", str(folder), remedy)
    return {**kept, "clusters": {**clusters, **wanted["clusters"]}}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields under names with dots."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _write(file: Path, content: bytes) -> None:
    """Replace a file as a whole or not at all."""
    scratch = file.with_suffix(".part")
    scratch.write_bytes(content)
    os.replace(scratch, file)
