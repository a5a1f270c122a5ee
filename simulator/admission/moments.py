"""Mean and variance of a deployment's future size, fast: `ab_fast` for the simulator (admission specification §4.3).

The scale-out rate and the request size enter the survival function by their means and everything else exactly; the
core death rate is integrated over its exact posterior. Horizons without subdivision carry the integration, so grids
are to be spaced by no more than some 1.6 in the logarithm of time, or finely.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.admission.compiled import compiled

Floats = NDArray[np.float64]

NODES = 16
DEPTH = 9.0
"""The posterior is cut where its logarithm is so far below the mode's (admission specification §3)."""
SETTLED = 4.0
SETTLED_NODES = 7
"""From this shape on the posterior of ln mu is close to normal, and so many points integrate it as well as NODES."""
_WIDEST = 1.6
"""Largest ratio of neighbouring points of scaled time between which the survival is integrated in one step."""
_NEVER = -18.0
"""Logarithm of what is left out: 1.5e-8."""
_EULER = 0.5772156649015329


class Prior(NamedTuple):
    """The fields of a `Population` in order, as compiled code takes them."""

    mu_shape: float
    mu_rate: float
    lam_shape: float
    lam_rate: float
    sig_shape: float
    sig_rate: float
    power: float
    lifetimes: float


class Seen(NamedTuple):
    """What is known of one deployment: the statistics of admission specification §3."""

    size: int
    deaths: int
    core_hours: float
    requests: int
    hours: float
    gap_hours: float
    extra: int
    sizes: int


@compiled
def log_density(u: float, a: float, b: float, c: float, rate: float, r: float, exposure: float) -> float:
    """Return the logarithm of the posterior of u = ln mu, up to a constant (admission specification §3)."""
    return a * u - b * math.exp(u) - c * math.log(rate + math.exp(r * u) * exposure)


@compiled
def _slope(u: float, a: float, b: float, c: float, rate: float, r: float, exposure: float) -> tuple[float, float]:
    """Return the first derivative of the log-density, which falls everywhere, and the second."""
    grown, scaled = b * math.exp(u), math.exp(r * u) * exposure
    share = scaled / (rate + scaled)
    return a - grown - c * r * share, -grown - c * r * r * share * (1.0 - share)


@compiled
def posterior_nodes(prior: Prior, seen: Seen, nodes: Floats, weights: Floats) -> None:
    """Fill in values of ln mu and their weights, which sum to 1; equally spaced between the ends of the posterior."""
    a = prior.mu_shape + seen.deaths + prior.power * seen.requests
    b = prior.mu_rate + seen.core_hours + seen.hours / prior.lifetimes
    c, rate, exposure = prior.lam_shape + seen.requests, prior.lam_rate, seen.hours + seen.gap_hours
    u = math.log(a / b)
    high, low = u, u - 60.0
    # The log-density is concave, so its slope has one root, at or below ln(a/b); bisect where Newton's step leads out.
    for _ in range(60):
        first, second = _slope(u, a, b, c, rate, prior.power, exposure)
        if first > 0.0:
            low = u
        else:
            high = u
        step = -first / second
        ahead = u + step
        if not low <= ahead <= high:
            ahead = 0.5 * (low + high)
        if abs(ahead - u) < 1e-6 / math.sqrt(-second) + 1e-12 * abs(u):
            u = ahead
            break
        u = ahead
    top = log_density(u, a, b, c, rate, prior.power, exposure)
    width = math.sqrt(2.0 * DEPTH / -_slope(u, a, b, c, rate, prior.power, exposure)[1])
    left = _edge(u, u - width, top - DEPTH, a, b, c, rate, prior.power, exposure)
    right = _edge(u, u + width, top - DEPTH, a, b, c, rate, prior.power, exposure)
    count, total = len(nodes), 0.0
    for j in range(count):
        nodes[j] = left + (right - left) * j / (count - 1)
        weights[j] = math.exp(log_density(nodes[j], a, b, c, rate, prior.power, exposure) - top)
        total += weights[j]
    for j in range(count):
        weights[j] /= total


@compiled
def _edge(
    mode: float, u: float, level: float, a: float, b: float, c: float, rate: float, r: float, exposure: float
) -> float:
    """Return where the log-density falls to a level, by Newton's method, which stays outside of it on a concave one."""
    for _ in range(12):
        above = log_density(u, a, b, c, rate, r, exposure) - level
        step = above / _slope(u, a, b, c, rate, r, exposure)[0]
        u -= step
        if abs(step) < 0.02 * abs(u - mode):
            break
    return u


def _table(points: int, step: float) -> Floats:
    """Return Ein(z) and its slope in w at z = e^w - 1, w = 0, step, 2 step and so on, by Simpson's rule."""
    fine = 32
    w = np.linspace(0.0, (points - 1) * step, (points - 1) * fine + 1)
    z = np.expm1(w)
    slope = np.where(z > 0.0, -np.expm1(-z) / np.maximum(z, 1e-300), 1.0) * (1.0 + z)
    parts = (slope[:-2:2] + 4.0 * slope[1:-1:2] + slope[2::2]) * (step / fine / 3.0)
    values = np.concatenate(([0.0], np.cumsum(parts)))[:: fine // 2]
    return np.stack((values, slope[::fine] * step))


_STEP = 0.0625
_EIN = _table(161, _STEP)


@compiled
def ein(z: float) -> float:
    """Return the integral of (1 - e^-w) / w from 0 to z, to 1e-7."""
    if z > 1e4:
        return math.log(z) + _EULER
    place = math.log1p(z) / _STEP
    i = int(place)
    v = place - i
    v2, v3 = v * v, v * v * v
    return float(
        (2.0 * v3 - 3.0 * v2 + 1.0) * _EIN[0, i]
        + (v3 - 2.0 * v2 + v) * _EIN[1, i]
        + (3.0 * v2 - 2.0 * v3) * _EIN[0, i + 1]
        + (v3 - v2) * _EIN[1, i + 1]
    )


@compiled
def _ended(x: float, y: float) -> float:
    """Return 1 - y, where y = e^-x, without loss of digits."""
    if x > 0.1:
        return 1.0 - y
    return x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0))))


@compiled
def _hazard(x: float, y: float, n: int, rho: float, sig: float, e_sig: float, ein_sig: float) -> float:
    """Return the rate of dying at zero cores per unit of scaled time, given survival so far (§4.3 b); y = e^-x."""
    z = _ended(x, y)
    log_z = math.log(z)
    if n * log_z < _NEVER:
        return 0.0
    e_left = math.exp(-sig * y)
    waited = ein_sig - ein(sig * y) + (e_left - e_sig) / sig if sig > 1e-6 else z
    log_empty = n * log_z - rho * waited
    if log_empty < _NEVER:
        return 0.0
    return math.exp(log_empty) * (n * y / z + rho * z * e_left) / -math.expm1(log_empty)


@compiled
def ab_fast(prior: Prior, seen: Seen, times: Floats, nodes: Floats, weights: Floats, mean: Floats, var: Floats) -> None:
    """Fill in mean and variance of the size after `times` hours, rising and above 0 (admission specification §4.3).

    nodes, weights: room for the quadrature over ln mu, any equal length; NODES in production, of which a settled belief
    takes the first.
    """
    settled = len(nodes) == NODES and prior.mu_shape + seen.deaths + prior.power * seen.requests > SETTLED
    if settled:
        nodes, weights = nodes[:SETTLED_NODES], weights[:SETTLED_NODES]
    posterior_nodes(prior, seen, nodes, weights)
    sig = (prior.sig_shape + seen.extra) / (prior.sig_rate + seen.sizes)
    sig2 = sig * (prior.sig_shape + seen.extra + 1.0) / (prior.sig_rate + seen.sizes)
    m1, m2, q2 = 1.0 + sig, 1.0 + 2.0 * sig + sig2, 1.0 + 3.0 * sig + sig2
    e_sig, ein_sig = math.exp(-sig), ein(sig)
    shape, exposure, n = prior.lam_shape + seen.requests, seen.hours + seen.gap_hours, seen.size
    mean[:] = 0.0
    var[:] = 0.0
    for j in range(len(nodes)):
        if weights[j] < 1e-7:
            continue
        mu = math.exp(nodes[j])
        rate = prior.lam_rate + math.exp(prior.power * nodes[j]) * exposure
        growth = math.exp((prior.power - 1.0) * nodes[j])
        rho = shape / rate * growth
        rho2 = shape * (shape + 1.0) / (rate * rate) * growth * growth
        _add_node(
            *(mu, weights[j], n, rho, sig, e_sig, ein_sig),
            *(rho * m1, rho * m1 + 2.0 * rho2 * m2, rho * q2, 1.0 / prior.lifetimes),
            *(times, mean, var),
        )
    for k in range(len(times)):
        var[k] = max(0.0, var[k] - mean[k] * mean[k])


@compiled
def _add_node(
    mu: float,
    weight: float,
    n: int,
    rho: float,
    sig: float,
    e_sig: float,
    ein_sig: float,
    inflow: float,
    from_grown: float,
    from_alive: float,
    stop: float,
    times: Floats,
    mean: Floats,
    second: Floats,
) -> None:
    """Add one value of mu: the first and second moment of the size, times its weight.

    With S the survival and J what it feeds: J' = -J + S, and the mean is n e^-x + inflow J. Of the second moment the
    part of the first cores is in closed form, the rest is W' = -2 W + from_grown J + from_alive S.
    """
    x, y, alive, hazard = 0.0, 1.0, 1.0, 1.0 if n == 1 else 0.0
    grown, rest, gone = 0.0, 0.0, 0.0
    first = 1e-3 / (1.0 + rho)
    for k in range(len(times)):
        goal = mu * times[k]
        if goal * stop > -_NEVER or gone > -_NEVER:
            return
        while x < goal:
            ahead = goal
            if x == 0.0:
                ahead = min(goal, first)
            elif goal > _WIDEST * x and x < 50.0:
                pieces = math.ceil(math.log(goal / x) / math.log(_WIDEST))
                ahead = goal if pieces <= 1 else x * math.exp(math.log(goal / x) / pieces)
            d = ahead - x
            e = math.exp(-d)
            y_ahead = y * e
            hazard_ahead = _hazard(ahead, y_ahead, n, rho, sig, e_sig, ein_sig)
            gone += 0.5 * (hazard + hazard_ahead) * d
            alive_ahead = math.exp(-gone) if gone > 0.0 else 1.0
            held = _ended(d, e) / d
            grown_ahead = e * grown + alive_ahead * (1.0 - held) + alive * (held - e)
            source = from_grown * grown + from_alive * alive
            source_ahead = from_grown * grown_ahead + from_alive * alive_ahead
            e2, held2 = e * e, held * (1.0 + e) * 0.5
            rest = e2 * rest + 0.5 * (source_ahead * (1.0 - held2) + source * (held2 - e2))
            x, y, alive, hazard, grown = ahead, y_ahead, alive_ahead, hazard_ahead, grown_ahead
        here = weight * math.exp(-x * stop)
        mean[k] += here * (n * y + inflow * grown)
        second[k] += here * (n * n * y * y + n * (1.0 + 2.0 * inflow) * (y - y * y) + rest)
