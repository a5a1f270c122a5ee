"""What evaluation episodes say: saved cores, the share of bad episodes, and how large it may be in truth (§3)."""

from __future__ import annotations

import math

from domain.errors import BadInput


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
