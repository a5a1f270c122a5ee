"""The moments of future sizes (specification §4, §5.2): of one deployment by name, and of many at once in numpy.

The names are paper, na, ab and ab_fast. Many at once take the same leaves that are compiled.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.ab import lead_steps, time_grid, times_needed
from domain.rules.admission.ab_points import Points, raw_curves, starts_h
from domain.rules.admission.belief import (
    PRODUCTION_DROP,
    PRODUCTION_FLOOR,
    PRODUCTION_NODES,
    Floats,
    conjugate_belief,
    exact_belief,
    gamma_nodes,
    lam_count,
    mu_nodes,
    size_count,
)
from domain.rules.admission.na import conditional_na, gamma_powers, paper_moments
from domain.rules.admission.policies import checked_grid
from domain.rules.admission.population import Belief, Population, Statistics

MOMENTS = ("ab", "ab_fast", "na", "paper")


@dataclass(frozen=True, slots=True)
class Curve:
    """Moments of a size in cores at each horizon, each (H,); `third` is central, and None where it is not known."""

    mean: Floats
    variance: Floats
    third: Floats | None


def belief_of(population: Population, statistics: Statistics, *, conjugate: bool = False) -> Belief:
    """Return the belief about one deployment, given its statistics."""
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


POINTS_AT_ONCE = 16_384
"""Points of mu, lam and sig worked on together: as many as the caches hold."""

Beliefs = tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats]
"""A belief of N deployments, each part of shape (N,)."""


def na_batch(
    size: Floats,
    belief: Beliefs,
    power: float,
    lifetimes: float,
    horizons_h: Floats,
    nodes: int = PRODUCTION_NODES,
    drop: float = PRODUCTION_DROP,
    floor: float = PRODUCTION_FLOOR,
) -> tuple[Floats, Floats]:
    """Return mean and variance (N, H) of sizes (N,), as `na.na_moments` does for one."""
    mu, weight = _mu_nodes(belief, power, nodes, drop, floor)
    _, _, lam_shape, lam_rate, exposure_h, size_shape, size_rate = belief
    scale = mu ** (power - 1.0)
    lam1, lam2, _ = gamma_powers(lam_shape[None, :], lam_rate + exposure_h * mu**power)
    sig1, sig2, _ = gamma_powers(size_shape, size_rate)
    mean = np.empty((size.size, horizons_h.size))
    variance = np.empty_like(mean)
    for k, hours in enumerate(horizons_h):
        first, second = conditional_na(size, mu * hours, lam1 * scale, lam2 * scale * scale, sig1, sig2, lifetimes)
        mean[:, k] = (weight * first).sum(axis=0)
        variance[:, k] = (weight * second).sum(axis=0)
    return mean, np.maximum(variance - mean * mean, 0.0)


def ab_batch(
    size: Floats,
    belief: Beliefs,
    power: float,
    lifetimes: float,
    horizons_h: Floats,
    *,
    fast: bool = False,
    nodes: int = PRODUCTION_NODES,
    drop: float = PRODUCTION_DROP,
    floor: float = PRODUCTION_FLOOR,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return mean, variance, third central moment and scale-outs per hour (N, H), as `ab.ab_moments` does for one.

    fast: one point each for lam and sig, `ab_fast`.
    """
    lam_points = np.array([1 if fast else lam_count(shape) for shape in belief[2]], dtype=np.int64)
    size_points = np.array([1 if fast else size_count(shape) for shape in belief[5]], dtype=np.int64)
    curves = np.empty((4, size.size, horizons_h.size))
    for p in (1, 2, 4):
        for q in (1, 2, 3):
            alike = np.flatnonzero((lam_points == p) & (size_points == q))
            if alike.size:
                shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate = (part[alike] for part in belief)
                own = (shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate)
                mu_points = _mu_nodes(own, power, nodes, drop, floor)
                curves[:, alike] = _ab_alike(size[alike], own, power, lifetimes, horizons_h, p, q, mu_points)
    mean, second, third, requests = curves
    third += mean * (2.0 * mean * mean - 3.0 * second)
    return mean, np.maximum(second - mean * mean, 0.0), third, requests


def _mu_nodes(belief: Beliefs, power: float, nodes: int, drop: float, floor: float) -> tuple[Floats, Floats]:
    mu = np.empty((nodes, belief[0].size))
    weight = np.empty_like(mu)
    mu_nodes(*belief[:5], power, drop, floor, mu, weight)
    return mu, weight


def _gamma_nodes(shape: Floats, count: int) -> tuple[Floats, Floats]:
    node = np.empty((count, shape.size))
    weight = np.empty_like(node)
    gamma_nodes(shape, count, node, weight, np.empty((5, shape.size)))
    return node, weight


def _ab_alike(
    size: Floats,
    belief: Beliefs,
    power: float,
    lifetimes: float,
    horizons_h: Floats,
    lam_points: int,
    size_points: int,
    mu_points: tuple[Floats, Floats],
) -> Floats:
    """Return raw moments and requests (4, N, H) of deployments that take equally many points for lam and sig.

    Points of mu are sorted by when they may first die out, so that those worked on together begin and end together.
    """
    _, _, lam_shape, lam_rate, exposure_h, size_shape, size_rate = belief
    lam, lam_weight = _gamma_nodes(lam_shape, lam_points)
    sig, sig_weight = _gamma_nodes(size_shape, size_points)
    all_mu, all_weight = (part.reshape(-1) for part in mu_points)
    all_starts_h = starts_h(size, mu_points[0]).reshape(-1)
    order = np.argsort(all_starts_h, kind="stable")
    at_once = max(POINTS_AT_ONCE // (lam_points * size_points), 1)
    curves = np.zeros((4, size.size, horizons_h.size))
    for start in range(0, order.size, at_once):
        some = order[start : start + at_once]
        owner, mu = some % size.size, all_mu[some]
        seen = lam_rate[owner] + exposure_h[owner] * mu**power
        scale = mu ** (power - 1.0)
        rho1 = (lam[:, owner] / seen * scale)[:, None]
        rho = (rho1, rho1 * rho1, rho1 * rho1 * rho1)
        if lam_points == 1:
            _, lam2, lam3 = gamma_powers(lam_shape[owner], seen)
            rho = (rho1, (lam2 * scale**2)[None, None], (lam3 * scale**3)[None, None])
        sig1 = (sig / size_rate)[None, :, owner]
        sigs = (sig1, sig1 * sig1, sig1 * sig1 * sig1)
        if size_points == 1:
            _, sig2, sig3 = gamma_powers(size_shape[owner], size_rate[owner])
            sigs = (sig1, sig2[None, None], sig3[None, None])
        share = all_weight[some] * lam_weight[:, None, owner] * sig_weight[None, :, owner]
        points = Points(owner, size[owner], mu, all_starts_h[some], share, rho, sigs)
        lead = lead_steps(float((mu * (1.0 + rho1.max(axis=(0, 1)))).max()), float(horizons_h[0]))
        times_h = np.empty(times_needed(horizons_h, lead))
        at = np.empty(horizons_h.size, dtype=np.int64)
        time_grid(horizons_h, lead, times_h, at)
        curves += raw_curves(points, size.size, lifetimes, horizons_h, times_h, at)
    return curves
