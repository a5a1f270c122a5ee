"""Best fit: the machine on which a VM leaves the least room. A leaf, which numba can compile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
