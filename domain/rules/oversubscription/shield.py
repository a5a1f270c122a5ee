"""The machine for a demand and its hot hours to come: best fit and what the shield asks (§12.4, §12.6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.risk import hot_probability

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines in use, in index order, and what their VMs are expected to use in each of the next hours."""

    free_cores: Floats
    """Unreserved cores, (K,)."""
    free_memory: Floats
    free_network: Floats
    mean: Floats
    """Expected usage in cores, (K, hours); so are variance and third central moment."""
    variance: Floats
    third: Floats
    threshold: float
    """Cores in use from which a machine is hot."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A request, with the moments of the VM's usage in cores in each of the next hours."""

    cores: float
    memory: float
    network: float
    mean: Floats
    variance: Floats
    third: Floats


def expected_hot_hours(machines: Machines, k: int, demand: Demand) -> float:
    """Return the expected hot hours of machine k over the next hours with the VM added."""
    moments = zip(
        (machines.mean[k] + demand.mean).tolist(),
        (machines.variance[k] + demand.variance).tolist(),
        (machines.third[k] + demand.third).tolist(),
        strict=True,
    )
    return sum(hot_probability(mean, variance, third, machines.threshold) for mean, variance, third in moments)


TOLERANCE = 1e-9
NO_ROOM = 1e300
"""Takes the place of the free cores of a machine that cannot take the VM."""


def write_room(
    free_cores: Floats,
    free_memory: Floats,
    free_network: Floats,
    assigned: float,
    memory: float,
    network: float,
    room: Floats,
) -> None:
    """Write into `room` the free cores of each machine that can take the VM, and NO_ROOM for the others.

    assigned: the cores to be reserved. The first machines are looked at, as many as there are elements in `room`.
    """
    for k in range(room.size):
        fits = (free_cores[k] >= assigned - TOLERANCE) & (free_memory[k] >= memory) & (free_network[k] >= network)
        room[k] = free_cores[k] if fits else NO_ROOM


def lesser(a: float, b: float) -> float:
    """Return the lesser of two numbers."""
    return a if a < b else b


def best_fit(room: Floats) -> int:
    """Return the machine with the least free cores, as `write_room` left them; -1 where none has room.

    Ties go to the lowest index (oversubscription specification §2); free cores within the tolerance are a tie, or
    rounding would decide. No branch depends on a machine, so that compiled code looks at several at once.
    """
    least = NO_ROOM
    for k in range(room.size):
        least = lesser(least, room[k])
    if least >= NO_ROOM:
        return -1
    first = np.int32(room.size)
    for k in range(room.size):
        at = np.int32(k) if room[k] <= least + TOLERANCE else np.int32(room.size)
        first = at if at < first else first
    return int(first)
