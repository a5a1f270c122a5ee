"""Curves of many deployments at once in numpy, from the same leaves that are compiled (specification §4, §5.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.ab import conditional_ab, lead_steps, survival, time_grid, times_needed
from domain.rules.admission.belief import (
    PRODUCTION_DROP,
    PRODUCTION_FLOOR,
    PRODUCTION_NODES,
    Floats,
    gamma_nodes,
    lam_count,
    mu_nodes,
    size_count,
)
from domain.rules.admission.na import conditional_na, gamma_powers

POINTS_AT_ONCE = 8192
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
) -> tuple[Floats, Floats, Floats]:
    """Return mean, variance and third central moment (N, H) of sizes (N,), as `ab.ab_moments` does for one.

    fast: one point each for lam and sig, `ab_fast`.
    """
    lam_points = np.array([1 if fast else lam_count(shape) for shape in belief[2]])
    size_points = np.array([1 if fast else size_count(shape) for shape in belief[5]])
    curves = np.empty((3, size.size, horizons_h.size))
    for p in (1, 2, 4):
        for q in (1, 2, 3):
            chosen = np.flatnonzero((lam_points == p) & (size_points == q))
            at_once = max(POINTS_AT_ONCE // (nodes * p * q), 1)
            for start in range(0, chosen.size, at_once):
                some = chosen[start : start + at_once]
                shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate = (
                    column[some] for column in belief
                )
                part = (shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate)
                curves[:, some] = _ab_alike(
                    size[some], part, power, lifetimes, horizons_h, p, q, _mu_nodes(part, power, nodes, drop, floor)
                )
    mean, second, third = curves
    third += mean * (2.0 * mean * mean - 3.0 * second)
    return mean, np.maximum(second - mean * mean, 0.0), third


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
) -> NDArray[np.float64]:
    """Return raw moments (3, N, H) of deployments that take equally many points for lam and sig."""
    _, _, lam_shape, lam_rate, exposure_h, size_shape, size_rate = belief
    mu, mu_weight = mu_points
    lam, lam_weight = _gamma_nodes(lam_shape, lam_points)
    sig, sig_weight = _gamma_nodes(size_shape, size_points)
    seen = lam_rate + exposure_h * mu**power
    lead = lead_steps(float((mu + lam[-1] / seen * mu**power).max()), float(horizons_h[0]))
    times_h = np.empty(times_needed(horizons_h, lead))
    at = np.empty(horizons_h.size, dtype=np.int64)
    time_grid(horizons_h, lead, times_h, at)

    # Axes: mu, lam, sig, deployment.
    whole = (mu.shape[0], lam_points, size_points, size.size)
    scale = (mu ** (power - 1.0))[:, None, None, :]
    rho1 = lam[None, :, None, :] / seen[:, None, None, :] * scale
    rho2, rho3 = rho1 * rho1, rho1 * rho1 * rho1
    if lam_points == 1:
        _, lam2, lam3 = gamma_powers(lam_shape, seen)
        rho2, rho3 = lam2[:, None, None, :] * scale**2, lam3[:, None, None, :] * scale**3
    sig1 = (sig / size_rate)[None, None]
    sig2, sig3 = sig1 * sig1, sig1 * sig1 * sig1
    if size_points == 1:
        _, second, cube = gamma_powers(size_shape, size_rate)
        sig2, sig3 = second[None, None, None], cube[None, None, None]

    def flat(part: Floats) -> Floats:
        return np.ascontiguousarray(np.broadcast_to(part, whole)).reshape(-1)

    share = mu_weight[:, None, None, :] * lam_weight[None, :, None, :] * sig_weight[None, None]
    points = (flat(rho1), flat(rho2), flat(rho3), flat(sig1), flat(sig2), flat(sig3))
    each_size, each_mu = flat(size[None, None, None, :]), flat(mu[:, None, None, :])
    path = np.empty((4, times_h.size, each_mu.size))
    survival(each_size, each_mu, points[0], points[3], times_h, path[0], path[1], path[2], path[3])
    raw = np.empty((3, size.size, horizons_h.size))
    for k, i in enumerate(at):
        left, alive = np.exp(-each_mu * horizons_h[k]), np.exp(-each_mu * (horizons_h[k] / lifetimes))
        moments = conditional_ab(each_size, left, alive, path[1, i], path[2, i], path[3, i], *points)
        for order in range(3):
            raw[order, :, k] = (share * moments[order].reshape(whole)).sum(axis=(0, 1, 2))
    return raw
