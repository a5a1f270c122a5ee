"""The moments of one deployment's future size, by name: paper, na, ab, ab_fast or volterra (specification §4)."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.batch import Beliefs, ab_batch, na_batch
from domain.rules.admission.belief import Floats, conjugate_belief, exact_belief
from domain.rules.admission.paper import paper_moments
from domain.rules.admission.policies import checked_grid
from domain.rules.admission.population import Belief, Population, Statistics
from domain.rules.admission.volterra import reference_moments

MOMENTS = ("ab", "ab_fast", "na", "paper", "volterra")


@dataclass(frozen=True, slots=True)
class Curve:
    """Moments of a size in cores at each horizon, each (H,); `third` is central, and None where it is not known."""

    mean: Floats
    variance: Floats
    third: Floats | None


def belief_of(population: Population, statistics: Statistics, *, conjugate: bool = False) -> Belief:
    """Return the belief about one deployment after what was seen of it."""
    seen = astuple(statistics)[1:]
    return (conjugate_belief if conjugate else exact_belief)(*astuple(population), *seen)


def moments_of(population: Population, statistics: Statistics, horizons_h: Floats, moments: str = "ab") -> Curve:
    """Return the curve of one deployment at ascending horizons above 0, in hours from now.

    BadInput for unknown moments and for horizons that are not ascending.
    """
    horizons_h = checked_grid(horizons_h)
    size, power, lifetimes = float(statistics.size), population.power, population.lifetimes
    if moments == "paper":
        belief = belief_of(population, statistics, conjugate=True)
        mean, variance = np.empty(horizons_h.size), np.empty(horizons_h.size)
        paper_moments(size, *belief, power, lifetimes, horizons_h, mean, variance)
        return Curve(mean, variance, None)
    belief = belief_of(population, statistics)
    if moments == "volterra":
        return Curve(*reference_moments(size, belief, power, lifetimes, horizons_h))
    if moments == "na":
        means, variances = na_batch(np.array([size]), _alone(belief), power, lifetimes, horizons_h)
        return Curve(means[0], variances[0], None)
    if moments in ("ab", "ab_fast"):
        fast = moments == "ab_fast"
        means, variances, thirds, _ = ab_batch(
            np.array([size]), _alone(belief), power, lifetimes, horizons_h, fast=fast
        )
        return Curve(means[0], variances[0], thirds[0])
    raise BadInput("moments", moments, f"give one of {', '.join(MOMENTS)}")


def _alone(belief: Belief) -> Beliefs:
    shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate = (np.array([part]) for part in belief)
    return shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate
