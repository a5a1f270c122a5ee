"""The exact moments, as a reference: absorption at zero cores by a Volterra equation (specification §4.3 a).

Slow and in numpy alone; tests compare the moments of decisions, `ab`, with it.
"""

from __future__ import annotations

import math

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.ab import advanced, conditional_ab, ein, hazard, lead_steps, time_grid, times_needed
from domain.rules.admission.belief import REFERENCE_DROP, Floats, Number, mu_nodes
from domain.rules.admission.moments import MOMENTS, Curve, belief_of, moments_of
from domain.rules.admission.policies import checked_grid
from domain.rules.admission.population import Belief, Population, Statistics

EULER = 0.5772156649015329
LONGEST_X = 24.0
"""Beyond this number of core lifetimes S falls exponentially."""
LARGEST_RHO = 6.0
"""Above this number of scale-outs per core lifetime the closure is used: first moments determine death at zero."""


def exact_ein(z: Floats) -> Floats:
    """Return the integral of (1 - exp(-w)) / w from 0 to z >= 0, to 1e-12."""
    small = np.minimum(z, 3.0)
    series = np.zeros_like(z)
    power = np.ones_like(z)
    for k in range(1, 40):
        power = -power * small / k
        series -= power / k
    large = np.maximum(z, 3.0)
    fraction = np.zeros_like(z)
    for k in range(80, 0, -1):
        fraction = k * k / (large + 2.0 * k + 1.0 - fraction)
    tail = np.exp(-large) / (large + 1.0 - fraction) + np.log(large) + EULER
    return np.where(z <= 3.0, series, tail)


def idle_exponent(x: Floats, sig: float) -> Floats:
    """Return I(x): exp(-rho I) is the chance that a process empty at 0 is empty at x, absorption off."""
    sig = max(sig, 1e-9)
    z = sig * np.exp(-x)
    return exact_ein(np.full_like(x, sig)) - exact_ein(z) - np.exp(-z) * np.expm1(sig * np.expm1(-x)) / sig


def _died(size: float, rho: float, sig: float, x: Floats) -> Floats:
    """Return the chance of having died by each of the equally spaced x, by the trapezoid rule."""
    step = float(x[1])
    phi = np.exp(-rho * idle_exponent(x, sig))
    gone = -np.expm1(-x)
    empty = gone**size * phi
    kernel = phi * rho * (1.0 - gone * np.exp(-sig * np.exp(-x)))
    died = np.zeros_like(x)
    for i in range(1, x.size):
        passed = float(np.dot(died[1:i], kernel[i - 1 : 0 : -1]))
        died[i] = (empty[i] + step * passed) / (1.0 - 0.5 * step * kernel[0])
    return died


def exact_survival(size: float, rho: float, sig: float, x_end: float) -> tuple[Floats, Floats]:
    """Return (x, S): the chance to be alive at equally spaced scaled times up to about x_end, no shutdown.

    rho at most 6; error 1e-6 for rho up to 1 and 2e-4 at worst.
    """
    step = min(0.02, 0.1 / max(rho, 1e-9))
    count = math.ceil(min(x_end, LONGEST_X) / step) + 1
    coarse: Floats = np.arange(count + 1, dtype=np.float64) * step
    fine: Floats = np.arange(2 * count + 1, dtype=np.float64) * (0.5 * step)
    died = (4.0 * _died(size, rho, sig, fine)[::2] - _died(size, rho, sig, coarse)) / 3.0
    return coarse, 1.0 - np.clip(died, 0.0, 1.0)


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
    log_sig = np.log(sig)
    decayed_sig = np.exp(-sig)
    ein_sig = ein(sig, decayed_sig, log_sig)
    s = 1.0 + 0.0 * rho
    s1 = 0.0 * rho
    s2 = 0.0 * rho
    s3 = 0.0 * rho
    before = 0.0
    # A single core is the only one that can die out at once.
    rate_before = np.maximum(2.0 - size, 0.0) + 0.0 * rho
    for i in range(times_h.shape[0]):
        step = mu * (times_h[i] - before)
        rate_now = hazard(size, mu * times_h[i], rho, sig, log_sig, decayed_sig, ein_sig)
        h = 0.5 * (rate_before + rate_now)
        s, s1, s2, s3 = advanced(h, step, s, s1, s2, s3)
        alive[i] = s
        alive1[i] = s1
        alive2[i] = s2
        alive3[i] = s3
        before = times_h[i]
        rate_before = rate_now


def closed_path(size: float, rho: float, sig: float, x: Floats) -> Floats:
    """Return S, S_1, S_2, S_3 (4, M) at ascending scaled times x (M,) > 0 by the hazard closure."""
    lead = lead_steps(1.0 + rho, float(x[0]))
    times = np.empty(times_needed(x, lead))
    at = np.empty(x.size, dtype=np.int64)
    time_grid(x, lead, times, at)
    path = np.empty((4, times.size))
    survival(size, 1.0, rho, sig, times, path[0], path[1], path[2], path[3])
    return path[:, at]


def exact_path(size: float, rho: float, sig: float, x: Floats) -> Floats:
    """Return S, S_1, S_2, S_3 (4, M) at scaled times x (M,) > 0, as `survival` approximates them."""
    if rho > LARGEST_RHO:
        return closed_path(size, rho, sig, x)
    grid, alive = exact_survival(size, rho, sig, float(x[-1]))
    step = float(grid[1])
    parts = np.zeros((4, grid.size))
    parts[0] = alive
    for k in (1, 2, 3):
        fade = math.exp(-k * step)
        # Exact for an S that is linear from point to point.
        early = (1.0 - fade * (1.0 + k * step)) / (k * k * step)
        late = (1.0 - fade) / k - early
        for i in range(1, grid.size):
            parts[k, i] = fade * parts[k, i - 1] + early * alive[i - 1] + late * alive[i]
    inside = np.array([np.interp(np.minimum(x, grid[-1]), grid, part) for part in parts])
    back = max(grid.size - 1 - round(1.0 / step), 0)
    falls = math.log(max(alive[back], 1e-300) / max(alive[-1], 1e-300)) / max(grid[-1] - grid[back], step)
    return np.asarray(inside * np.exp(-falls * np.maximum(x - grid[-1], 0.0)))


def path_moments(
    size: float, rho: float, sig: float, x: Floats, path: Floats, lifetimes: float
) -> tuple[Floats, Floats, Floats]:
    """Return E[L], E[L^2], E[L^3] (M,) at scaled times x, all rates known, from the path (4, M) of S."""
    one = np.ones_like(x)
    return conditional_ab(
        size * one,
        np.exp(-x),
        np.exp(-x / lifetimes),
        path[1],
        path[2],
        path[3],
        rho * one,
        rho**2 * one,
        rho**3 * one,
        sig * one,
        sig**2 * one,
        sig**3 * one,
    )


def laguerre(shape: float, count: int) -> tuple[Floats, Floats]:
    """Return points and weights for Gamma(shape, 1), any number of them, by Golub and Welsch."""
    k = np.arange(count)
    off = np.sqrt(k[1:] * (k[1:] + shape - 1.0))
    node, vectors = np.linalg.eigh(np.diag(2.0 * k + shape) + np.diag(off, 1) + np.diag(off, -1))
    return node, vectors[0] ** 2


def reference_moments(
    size: float,
    belief: Belief,
    power: float,
    lifetimes: float,
    horizons_h: Floats,
    nodes: int = 40,
    lam_points: int = 4,
    size_points: int = 4,
    closure: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Return mean, variance and third central moment (H,) at ascending horizons > 0, seconds of work.

    closure: take S from the hazard closure instead, which shows the error of the quadratures of `ab`.
    """
    mu, weight = np.empty(nodes), np.empty(nodes)
    mu_nodes(*belief[:5], power, REFERENCE_DROP / 2, -25.0, mu, weight)
    _, _, lam_shape, lam_rate, exposure_h, size_shape, size_rate = belief
    raw = np.zeros((3, horizons_h.size))
    for rate, share in zip(mu, weight, strict=True):
        for y, lam_share in zip(*laguerre(lam_shape, lam_points), strict=True):
            rho = float(y / (lam_rate + exposure_h * rate**power) * rate ** (power - 1.0))
            for v, size_share in zip(*laguerre(size_shape, size_points), strict=True):
                total = share * lam_share * size_share
                if total < 1e-9:
                    continue
                sig = float(v / size_rate)
                x = rate * horizons_h
                path = closed_path(size, rho, sig, x) if closure else exact_path(size, rho, sig, x)
                raw += total * np.array(path_moments(size, rho, sig, x, path, lifetimes))
    mean, second, third = raw
    return mean, np.maximum(second - mean**2, 0.0), third + mean * (2.0 * mean**2 - 3.0 * second)


def curve_of(population: Population, statistics: Statistics, horizons_h: Floats, moments: str) -> Curve:
    """Return the curve of one deployment by a method of `moments_of`, or by the reference; BadInput as there."""
    if moments != "volterra" and moments not in MOMENTS:
        raise BadInput("moments", moments, f"give one of {', '.join((*MOMENTS, 'volterra'))}")
    if moments != "volterra":
        return moments_of(population, statistics, horizons_h, moments)
    power, lifetimes, belief = population.power, population.lifetimes, belief_of(population, statistics)
    return Curve(*reference_moments(float(statistics.size), belief, power, lifetimes, checked_grid(horizons_h)))
