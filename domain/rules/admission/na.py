"""Moments of a deployment's size where death at zero cores is ignored: closed in lam and sig (specification §4.2)."""

from __future__ import annotations

import numpy as np

from domain.rules.admission.belief import Floats, Number, mu_nodes


def gamma_powers(shape: Number, rate: Number) -> tuple[Number, Number, Number]:
    """Return E[y], E[y^2], E[y^3] for y ~ Gamma(shape, rate)."""
    first = shape / rate
    second = first * (shape + 1.0) / rate
    return first, second, second * (shape + 2.0) / rate


def conditional_na(
    size: Number, x: Number, rho1: Number, rho2: Number, sig1: Number, sig2: Number, lifetimes: float
) -> tuple[Number, Number]:
    """Return (E[L], E[L^2]) at scaled time x = mu t, given mu.

    rho1, rho2: E[rho], E[rho^2] given mu, with rho = lam mu^(power - 1). sig1, sig2: E[sig], E[sig^2].
    """
    left = np.exp(-x)
    gone = -np.expm1(-x)
    alive = np.exp(-x / lifetimes)
    m1 = 1.0 + sig1
    m2 = 1.0 + 2.0 * sig1 + sig2
    pairs = 2.0 * sig1 + sig2
    joined = rho1 * m1 * gone
    mean = size * left + joined
    second = (
        size * left * gone
        + joined
        - rho1 * pairs * 0.5 * np.expm1(-2.0 * x)
        + size * size * left * left
        + 2.0 * size * left * joined
        + rho2 * m2 * gone * gone
    )
    return alive * mean, alive * second


def na_moments(
    size: float,
    shape: float,
    rate: float,
    lam_shape: float,
    lam_rate: float,
    exposure_h: float,
    size_shape: float,
    size_rate: float,
    power: float,
    lifetimes: float,
    horizons_h: Floats,
    drop: float,
    floor: float,
    mu: Floats,
    weight: Floats,
    mean: Floats,
    variance: Floats,
) -> None:
    """Fill `mean` and `variance` (H,) of one deployment's size at `horizons_h` from now.

    The seven arguments after `size` are a belief. `mu`, `weight` are room for J points of mu (16 in production, with
    drop 9 and floor -18.5).
    """
    mu_nodes(shape, rate, lam_shape, lam_rate, exposure_h, power, drop, floor, mu, weight)
    sig1, sig2, _ = gamma_powers(size_shape, size_rate)
    mean[:] = 0.0
    variance[:] = 0.0
    for j in range(mu.shape[0]):
        rate_now = lam_rate + exposure_h * mu[j] ** power
        scale = mu[j] ** (power - 1.0)
        lam1, lam2, _ = gamma_powers(lam_shape, rate_now)
        for k in range(horizons_h.shape[0]):
            first, second = conditional_na(
                size, mu[j] * horizons_h[k], lam1 * scale, lam2 * scale * scale, sig1, sig2, lifetimes
            )
            mean[k] += weight[j] * first
            variance[k] += weight[j] * second
    for k in range(horizons_h.shape[0]):
        variance[k] = max(variance[k] - mean[k] * mean[k], 0.0)
