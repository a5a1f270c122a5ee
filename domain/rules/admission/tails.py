"""How likely the sum of sizes is to exceed the capacity, from two moments or three (specification §5, §5.1)."""

from __future__ import annotations

import math

from domain.errors import BadInput


def kappa_of(p: float) -> float:
    """Return the standard deviations that Cantelli's bound asks for a risk p; BadInput unless 0 < p <= 1."""
    if not 0.0 < p <= 1.0:
        raise BadInput("p", p, "give a risk above 0 and up to 1")
    return math.sqrt((1.0 - p) / p)


def p_of(kappa: float) -> float:
    """Return Cantelli's risk at so many standard deviations; BadInput below 0."""
    if not kappa >= 0.0:
        raise BadInput("kappa", kappa, "give standard deviations, 0 or more")
    return 1.0 / (1.0 + kappa * kappa)


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
    if variance <= 0.0:
        return 1.0 if mean > capacity else 0.0
    return gamma_upper(mean * mean / variance, capacity * mean / variance)


def sgamma_tail(mean: float, variance: float, third: float, capacity: float) -> float:
    """Return the chance that a shifted gamma with these moments exceeds the capacity.

    third: third central moment. A skew below 1e-3, or a negative one, is taken as normal.
    """
    if variance <= 0.0:
        return 1.0 if mean > capacity else 0.0
    z = (capacity - mean) / math.sqrt(variance)
    skew = third / variance**1.5
    if skew <= 1e-3:
        return normal_upper(z)
    shape = 4.0 / (skew * skew)
    return gamma_upper(shape, shape + 2.0 * z / skew)
