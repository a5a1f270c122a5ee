"""A pool of hosts and the fleet that they are VMs of: the hosts that drain while it shrinks.

Placement with lifetimes, §8: a host that only drains saves money when the fleet gives it back. While a group of it has
VMs too many, that number of its hosts drains, the soonest to end first; afterwards they take containers again. A VM is
removed once its host drains and is empty, so a wrong end ends no container. Such a drain is a preference: containers
that fit nowhere else are placed as without it, until the VM is about to be removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from domain.rules.placement.cluster import Cluster
from domain.rules.placement.lifetimes import FAIR_R2, Floats
from domain.rules.placement.policies import Ints

SOON_S = 5400.0
"""A host is to run empty where it ends within this time, and for twice that time: it is paid for and not used."""


def left_s(cluster: Cluster, hosts: Ints) -> Floats:
    """Return the seconds until hosts end, float64 [K]: 0 for an empty one.

    inf where hints are of no use, and for a host with a container without one.
    """
    known = cluster.lives.are_hinted(hosts) & (cluster.lives.fit.r2 >= FAIR_R2)
    left = np.where(known, cluster.lives.left_s(hosts, cluster.now), np.inf)
    return np.where(cluster.containers[hosts] == 0, 0.0, left)


def by_end(cluster: Cluster, hosts: Ints) -> Ints:
    """Return hosts by their ends, the soonest first, int64 [K]; of equal ones the one added last."""
    order = np.lexsort((-hosts, left_s(cluster, hosts)))
    found: Ints = hosts[order]
    return found


def draining(cluster: Cluster, taking: Ints, drained: Ints, leaving: int) -> Ints:
    """Return the hosts to drain, by index, while a group of the fleet has this number of VMs too many.

    taking: hosts of the group that take containers. drained: hosts that this rule drained before; they come first.
    While VMs leave, an empty host among these stays drained: its VM may be on its way out already.
    """
    if leaving <= 0:
        return np.zeros(0, dtype=np.int64)
    kept = drained[left_s(cluster, drained) <= 2.0 * SOON_S]
    soon = taking[left_s(cluster, taking) <= SOON_S]
    out = drained[cluster.containers[drained] == 0].tolist()
    more = [host for host in (*by_end(cluster, kept).tolist(), *by_end(cluster, soon).tolist()) if host not in out]
    return np.array(sorted([*out, *more[: max(0, leaving - len(out))]]), dtype=np.int64)


def effective_cores(cores: int, rate: float) -> int:
    """Return the cores that containers may request of a host, of which this share is reserved: floor(cores / rate)."""
    return math.floor(cores / rate + 1e-9)


@contextmanager
def resumed(cluster: Cluster, hosts: Sequence[int]) -> Iterator[None]:
    """Let drained hosts take containers within this context; one that has no more of them afterwards drains again."""
    before = [int(cluster.containers[host]) for host in hosts]
    for host in hosts:
        cluster.resume(host)
    try:
        yield
    finally:
        for host, had in zip(hosts, before, strict=True):
            if cluster.containers[host] <= had:
                cluster.drain(host)
