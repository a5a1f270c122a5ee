"""Runs of rules on clusters: the cells to compare, the folder that keeps their figures, and playing what is missing.

Missing runs are played here, in several processes, or on a Ray cluster; each piece is kept at once.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from simulator.admission import Outcome, cluster_of, draw_run, play, rule_of
from simulator.admission.arrivals import HOURS_PER_RUN
from trainer.kit.files import code_version, replace_file
from trainer.kit.jobs import HERE, Pool, Workers

SOURCES = ("domain/rules/admission", "simulator/admission")
"""Folders whose code decides what a run comes to."""
TUNING_SEED = 500_000
"""Thresholds are tuned on the seeds from here on, and compared on those from 0 on."""
MOST_RUNS = 100_000
LABELS = ("", "labelled", "unlabelled")


@dataclass(frozen=True, slots=True)
class Cell:
    """One rule on one cluster; with a seed it is one run (admission specification §7)."""

    preset: str
    """T, H, K or a file, as `simulator.admission.cluster_of` takes it."""
    policy: str
    """As `simulator.admission.rule_of` takes it."""
    observations: int = 0
    labels: str = ""
    """labelled or unlabelled: each user owns two types, and the one that comes is named, or not (§8)."""
    hours: float = HOURS_PER_RUN

    def __post_init__(self) -> None:
        if self.labels not in LABELS:
            raise BadInput("labels", self.labels, "give labelled, unlabelled, or nothing")
        rule_of(self.policy)

    @property
    def name(self) -> str:
        """The cell in words."""
        known = f"{self.observations} obs"
        return f"{self.preset} {self.policy}, {known}{f' {self.labels}' if self.labels else ''}"

    @property
    def key(self) -> str:
        """Return 12 hex digits that tell it from other cells of the same configuration."""
        return digest_of(asdict(self))

    @property
    def policy_hash(self) -> str:
        """Return 8 hex digits of the rule with every setting that it left unsaid."""
        return digest_of(asdict(rule_of(self.policy)))[:8]


def digest_of(data: Any) -> str:
    """Return 12 hex digits of plain data, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode("utf-8")).hexdigest()[:12]


def configuration_of(presets: Sequence[str], hours: float) -> dict[str, Any]:
    """Return what all runs of a folder have in common, as plain data: length, code, and each cluster by its name."""
    clusters = {preset: json.loads(json.dumps(asdict(cluster_of(preset)))) for preset in presets}
    return {"hours": hours, "code": code_version(SOURCES), "clusters": clusters}


def tuning_seeds(runs: int) -> range:
    """Return so many seeds to tune on; raises BadInput above MOST_RUNS."""
    return range(TUNING_SEED, TUNING_SEED + _checked(runs))


def comparison_seeds(runs: int) -> range:
    """Return so many seeds to compare on, none of them a tuning seed; raises BadInput above MOST_RUNS."""
    return range(_checked(runs))


def _checked(runs: int) -> int:
    if not 1 <= runs <= MOST_RUNS:
        raise BadInput("runs", runs, f"give a number from 1 to {MOST_RUNS}")
    return runs


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

    def __len__(self) -> int:
        return len(self.seed)

    @classmethod
    def of(cls, seeds: Sequence[int], outcomes: Sequence[Outcome]) -> Self:
        """Put outcomes side by side, each with the seed that it came from."""
        names = [field.name for field in fields(cls) if field.name != "seed"]
        columns = {name: [getattr(outcome, name) for outcome in outcomes] for name in names}
        return cls.from_data({"seed": np.asarray(seeds, dtype=np.int64), **columns})

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
        replace_file(file, json.dumps(self.configuration, indent=2, sort_keys=True) + "\n")

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
            content = io.BytesIO()
            columns: dict[str, Any] = {"cell": np.array(json.dumps(asdict(cell))), **joined.as_data()}
            np.savez_compressed(content, **columns)
            replace_file(self._file(cell), content.getvalue())

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


PIECE = 5
"""Runs of one piece: seconds, so that little is lost when a call is ended."""

OnRuns = Callable[[Cell, int], None]
"""Called with a cell and how many more of its runs are finished."""


Piece = tuple[Cell, list[int]]
"""A cell and some of its seeds."""


def runs_of(cell: Cell, seeds: Sequence[int]) -> Runs:
    """Play one cell on these seeds (admission specification §2)."""
    cluster, rule = cluster_of(cell.preset), rule_of(cell.policy)
    more: dict[str, Any] = {"labels": cell.labels} if cell.labels else {}
    outcomes = [
        play(draw_run(cluster, seed, observations=cell.observations, hours=cell.hours, **more), rule) for seed in seeds
    ]
    return Runs.of(seeds, outcomes)


def pieces_of(store: Store, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Piece]:
    """Return what is to be done, the first seeds of all cells before later ones: cells stay comparable on the way."""
    missing = {cell: set(store.missing(cell, seeds)) for cell in cells}
    parts = [seeds[start : start + PIECE] for start in range(0, len(seeds), PIECE)]
    pieces = [(cell, [seed for seed in part if seed in missing[cell]]) for part in parts for cell in missing]
    return [piece for piece in pieces if piece[1]]


def _play(piece: Piece) -> Runs:
    return runs_of(*piece)


SECONDS = {"zeroth": 0.12, "first": 2.0}
FULL_MOMENTS = 5.0
SECONDS_FORECAST = ((0, 2.5), (1, 5.0))
"""Rough CPU seconds of a three-year run on preset K, by the least prior observations; FULL_MOMENTS as often."""


def _weight(piece: Piece) -> float:
    """Return about how long a piece takes compared with another one."""
    cell, seeds = piece
    known = SECONDS.get(cell.policy.partition(":")[0])
    if known is None or (cell.observations and known > SECONDS["zeroth"]):
        known = next(s for least, s in reversed(SECONDS_FORECAST) if cell.observations >= least)
    return known * (FULL_MOMENTS if ",moments=ab," in f"{cell.policy}," else 1.0) * cell.hours * len(seeds)


def run_cells(
    store: Store,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    workers: Workers = HERE,
    on_runs: OnRuns = lambda cell, runs: None,
) -> dict[Cell, Runs]:
    """Return the runs of every cell on exactly these seeds; those that the store has are not played again.

    Raises trainer.kit.jobs.WorkerLost; the store keeps the runs finished before.
    """
    pieces = pieces_of(store, cells, seeds)
    if not (pieces or workers.plan):
        workers = HERE

    def name(piece: Piece) -> str:
        return f"{piece[0].name}, seeds {piece[1]}"

    with Pool(_play, workers, name=name, weight=_weight) as pool:
        for at, found in pool.completed(pieces):
            cell, played = pieces[at]
            store.add(cell, found)
            on_runs(cell, len(played))
    done: dict[Cell, Runs] = {}
    for cell in cells:
        runs = store.runs(cell)
        assert runs is not None
        done[cell] = runs.of_seeds(seeds)
    return done
