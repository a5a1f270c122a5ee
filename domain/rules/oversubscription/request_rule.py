"""A rate for each request, chosen from the machine that best fit would take at each level.

For a request of subscriber n with c cores in hour t, the levels a are looked at in ascending order. Best fit takes
machine k for a c cores. With M, V the summed mean and variance of the usage of the VMs on k by hour of day, mu and var
those of one VM of n, in shares of its cores, and T the threshold in cores:

    s = min over hours of (T - M - c mu - z sqrt(V + c^2 var)) / T       the margin that is left on k
    f = free cores of k before placement / cores of a machine
    need = b_n + w(t) + d(t mod 24) - p_margin s + p_room f + p_shortfall max(p_enough - s, 0)

and need grows by REFUSED where s < p_least. The first a >= need is taken, 1.0 in any case. The parameters are found
by `trimtab train oversubscription --method rule`. w is piecewise linear over KNOTS_H and absent for a service that has
no end of the week; d has the first and second daily harmonic.

`least_margin` and `need_of` are leaves: numbers and 1-D arrays in, a number out, so that numba can compile them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.shield import NO_ROOM, Demand, Machines, lesser
from domain.units import HOURS_PER_DAY

Floats = NDArray[np.float64]

KNOTS_H: Final = (0.0, 24.0, 48.0, 72.0, 96.0, 108.0, 119.0)
HARMONICS: Final = 2
REFUSED: Final = 10.0


class Weights(NamedTuple):
    """How margin and free cores of the machine count."""

    spread: float
    """Standard deviations of the machine's usage that its margin leaves out, z."""
    margin: float
    room: float
    shortfall: float
    enough: float
    least: float


NEUTRAL: Final = Weights(0.0, 0.0, 0.0, 0.0, 0.0, -NO_ROOM)
"""Weights by which nothing but the subscriber and the hour counts."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestRule:
    """The parameters; BadInput for a wrong number of them, or for one that is not finite."""

    base: Floats
    """b, (N,)."""
    week: Floats
    """w at KNOTS_H, (7,), or (0,) where the hour of the week does not count."""
    day: Floats
    """cos and sin of the first, then of the second daily harmonic, (4,)."""
    weights: Weights

    def __post_init__(self) -> None:
        sizes = (("week", self.week, (0, len(KNOTS_H))), ("day", self.day, (2 * HARMONICS,)))
        for name, values, allowed in sizes:
            if values.shape not in [(size,) for size in allowed]:
                raise BadInput(name, values.shape, f"give {' or '.join(map(str, allowed))} numbers")
        if self.base.ndim != 1 or not self.base.size:
            raise BadInput("base", self.base.shape, "give one number for each subscriber")
        every = (*self.base.tolist(), *self.week.tolist(), *self.day.tolist(), *self.weights)
        if not all(map(math.isfinite, every)):
            raise BadInput("parameters", every, "give finite numbers")

    def wanted(self, hours: Sequence[int] | NDArray[np.int64]) -> Floats:
        """Return b_n + w(t) + d(t mod 24) by hour from the beginning of the week and subscriber, (hours, N)."""
        t = np.asarray(hours, dtype=np.float64)
        turn = 2.0 * np.pi * (t % HOURS_PER_DAY)[:, None] * np.arange(1, HARMONICS + 1) / HOURS_PER_DAY
        waves = np.stack([np.cos(turn), np.sin(turn)], axis=2).reshape(len(t), -1)
        by_hour = waves @ self.day
        if self.week.size:
            by_hour = by_hour + np.interp(t, KNOTS_H, self.week)
        return by_hour[:, None] + self.base


def least_margin(
    mean: Floats, variance: Floats, added_mean: Floats, added_variance: Floats, spread: float, threshold: float
) -> float:
    """Return s: the share of the threshold that usage leaves free in the worst hour, `spread` deviations kept.

    mean, variance: of a machine by hour; added: those of the VM.
    """
    least = NO_ROOM
    for hour in range(mean.size):
        # Sums from which VMs were taken away may lie below 0 by rounding.
        deviation = math.sqrt(max(variance[hour] + added_variance[hour], 0.0))
        least = lesser(least, threshold - mean[hour] - added_mean[hour] - spread * deviation)
    return least / threshold


def need_of(wanted: float, margin: float, free: float, weights: Weights) -> float:
    """Return the least level that may be taken on a machine. wanted: b_n + w(t) + d(t); margin: s; free: f."""
    shortfall = max(weights.enough - margin, 0.0)
    need = wanted - weights.margin * margin + weights.room * free + weights.shortfall * shortfall
    return need + REFUSED if margin < weights.least else need


@dataclass(frozen=True, slots=True)
class LevelSeen:
    """A level that was looked at, with the machine (-1: none has room, and the rest is nan)."""

    level: float
    machine: int
    need: float
    margin: float
    free: float


@dataclass(frozen=True, slots=True)
class LevelDecision:
    """The level taken with its machine, and every level seen: the last one is the one taken."""

    seen: tuple[LevelSeen, ...]

    @property
    def taken(self) -> LevelSeen:
        """The level taken."""
        return self.seen[-1]


def choose_level(
    levels: Sequence[float],
    fits: Sequence[int],
    machines: Machines,
    machine_cores: float,
    demand: Demand,
    wanted: float,
    weights: Weights,
) -> LevelDecision:
    """Return the first level that its machine permits, the last one in any case.

    levels: rising; fits: the machine of each among `machines`, -1 where none has room. wanted: see `need_of`.
    """
    seen: list[LevelSeen] = []
    for level, k in zip(levels, fits, strict=True):
        if k < 0:
            seen.append(LevelSeen(level, -1, math.nan, math.nan, math.nan))
            continue
        moments = (machines.mean[k], machines.variance[k], demand.mean, demand.variance)
        margin = least_margin(*moments, weights.spread, machines.threshold)
        free = float(machines.free_cores[k]) / machine_cores
        need = need_of(wanted, margin, free, weights)
        seen.append(LevelSeen(level, k, float(need), float(margin), free))
        if level >= need:
            break
    return LevelDecision(tuple(seen))
