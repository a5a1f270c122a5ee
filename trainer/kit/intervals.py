"""Bootstrap intervals (Efron 1987): of a mean, of two policies on the same cases, and of any function of column means.

Cases are resampled, not runs: both policies keep their figures of a case together, so what a case has in common for
both (its load, its boot times) cancels. Within a stratum (a trace family) cases are drawn from that stratum alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from domain.errors import BadInput

Floats = NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.95
FEWEST_CASES = 8
"""Of fewer cases there is no verdict: their interval says little of others."""
_BLOCK = 4_000_000
"""Random indices drawn at a time, so that many cases do not need much memory."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bootstrap interval; cases: how many figures it is the mean of."""

    mean: float
    low: float
    high: float
    cases: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy against a reference on the same cases (autoscaler specification §11, §12.4).

    difference: mean of policy - reference. relative: mean of the policy over mean of the reference, minus 1; with
    strata, the mean of that over the strata. probability_lower: share of the resamples in which relative is below 0.
    """

    difference: Interval
    relative: Interval
    probability_lower: float


def mean_interval(values: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the mean of 1-D `values` with its bias-corrected and accelerated bootstrap interval."""
    column = _column("values", values)
    means = _resampled_means(column[:, None], resamples, np.random.default_rng(seed))[:, 0]
    jackknife = (column.sum() - column) / (column.size - 1) if column.size > 1 else column
    return _interval(float(column.mean()), means, jackknife, level, column.size)


def compare(
    policy: ArrayLike,
    reference: ArrayLike,
    strata: Sequence[str] | None = None,
    *,
    clusters: Sequence[str] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare costs case by case; entry i of both belongs to the same case.

    strata: the family of each case; families count alike however many cases they have. clusters: runs of one cluster
    are no independent cases (one trace entered at several moments) and are drawn together, as one case with their mean.
    Raises BadInput when the lengths differ or the reference has no positive mean in some stratum.
    """
    ours, theirs = _column("policy", policy), _column("reference", reference)
    names = np.asarray(list(strata) if strata is not None else [""] * ours.size)
    groups = np.asarray(list(clusters) if clusters is not None else range(ours.size))
    if theirs.size != ours.size or names.size != ours.size or groups.size != ours.size:
        raise BadInput("cases", (ours.size, theirs.size, names.size), "give both policies' figures of the same cases")
    ours, theirs, names = _one_per_cluster(ours, theirs, names, groups)
    rng = np.random.default_rng(seed)
    ratios, ratio_jackknife, ratio = [], [], []
    differences, difference_jackknife, weights = [], [], []
    for name in np.unique(names):
        pairs = np.column_stack([ours, theirs])[names == name]
        if not pairs[:, 1].mean() > 0.0:
            raise BadInput("reference", float(pairs[:, 1].mean()), "a mean of 0 or less has no relative difference")
        means = _resampled_means(pairs, resamples, rng)
        without_one = (pairs.sum(axis=0) - pairs) / (len(pairs) - 1) if len(pairs) > 1 else pairs
        ratio.append(pairs[:, 0].mean() / pairs[:, 1].mean() - 1.0)
        ratios.append(_relative(means))
        ratio_jackknife.append(_relative(without_one))
        differences.append(means[:, 0] - means[:, 1])
        difference_jackknife.append(without_one[:, 0] - without_one[:, 1])
        weights.append(len(pairs) / ours.size)
    relative = float(np.mean(ratio))
    relative_resampled = np.mean(ratios, axis=0)
    return Comparison(
        difference=_interval(
            float((ours - theirs).mean()),
            np.average(differences, axis=0, weights=weights),
            _centred(difference_jackknife, weights),
            level,
            ours.size,
        ),
        relative=_interval(
            relative,
            relative_resampled,
            _centred(ratio_jackknife, [1.0 / len(ratio)] * len(ratio)),
            level,
            ours.size,
        ),
        probability_lower=float((relative_resampled < 0.0).mean()),
    )


def _one_per_cluster(
    ours: Floats, theirs: Floats, names: NDArray[np.str_], groups: NDArray[np.generic]
) -> tuple[Floats, Floats, NDArray[np.str_]]:
    """Return the means of each cluster of each stratum, in the order of first appearance."""
    places: dict[tuple[str, object], list[int]] = {}
    for place, key in enumerate(zip(names.tolist(), groups.tolist(), strict=True)):
        places.setdefault(key, []).append(place)
    return (
        np.array([ours[p].mean() for p in places.values()]),
        np.array([theirs[p].mean() for p in places.values()]),
        np.array([name for name, _ in places]),
    )


def _relative(means: Floats) -> Floats:
    """Return first over second column, minus 1; a reference that drew only zeros says nothing."""
    safe = np.where(means[:, 1] > 0.0, means[:, 1], 1.0)
    return np.asarray(np.where(means[:, 1] > 0.0, means[:, 0] / safe - 1.0, 0.0), dtype=np.float64)


def _column(name: str, values: ArrayLike) -> Floats:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or column.size == 0 or not np.isfinite(column).all():
        raise BadInput(name, column.tolist(), "give one finite number per case, at least one")
    return column


def _resampled_means(rows: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Return the column means of `resamples` draws of as many rows with replacement, shape (resamples, columns)."""
    cases = len(rows)
    block = max(1, _BLOCK // cases)
    drawn = []
    for start in range(0, resamples, block):
        picks = rng.integers(0, cases, size=(min(block, resamples - start), cases))
        drawn.append(rows[picks].mean(axis=1))
    return np.concatenate(drawn)


def _centred(per_stratum: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Return the influence of leaving out each case, over all strata, around its stratum's mean."""
    return np.concatenate([w * (values - values.mean()) for values, w in zip(per_stratum, weights, strict=True)])


def _interval(estimate: float, resampled: Floats, jackknife: Floats, level: float, cases: int) -> Interval:
    """Return the BCa interval; that of percentiles where all cases are alike or no resample is beyond the estimate."""
    tails = ((1.0 - level) / 2.0, 1.0 - (1.0 - level) / 2.0)
    below = float((resampled < estimate).mean() + 0.5 * (resampled == estimate).mean())
    if float(((jackknife.mean() - jackknife) ** 2).sum()) == 0.0 or not 0.0 < below < 1.0:
        low, high = np.quantile(resampled, tails)
        return Interval(estimate, float(low), float(high), cases)
    return Interval(estimate, *bca_ends(estimate, resampled, jackknife, tails), cases)


Statistic = Callable[[Floats], Floats]
"""Column means (resamples, columns) to one number each, nan where it is not defined."""


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

    A run keeps all its columns, so that policies side by side are compared on the same runs.
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
