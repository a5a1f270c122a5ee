"""What the machines of a pool hold and are expected to use, by hour of the day: what risk stands on (§12)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.arrays import Floats, clipped
from agent.oversubscription.memory import VmTable, columns_of, levels, vm_key
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import Vm
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.shield import TOLERANCE
from domain.units import HOURS_PER_DAY

_AT_ONCE: Final = 4096
_DIGITS = re.compile(r"(\d+)")


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


def loads_of(vms: Sequence[Vm], table: VmTable, profiles: Profiles, rules: PoolRules) -> Loads:
    """Return the loads of VMs; more machines than the rules know are taken as they are listed."""
    names = machine_names((vm.machine for vm in vms), rules.machines)
    place = {name: k for k, name in enumerate(names)}
    owners = {name: n for n, name in enumerate(profiles.names)}
    machine = np.array([place[vm.machine] for vm in vms], dtype=np.int64)
    owner = np.array([owners.get(vm.subscriber, len(owners)) for vm in vms], dtype=np.int64)
    cores = np.array([vm.cores for vm in vms])
    reserved = np.array([vm.rate * vm.cores for vm in vms])
    count, kinds = len(names), len(profiles.names) + 1

    def summed(weights: Floats) -> Floats:
        return np.bincount(machine, weights=weights, minlength=count).astype(np.float64)

    cells = np.bincount(machine * kinds + owner, weights=cores, minlength=count * kinds).astype(np.float64)
    by_owner: Floats = cells.reshape(count, kinds)
    squared = np.bincount(machine * kinds + owner, weights=cores**2, minlength=count * kinds).reshape(count, kinds)
    mean, variance, third = _machine_moments(vms, machine, owner, cores, table, profiles, count)
    if profiles.rho.any():
        variance += ((by_owner**2 - squared) * profiles.rho) @ profiles.variance
    return Loads(
        names=names,
        free_cores=rules.machine_cores - summed(reserved),
        free_memory=rules.machine_memory_gb - summed(np.array([vm.memory_gb for vm in vms])),
        free_network=rules.machine_network_gbit - summed(np.array([vm.network_gbit for vm in vms])),
        mean=mean,
        variance=variance,
        third=third,
        by_owner=by_owner,
        requested=summed(cores),
        saved=np.bincount(owner, weights=cores - reserved, minlength=kinds).astype(np.float64),
        vms=np.bincount(owner, minlength=kinds),
        used=len({vm.machine for vm in vms}),
    )


def _machine_moments(
    vms: Sequence[Vm],
    machine: NDArray[np.int64],
    owner: NDArray[np.int64],
    cores: Floats,
    table: VmTable,
    profiles: Profiles,
    count: int,
) -> tuple[Floats, Floats, Floats]:
    """Return summed mean, variance and third central moment of usage in cores, (K, 24), each VM by its own belief."""
    level, width = beliefs(vms, owner, table, profiles)
    sums = [np.zeros((count, HOURS_PER_DAY)) for _ in range(3)]
    for start in range(0, len(vms), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        who = owner[some]
        believed = profiles.mu[who] + profiles.narrow[who] * level[some, None]
        moments = clipped(believed, profiles.sd[who] * width[some, None])
        for power, (total, moment) in enumerate(zip(sums, moments, strict=True), start=1):
            weighted = moment * (cores[some] ** power)[:, None]
            for hour in range(HOURS_PER_DAY):
                total[:, hour] += np.bincount(machine[some], weights=weighted[:, hour], minlength=count)
    return sums[0], sums[1], sums[2]


def beliefs(vms: Sequence[Vm], owner: NDArray[np.int64], table: VmTable, profiles: Profiles) -> tuple[Floats, Floats]:
    """Return each VM's believed level in standard deviations, and the factor on its profile's spread (§12.4b)."""
    columns = columns_of(table, [vm_key(vm) for vm in vms])
    return levels(columns, profiles.persistence[owner], profiles.rho[owner])


def machine_names(seen: Iterable[str], machines: int) -> list[str]:
    """Return the machines in use in the natural order of their names, then those not in use yet."""
    used = sorted(set(seen), key=lambda name: [(int(p), "") if p.isdigit() else (-1, p) for p in _DIGITS.split(name)])
    taken = set(used)
    unused = (f"spare-{k}" for k in range(1, machines + len(used) + 1))
    return used + [name for name in unused if name not in taken][: max(0, machines - len(used))]
