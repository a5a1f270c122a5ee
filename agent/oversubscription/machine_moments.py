"""Moments of the usage of machines, by hour of the day: sums over their VMs, each by its own belief (§12.4b).

VMs of one subscriber that were measured for equally many hours differ by their levels alone. Where many of their levels
lie close together, a polynomial through the moments at a few levels gives those of all (interpolation in Chebyshev
nodes: Trefethen, Approximation Theory and Practice). With its spread sd, a VM's moment k is wrong by 1e-8 sd^k at most.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from agent.oversubscription.arrays import Floats, clipped
from agent.oversubscription.memory import Ints, VmColumns, levels
from agent.oversubscription.profiles import Profiles
from domain.rules.oversubscription.usage import SD_FLOOR
from domain.units import HOURS_PER_DAY

WIDTH: Final = 5.0
"""Of a cell of levels, in standard deviations of the usage expected of its VMs."""
NODES: Final = 26
"""Levels at which a cell's moments are computed; with at most this number of VMs, each VM's are."""
MOMENTS: Final = 3
_AT_ONCE: Final = 8192
_ANGLES = np.pi * (np.arange(NODES) + 0.5) / NODES
_DEGREES = np.arange(NODES)[:, None]
_COEFFICIENTS = np.cos(_DEGREES * _ANGLES) * np.where(_DEGREES, 2.0, 1.0) / NODES
"""From values at the nodes to coefficients of Chebyshev's polynomials, (NODES, NODES)."""


def machine_moments(
    machine: Ints, owner: Ints, cores: Floats, known: VmColumns, profiles: Profiles, count: int
) -> tuple[Floats, Floats, Floats]:
    """Return summed mean, variance and third central moment of usage in cores, (count, 24) each.

    machine, owner, cores, known: of each VM, (V,); owner: its place among the profiles.
    """
    level, width = levels(known, profiles.persistence[owner], profiles.rho[owner])
    # In the hour of the day in which a level moves usage most.
    moved = level * (profiles.narrow / profiles.sd).max(axis=1)[owner] / np.maximum(width, SD_FLOOR)
    cell = np.floor(moved / WIDTH).astype(np.int64)
    cell -= cell.min(initial=0)
    key = (owner * (known.hours.max(initial=0) + 1) + known.hours) * (cell.max(initial=0) + 1) + cell
    order = np.argsort(key, kind="stable")
    sums = np.zeros((MOMENTS, HOURS_PER_DAY, count))
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        moments = _moments(profiles, key[some], owner[some], level[some], width[some])
        where, weight = machine[some], np.ones(len(some))
        for total, moment in zip(sums, moments, strict=True):
            weight *= cores[some]
            moment *= weight
            for hour, values in enumerate(moment):
                total[hour] += np.bincount(where, weights=values, minlength=count)
    return sums[0].T, sums[1].T, sums[2].T


def _moments(profiles: Profiles, key: Ints, owner: Ints, level: Floats, width: Floats) -> Floats:
    """Return the moments of VMs that are sorted by cell, (3, 24, V). key: of each VM's cell."""
    begin = np.concatenate(([0], np.flatnonzero(np.diff(key)) + 1))
    size = np.diff(begin, append=len(key))
    found = np.empty((MOMENTS * HOURS_PER_DAY, len(key)))
    few = np.repeat(size <= NODES, size)
    found[:, few] = _exact(profiles, owner[few], level[few], width[few]).T
    low, high = np.minimum.reduceat(level, begin), np.maximum.reduceat(level, begin)
    middle, reach = 0.5 * (low + high), np.maximum(0.5 * (high - low), SD_FLOOR)
    polynomials = _chebyshev((level - np.repeat(middle, size)) / np.repeat(reach, size))
    many = size > NODES
    first, nodes = begin[many], middle[many, None] + reach[many, None] * np.cos(_ANGLES)
    at_nodes = _exact(profiles, np.repeat(owner[first], NODES), nodes.ravel(), np.repeat(width[first], NODES))
    coefficients = (_COEFFICIENTS @ at_nodes.reshape(-1, NODES, MOMENTS * HOURS_PER_DAY)).transpose(0, 2, 1)
    for mine, start, end in zip(coefficients, first.tolist(), (first + size[many]).tolist(), strict=True):
        np.matmul(mine, polynomials[:, start:end], out=found[:, start:end])
    return found.reshape(MOMENTS, HOURS_PER_DAY, len(key))


def _exact(profiles: Profiles, owner: Ints, level: Floats, width: Floats) -> Floats:
    """Return the moments of each VM by its level and the factor on its spread, (V, 72)."""
    believed = profiles.mu[owner] + profiles.narrow[owner] * level[:, None]
    return np.concatenate(clipped(believed, profiles.sd[owner] * width[:, None]), axis=1)


def _chebyshev(x: Floats) -> Floats:
    """Return Chebyshev's polynomials of degrees 0 to NODES - 1, (NODES, V)."""
    found = np.empty((NODES, len(x)))
    found[0], found[1] = 1.0, x
    for degree in range(2, NODES):
        np.multiply(2.0 * x, found[degree - 1], out=found[degree])
        found[degree] -= found[degree - 2]
    return found
