"""What a policy sees of a pool at an hour: the observation of the learned ones, as the simulator makes it (§2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.arrays import hot_probabilities
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import HourlyDemand, SubscriberMemory
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import Vm
from domain.observations.oversubscription import (
    Floats,
    Vector,
    cluster_names,
    local_names,
    observe_cluster,
    observe_extension,
)
from domain.rules.oversubscription.pool import PoolRules

Sizes = tuple[float, float, float]
"""Cores, memory in GB and network in Gbit/s."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A pool at the begin of an hour: who is there, what this hour will ask for, and how risky it stands.

    asked: by subscriber, what will be requested in this hour. hot_hours: of the horizon, so far.
    """

    memories: Mapping[str, SubscriberMemory]
    vms: Sequence[Vm]
    asked: Mapping[str, Sizes]
    loads: Loads
    profiles: Profiles
    rules: PoolRules
    hour_of_day: int
    hot_hours: int


def expected_requests(memories: Mapping[str, SubscriberMemory], hour_of_day: int) -> dict[str, Sizes]:
    """Return what each subscriber asks for in this hour of the day, on the mean of the days before.

    Nothing for one of whom no hour was seen; the mean of the hours it is known in where this one is not among them.
    """
    return {name: _expected(memory.asked, hour_of_day) for name, memory in memories.items()}


def _expected(asked: HourlyDemand, hour_of_day: int) -> Sizes:
    days = asked.days[hour_of_day]
    if days > 0.0:
        at = hour_of_day
        return asked.cores[at] / days, asked.memory_gb[at] / days, asked.network_gbit[at] / days
    days = max(sum(asked.days), 1.0)
    return sum(asked.cores) / days, sum(asked.memory_gb) / days, sum(asked.network_gbit) / days


def observation_of(sight: Sight, order: Sequence[str], *, extended: bool) -> tuple[Vector, Vector]:
    """Return what a model sees, (1, features) of the cluster and (1, N, features) of each subscriber in this order.

    VMs of others are left out: the model was trained for these alone.
    """
    place = {name: n for n, name in enumerate(order)}
    present, vms = np.zeros((len(order), 4)), np.zeros(len(order))
    for vm in sight.vms:
        n = place.get(vm.subscriber)
        if n is not None:
            present[n] += (vm.rate * vm.cores, vm.cores, vm.memory_gb, vm.network_gbit)
            vms[n] += 1.0
    asked = np.array([sight.asked.get(name, (0.0, 0.0, 0.0)) for name in order]).reshape(-1, 3)
    rules = sight.rules
    capacity = np.array([rules.machine_cores, rules.machine_memory_gb, rules.machine_network_gbit]) * rules.machines
    cluster: Vector = np.zeros(len(cluster_names(len(order), extended)), np.float32)
    local: Vector = np.zeros((len(order), len(local_names(extended))), np.float32)
    observe_cluster(present, asked, sight.hour_of_day, capacity, cluster, local)
    if extended:
        _extend(sight, order, vms, cluster, local)
    return cluster[None], local[None]


def _extend(sight: Sight, order: Sequence[str], vms: Floats, cluster: Vector, local: Vector) -> None:
    loads, profiles, rules, hour = sight.loads, sight.profiles, sight.rules, sight.hour_of_day
    used, now = slice(0, loads.used), slice(hour, hour + 1)
    moments = (loads.mean[used, now], loads.variance[used, now], loads.third[used, now])
    rows: NDArray[np.int64] = np.array([profiles.index(name) for name in order], np.int64)
    observe_extension(
        vms,
        profiles.mean[rows],
        profiles.variance[rows],
        hour,
        rules.machines,
        float(hot_probabilities(*moments, rules.threshold_cores).max(initial=0.0)),
        loads.used,
        float(sight.hot_hours),
        rules.violation,
        cluster,
        local,
    )
