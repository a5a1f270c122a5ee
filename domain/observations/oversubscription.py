"""obs-o and obs-o-ext: what an oversubscription policy sees each hour, defined once for simulator, agent and trainer.

The oversubscription specification, §2. The functions that compute are leaves: arrays in, arrays filled, no other plain
function called, so that numba can compile them unchanged. Computed in 64 bits, rounded to 32.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

OBS_O_VERSION = "obs-o/1"
OBS_O_EXT_VERSION = "obs-o-ext/1"
SCALE = 10.0
"""Factor on shares of the cluster, which brings typical values to the order of 1; stored with a model."""
HIGHEST = 2.0
"""Entries are clipped to [-1, this]."""

HELD_NAMES = ("cpu_assigned", "cpu_requested", "memory", "network")
ASKED_NAMES = ("cpu_asked", "memory_asked", "network_asked")
HOUR_NAMES = ("hour_sin", "hour_cos")
EXT_LOCAL_NAMES = ("vms", "usage_mean", "usage_sd", "usage_mean_max_24h")
EXT_CLUSTER_NAMES = ("hottest_machine", "machines_used", "hot_hours")
OWN = len(HELD_NAMES) + len(ASKED_NAMES)


def local_names(extended: bool = False) -> tuple[str, ...]:
    """Return the names of one subscriber's observation, in order."""
    return (*HELD_NAMES, *ASKED_NAMES, *HOUR_NAMES, *(EXT_LOCAL_NAMES if extended else ()))


def cluster_names(subscribers: int, extended: bool = False) -> tuple[str, ...]:
    """Return the names of the cluster's observation, in order: seven per subscriber, the hour, and the extension."""
    own = [f"sub{n}.{name}" for n in range(subscribers) for name in (*HELD_NAMES, *ASKED_NAMES)]
    return (*own, *HOUR_NAMES, *(EXT_CLUSTER_NAMES if extended else ()))


def observe_cluster(loads: Floats, asked: Floats, hour: int, capacity: Floats, cluster: Vector, local: Vector) -> None:
    """Fill in the published observation: cluster (7 N + 2 or more,) and local (N, 9 or more).

    loads: each subscriber's cores assigned and requested, memory and network of the VMs alive, (N, 4); asked: cores,
    memory and network requested this hour, (N, 3); capacity: cores, memory and network of all machines together.
    """
    count = loads.shape[0]
    sine, cosine = math.sin(2.0 * math.pi * hour / 24.0), math.cos(2.0 * math.pi * hour / 24.0)
    for n in range(count):
        for j in range(7):
            value = loads[n, j] if j < 4 else asked[n, j - 4]
            # Assigned and requested cores are both shares of the cores.
            kind = (j - 1 if j > 0 else 0) if j < 4 else j - 4
            value = min(SCALE * value / capacity[kind], HIGHEST)
            cluster[7 * n + j] = value
            local[n, j] = value
        local[n, 7] = sine
        local[n, 8] = cosine
    cluster[7 * count] = sine
    cluster[7 * count + 1] = cosine


def observe_extension(
    vms: Floats,
    mean: Floats,
    variance: Floats,
    hour: int,
    machines: int,
    hottest: float,
    used: int,
    hot_hours: float,
    limit: int,
    cluster: Vector,
    local: Vector,
) -> None:
    """Fill in the extension behind the published observation: three entries of the cluster, four per subscriber.

    vms: VMs alive per subscriber; mean, variance: of one VM's usage, (N, 24); hottest: the largest chance of a machine
    to run hot this hour; used: machines with VMs; hot_hours: so far, of the `limit` that break the promise.
    """
    count = vms.shape[0]
    for n in range(count):
        largest = 0.0
        for h in range(24):
            largest = max(largest, mean[n, h])
        local[n, 9] = min(vms[n] / machines, HIGHEST)
        local[n, 10] = mean[n, hour]
        local[n, 11] = math.sqrt(variance[n, hour])
        local[n, 12] = largest
    cluster[7 * count + 2] = hottest
    cluster[7 * count + 3] = used / machines
    cluster[7 * count + 4] = min(hot_hours / limit, HIGHEST)
