"""A deployment that may be of either of two kinds: how likely each is, and the moments of both (specification §8)."""

from __future__ import annotations

import math

from domain.rules.admission.belief import Floats


def odds_share(log_odds: float) -> float:
    """Return the chance of what stands at such odds, given as their log, without overflow."""
    if log_odds >= 0.0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    return math.exp(log_odds) / (1.0 + math.exp(log_odds))


def mix(
    share: float,
    mean: Floats,
    variance: Floats,
    third: Floats,
    other_mean: Floats,
    other_variance: Floats,
    other_third: Floats,
) -> None:
    """Turn the curves of one kind, whose chance is `share`, into those of the mixture with the other kind, in place.

    third: central moments; arrays of length 0 are left alone.
    """
    for k in range(mean.shape[0]):
        middle = share * mean[k] + (1.0 - share) * other_mean[k]
        one = mean[k] - middle
        two = other_mean[k] - middle
        if third.shape[0] > 0:
            third[k] = share * (third[k] + 3.0 * variance[k] * one + one * one * one) + (1.0 - share) * (
                other_third[k] + 3.0 * other_variance[k] * two + two * two * two
            )
        variance[k] = share * (variance[k] + one * one) + (1.0 - share) * (other_variance[k] + two * two)
        mean[k] = middle
