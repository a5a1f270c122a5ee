"""Whether drawing bad runs more often pays: a pilot, then weighted runs beside plain ones (§6.1, §13.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulator.admission import cluster_of, draw_run
from trainer.admission.bootstrap import Floats
from trainer.admission.campaign import Crew, Told, run_cells
from trainer.admission.cells import TUNING_SEED, Cell, comparison_seeds
from trainer.admission.importance import (
    Drawn,
    Mean,
    Scheme,
    badness,
    best_worth,
    buckets_of,
    draw_weighted,
    effective_size,
    failed_share,
    scheme_of,
    weighted_mean,
    worth,
)
from trainer.admission.table import Runs, Store

PILOT_SEED = 2 * TUNING_SEED
WEIGHTED_SEED = 10_000_000
"""Neither the pilot nor weighted runs share seeds with tuning or comparisons."""
ASKED = 3.0
"""Weighted runs have to be worth so many plain ones to be used (§13.5)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure estimated from plain and from weighted runs."""

    name: str
    plain: Mean
    weighted: Mean

    @property
    def errors_apart(self) -> float:
        """The difference in joint standard errors."""
        joint = float(np.hypot(self.plain.error, self.weighted.error))
        return abs(self.plain.value - self.weighted.value) / joint if joint > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Study:
    """What came of it."""

    cell: Cell
    scheme: Scheme
    squares: tuple[float, ...]
    """Mean square of the failure rate in each bucket of the pilot."""
    pilot: tuple[int, ...]
    """Runs of the pilot in each bucket."""
    expected_worth: float
    """Plain runs that one weighted run is worth, from the pilot."""
    runs: int
    pairs: tuple[Pair, ...]
    mean_weight: Mean
    effective_size: float
    worth: float
    """The same from the runs themselves."""
    draws_per_run: float

    @property
    def pays(self) -> bool:
        """Whether weighted runs are worth ASKED plain ones."""
        return self.worth >= ASKED

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        apart = {pair.name: pair.errors_apart for pair in self.pairs}
        drawn, weights = self.scheme.drawn, self.scheme.weights
        return {**asdict(self), "errors_apart": apart, "drawn": drawn, "weights": weights, "pays": self.pays}


def study(
    store: Store,
    cell: Cell,
    *,
    runs: int,
    draws: int,
    pilot: int,
    crew: Crew | None = None,
    told: Told = lambda cell, runs: None,
    looked: Callable[[int], None] = lambda draws: None,
) -> Study:
    """Compare so many weighted runs with as many plain ones.

    draws: seeds whose badness gives the cuts, 20,000 in the specification. pilot: runs per bucket, at most, that say
    how failures vary in it. `looked` hears of every badness worked out.
    """
    cluster = cluster_of(cell.preset)

    def badness_of(seed: int) -> float:
        looked(1)
        return badness(draw_run(cluster, seed, hours=cell.hours))

    seeds = range(PILOT_SEED, PILOT_SEED + draws)
    values = np.array([badness_of(seed) for seed in seeds])
    plainly = scheme_of(values)
    place = buckets_of(values, plainly.cuts)
    chosen = [[seed for seed, b in zip(seeds, place, strict=True) if b == bucket][:pilot] for bucket in range(3)]
    tried = run_cells(store, [cell], [seed for part in chosen for seed in part], crew, told)[cell]
    squares = tuple(float((failed_share(tried.of_seeds(part)) ** 2).mean()) for part in chosen)
    scheme = scheme_of(values, squares)
    p = scheme.probabilities
    mean = float(sum(x * failed_share(tried.of_seeds(part)).mean() for x, part in zip(p, chosen, strict=True)))
    generator = np.random.default_rng(WEIGHTED_SEED)
    drawn = list(draw_weighted(scheme, runs, WEIGHTED_SEED, badness_of, generator))
    weighted = _weighted(run_cells(store, [cell], [one.seed for one in drawn], crew, told)[cell], drawn)
    plain = run_cells(store, [cell], comparison_seeds(runs), crew, told)[cell]
    return Study(
        cell,
        scheme,
        squares,
        tuple(map(len, chosen)),
        best_worth(p, scheme.drawn, squares, mean),
        runs,
        tuple(_pair(name, plain, weighted) for name in ("utilisation", "failures", "requests", "failed_share")),
        weighted_mean(weighted.weight, np.ones(runs)),
        effective_size(weighted.weight),
        worth(failed_share(plain), failed_share(weighted), weighted.weight),
        sum(one.looked_at for one in drawn) / runs,
    )


def _weighted(runs: Runs, drawn: list[Drawn]) -> Runs:
    return runs.weighted({one.seed: one.bucket for one in drawn}, {one.seed: one.weight for one in drawn})


def _pair(name: str, plain: Runs, weighted: Runs) -> Pair:
    def values(runs: Runs) -> Floats:
        if name == "failed_share":
            return failed_share(runs)
        column = runs.utilisation if name == "utilisation" else getattr(runs, name).sum(axis=1)
        return np.asarray(column, dtype=np.float64)

    ones = np.ones(len(plain))
    return Pair(name, weighted_mean(values(plain), ones), weighted_mean(values(weighted), weighted.weight))
