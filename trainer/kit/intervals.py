"""Intervals: of two policies on the same cases (Student's t), of means and functions of them (bootstrap, Efron 1987).

Both policies keep their figures of a case together, so what a case has in common for both (its load, its boot times)
cancels. With 4 to 12 independent cases a bootstrap is too narrow, so two policies are compared by t (`compare`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

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
    """A mean with its interval; cases: how many figures it is the mean of."""

    mean: float
    low: float
    high: float
    cases: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy against a reference on the same cases (autoscaler specification §11, §12.4).

    difference: mean of policy - reference. relative: mean of the policy over mean of the reference, minus 1; with
    strata, the mean of that over the strata. probability_lower: confidence that relative is below 0, one-sided.
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
) -> Comparison:
    """Compare costs case by case; entry i of both belongs to the same case.

    strata: the family of each case; families count alike however many cases they have. clusters: runs of one cluster
    are no independent cases (one trace entered at several moments, or with several boot seeds) and count as one case
    with their mean; a cluster in several strata (a window in several orders) is one too. The intervals are the estimate
    plus and minus t times its jackknife standard error; the confidence is of the paired t-test of the differences
    x - y, each over its stratum's mean of y: F_t(-relative / error). The degrees of freedom are Satterthwaite's. A
    stratum of a single case has the variance of the others; where there is no other, the ends are the estimate and the
    confidence is one half.
    Raises BadInput when the lengths differ or the reference has no positive mean in some stratum.
    """
    ours, theirs = _column("policy", policy), _column("reference", reference)
    names = np.asarray(list(strata) if strata is not None else [""] * ours.size)
    groups = np.asarray(list(clusters) if clusters is not None else range(ours.size))
    if theirs.size != ours.size or names.size != ours.size or groups.size != ours.size:
        raise BadInput("cases", (ours.size, theirs.size, names.size), "give both policies' figures of the same cases")
    ours, theirs, names, groups = _one_per_cluster(ours, theirs, names, groups)
    ratios: list[float] = []
    of_ratio: list[Floats] = []
    of_difference: list[Floats] = []
    of_test: list[Floats] = []
    members: list[list[object]] = []
    for name in np.unique(names):
        here = names == name
        x, y = ours[here], theirs[here]
        if not y.mean() > 0.0:
            raise BadInput("reference", float(y.mean()), "a mean of 0 or less has no relative difference")
        rest_x, rest_y = x.sum() - x, y.sum() - y
        ratios.append(float(x.mean() / y.mean() - 1.0))
        of_ratio.append(_deviations(np.divide(rest_x, rest_y, out=np.ones_like(x), where=rest_y > 0.0)))
        of_difference.append(_deviations((rest_x - rest_y) / max(x.size - 1, 1)))
        of_test.append(of_difference[-1] / y.mean())
        members.append(groups[here].tolist())
    relative = float(np.mean(ratios))
    alike = np.full(len(ratios), 1.0 / len(ratios))
    by_cases = np.array([len(one) for one in members]) / ours.size
    return Comparison(
        _around(float((ours - theirs).mean()), _error(of_difference, members, by_cases), level, ours.size),
        _around(relative, _error(of_ratio, members, alike), level, ours.size),
        _confidence(-relative, _error(of_test, members, alike)),
    )


def _deviations(without: Floats) -> Floats:
    """Return the jackknife's part of each case in the error of a figure, by the figure's values without it.

    Their squares add up to the variance.
    """
    return np.asarray((without - without.mean()) * math.sqrt((without.size - 1) / without.size), dtype=np.float64)


def _error(parts: Sequence[Floats], members: Sequence[Sequence[object]], weights: Floats) -> tuple[float, float]:
    """Return the standard error of a weighted sum over strata, and its degrees of freedom; (0, 0) for single cases.

    parts: see `_deviations`, by stratum. members: their clusters; the parts of a cluster in several strata add up.
    """
    counts = np.array([one.size for one in parts])
    free = counts - 1
    if not free.any():
        return 0.0, 0.0
    own = np.array([float((one**2).sum()) for one in parts])
    variances = np.where(free > 0, own, float((own * counts * free).sum() / free.sum()))
    sums: dict[object, float] = {}
    for weight, one, keys in zip(weights, parts, members, strict=True):
        for part, key in zip(one.tolist(), keys, strict=True):
            sums[key] = sums.get(key, 0.0) + float(weight) * part
    terms = weights**2 * variances
    spread = float((terms**2 / np.where(free > 0, free, free.sum())).sum())
    freedom = float(terms.sum()) ** 2 / spread if spread > 0.0 else float(free.sum())
    total = math.fsum(one**2 for one in sums.values()) + float(terms[free == 0].sum())
    return math.sqrt(total), min(freedom, len(sums) - 1.0)


def _around(estimate: float, found: tuple[float, float], level: float, cases: int) -> Interval:
    error, freedom = found
    reach = float(stdtrit(freedom, 0.5 + level / 2.0)) * error if error > 0.0 else 0.0
    return Interval(estimate, estimate - reach, estimate + reach, cases)


def _confidence(gain: float, found: tuple[float, float]) -> float:
    """Return the one-sided confidence that a gain is above 0."""
    error, freedom = found
    if freedom == 0.0:
        return 0.5
    return float(stdtr(freedom, gain / error)) if error > 0.0 else float(gain > 0.0)


def _one_per_cluster(
    ours: Floats, theirs: Floats, names: NDArray[np.str_], groups: NDArray[np.generic]
) -> tuple[Floats, Floats, NDArray[np.str_], NDArray[np.generic]]:
    """Return the means of each cluster of each stratum, in the order of first appearance, with stratum and cluster."""
    places: dict[tuple[str, object], list[int]] = {}
    for place, key in enumerate(zip(names.tolist(), groups.tolist(), strict=True)):
        places.setdefault(key, []).append(place)
    return (
        np.array([ours[p].mean() for p in places.values()]),
        np.array([theirs[p].mean() for p in places.values()]),
        np.array([name for name, _ in places]),
        np.array([key for _, key in places]),
    )


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
