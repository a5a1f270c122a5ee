"""The probability that a machine runs hot in an hour, a cluster in that hour, and either too often in a week.

Leaves but for the verdict of evaluation episodes (§3) at the end: scalars and 1-D arrays in, scalars out, nothing
called but `math`, so that numba can compile them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput

Floats = NDArray[np.float64]


def hot_probability(mean: float, variance: float, third: float, threshold: float) -> float:
    """Return the chance that a machine's usage in cores reaches the threshold (oversubscription specification §12.1).

    Usage is a sum of independent parts with these summed moments; the normal tail is corrected for skewness
    (Edgeworth), Q(z) + gamma/6 (z^2 - 1) phi(z), and kept within [0, 1].
    """
    if variance <= 1e-30:
        return 1.0 if mean >= threshold else 0.0
    sigma = math.sqrt(variance)
    z = (threshold - mean) / sigma
    if abs(z) > 38.0:
        return 0.0 if z > 0.0 else 1.0
    skewness = third / (variance * sigma)
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    tail = 0.5 * math.erfc(z / math.sqrt(2.0)) + skewness / 6.0 * (z * z - 1.0) * density
    return min(max(tail, 0.0), 1.0)


def any_hot(probabilities: Floats) -> float:
    """Return the chance that at least one of several independent machines is hot: 1 - prod(1 - p)."""
    total = 0.0
    for p in probabilities:
        if p >= 1.0:
            return 1.0
        total += math.log1p(-p)
    return -math.expm1(total)


def count_at_least(probabilities: Floats, hours: int) -> float:
    """Return the chance that at least so many of the independent hours are hot, by recursion over them."""
    if hours <= 0:
        return 1.0
    exactly = np.zeros(hours)
    exactly[0] = 1.0
    reached = 0.0
    for p in probabilities:
        reached += exactly[hours - 1] * p
        for k in range(hours - 1, 0, -1):
            exactly[k] = exactly[k] * (1.0 - p) + exactly[k - 1] * p
        exactly[0] *= 1.0 - p
    return min(max(reached, 0.0), 1.0)


def clopper_pearson_upper(bad: int, episodes: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper bound on the chance of a bad episode after `bad` of so many; raises BadInput."""
    if not 0 <= bad <= episodes or episodes < 1:
        raise BadInput("episodes", (bad, episodes), "give at least one episode, and no more bad ones than there are")
    if bad == episodes:
        return 1.0
    low, high = bad / episodes, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _at_most(bad, episodes, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def clopper_pearson_lower(bad: int, episodes: int, confidence: float = 0.95) -> float:
    """Return the one-sided lower bound on the chance of a bad episode after `bad` of so many; raises BadInput."""
    return 1.0 - clopper_pearson_upper(episodes - bad, episodes, confidence)


def _at_most(bad: int, episodes: int, p: float) -> float:
    """Return the chance of at most so many bad episodes."""
    if p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 0.0
    whole = math.lgamma(episodes + 1)
    return sum(
        math.exp(
            whole
            - math.lgamma(k + 1)
            - math.lgamma(episodes - k + 1)
            + k * math.log(p)
            + (episodes - k) * math.log1p(-p)
        )
        for k in range(bad + 1)
    )


def satisfied(c_hot_r: float, alphas: tuple[float, ...] = (0.75, 0.85, 0.95)) -> dict[float, bool]:
    """Return for each required probability whether the share of bad episodes keeps it."""
    return {alpha: 1.0 - c_hot_r >= alpha - 1e-12 for alpha in alphas}
