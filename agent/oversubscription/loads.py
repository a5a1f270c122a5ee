"""What the machines of a pool hold and are expected to use, by hour of the day: what risk stands on (§12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.alive import Alive
from agent.oversubscription.arrays import Floats
from agent.oversubscription.machine_moments import machine_moments
from agent.oversubscription.memory import VmColumns
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import Vm
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.shield import TOLERANCE


@dataclass(slots=True)
class Loads:
    """Machines in the order of `names`, those in use first; (K,) or (K, 24) each.

    by_owner: requested cores per subscriber, in the order of the profiles, (K, N + 1). The arrays grow with what is
    promised to requests until the next time they are built.
    """

    names: list[str]
    free_cores: Floats
    free_memory: Floats
    free_network: Floats
    mean: Floats
    variance: Floats
    third: Floats
    by_owner: Floats
    requested: Floats
    saved: Floats
    vms: NDArray[np.int64]
    used: int

    def index(self, machine: str) -> int:
        """Return the place of a machine, -1 for one that is not there."""
        try:
            return self.names.index(machine)
        except ValueError:
            return -1

    def best_fit(self, cores: float, memory: float, network: float, allowed: NDArray[np.bool_]) -> int:
        """Return the machine with the least free cores that has room, the lowest of several; -1 where none has."""
        room = (
            allowed
            & (self.free_cores >= cores - TOLERANCE)
            & (self.free_memory >= memory)
            & (self.free_network >= network)
        )
        if not room.any():
            return -1
        least = float(self.free_cores[room].min())
        return int(np.argmax(room & (self.free_cores <= least + TOLERANCE)))

    def place(self, k: int, vm: Vm, owner: int, profiles: Profiles) -> None:
        """Count a VM of which nothing was measured yet on machine k."""
        rho = float(profiles.rho[owner])
        self.variance[k] += added_variance(self.by_owner[k, owner], vm.cores, profiles.variance[owner], rho)
        self.mean[k] += vm.cores * profiles.mean[owner]
        self.third[k] += vm.cores**3 * profiles.third[owner]
        self.by_owner[k, owner] += vm.cores
        self.free_cores[k] -= vm.rate * vm.cores
        self.free_memory[k] -= vm.memory_gb
        self.free_network[k] -= vm.network_gbit
        self.requested[k] += vm.cores
        self.saved[owner] += (1.0 - vm.rate) * vm.cores
        self.vms[owner] += 1
        self.used = max(self.used, k + 1)


def added_variance(present_cores: float, cores: float, variance: Floats, rho: float) -> Floats:
    """Return what a VM adds to its machine's variance beside so many cores of its owner (§12.8)."""
    added: Floats = (cores * cores + 2.0 * rho * present_cores * cores) * variance
    return added


def loads_of(alive: Alive, known: VmColumns, profiles: Profiles, rules: PoolRules) -> Loads:
    """Return the loads of VMs; known: of each of them. Machines in use beyond the rules' number are listed too."""
    names = machine_names(alive.machines, rules.machines)
    owners = {name: n for n, name in enumerate(profiles.names)}
    owner = np.array([owners.get(name, len(owners)) for name in alive.subscribers], np.int64)[alive.subscriber]
    machine, cores = alive.machine, alive.cores
    reserved = alive.rate * cores
    count, kinds = len(names), len(profiles.names) + 1

    def summed(weights: Floats) -> Floats:
        return np.bincount(machine, weights=weights, minlength=count).astype(np.float64)

    cells = np.bincount(machine * kinds + owner, weights=cores, minlength=count * kinds).astype(np.float64)
    by_owner: Floats = cells.reshape(count, kinds)
    squared = np.bincount(machine * kinds + owner, weights=cores**2, minlength=count * kinds).reshape(count, kinds)
    mean, variance, third = machine_moments(machine, owner, cores, known, profiles, count)
    if profiles.rho.any():
        variance += ((by_owner**2 - squared) * profiles.rho) @ profiles.variance
    return Loads(
        names=names,
        free_cores=rules.machine_cores - summed(reserved),
        free_memory=rules.machine_memory_gb - summed(alive.memory_gb),
        free_network=rules.machine_network_gbit - summed(alive.network_gbit),
        mean=mean,
        variance=variance,
        third=third,
        by_owner=by_owner,
        requested=summed(cores),
        saved=np.bincount(owner, weights=cores - reserved, minlength=kinds).astype(np.float64),
        vms=np.bincount(owner, minlength=kinds),
        used=len(alive.machines),
    )


def machine_names(used: Sequence[str], machines: int) -> list[str]:
    """Return the machines in use, then those not in use yet."""
    taken = set(used)
    unused = (f"spare-{k}" for k in range(1, machines + len(used) + 1))
    return [*used, *[name for name in unused if name not in taken][: max(0, machines - len(used))]]
