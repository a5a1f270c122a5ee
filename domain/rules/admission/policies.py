"""The admission rules, on summed curves (specification §5).

Curves are the sums over all live deployments of mean, variance and third central moment at each horizon, without the
new one, whose own curves are separate arguments. Functions return the index of a horizon that forbids the admission,
the one at `first` if that one does, or -1: admit.

Before them are the tails of the sum of sizes (§5, §5.1), after them the error of forecasts that were not renewed. That
goes beyond the specification, which renews each deployment by itself (§5.2): forecasts that are out of date within its
tolerance add up, and near the limit they decide wrongly.
"""

from __future__ import annotations

import math

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.belief import Floats
from domain.units import HOURS_PER_DAY, HOURS_PER_MONTH, HOURS_PER_WEEK, HOURS_PER_YEAR

LONGEST_H = 3 * HOURS_PER_YEAR
NO_VARIANCE = 1e-150
"""Below it the powers of a variance are no numbers any more."""
BANDS_H = (float(HOURS_PER_DAY), float(HOURS_PER_WEEK), HOURS_PER_MONTH, HOURS_PER_YEAR, LONGEST_H)
"""Ends of the bands of horizons: a day, a week, a month, a year, three years."""


def log_grid(count: int = 32, shortest_h: float = 0.04) -> Floats:
    """Return horizons from `shortest_h` to three years, equally spaced in the log up to a day and beyond it.

    Six of 32 lie below a day. Refusals bind weeks to a year ahead, and there steps as wide as below a day pass over
    the horizon that forbids.
    """
    if count < 2:
        raise BadInput("count", count, "give 2 horizons or more")
    below = count * 6 // 32
    if below == 0:
        return np.geomspace(shortest_h, LONGEST_H, count)
    day_h = BANDS_H[0]
    up_to_a_day = np.geomspace(shortest_h, day_h, below + 1)[:-1]
    return np.concatenate([up_to_a_day, np.geomspace(day_h, LONGEST_H, count - below)])


def paper_grid() -> Floats:
    """Return the published horizons: each band in 600 equal steps, all together."""
    return np.unique(np.concatenate([end * np.arange(1, 601) / 600.0 for end in BANDS_H]))


def checked_grid(horizons_h: Floats) -> Floats:
    """Return the horizons as given; BadInput unless they are ascending, finite and above 0."""
    given = np.asarray(horizons_h, dtype=np.float64)
    good = given.ndim == 1 and given.size > 0 and bool(np.all(np.isfinite(given)))
    if not good or given[0] <= 0.0 or bool(np.any(np.diff(given) <= 0.0)):
        raise BadInput("horizons_h", given.tolist(), "give one hour or more, ascending, all above 0")
    return given


def horizon_hours(horizons_h: Floats) -> Floats:
    """Return the hours that each horizon covers: half way to its neighbours, the first one from now on."""
    middle = 0.5 * (horizons_h[1:] + horizons_h[:-1])
    edges = np.concatenate((np.zeros(1), middle, horizons_h[-1:]))
    return np.diff(edges)


def cantelli(mean: float, variance: float, capacity: float) -> float:
    """Return the bound V / (V + (c - E)^2) on the chance of exceeding the capacity; 1 where the mean exceeds it."""
    slack = capacity - mean
    if slack < 0.0 or (slack == 0.0 and variance > 0.0):
        return 1.0
    return variance / (variance + slack * slack) if variance > 0.0 else 0.0


def gamma_upper(shape: float, x: float) -> float:
    """Return Q(shape, x), the chance that Gamma(shape, 1) exceeds x; shape > 0, to 1e-9 up to shapes of 1e6."""
    if x <= 0.0:
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1.0:
        term = 1.0 / shape
        total = term
        n = shape
        while term > total * 1e-16:
            n += 1.0
            term *= x / n
            total += term
        return max(1.0 - total * front, 0.0)
    # Lentz's continued fraction.
    b = x + 1.0 - shape
    c = 1e300
    d = 1.0 / b
    total = d
    for i in range(1, 100_000):
        a = -i * (i - shape)
        b += 2.0
        d = 1.0 / (a * d + b)
        c = b + a / c
        change = c * d
        total *= change
        if abs(change - 1.0) < 1e-15:
            break
    return min(front * total, 1.0)


def normal_upper(z: float) -> float:
    """Return the chance that a standard normal exceeds z."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def gamma_tail(mean: float, variance: float, capacity: float) -> float:
    """Return the chance that a gamma law with these moments exceeds the capacity; mean > 0."""
    if variance <= NO_VARIANCE:
        return 1.0 if mean > capacity else 0.0
    return gamma_upper(mean * mean / variance, capacity * mean / variance)


def sgamma_tail(mean: float, variance: float, third: float, capacity: float) -> float:
    """Return the chance that a shifted gamma with these moments exceeds the capacity.

    third: third central moment. A skew below 1e-3, or a negative one, is taken as normal.
    """
    if variance <= NO_VARIANCE:
        return 1.0 if mean > capacity else 0.0
    z = (capacity - mean) / math.sqrt(variance)
    skew = third / variance**1.5
    if skew <= 1e-3:
        return normal_upper(z)
    shape = 4.0 / (skew * skew)
    return gamma_upper(shape, shape + 2.0 * z / skew)


def zeroth_admits(total: float, size: float, capacity: float, threshold: float) -> bool:
    """Return whether the cores stay below the threshold and fit."""
    return total + size <= capacity and total + size < threshold


def first_refusal(mean: Floats, new_mean: Floats, threshold: float, marginal_eps: float, first: int) -> int:
    """Return the horizon at which the mean reaches the threshold, or -1.

    Horizons at which the newcomer's mean is below `marginal_eps` do not count; 0 lets all count.
    """
    count = mean.shape[0]
    for i in range(-1, count):
        k = first if i < 0 else i
        if new_mean[k] >= marginal_eps and mean[k] + new_mean[k] >= threshold:
            return k
    return -1


def second_refusal(
    mean: Floats,
    variance: Floats,
    new_mean: Floats,
    new_variance: Floats,
    kappa: Floats,
    capacity: float,
    marginal_eps: float,
    first: int,
) -> int:
    """Return the horizon at which mean + kappa standard deviations exceed the capacity, or -1.

    kappa (H,): one for each horizon. capacity may be any threshold in cores. Horizons at
    which the newcomer's mean is below `marginal_eps` do not count; 0 lets all count.
    """
    count = mean.shape[0]
    for i in range(-1, count):
        k = first if i < 0 else i
        if new_mean[k] < marginal_eps:
            continue
        spread = math.sqrt(max(variance[k] + new_variance[k], 0.0))
        if mean[k] + new_mean[k] + kappa[k] * spread > capacity:
            return k
    return -1


def sgamma_refusal(
    mean: Floats,
    variance: Floats,
    third: Floats,
    new_mean: Floats,
    new_variance: Floats,
    new_third: Floats,
    p: float,
    capacity: float,
    marginal_eps: float,
    first: int,
) -> int:
    """Return the horizon at which the shifted gamma's tail beyond the capacity exceeds p, or -1 (§5.1).

    Horizons at which the newcomer's mean is below `marginal_eps` do not count; 0 lets all count.
    """
    count = mean.shape[0]
    for i in range(-1, count):
        k = first if i < 0 else i
        if new_mean[k] < marginal_eps:
            continue
        risk = sgamma_tail(
            mean[k] + new_mean[k], max(variance[k] + new_variance[k], 0.0), third[k] + new_third[k], capacity
        )
        if risk > p:
            return k
    return -1


def gamma_refusal(
    mean: Floats,
    variance: Floats,
    new_mean: Floats,
    new_variance: Floats,
    p: float,
    capacity: float,
    marginal_eps: float,
    first: int,
) -> int:
    """Return the horizon at which the gamma law's tail beyond the capacity exceeds p, or -1 (§5.1).

    Horizons at which the newcomer's mean is below `marginal_eps` do not count; 0 lets all count.
    """
    count = mean.shape[0]
    for i in range(-1, count):
        k = first if i < 0 else i
        if new_mean[k] < marginal_eps:
            continue
        if gamma_tail(mean[k] + new_mean[k], max(variance[k] + new_variance[k], 0.0), capacity) > p:
            return k
    return -1


def budget_refusal(
    mean: Floats,
    variance: Floats,
    third: Floats,
    requests: Floats,
    new_mean: Floats,
    new_variance: Floats,
    new_third: Floats,
    new_requests: Floats,
    hours: Floats,
    share: float,
    capacity: float,
    marginal_eps: float,
) -> int:
    """Return the horizon that fails most requests where more than `share` of them all are to fail, or -1 (§5.1).

    Failures are forecast as the sum over horizons of hours x requests per hour x the shifted gamma's tail. hours (H,):
    `horizon_hours`. Horizons at which the newcomer's mean is below `marginal_eps` count neither way.
    """
    failures = 0.0
    asked = 0.0
    most = 0.0
    worst = 0
    for k in range(mean.shape[0]):
        if new_mean[k] < marginal_eps:
            continue
        now = hours[k] * (requests[k] + new_requests[k])
        risk = sgamma_tail(
            mean[k] + new_mean[k], max(variance[k] + new_variance[k], 0.0), third[k] + new_third[k], capacity
        )
        failures += now * risk
        asked += now
        if now * risk > most:
            most = now * risk
            worst = k
    return worst if failures > share * asked else -1


def unused_budget(sla: float, failures: float, requests: float) -> float:
    """Return the part, 0 to 1, of the failures permitted so far, sla x requests, that is not used up."""
    return max(1.0 - failures / (sla * requests), 0.0) if requests > 0.0 else 1.0


OVER, UNDER = 2.0, 1.0
"""Shares of the doubt by which sums may be too high, which would refuse wrongly, and too low. Old forecasts are too
high as a rule: sizes shrink core by core, unnoticed, and grow by whole requests, after which they are renewed."""
PART = 0.5
"""Forecasts with more than this share of the largest doubt are renewed together."""
YOUNG_H = 0.1
"""Hours added to a deployment's age where time is measured by it: one just admitted would be out of date at once."""
_TINY, _WIDEST = 1e-9, 10.0
"""A spread in cores, and standard deviations up to the limit, beyond which neither adds information."""


def staleness(cores: Floats, computed_cores: Floats, elapsed_h: Floats, age_h: Floats) -> Floats:
    """Return the share of a deployment's cores that came or went, and of its life that passed, since its forecast.

    Of one deployment, or of (N,).
    """
    return abs(cores - computed_cores) / computed_cores + elapsed_h / (age_h + YOUNG_H)


def cores_per_variance(room: float, variance: float, kappa: float) -> float:
    """Return by how many cores a rule's demand moves with a unit of variance.

    room: cores from the expected to the limit. variance: of all together. kappa: standard deviations that the rule asks
    for, 0 for one that asks for none.
    """
    spread = math.sqrt(max(variance, _TINY))
    return 0.5 * min(max(room / spread, kappa), _WIDEST) / spread
