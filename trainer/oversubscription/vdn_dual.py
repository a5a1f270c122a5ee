"""How lambda, the price of hot hours, moves by what is measured and what is allowed (§4, §12.2).

Section numbers are those of the oversubscription specification.
"""

from __future__ import annotations

import math


def published_bound(alpha: float, limit: int, hours: int) -> float:
    """Return c_bar: Markov's bound on the hot hours of a week, per hour; 0.00125 for alpha 0.95 (§4)."""
    return (1.0 - alpha) * limit / hours


def dual_step(price: float, rate: float, measured: float, allowed: float, highest: float) -> float:
    """Return lambda after a step: it rises while more is measured than allowed, and stays in [0, highest]."""
    return min(max(price + rate * (measured - allowed), 0.0), highest)


def dual_factor(price: float, rate: float, measured: float, allowed: float, highest: float) -> float:
    """Return lambda after a step by a factor of at most exp(rate), up or down, by the excess as a share of its range.

    Added up, an excess of up to 1 - allowed drives lambda in few episodes to where steps of at most `allowed` take
    hundreds to bring it back from.
    """
    room = 1.0 - allowed if measured > allowed else allowed
    return min(price * math.exp(rate * (measured - allowed) / room), highest)


def dual_ratio(price: float, rate: float, measured: float, allowed: float, highest: float) -> float:
    """Return lambda after a step by a factor of at most exp(rate), by how many times too much is measured.

    Twice as much as allowed moves it up as far as half as much moves it down; everything moves it by the whole factor.
    """
    times = max(measured, allowed**2) / allowed
    return min(price * math.exp(rate * math.log(times) / -math.log(allowed)), highest)


DUAL_STEPS = {"sum": dual_step, "factor": dual_factor, "ratio": dual_ratio}
