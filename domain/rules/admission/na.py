"""Moments of a deployment's size in closed form: death at zero cores ignored (§4.2), and as published (§4.1).

The published manner takes every factor as independent and Jensen for death at zero: L = M A (O + N), no shutdown yet,
not died at zero, the first cores alive, the later cores alive. Its belief must be `belief.conjugate_belief`'s, whose
exposure is 0.
"""

from __future__ import annotations

import math

import numpy as np

from domain.rules.admission.belief import REFERENCE_DROP, REFERENCE_FLOOR, REFERENCE_NODES, Floats, Number, mu_nodes


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


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
MEAN_POINTS = 0.5 * (_NODES + 1.0)
MEAN_WEIGHTS = 0.5 * _WEIGHTS
"""Gauss-Legendre for the mean of a function over (0, 1)."""
NEAR_POLE = 1e-3


def near_pole(shape: float) -> bool:
    """Return whether Gamma(shape) is so near a pole that differences of it cancel."""
    return shape < NEAR_POLE and abs(shape - round(shape)) < NEAR_POLE


def power_mean(shape: float, rate: float, power: float) -> float:
    """Return E[mu^power] for mu ~ Gamma(shape, rate), continued analytically where the mean is infinite."""
    if shape + power > 0.0:
        return math.exp(math.lgamma(shape + power) - math.lgamma(shape) - power * math.log(rate))
    value: float = math.gamma(shape + power) / math.gamma(shape) * rate**-power
    return value


def log_died(y: float, shape: float, rate: float) -> float:
    """Return ln(1 - q(y)), q(y) = (1 + y / rate)^-shape being the chance that a core lives for y hours."""
    return math.log(max(-math.expm1(-shape * math.log1p(y / rate)), 1e-300))


def joined_means(shape: float, rate: float, power: float, t: float) -> tuple[float, float, float]:
    """Return E[mu^(r-1) (1 - e^-mu t)], the same with 2 t, and E[mu^(2r-2) (1 - e^-mu t)^2], r being `power`."""
    once = shape + power - 1.0
    twice = shape + 2.0 * power - 2.0
    if near_pole(once) or near_pole(twice):
        mu = np.empty(REFERENCE_NODES)
        weight = np.empty(REFERENCE_NODES)
        mu_nodes(shape, rate, 1.0, 1.0, 0.0, power, REFERENCE_DROP, REFERENCE_FLOOR, mu, weight)
        d1 = 0.0
        d2 = 0.0
        dd = 0.0
        for j in range(mu.shape[0]):
            # Points whose power overflows hold no mass: mu^(r-1) (1 - e^-mu t) vanishes there as mu^r.
            scale = max(mu[j], 1e-100) ** (power - 1.0)
            gone = -math.expm1(-mu[j] * t)
            d1 += weight[j] * scale * gone
            d2 -= weight[j] * scale * math.expm1(-2.0 * mu[j] * t)
            dd += weight[j] * scale * gone * scale * gone
        return d1, d2, dd
    mean1 = power_mean(shape, rate, power - 1.0)
    mean2 = power_mean(shape, rate, 2.0 * power - 2.0)
    short = math.log1p(t / rate)
    long = math.log1p(2.0 * t / rate)
    if (shape + 2.0 * power + 2.0) * t < 1e-6 * rate:
        # So soon the two terms below would cancel; the first one of the series serves.
        dd = power_mean(shape, rate, 2.0 * power) * t * t
    else:
        dd = mean2 * (math.expm1(-twice * long) - 2.0 * math.expm1(-twice * short))
    return -mean1 * math.expm1(-once * short), -mean1 * math.expm1(-once * long), dd


def paper_moments(
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
    mean: Floats,
    variance: Floats,
) -> None:
    """Fill `mean` and `variance` (H,) of one deployment's size at `horizons_h` > 0 from now.

    The seven arguments after `size` are a conjugate belief; `exposure_h` is there for the form's sake.
    """
    lam1 = lam_shape / lam_rate
    lam2 = lam1 * (lam_shape + 1.0) / lam_rate
    sig1 = size_shape / size_rate
    sig2 = sig1 * (size_shape + 1.0) / size_rate
    m1 = 1.0 + sig1
    m2 = 1.0 + 2.0 * sig1 + sig2
    pairs = 2.0 * sig1 + sig2
    joined_per_h = lam1 * power_mean(shape, rate, power) * m1
    for k in range(horizons_h.shape[0]):
        t = horizons_h[k]
        q1 = math.exp(-shape * math.log1p(t / rate))
        q2 = math.exp(-shape * math.log1p(2.0 * t / rate))
        lives = math.exp(-shape * math.log1p(t / (lifetimes * rate)))
        old = size * q1
        old_variance = size * (q1 - q2) + size * size * (q2 - q1 * q1)
        d1, d2, dd = joined_means(shape, rate, power, t)
        new = lam1 * m1 * d1
        new_variance = lam1 * (m1 * d1 + 0.5 * pairs * d2) + lam2 * m2 * dd - new * new
        average = 0.0
        for i in range(MEAN_POINTS.shape[0]):
            average += MEAN_WEIGHTS[i] * log_died(t * MEAN_POINTS[i], shape, rate)
        stays = -math.expm1(size * log_died(t, shape, rate) + joined_per_h * t * average)
        here = lives * stays
        both = old + new
        mean[k] = here * both
        variance[k] = max(here * (old_variance + new_variance + both * both) - mean[k] * mean[k], 0.0)
