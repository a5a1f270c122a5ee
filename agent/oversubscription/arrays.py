"""The moments and tails of `domain.rules.oversubscription` on whole arrays; tests hold them to those, one by one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.usage import SD_FLOOR

Floats = NDArray[np.float64]

_ERFC = np.frompyfunc(math.erfc, 1, 1)
_ROOT_2 = math.sqrt(2.0)
_ROOT_2_PI = math.sqrt(2.0 * math.pi)
FITTED_ROUNDS = 40
FITTED = 1e-6
FLAT = 6.5
"""From here on the complementary error function is 0, or 2, to 4e-20."""
FAR = 7.0
"""Standard deviations from which a tail counts as nothing: it is below 2e-12."""


def erfc(values: Floats) -> Floats:
    """Return the complementary error function of each value."""
    found: Floats = np.where(values < 0.0, 2.0, 0.0)
    # Most tails are nothing, and one by one they are what an hour of many VMs costs.
    near = np.abs(values) < FLAT
    found[near] = _ERFC(values[near])
    return found


def clipped(mu: Floats, sd: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean, variance and third central moment of clip(mu + sd e, 0, 1), as `usage.clipped_moments` does."""
    sd = np.maximum(sd, SD_FLOOR)
    low, high = -mu, 1.0 - mu
    a, b = low / sd, high / sd
    below, above = 0.5 * erfc(-a / _ROOT_2), 0.5 * erfc(b / _ROOT_2)
    phi_a, phi_b = np.exp(-0.5 * a * a) / _ROOT_2_PI, np.exp(-0.5 * b * b) / _ROOT_2_PI
    inside = 1.0 - below - above
    first = sd * (phi_a - phi_b) + low * below + high * above
    second = sd * sd * (inside + a * phi_a - b * phi_b) + low * low * below + high * high * above
    third = (
        sd * sd * sd * ((a * a + 2.0) * phi_a - (b * b + 2.0) * phi_b)
        + low * low * low * below
        + high * high * high * above
    )
    variance = np.maximum(second - first * first, 0.0)
    return mu + first, variance, third - 3.0 * first * second + 2.0 * first * first * first


def hot_probabilities(mean: Floats, variance: Floats, third: Floats, threshold: float) -> Floats:
    """Return the chance of each machine and hour to reach the threshold, as `risk.hot_probability` does."""
    sure = variance <= 1e-30
    sigma = np.sqrt(np.where(sure, 1.0, variance))
    z = (threshold - mean) / sigma
    found = (mean >= threshold).astype(np.float64)
    found[~sure & (z <= -FAR)] = 1.0
    found[~sure & (z >= FAR)] = 0.0
    # Most machines are far from it in most hours; only the others are worth a tail.
    close = ~sure & (np.abs(z) < FAR)
    near, width = z[close], sigma[close]
    density = np.exp(-0.5 * near * near) / _ROOT_2_PI
    skewness = third[close] / (width * width * width)
    tail = 0.5 * erfc(near / _ROOT_2) + skewness / 6.0 * (near * near - 1.0) * density
    found[close] = np.clip(tail, 0.0, 1.0)
    return found


def unclipped(mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return mu and sd whose clipped normal has these moments, as near as there are any.

    What was measured lies in [0, 1] already; taking its mean and spread for mu and sd would clip it twice. A fixed
    point, some rounds of it; shares of 0 or 1 all the time have sd at its floor.
    """
    mu, sd = mean.copy(), np.sqrt(np.maximum(variance, SD_FLOOR**2))
    wanted = np.sqrt(np.maximum(variance, SD_FLOOR**2))
    for _ in range(FITTED_ROUNDS):
        found, spread, _ = clipped(mu, sd)
        if max(np.abs(mean - found).max(initial=0.0), np.abs(wanted - np.sqrt(spread)).max(initial=0.0)) < FITTED:
            break
        mu = np.clip(mu + (mean - found), -2.0, 3.0)
        sd = np.clip(sd * np.clip(wanted / np.sqrt(np.maximum(spread, SD_FLOOR**2)), 0.5, 2.0), SD_FLOOR, 2.0)
    return mu, sd
