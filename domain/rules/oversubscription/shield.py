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


def best_fit(
    free_cores: Floats,
    free_memory: Floats,
    free_network: Floats,
    machines: int,
    assigned: float,
    memory: float,
    network: float,
) -> int:
    """Return the machine, of the first `machines`, with the least free cores that takes the VM; -1 where none does.

    assigned: the cores to be reserved. Ties go to the lowest index (oversubscription
    specification §2); free cores closer than the tolerance are a tie, or rounding would decide.
    """
    best, least = -1, np.inf
    for k in range(machines):
        free = free_cores[k]
        if (
            free < least - TOLERANCE
            and free >= assigned - TOLERANCE
            and free_memory[k] >= memory
            and free_network[k] >= network
        ):
            best, least = k, free
    return best
