"""Moments of a deployment's size with death at zero cores: the hazard closure (specification §4.3).

Time runs in core lifetimes, x = mu t. With S the chance of being alive (no shutdown) and S_k the solution of
S_k' = -k S_k + S, S_k(0) = 0, the moment equations are solved exactly by sums of S_k and exp(-k x), so that only S
needs an approximation. `moments="ab_fast"` is `ab_moments` with one point each for lam and sig.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.belief import Floats, Number, gamma_nodes, mu_nodes
from domain.rules.admission.na import gamma_powers

EULER = 0.5772156649015329
TINY = 1e-300
STEP_RATIO = 1.6
"""Between two points of time there is at most this factor."""
FIRST_STEP = 2e-2
"""The first step ends at the latest where this many things have happened to a core on average."""


def ein(z: Number, decayed: Number, log_z: Number) -> Number:
    """Return the integral of (1 - exp(-w)) / w from 0 to z >= 0, to 3e-7, given exp(-z) and ln z.

    Abramowitz and Stegun 5.1.53 up to 1 and 5.1.56 above, joined without a branch.
    """
    low = np.minimum(z, 1.0)
    series = low * (0.99999193 + low * (-0.24991055 + low * (0.05519968 + low * (-0.00976004 + low * 0.00107857))))
    high = np.maximum(z, 1.0)
    top = 0.2677737343 + high * (8.6347608925 + high * (18.0590169730 + high * (8.5733287401 + high)))
    bottom = 3.9584969228 + high * (21.0996530827 + high * (25.6329561486 + high * (9.5733223454 + high)))
    tail = np.minimum(decayed, 0.36787944117144233) / high * top / bottom + np.maximum(log_z, 0.0)
    value: Number = series + tail - 0.21938393439552029
    return value


def hazard(size: Number, x: Number, rho: Number, sig: Number, ein_sig: Number) -> Number:
    """Return the rate of dying at zero at scaled time x > 0 of a deployment that is alive, no shutdown.

    The closure: the law given survival is that of the process without absorption given that it is not empty.
    ein_sig: `ein` of sig.
    """
    left = np.exp(-x)
    gone = -np.expm1(-x)
    z = sig * left
    decayed = np.exp(-z)
    integral = ein_sig - ein(z, decayed, np.log(sig) - x) - decayed * np.expm1(-sig * gone) / sig
    log_empty = size * np.log(gone) - rho * np.maximum(integral, 0.0)
    single = np.exp(log_empty) * (size * left + rho * gone * gone * decayed) / gone
    value: Number = np.minimum((single + TINY) / (TINY - np.expm1(log_empty)), 1.0)
    return value


def survival(
    size: Number,
    mu: Number,
    rho: Number,
    sig: Number,
    times_h: Floats,
    alive: Floats,
    alive1: Floats,
    alive2: Floats,
    alive3: Floats,
) -> None:
    """Fill S, S_1, S_2, S_3 at the ascending `times_h` (M,) > 0, given mu, rho = theta / mu and sig > 0.

    The outputs have shape (M,) for numbers and (M, N) for arrays of N. The hazard is constant from one time to the
    next, so that steps must be short where it changes: see `time_grid`.
    """
    sig = np.maximum(sig, 1e-9)
    ein_sig = ein(sig, np.exp(-sig), np.log(sig))
    s = 1.0 + 0.0 * rho
    s1 = 0.0 * rho
    s2 = 0.0 * rho
    s3 = 0.0 * rho
    before = 0.0
    # A single core is the only one that can die out at once.
    rate_before = np.maximum(2.0 - size, 0.0) + 0.0 * rho
    for i in range(times_h.shape[0]):
        step = mu * (times_h[i] - before)
        rate_now = hazard(size, mu * times_h[i], rho, sig, ein_sig)
        h = 0.5 * (rate_before + rate_now)
        stay = np.exp(-h * step)
        fade = np.exp(-step)
        other = np.maximum((1.0 - h) * step, 1e-30)
        gone1 = -np.expm1(-other)
        s1 = fade * s1 + s * (stay * step * gone1 / other)
        s2 = fade * fade * s2 + s * (stay - fade * fade) / (2.0 - h)
        s3 = fade * fade * fade * s3 + s * (stay - fade * fade * fade) / (3.0 - h)
        s = s * stay
        alive[i] = s
        alive1[i] = s1
        alive2[i] = s2
        alive3[i] = s3
        before = times_h[i]
        rate_before = rate_now


def conditional_ab(
    size: Number,
    x: Number,
    s1: Number,
    s2: Number,
    s3: Number,
    rho1: Number,
    rho2: Number,
    rho3: Number,
    sig1: Number,
    sig2: Number,
    sig3: Number,
    lifetimes: float,
) -> tuple[Number, Number, Number]:
    """Return (E[L], E[L^2], E[L^3]) at scaled time x, given mu and the path of S, whose S_k are s1, s2, s3.

    rho1..rho3, sig1..sig3: first three raw moments of rho and sig given mu (their powers where they are known).
    """
    e1 = np.exp(-x)
    e2 = e1 * e1
    e3 = e2 * e1
    m = 1.0 + sig1
    m_square = 1.0 + 2.0 * sig1 + sig2
    m_cube = 1.0 + 3.0 * sig1 + 3.0 * sig2 + sig3
    q2 = 1.0 + 3.0 * sig1 + sig2
    q3 = 1.0 + 7.0 * sig1 + 6.0 * sig2 + sig3
    m_q2 = 1.0 + 4.0 * sig1 + 4.0 * sig2 + sig3
    # Convolutions of exponentials with S and with each other, by partial fractions.
    s12 = s1 - s2
    s13 = 0.5 * (s1 - s3)
    s23 = s2 - s3
    s123 = 0.5 * s1 - s2 + 0.5 * s3
    d12 = e1 - e2
    d13 = 0.5 * (e1 - e3)
    d23 = e2 - e3
    d123 = d13 - d23
    first = size * e1 + rho1 * m * s1
    second = (
        size * size * e2
        + size * (1.0 + 2.0 * rho1 * m) * d12
        + (rho1 * m + 2.0 * rho2 * m_square) * s12
        + rho1 * q2 * s2
    )
    third = (
        size * size * (size * e3 + 3.0 * d23)
        + size * (3.0 * d123 - d13)
        + rho1
        * (m * (size * (9.0 * d123 + 3.0 * size * d23) + 3.0 * s123 - s13) + 3.0 * q2 * (s23 + size * d13) + q3 * s3)
        + rho2 * (m_square * (6.0 * size * d123 + 9.0 * s123) + 3.0 * m_q2 * (s23 + s13))
        + rho3 * 6.0 * m_cube * s123
    )
    alive = np.exp(-x / lifetimes)
    return alive * first, alive * second, alive * third


def lead_steps(fastest: float, first_h: float) -> int:
    """Return how many points of time are needed before `first_h`, `fastest` being the largest mu + theta, per hour."""
    span = fastest * first_h / FIRST_STEP
    return math.ceil(math.log(span) / math.log(STEP_RATIO)) if span > 1.0 else 0


def between_steps(early_h: float, late_h: float) -> int:
    """Return how many points of time to put between two horizons."""
    return math.ceil(math.log(late_h / early_h) / math.log(STEP_RATIO) - 1e-9) - 1


def time_grid(horizons_h: Floats, lead: int, times_h: Floats, at: NDArray[np.int64]) -> int:
    """Fill `times_h` with the horizons and the points between, `at` (H,) with the horizons' indices; return the count.

    times_h needs room for lead + H + the sum of `between_steps`.
    """
    count = 0
    for i in range(lead):
        times_h[count] = horizons_h[0] * STEP_RATIO ** (i - lead)
        count += 1
    for k in range(horizons_h.shape[0]):
        if k > 0:
            extra = between_steps(horizons_h[k - 1], horizons_h[k])
            ratio = (horizons_h[k] / horizons_h[k - 1]) ** (1.0 / (extra + 1))
            for i in range(extra):
                times_h[count] = horizons_h[k - 1] * ratio ** (i + 1)
                count += 1
        times_h[count] = horizons_h[k]
        at[k] = count
        count += 1
    return count


def times_needed(horizons_h: Floats, lead: int) -> int:
    """Return the room that `time_grid` needs."""
    count = lead + len(horizons_h)
    for k in range(1, len(horizons_h)):
        count += between_steps(horizons_h[k - 1], horizons_h[k])
    return count


def ab_moments(
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
    lam_points: int,
    size_points: int,
    mu: Floats,
    weight: Floats,
    mean: Floats,
    variance: Floats,
    third: Floats,
) -> None:
    """Fill `mean`, `variance` and `third` (H,), the third central moment, of one size at ascending `horizons_h` > 0.

    The seven arguments after `size` are a belief. lam_points, size_points: `belief.lam_count` and `belief.size_count`
    for the full moments, 1 and 1 for `ab_fast`. `mu`, `weight` are room for the points of mu (16 in production, with
    drop 9 and floor -18.5). A `third` of length 0 is left alone.
    """
    mu_nodes(shape, rate, lam_shape, lam_rate, exposure_h, power, drop, floor, mu, weight)
    horizons = horizons_h.shape[0]
    lam = np.empty(4)
    lam_weight = np.empty(4)
    sig = np.empty(4)
    sig_weight = np.empty(4)
    room = np.empty(5)
    gamma_nodes(lam_shape, lam_points, lam[:lam_points], lam_weight[:lam_points], room)
    gamma_nodes(size_shape, size_points, sig[:size_points], sig_weight[:size_points], room)
    fastest = 0.0
    for j in range(mu.shape[0]):
        seen = lam_rate + exposure_h * mu[j] ** power
        fastest = max(fastest, mu[j] + lam[lam_points - 1] / seen * mu[j] ** power)
    lead = lead_steps(fastest, horizons_h[0])
    steps = times_needed(horizons_h, lead)
    times_h = np.empty(steps)
    at = np.empty(horizons, dtype=np.int64)
    time_grid(horizons_h, lead, times_h, at)
    path = np.empty((4, steps))
    mean[:] = 0.0
    variance[:] = 0.0
    third[:] = 0.0
    for j in range(mu.shape[0]):
        seen = lam_rate + exposure_h * mu[j] ** power
        scale = mu[j] ** (power - 1.0)
        for p in range(lam_points):
            rho1 = lam[p] / seen * scale
            rho2 = rho1 * rho1
            rho3 = rho2 * rho1
            if lam_points == 1:
                _, lam2, lam3 = gamma_powers(lam_shape, seen)
                rho2 = lam2 * scale * scale
                rho3 = lam3 * scale * scale * scale
            for q in range(size_points):
                sig1 = sig[q] / size_rate
                sig2 = sig1 * sig1
                sig3 = sig2 * sig1
                if size_points == 1:
                    _, sig2, sig3 = gamma_powers(size_shape, size_rate)
                survival(size, mu[j], rho1, sig1, times_h, path[0], path[1], path[2], path[3])
                share = weight[j] * lam_weight[p] * sig_weight[q]
                for k in range(horizons):
                    i = at[k]
                    e1, e2, e3 = conditional_ab(
                        size,
                        mu[j] * horizons_h[k],
                        path[1, i],
                        path[2, i],
                        path[3, i],
                        rho1,
                        rho2,
                        rho3,
                        sig1,
                        sig2,
                        sig3,
                        lifetimes,
                    )
                    mean[k] += share * e1
                    variance[k] += share * e2
                    if third.shape[0] > 0:
                        third[k] += share * e3
    for k in range(horizons):
        if third.shape[0] > 0:
            third[k] += mean[k] * (2.0 * mean[k] * mean[k] - 3.0 * variance[k])
        variance[k] = max(variance[k] - mean[k] * mean[k], 0.0)
