"""Moments of a deployment's size with death at zero cores: the hazard closure (specification §4.3).

Time runs in core lifetimes, x = mu t. With S the chance of being alive (no shutdown) and S_k the solution of
S_k' = -k S_k + S, S_k(0) = 0, the moment equations are solved exactly by sums of S_k and exp(-k x), so that only S
needs an approximation. `moments="ab_fast"` is `ab_moments` with one point each for lam and sig.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import exp, expm1, log
from numpy.typing import NDArray

from domain.rules.admission.belief import Floats, Number, gamma_nodes, mu_nodes
from domain.rules.admission.na import gamma_powers

TINY = 1e-300
STEP_RATIO = 1.6
"""Between two points of time there is at most this factor."""
FIRST_STEP = 2e-2
"""The first step ends at the latest where a core has had this many events on average."""
QUIET = 18.0
"""Dying at zero is left out where its chance is below exp(-QUIET), for one deployment at a time."""
GONE = 30.0
"""So is all that follows where the chance of being alive is below exp(-GONE)."""
MOST_RHO = 1e12
"""Scale-outs per core lifetime from which on the first step becomes no shorter."""
BLOCK = 8
"""Numbers that compiled code takes at once, a power of 2."""


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


def hazard(
    size: Number, x: Number, rho: Number, sig: Number, log_sig: Number, decayed_sig: Number, ein_sig: Number
) -> Number:
    """Return the rate of dying at zero at scaled time x > 0 of a deployment that is alive, no shutdown.

    The closure: the law given survival is that of the process without absorption given that it is not empty.
    log_sig, decayed_sig, ein_sig: ln sig, exp(-sig) and `ein` of sig.
    """
    gone = -expm1(-x)
    left = 1.0 - gone
    z = sig * left
    decayed = exp(-z)
    integral = ein_sig - ein(z, decayed, log_sig - x) - (decayed_sig - decayed) / sig
    log_empty = size * log(gone) - rho * np.maximum(integral, 0.0)
    alive = -expm1(log_empty)
    single = exp(log_empty) * (size * left + rho * gone * gone * decayed) / gone
    value: Number = np.minimum((single + TINY) / (TINY + alive), 1.0)
    return value


def step_factors(h: Number, step: Number) -> tuple[Number, Number, Number, Number, Number]:
    """Return the factors of S, S_k and the gains of S_1, S_2, S_3 for a step of scaled time at a constant hazard h.

    S is multiplied by the first, S_k by the k-th power of the second; S_k gains S times the (k + 2)th.
    """
    # At h = 1 what follows is 0 / 0; so near to it nothing changes.
    slack = np.maximum(1.0 - h, 1e-5)
    stay = exp((slack - 1.0) * step)
    # 1 - exp(-slack step), joined without a branch: of a plain difference nothing would be left over a short step at h
    # near 1, and what is divided by slack here is multiplied by the square of rho later.
    span = slack * step
    low = np.minimum(span, 1e-3)
    short = low * (1.0 - 0.5 * low * (1.0 - low / 3.0))
    gap = short + (1.0 - short) * (1.0 - exp(low - span))
    fade = stay * (1.0 - gap)
    fade2 = fade * fade
    return stay, fade, stay * gap / slack, (stay - fade2) / (1.0 + slack), (stay - fade2 * fade) / (2.0 + slack)


def advanced(
    h: Number, step: Number, s: Number, s1: Number, s2: Number, s3: Number
) -> tuple[Number, Number, Number, Number]:
    """Return S, S_1, S_2, S_3 a step of scaled time later, at a constant hazard h."""
    stay, fade, gain1, gain2, gain3 = step_factors(h, step)
    fade2 = fade * fade
    return s * stay, fade * s1 + s * gain1, fade2 * s2 + s * gain2, fade2 * fade * s3 + s * gain3


def conditional_ab(
    size: Number,
    left: Number,
    alive: Number,
    s1: Number,
    s2: Number,
    s3: Number,
    rho1: Number,
    rho2: Number,
    rho3: Number,
    sig1: Number,
    sig2: Number,
    sig3: Number,
) -> tuple[Number, Number, Number]:
    """Return (E[L], E[L^2], E[L^3]) given mu and the path of S up to now, whose S_k are s1, s2, s3.

    left, alive: the chances of a core to be left, exp(-x) at scaled time x, and of no shutdown, exp(-x / lifetimes).
    rho1..rho3, sig1..sig3: first three raw moments of rho and sig given mu (their powers where they are known).
    """
    e1 = left
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


def quiet_until(size: float) -> float:
    """Return the scaled time up to which a deployment is empty with a chance below exp(-QUIET)."""
    return -math.log(-math.expm1(-QUIET / size))


def grown(gone: Number) -> tuple[Number, Number, Number]:
    """Return S_1, S_2, S_3 where S was 1 so far, gone = 1 - exp(-x)."""
    return gone, gone * (1.0 - 0.5 * gone), gone * (1.0 - gone * (1.0 - gone / 3.0))


def steps_room(horizons: int, lifetimes: float) -> int:
    """Return room for the steps of `fill_steps` to a number of horizons."""
    span = GONE * max(lifetimes, 1.0) * (1.0 + MOST_RHO) / FIRST_STEP
    return horizons + math.ceil(math.log(span) / math.log(STEP_RATIO)) + BLOCK + 2


def fill_steps(
    quiet: float, mu: float, rho: float, lifetimes: float, horizons_h: Floats, x: Floats, at: NDArray[np.int64]
) -> int:
    """Fill `x` with scaled times, `quiet` first, and `at` (H,) with the places of the horizons; return the count.

    A horizon up to `quiet` is at 0, one that GONE leaves out at -1. The last time fills its block.
    """
    first_step = FIRST_STEP / (1.0 + min(rho, MOST_RHO))
    reached = quiet
    x[0] = reached
    count = 1
    for k in range(horizons_h.shape[0]):
        goal = mu * horizons_h[k]
        if goal > GONE * lifetimes:
            at[k:] = -1
            break
        while reached < goal:
            reached = min(max(STEP_RATIO * reached, first_step), goal)
            x[count] = reached
            count += 1
        at[k] = count - 1
    filled = (count + BLOCK - 1) // BLOCK * BLOCK
    x[count:filled] = reached
    return count


def fill_path(
    size: float,
    quiet: float,
    mu: float,
    rho: float,
    sig: float,
    lifetimes: float,
    horizons_h: Floats,
    at: NDArray[np.int64],
    room: Floats,
    path: Floats,
) -> None:
    """Fill `path` (4, H) with S, S_1, S_2, S_3 at the horizons, for one point of mu, rho and sig.

    Steps of `hazard` and `advanced`, except where QUIET leaves them out; 0 after GONE. The last loop alone needs one
    step before the next. Of the others a compiler takes several numbers at once, in whole blocks.
    at (H,), room (7, `steps_room`): to work in.
    """
    sig = max(sig, 1e-9)
    log_sig = math.log(sig)
    decayed_sig = math.exp(-sig)
    ein_sig = ein(sig, decayed_sig, log_sig)
    s, s1, s2, s3 = path[0], path[1], path[2], path[3]
    x, rate, stay, fade, gain1, gain2, gain3 = room[0], room[1], room[2], room[3], room[4], room[5], room[6]
    for k in range(horizons_h.shape[0]):
        s[k] = 1.0
        s1[k], s2[k], s3[k] = grown(-expm1(-mu * horizons_h[k]))
    count = fill_steps(quiet, mu, rho, lifetimes, horizons_h, x, at)
    filled = (count + BLOCK - 1) // BLOCK * BLOCK
    if count > 1:
        for i in range(filled):
            rate[i] = hazard(size, x[i], rho, sig, log_sig, decayed_sig, ein_sig)
        rate_before = rate[0]
        settled = False
        for i in range(1, count):
            rate_now = 0.0 if settled else rate[i]
            # Past its top the hazard only falls: a deployment that grows will not be empty again.
            settled = settled or (rate_now < 1e-9 and rate_now < rate_before)
            rate[i] = 0.5 * (rate_before + rate_now)
            rate_before = rate_now
        for i in range(filled):
            stay[i], fade[i], gain1[i], gain2[i], gain3[i] = step_factors(rate[i], x[i] - x[max(i - 1, 0)])
    alive = 1.0
    grown1, grown2, grown3 = grown(-math.expm1(-quiet))
    i = 0
    for k in range(horizons_h.shape[0]):
        if at[k] < 0 or alive < math.exp(-GONE):
            path[:, k:] = 0.0
            break
        while i < at[k]:
            i += 1
            fade2 = fade[i] * fade[i]
            grown1 = fade[i] * grown1 + alive * gain1[i]
            grown2 = fade2 * grown2 + alive * gain2[i]
            grown3 = fade2 * fade[i] * grown3 + alive * gain3[i]
            alive *= stay[i]
        if i > 0:
            s[k] = alive
            s1[k] = grown1
            s2[k] = grown2
            s3[k] = grown3


def add_point(
    share: float,
    size: float,
    mu: float,
    rho1: float,
    rho2: float,
    rho3: float,
    sig1: float,
    sig2: float,
    sig3: float,
    lifetimes: float,
    horizons_h: Floats,
    path: Floats,
    mean: Floats,
    second: Floats,
    third: Floats,
    requests: Floats,
) -> None:
    """Add, times `share`, one point of mu, lam and sig to the raw moments and to the requests per hour (H,) each.

    path: see `fill_path`. Numbers only. Arrays of length 0 are left alone.
    """
    s, s1, s2, s3 = path[0], path[1], path[2], path[3]
    for k in range(horizons_h.shape[0]):
        x = mu * horizons_h[k]
        e1, e2, _ = conditional_ab(
            *(size, exp(-x), exp(-x / lifetimes), s1[k], s2[k], s3[k], rho1, rho2, rho3, sig1, sig2, sig3)
        )
        mean[k] += share * e1
        second[k] += share * e2
    for k in range(third.shape[0]):
        x = mu * horizons_h[k]
        _, _, e3 = conditional_ab(
            *(size, exp(-x), exp(-x / lifetimes), s1[k], s2[k], s3[k], rho1, rho2, rho3, sig1, sig2, sig3)
        )
        third[k] += share * e3
    for k in range(requests.shape[0]):
        requests[k] += share * rho1 * mu * s[k] * exp(-mu * horizons_h[k] / lifetimes)


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
    requests: Floats,
) -> None:
    """Fill `mean`, `variance`, `third` and `requests`, (H,) each, of one deployment's size at `horizons_h` from now.

    The seven arguments after `size` are a belief; horizons ascend from above 0. lam_points, size_points:
    `belief.lam_count` and `belief.size_count` for the full moments, 1 and 1 for `ab_fast`. `mu`, `weight` are room for
    the points of mu (`belief.node_count` in production, with drop 9 and floor -18.5). third: central moments. requests:
    scale-outs expected per hour. A `third` or `requests` of length 0 is left alone.
    """
    mu_nodes(shape, rate, lam_shape, lam_rate, exposure_h, power, drop, floor, mu, weight)
    lam = np.empty(4)
    lam_weight = np.empty(4)
    sig = np.empty(4)
    sig_weight = np.empty(4)
    room = np.empty(5)
    gamma_nodes(lam_shape, lam_points, lam[:lam_points], lam_weight[:lam_points], room)
    gamma_nodes(size_shape, size_points, sig[:size_points], sig_weight[:size_points], room)
    mean[:] = 0.0
    variance[:] = 0.0
    third[:] = 0.0
    requests[:] = 0.0
    quiet = quiet_until(size)
    at = np.empty(horizons_h.shape[0], dtype=np.int64)
    steps = np.empty((7, steps_room(horizons_h.shape[0], lifetimes)))
    path = np.empty((4, horizons_h.shape[0]))
    for j in range(mu.shape[0]):
        powered = mu[j] ** power
        seen = lam_rate + exposure_h * powered
        scale = powered / mu[j]
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
                share = weight[j] * lam_weight[p] * sig_weight[q]
                fill_path(size, quiet, mu[j], rho1, sig1, lifetimes, horizons_h, at, steps, path)
                add_point(
                    share,
                    size,
                    mu[j],
                    rho1,
                    rho2,
                    rho3,
                    sig1,
                    sig2,
                    sig3,
                    lifetimes,
                    horizons_h,
                    path,
                    mean,
                    variance,
                    third,
                    requests,
                )
    for k in range(horizons_h.shape[0]):
        if third.shape[0] > 0:
            third[k] += mean[k] * (2.0 * mean[k] * mean[k] - 3.0 * variance[k])
        variance[k] = max(variance[k] - mean[k] * mean[k], 0.0)
