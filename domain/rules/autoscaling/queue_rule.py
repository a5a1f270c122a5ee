"""The queue rule: enough cores to clear the queue in time, idle VMs given back (autoscaler specification §9.4)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def queue_rule_multi(
    waiting_core_s: float,
    horizon_s: float,
    cores: Ints,
    requested: Ints,
    booting: Ints,
    idle_long: Ints,
    minimum: Ints,
    maximum: Ints,
    free_cores: float,
    busy_cores: float = 0.0,
) -> Ints:
    """Return the desired number of VMs per type, int64 of shape (N,), any number of VMs at once.

    waiting_core_s: core-seconds of the jobs that wait. horizon_s: time in which they should be worked off. cores: cores
    of one VM per type. requested: VMs per type that exist or are under way. booting: those of them not yet ready.
    idle_long: ready VMs without a busy core for the idle period that a removal would take first. minimum, maximum:
    limits per type. free_cores: idle cores of ready VMs. busy_cores: busy cores that count as cover, because they take
    up waiting jobs as theirs end.

    The need is ceil(waiting_core_s / horizon_s) cores less those booting, free and busy. With busy_cores = 0 this is
    the specification's text; with all busy cores it is the stronger form, which does not order a second fleet for a
    queue that the first one is about to take up. Largest VMs first; a remainder smaller than every VM with room gets
    the smallest VM that covers it, so the overshoot stays below one smallest VM with room. When nothing waits, VMs idle
    for long are given back down to the minimum.
    """
    desired = requested.copy()
    if waiting_core_s > 0.0:
        need = max(math.ceil(waiting_core_s / horizon_s - 1e-9), 1) - free_cores - busy_cores
        for k in range(cores.size):
            need -= booting[k] * cores[k]
        while need > 0:
            best = -1
            for k in range(cores.size):
                if desired[k] >= maximum[k]:
                    continue
                if best < 0:
                    best = k
                elif cores[best] <= need:
                    if cores[k] <= need and cores[k] > cores[best]:
                        best = k
                elif cores[k] < cores[best]:
                    best = k
            if best < 0:
                break
            desired[best] += 1
            need -= cores[best]
    else:
        for k in range(cores.size):
            desired[k] = max(min(minimum[k], requested[k]), requested[k] - idle_long[k])
    return desired


def queue_rule_single(
    waiting_core_s: float,
    horizon_s: float,
    cores: Ints,
    requested: Ints,
    booting: Ints,
    idle_long: Ints,
    minimum: Ints,
    maximum: Ints,
    free_cores: float,
    busy_cores: float = 0.0,
) -> int:
    """Return one act-7 action index: 0 nothing, 2k + 1 add one VM of type k, 2k + 2 remove one.

    Arguments are those of `queue_rule_multi`.

    One VM at a time: while more is needed, the largest VM with room that the need fills, else the smallest with room.
    When nothing waits, one VM of the largest type that has VMs idle for long.
    """
    best = -1
    if waiting_core_s > 0.0:
        need = max(math.ceil(waiting_core_s / horizon_s - 1e-9), 1) - free_cores - busy_cores
        for k in range(cores.size):
            need -= booting[k] * cores[k]
        if need <= 0:
            return 0
        for k in range(cores.size):
            if requested[k] >= maximum[k]:
                continue
            if best < 0:
                best = k
            elif cores[best] <= need:
                if cores[k] <= need and cores[k] > cores[best]:
                    best = k
            elif cores[k] < cores[best]:
                best = k
        return 0 if best < 0 else 2 * best + 1
    for k in range(cores.size):
        if idle_long[k] > 0 and requested[k] > minimum[k] and (best < 0 or cores[k] > cores[best]):
            best = k
    return 0 if best < 0 else 2 * best + 2
