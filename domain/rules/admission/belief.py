"""The belief about a deployment's rates, the points to integrate over (specification §3), mixtures of two kinds (§8).

Every function is elementwise: it takes numbers or arrays alike, and compiles for both. `out[j] = value` fills an array
of shape (J,) for one deployment and (J, N) for N of them.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy import any as anywhere
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)

PRODUCTION_NODES = 16
PRODUCTION_DROP = 9.0
PRODUCTION_FLOOR = -18.5
"""Points of mu, the drop of the log-density at the outer ones, and the least ln mu: mu t < 3e-4 for three years."""
SETTLED = ((40.0, 6), (10.0, 7))
"""From these shapes on the belief in ln mu is so close to normal that so many points serve."""
RIGHT_STEPS = 20
"""Newton's steps to the right end: its start may be far out, while that to the left is within a few steps."""
NEAR, CLOSE = 0.02, 1e-7
"""In ln mu: how far apart the two sides of the mode are when Newton's steps take over, and the last of those to an end,
after which the error is of the order of its square."""
REFERENCE_NODES = 500
REFERENCE_DROP = 36.0
REFERENCE_FLOOR = -600.0


def exact_belief(
    mu_shape: Number,
    mu_rate: Number,
    lam_shape: Number,
    lam_rate: Number,
    sig_shape: Number,
    sig_rate: Number,
    power: Number,
    lifetimes: Number,
    deaths: Number,
    core_hours: Number,
    scale_outs: Number,
    hours: Number,
    gap_hours: Number,
    extra_cores: Number,
    size_draws: Number,
) -> tuple[Number, Number, Number, Number, Number, Number, Number]:
    """Return (shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate), exact (specification §3).

    The first eight arguments are a `Population`, the others those of `Statistics` after the size. With mu given, lam is
    Gamma(lam_shape, lam_rate + mu^power exposure_h); the density of mu goes as
    mu^(shape - 1) exp(-rate mu) (lam_rate + mu^power exposure_h)^-lam_shape; sig is Gamma(size_shape, size_rate).
    """
    return (
        mu_shape + deaths + power * scale_outs,
        mu_rate + core_hours + hours / lifetimes,
        lam_shape + scale_outs,
        lam_rate + 0.0 * hours,
        hours + gap_hours,
        sig_shape + extra_cores,
        sig_rate + size_draws,
    )


def conjugate_belief(
    mu_shape: float,
    mu_rate: float,
    lam_shape: float,
    lam_rate: float,
    sig_shape: float,
    sig_rate: float,
    power: float,
    lifetimes: float,
    deaths: float,
    core_hours: float,
    scale_outs: float,
    hours: float,
    gap_hours: float,
    extra_cores: float,
    size_draws: float,
) -> tuple[float, float, float, float, float, float, float]:
    """Return the belief with mu and lam taken as independent, in the form of `exact_belief`: its exposure is 0.

    Numbers only. lam is Gamma(lam_shape, lam_rate + exposure E[mu^power]) under the marginal of mu.
    """
    shape = mu_shape + deaths
    rate = mu_rate + core_hours + hours / lifetimes
    mean_power = math.exp(math.lgamma(shape + power) - math.lgamma(shape) - power * math.log(rate))
    return (
        shape,
        rate,
        lam_shape + scale_outs,
        lam_rate + (hours + gap_hours) * mean_power,
        0.0,
        sig_shape + extra_cores,
        sig_rate + size_draws,
    )


def log_density(
    u: Number, shape: Number, rate: Number, lam_shape: Number, lam_rate: Number, exposure_h: Number, power: float
) -> Number:
    """Return the log-density of u = ln mu but for a constant; it is concave in u."""
    value: Number = shape * u - rate * np.exp(u) - lam_shape * np.log(lam_rate + exposure_h * np.exp(power * u))
    return value


def log_density_slope(
    u: Number, shape: Number, rate: Number, lam_shape: Number, lam_rate: Number, exposure_h: Number, power: float
) -> Number:
    """Return the derivative of `log_density` by u, which falls everywhere."""
    seen = exposure_h * np.exp(power * u)
    value: Number = shape - rate * np.exp(u) - lam_shape * power * seen / (lam_rate + seen)
    return value


def log_density_bend(
    u: Number, shape: Number, rate: Number, lam_shape: Number, lam_rate: Number, exposure_h: Number, power: float
) -> Number:
    """Return the derivative of `log_density_slope` by u, with the sign turned."""
    seen = exposure_h * np.exp(power * u)
    value: Number = rate * np.exp(u) + lam_shape * power * power * lam_rate * seen / ((lam_rate + seen) ** 2)
    return value


def mu_bracket(
    shape: Number,
    rate: Number,
    lam_shape: Number,
    lam_rate: Number,
    exposure_h: Number,
    power: float,
    drop: float,
    floor: float,
) -> tuple[Number, Number, Number]:
    """Return (mode, left, right) of ln mu: the log-density is `drop` below its top at left and right.

    left is not below `floor`.
    """
    high = np.log(shape / rate)
    # Below both of these each of the two falling terms of the slope takes less than half of what the first one gives.
    bend = np.log(lam_rate * shape * 0.5) - np.log(np.maximum(lam_shape * power - 0.5 * shape, 1e-300))
    bend = (bend - np.log(np.maximum(exposure_h, 1e-300))) / max(power, 1e-9)
    low = np.minimum(high - math.log(2.0), bend)
    for _ in range(36):
        if not anywhere(high - low > NEAR):
            break
        middle = 0.5 * (low + high)
        rising = log_density_slope(middle, shape, rate, lam_shape, lam_rate, exposure_h, power) > 0.0
        low = low + (middle - low) * rising
        high = middle + (high - middle) * rising
    mode = 0.5 * (low + high)
    curvature = log_density_bend(mode, shape, rate, lam_shape, lam_rate, exposure_h, power)
    # Two of Newton's steps from there leave an error below 1e-6, and the density changes by its square.
    for _ in range(2):
        slope = log_density_slope(mode, shape, rate, lam_shape, lam_rate, exposure_h, power)
        mode = np.minimum(np.maximum(mode + slope / curvature, low), high)
        curvature = log_density_bend(mode, shape, rate, lam_shape, lam_rate, exposure_h, power)
    target = log_density(mode, shape, rate, lam_shape, lam_rate, exposure_h, power) - drop
    width = np.sqrt(2.0 * drop / curvature)
    left = mode - width
    # Beyond `most` the rate's term alone has cost more than `drop`, whatever the exposure; a step from where the
    # density is nearly flat would pass it by far, and come back from there by hardly more than 1 a step.
    most = np.log((2.0 * drop + 2.0 * shape) / rate)
    right = np.minimum(mode + width, most)
    # The function is concave, so that Newton's steps stay outside once they are there, and come back without overshoot.
    for _ in range(10):
        excess = log_density(left, shape, rate, lam_shape, lam_rate, exposure_h, power) - target
        step = excess / log_density_slope(left, shape, rate, lam_shape, lam_rate, exposure_h, power)
        left = left - step
        if not anywhere(abs(step) > CLOSE):
            break
    for _ in range(RIGHT_STEPS):
        excess = log_density(right, shape, rate, lam_shape, lam_rate, exposure_h, power) - target
        step = excess / log_density_slope(right, shape, rate, lam_shape, lam_rate, exposure_h, power)
        right = np.minimum(right - step, most)
        if not anywhere(abs(step) > CLOSE):
            break
    return mode, np.minimum(np.maximum(left, floor), mode - 1e-6 * width), right


def mu_nodes(
    shape: Number,
    rate: Number,
    lam_shape: Number,
    lam_rate: Number,
    exposure_h: Number,
    power: float,
    drop: float,
    floor: float,
    mu: Floats,
    weight: Floats,
) -> Number:
    """Fill `mu` and `weight` (J,) or (J, N) with the points of mu and their weights, which add up to 1.

    Points are equally spaced in ln mu between those of `mu_bracket`; the mass to the left of them goes to the first.
    Returns the log of the integral over mu, for the evidence.
    """
    mode, left, right = mu_bracket(shape, rate, lam_shape, lam_rate, exposure_h, power, drop, floor)
    top = log_density(mode, shape, rate, lam_shape, lam_rate, exposure_h, power)
    count = mu.shape[0]
    step = (right - left) / (count - 1)
    total = 0.0 * mode
    for j in range(count):
        u = left + step * j
        mass = np.exp(log_density(u, shape, rate, lam_shape, lam_rate, exposure_h, power) - top)
        if j == 0:
            slope = log_density_slope(u, shape, rate, lam_shape, lam_rate, exposure_h, power)
            mass = mass * (0.5 + 1.0 / (slope * step))
        mu[j] = np.exp(u)
        weight[j] = mass
        total = total + mass
    for j in range(count):
        weight[j] = weight[j] / total
    value: Number = top + np.log(total * step)
    return value


def gamma_nodes(shape: Number, count: int, node: Floats, weight: Floats, coefficient: Floats) -> None:
    """Fill `node` and `weight` (count,) or (count, N) with Gauss's points for Gamma(shape, 1); count 1 to 4.

    Generalised Gauss-Laguerre: exact for polynomials up to degree 2 count - 1; one point is the mean. `coefficient` is
    room to work in, (5,) or (5, N).
    """
    if count == 1:
        node[0] = shape
        weight[0] = 1.0 + 0.0 * shape
        return
    # Coefficients of the monic Laguerre polynomial, the highest power first; its roots are all real and positive.
    coefficient[0] = 1.0 + 0.0 * shape
    for k in range(count):
        coefficient[k + 1] = -coefficient[k] * (count - k) * (shape + (count - 1 - k)) / (k + 1)
    degree = count
    for i in range(count):
        root = 0.0 * shape
        # From the left of the lowest root every step of Newton's stays to the left of it.
        for _ in range(12 * count):
            value = coefficient[0]
            slope = 0.0 * shape
            for k in range(1, degree + 1):
                slope = slope * root + value
                value = value * root + coefficient[k]
            root = root - value / slope
        node[i] = root
        for k in range(1, degree):
            coefficient[k] = coefficient[k] + coefficient[k - 1] * root
        degree -= 1
    total = 0.0 * shape
    for i in range(count):
        gap = 1.0 + 0.0 * shape
        for k in range(count):
            if k != i:
                gap = gap * (node[i] - node[k])
        weight[i] = 1.0 / (node[i] * gap * gap)
        total = total + weight[i]
    for i in range(count):
        weight[i] = weight[i] / total


def lam_count(lam_shape: float) -> int:
    """Return how many points the full `ab` moments take for lam."""
    return 4 if lam_shape < 3.0 else 2 if lam_shape < 20.0 else 1


def size_count(size_shape: float) -> int:
    """Return how many points the full `ab` moments take for sig."""
    return 3 if size_shape < 3.0 else 2 if size_shape < 20.0 else 1


def node_count(shape: float) -> int:
    """Return how many points of mu production takes for one deployment, by its belief's first number."""
    for least, points in SETTLED:
        if shape > least:
            return points
    return PRODUCTION_NODES


def log_evidence(
    shape: float,
    rate: float,
    lam_shape: float,
    lam_rate: float,
    exposure_h: float,
    size_shape: float,
    size_rate: float,
    power: float,
    drop: float,
    floor: float,
    mu: Floats,
    weight: Floats,
) -> float:
    """Return the log of the chance of what was seen, but for terms that all deployments of a population share.

    The first seven arguments are a belief; `mu`, `weight` are room for the points. Numbers only.
    """
    of_mu = mu_nodes(shape, rate, lam_shape, lam_rate, exposure_h, power, drop, floor, mu, weight)
    return of_mu + math.lgamma(lam_shape) + math.lgamma(size_shape) - size_shape * math.log(size_rate)


def odds_share(log_odds: float) -> float:
    """Return the probability at odds given as their log, without overflow."""
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
