"""The shield on every machine of a pool: raise a request's rate until its machine is expected to stay cool (§12.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from domain.rules.oversubscription.shield import Demand, Machines, best_fit, expected_hot_hours, write_room


@dataclass(frozen=True, slots=True)
class Shielded:
    """The shield's decision."""

    rate: float
    machine: int
    """Index of the machine best fit would take, -1 where none has room."""
    hot_hours: float
    """Expected hot hours of that machine with the VM on it."""
    safe: bool
    """False where no level kept within the budget: the rate is 1.0 and the machine needs attention."""


def shield(machines: Machines, demand: Demand, rate: float, actions: Sequence[float], budget: float) -> Shielded:
    """Return the first of the rate and the larger levels that leaves its machine at most `budget` expected hot hours.

    A level for which no machine has room counts as refused, as a larger one needs more room still. Where no level
    passes, the rate is 1.0 and `safe` is false.
    """
    room = np.empty(machines.free_cores.size)

    def fit(level: float) -> int:
        free = (machines.free_cores, machines.free_memory, machines.free_network)
        write_room(*free, level * demand.cores, demand.memory, demand.network, room)
        return best_fit(room)

    seen: dict[int, float] = {}
    for level in (rate, *(action for action in actions if action > rate + 1e-9)):
        k = fit(level)
        if k < 0:
            continue
        if k not in seen:
            seen[k] = expected_hot_hours(machines, k, demand)
        if seen[k] <= budget:
            return Shielded(level, k, seen[k], True)
    k = fit(1.0)
    return Shielded(1.0, k, seen.get(k, 0.0), False)
