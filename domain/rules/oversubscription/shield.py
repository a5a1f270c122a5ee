"""The shield: raise a request's rate until the machine it would go to is expected to stay cool (§12.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.placement import best_fit
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


@dataclass(frozen=True, slots=True)
class Shielded:
    """What the shield decided."""

    rate: float
    machine: int
    """Index of the machine best fit would take, -1 where none has room."""
    hot_hours: float
    """Expected hot hours of that machine with the VM on it."""
    safe: bool
    """False where no level kept within the budget: the rate is 1.0 and the machine should be looked at."""


def expected_hot_hours(machines: Machines, k: int, demand: Demand) -> float:
    """Return the expected hot hours of machine k over the next hours with the VM added."""
    moments = zip(
        (machines.mean[k] + demand.mean).tolist(),
        (machines.variance[k] + demand.variance).tolist(),
        (machines.third[k] + demand.third).tolist(),
        strict=True,
    )
    return sum(hot_probability(mean, variance, third, machines.threshold) for mean, variance, third in moments)


def shield(machines: Machines, demand: Demand, rate: float, actions: Sequence[float], budget: float) -> Shielded:
    """Return the first of the rate and the larger levels that leaves its machine at most `budget` expected hot hours.

    A level for which no machine has room counts as refused, as a larger one needs more room still. Where no level
    passes, the rate is 1.0 and `safe` is false.
    """
    count = machines.free_cores.size
    seen: dict[int, float] = {}
    for level in (rate, *(action for action in actions if action > rate + 1e-9)):
        k = best_fit(
            machines.free_cores,
            machines.free_memory,
            machines.free_network,
            count,
            level * demand.cores,
            demand.memory,
            demand.network,
        )
        if k < 0:
            continue
        if k not in seen:
            seen[k] = expected_hot_hours(machines, k, demand)
        if seen[k] <= budget:
            return Shielded(level, k, seen[k], True)
    k = best_fit(
        machines.free_cores,
        machines.free_memory,
        machines.free_network,
        count,
        demand.cores,
        demand.memory,
        demand.network,
    )
    return Shielded(1.0, k, seen.get(k, 0.0), False)
