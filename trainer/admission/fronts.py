"""Figures of the runs of rules: utilisation, failures by both metrics, fronts, and gains at equal risk (§1, §13.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from trainer.admission.table import Cell, Runs
from trainer.kit.intervals import Estimate, Floats, bootstrap

FLOOR = 1e-6
"""Shares of failures below it count as this much where fronts are read between two thresholds, in the log."""
FEWEST_FAILING = 10
"""With fewer runs that fail near a level of risk, a comparison at that level is not resolved (§13.4 d)."""
COLUMNS = 6


class Metric(StrEnum):
    """How a failure rate is taken over runs (admission specification §1)."""

    PRIMARY = "primary"
    """Mean over all months of all runs, of the share of that month's requests that failed."""
    POOLED = "pooled"
    """All failures over all requests."""


def rows_of(runs: Runs) -> Floats:
    """Return (runs, COLUMNS): utilisation, sum of the months' shares, months, failures, requests, 1."""
    known = runs.requests > 0
    shares = np.where(known, runs.failures / np.maximum(runs.requests, 1), 0.0)
    columns = (
        runs.utilisation,
        shares.sum(axis=1),
        known.sum(axis=1),
        runs.failures.sum(axis=1),
        runs.requests.sum(axis=1),
        np.ones(len(runs)),
    )
    return np.column_stack(columns).astype(np.float64)


def utilisation(means: Floats) -> Floats:
    """Return mean utilisation from means of columns, last axis COLUMNS."""
    return np.asarray(means[..., 0] / means[..., 5])


def failures(means: Floats, metric: Metric) -> Floats:
    """Return the failure rate from means of columns, last axis COLUMNS; 0 without requests."""
    above, below = (means[..., 1], means[..., 2]) if metric is Metric.PRIMARY else (means[..., 3], means[..., 4])
    return np.asarray(np.where(below > 0.0, above / np.where(below > 0.0, below, 1.0), 0.0))


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell's figures with 95 % intervals over its runs."""

    cell: Cell
    utilisation: Estimate
    primary: Estimate
    pooled: Estimate
    failing_runs: int
    largest_share: float
    """Share of all failures that the worst run carries, nan without failures."""
    first_seed: int
    last_seed: int

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.utilisation.runs


def result_of(cell: Cell, runs: Runs, *, level: float = 0.95) -> CellResult:
    """Return the figures of a cell."""
    rows = rows_of(runs)
    by_run = runs.failures.sum(axis=1)
    return CellResult(
        cell,
        bootstrap(rows, utilisation, level=level),
        bootstrap(rows, lambda means: failures(means, Metric.PRIMARY), level=level),
        bootstrap(rows, lambda means: failures(means, Metric.POOLED), level=level),
        int((by_run > 0).sum()),
        float(by_run.max() / by_run.sum()) if by_run.sum() else float("nan"),
        int(runs.seed.min()),
        int(runs.seed.max()),
    )


@dataclass(frozen=True, slots=True)
class Front:
    """A rule's cells, strict to permissive, on the same runs: rows (runs, cells, COLUMNS)."""

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    rows: Floats

    def points(self, metric: Metric) -> tuple[Floats, Floats]:
        """Return utilisation and failure rate by cell."""
        means = self.rows.mean(axis=0)
        return utilisation(means), failures(means, metric)

    def failing(self, place: int) -> int:
        """Return how many runs have a failure in a cell."""
        return int((self.rows[:, place, 3] > 0).sum())


def front_of(cells: Sequence[Cell], runs: Mapping[Cell, Runs]) -> Front:
    """Put a ladder's runs side by side; raises BadInput unless all cells have the same seeds in the same order."""
    seeds = tuple(runs[cells[0]].seed.tolist())
    for cell in cells:
        if tuple(runs[cell].seed.tolist()) != seeds:
            raise BadInput("seeds", cell.name, "compare rules on the same seeds only")
    return Front(tuple(cells), seeds, np.stack([rows_of(runs[cell]) for cell in cells], axis=1))


def utilisation_at(taken: Floats, failed: Floats, sla: float) -> Floats:
    """Return the utilisation at which each front reaches the failure rate `sla`; (fronts, cells) each, strict first.

    Between two cells the logarithm of the rate (of FLOOR at least) is taken to be linear in utilisation. A rate that
    falls with permissiveness is replaced by the highest so far. nan where all cells keep the level or none does.
    """
    rates = np.maximum.accumulate(np.maximum(failed, FLOOR), axis=-1)
    return _between(np.log(rates), taken, np.log(sla), (rates <= sla).sum(axis=-1))


def failures_at(taken: Floats, failed: Floats, wanted: Floats) -> Floats:
    """Return the failure rate at which each front has a utilisation; nan outside of the front. See utilisation_at."""
    rates = np.log(np.maximum.accumulate(np.maximum(failed, FLOOR), axis=-1))
    rising = np.maximum.accumulate(taken, axis=-1)
    return np.exp(_between(rising, rates, wanted, (rising < wanted[:, None]).sum(axis=-1)))


def _between(x: Floats, y: Floats, wanted: Floats | float, place: NDArray[np.int64]) -> Floats:
    """Return y where each front's x (fronts, cells) is as wanted, linear between the cell before `place` and it."""
    inside = (place > 0) & (place < x.shape[-1])
    upper = np.where(inside, place, 1)[:, None]
    low, high, y_low, y_high = (np.take_along_axis(of, at, -1)[:, 0] for of in (x, y) for at in (upper - 1, upper))
    part = (wanted - low) / np.where(high > low, high - low, 1.0)
    return np.asarray(np.where(inside, y_low + part * (y_high - y_low), np.nan))


def reach(front: Front, metric: Metric, sla: float) -> Estimate:
    """Return the utilisation at which a rule reaches a failure rate, with its interval."""

    def at(means: Floats) -> Floats:
        folded = means.reshape(len(means), -1, COLUMNS)
        return utilisation_at(utilisation(folded), failures(folded, metric), sla)

    return bootstrap(front.rows.reshape(len(front.seeds), -1), at)


@dataclass(frozen=True, slots=True)
class Gain:
    """Challenger minus base in utilisation at one failure rate, on the same runs."""

    metric: Metric
    sla: float
    challenger: float
    """Utilisation of the challenger there."""
    base: float
    difference: Estimate
    failing_runs: int
    """Runs that fail at the first threshold beyond the level, the fewer of both rules."""

    @property
    def resolved(self) -> bool:
        """Whether enough runs fail for an interval to mean something."""
        return self.failing_runs >= FEWEST_FAILING


def gain(challenger: Front, base: Front, metric: Metric, sla: float) -> Gain:
    """Compare two rules at an equal failure rate; raises BadInput when their seeds differ."""
    split, rows = _side_by_side(challenger, base)

    def both(means: Floats) -> tuple[Floats, Floats]:
        ours, theirs = (
            utilisation_at(utilisation(front), failures(front, metric), sla) for front in _folded(means, split)
        )
        return ours, theirs

    def difference(means: Floats) -> Floats:
        ours, theirs = both(means)
        return ours - theirs

    ours, theirs = both(rows.mean(axis=0)[None, :])
    return Gain(
        metric,
        sla,
        float(ours[0]),
        float(theirs[0]),
        bootstrap(rows, difference),
        min(_failing_beyond(front, metric, sla) for front in (challenger, base)),
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """The challenger's failures over the base's at the utilisation of one of the challenger's cells."""

    metric: Metric
    cell: Cell
    utilisation: float
    challenger: float
    """Failure rate of the challenger there."""
    ratio: Estimate
    failing_runs: int
    """Runs in which the challenger fails there."""


def failure_ratio(challenger: Front, place: int, base: Front, metric: Metric) -> Ratio:
    """Compare failures at equal utilisation, that of the challenger's cell at `place`."""
    split, rows = _side_by_side(challenger, base)

    def ratio(means: Floats) -> Floats:
        ours, theirs = _folded(means, split)
        point = ours[:, place]
        return failures(point, metric) / failures_at(utilisation(theirs), failures(theirs, metric), utilisation(point))

    taken, failed = challenger.points(metric)
    return Ratio(
        metric,
        challenger.cells[place],
        float(taken[place]),
        float(failed[place]),
        bootstrap(rows, ratio),
        challenger.failing(place),
    )


def share_of_bound(front: Front, bound: Front, metric: Metric, sla: float) -> Estimate:
    """Return the utilisation at a failure rate as a share of that of the bound's last cell, which promises nothing."""
    split, rows = _side_by_side(front, bound)

    def share(means: Floats) -> Floats:
        ours, theirs = _folded(means, split)
        return utilisation_at(utilisation(ours), failures(ours, metric), sla) / utilisation(theirs[:, -1])

    return bootstrap(rows, share)


def nearest_place(front: Front, metric: Metric, sla: float) -> int:
    """Return the most permissive cell that keeps the level and has failures, else the first with failures, else 0."""
    _, failed = front.points(metric)
    kept = [place for place, rate in enumerate(failed) if 0.0 < rate <= sla]
    some = [place for place, rate in enumerate(failed) if rate > 0.0]
    return kept[-1] if kept else (some[0] if some else 0)


def _failing_beyond(front: Front, metric: Metric, sla: float) -> int:
    _, failed = front.points(metric)
    over = [place for place, rate in enumerate(failed) if rate > sla]
    return front.failing(over[0] if over else len(failed) - 1)


def _side_by_side(challenger: Front, base: Front) -> tuple[int, Floats]:
    """Return both fronts' columns in one table and how many are the challenger's."""
    if challenger.seeds != base.seeds:
        raise BadInput("seeds", len(challenger.seeds), "compare rules on the same seeds only")
    ours, theirs = (front.rows.reshape(len(front.seeds), -1) for front in (challenger, base))
    return ours.shape[1], np.concatenate([ours, theirs], axis=1)


def _folded(means: Floats, split: int) -> tuple[Floats, Floats]:
    """Return means of columns as (resamples, cells, COLUMNS) of either front."""
    count = len(means)
    return means[:, :split].reshape(count, -1, COLUMNS), means[:, split:].reshape(count, -1, COLUMNS)
