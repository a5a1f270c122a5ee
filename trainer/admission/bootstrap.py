"""Bias-corrected and accelerated bootstrap of any function of column means, over runs (specification §6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from domain.errors import BadInput

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Column means (resamples, columns) to one number each, nan where it is not defined."""

RESAMPLES = 10_000
LEVEL = 0.95


class Kind(StrEnum):
    """How an interval was made."""

    BCA = "bca"
    PERCENTILE = "percentile"
    """Of those resamples on which the figure is defined: it is not on every one."""
    DEGENERATE = "degenerate"
    """All runs alike."""
    UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval; undefined: share of the resamples on which it has no value."""

    value: float
    low: float
    high: float
    kind: Kind
    undefined: float
    runs: int


def bootstrap(
    rows: Floats,
    statistic: Statistic,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return the statistic of the means of `rows` (runs, columns) with its two-sided interval over resampled runs.

    A run keeps all its columns, so policies that stand side by side are compared on the same runs, and importance
    weights (columns already multiplied by them) stay with their values.
    """
    if rows.ndim != 2 or len(rows) == 0 or not np.isfinite(rows).all():
        raise BadInput("rows", rows.shape, "give at least one run, all figures finite")
    runs = len(rows)
    value = float(statistic(rows.mean(axis=0)[None, :])[0])
    if np.isnan(value):
        return Estimate(value, np.nan, np.nan, Kind.UNDEFINED, 1.0, runs)
    if (rows == rows[0]).all():
        return Estimate(value, value, value, Kind.DEGENERATE, 0.0, runs)
    resampled = statistic(_shares(runs, resamples, seed) @ rows)
    known = resampled[~np.isnan(resampled)]
    undefined = 1.0 - len(known) / resamples
    tails = ((1.0 - level) / 2.0, 1.0 - (1.0 - level) / 2.0)
    jackknife = statistic((rows.sum(axis=0) - rows) / (runs - 1))
    if undefined > 0.0 or np.isnan(jackknife).any():
        if len(known) == 0:
            return Estimate(value, np.nan, np.nan, Kind.UNDEFINED, 1.0, runs)
        low, high = np.quantile(known, tails)
        return Estimate(value, float(low), float(high), Kind.PERCENTILE, undefined, runs)
    low, high = bca_ends(value, resampled, jackknife, tails)
    return Estimate(value, low, high, Kind.BCA, 0.0, runs)


def bca_ends(value: float, resampled: Floats, jackknife: Floats, tails: tuple[float, float]) -> tuple[float, float]:
    """Return the quantiles of the resampled figures at the corrected levels (Efron 1987; specification §6).

    Ties with the estimate count half; without ties that is the share below. With none or all below, it is
    (count + 1/2) / (resamples + 1). jackknife: the figure without each run in turn.
    """
    count, below = len(resampled), float((resampled < value).sum() + 0.5 * (resampled == value).sum())
    share = below / count if 0.0 < below < count else (below + 0.5) / (count + 1.0)
    bias = float(ndtri(share))
    around = jackknife.mean() - jackknife
    spread = float((around**2).sum())
    acceleration = float((around**3).sum()) / (6.0 * spread**1.5) if spread > 0.0 else 0.0
    z = bias + ndtri(np.asarray(tails))
    levels = ndtr(bias + z / (1.0 - acceleration * z))
    low, high = np.quantile(resampled, levels)
    return float(low), float(high)


@lru_cache(maxsize=2)
def _shares(runs: int, resamples: int, seed: int) -> Floats:
    """Return how large a share of each resample every run makes up, (resamples, runs)."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(runs, np.full(runs, 1.0 / runs), size=resamples) / runs
