"""Folds an hour of a pool: what its VMs used, what that teaches, and which machines were hot (§2, §11, §13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from agent.oversubscription.learning import Profiles, learnt, seen, with_day
from agent.oversubscription.loads import vm_key
from agent.oversubscription.memory import DaySums, PoolMemory, SubscriberMemory, VmMemory
from agent.oversubscription.records import Vm
from agent.oversubscription.rules import PoolRules
from agent.oversubscription.usage_book import HOUR_S, Hour, VmKey
from domain.rules.oversubscription.usage import HELD_H

LARGEST_RESIDUAL: Final = 10.0
MIGRATIONS: Final = 3


@dataclass(frozen=True, slots=True)
class HotMachine:
    """A machine and its cores in use in an hour; the two subscribers that use most of it; VMs worth moving away.

    Those are the ones that free the most cores in use per GB of memory moved, best first.
    """

    machine: str
    cores: float
    subscribers: tuple[str, ...]
    migrations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """An hour: the memory after it, machines that were hot, cores in use, and subscribers in which a drift was found.

    reporting: VMs measured, by subscriber. stale: VMs without a usable measurement for more than three hours.
    """

    memory: PoolMemory
    hot: tuple[HotMachine, ...]
    cores_in_use: Mapping[str, float]
    drifted: tuple[str, ...]
    reporting: Mapping[str, int]
    stale: tuple[str, ...]


def hour_of_day(hour: int, rules: PoolRules) -> int:
    """Return the hour on the pool's wall clock: on days of 23 or 25 hours one is left out or comes twice (§11)."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).astimezone(rules.zone).hour


def day_of(hour: int, rules: PoolRules) -> int:
    """Return the number of the day on the pool's wall clock."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).astimezone(rules.zone).toordinal()


def fold(
    memory: PoolMemory,
    vms: Mapping[str, Vm],
    readings: Mapping[VmKey, Hour],
    hour: int,
    rules: PoolRules,
    profiles: Profiles,
) -> Folded:
    """Return the hour folded into the memory. Held values count as use, and teach nothing."""
    skipped = max(0, hour - memory.hour - 1) if memory.hour >= 0 else 0
    clock, day = hour_of_day(hour, rules), day_of(hour, rules)
    place = {name: n for n, name in enumerate(profiles.names)}
    mu, sd, mean = (table[:, clock].tolist() for table in (profiles.mu, profiles.sd, profiles.mean))
    names = {*rules.subscribers, *memory.subscribers, *(vm.subscriber for vm in vms.values())}
    used: dict[str, list[float]] = {name: [] for name in names}
    days = {name: memory.subscribers[name].days for name in memory.subscribers}
    known: dict[str, VmMemory] = {}
    on_machine: dict[str, list[tuple[Vm, float]]] = {}
    stale: list[str] = []
    for vm in vms.values():
        key, owner = vm_key(vm), place.get(vm.subscriber, len(place))
        reading, before = readings.get((vm.subscriber, vm.vm)), memory.vms.get(key)
        if reading is not None:
            residual = (reading.mean - mu[owner]) / sd[owner]
            residual = min(max(residual, -LARGEST_RESIDUAL), LARGEST_RESIDUAL)
            if before is not None and before.day != day and vm.subscriber in days:
                days[vm.subscriber] = with_day(days[vm.subscriber], before)
            usage = reading.mean
            used[vm.subscriber].append(usage)
            known[key] = seen(before, usage, residual, hour, day)
        elif before is not None:
            known[key] = before
            usage = before.last
            if hour - before.last_hour > HELD_H:
                stale.append(vm.vm)
                usage = mean[owner]
        else:
            usage = mean[owner]
        on_machine.setdefault(vm.machine, []).append((vm, usage))
    subscribers, drifted = _taught(memory, used, vms, hour, clock, skipped, rules, profiles, days)
    cores = {machine: sum(vm.cores * usage for vm, usage in held) for machine, held in on_machine.items()}
    hot = tuple(
        _hot(machine, on_machine[machine], cores[machine])
        for machine in sorted(cores)
        # Equality is hot; sums of shares are a rounding error away from it.
        if cores[machine] >= rules.threshold_cores - 1e-9
    )
    hot_hours = tuple(h for h in memory.hot_hours if hour - rules.horizon_h < h < hour) + ((hour,) if hot else ())
    counts = replace(
        memory.counts,
        hot_machine_hours=memory.counts.hot_machine_hours + len(hot),
        realised_hot_hours=memory.counts.realised_hot_hours + bool(hot),
        drift_alarms=memory.counts.drift_alarms + len(drifted),
        peak_machines=max(memory.counts.peak_machines, len(cores)),
    )
    after = replace(memory, hour=hour, subscribers=subscribers, hot_hours=hot_hours, counts=counts, vms=known)
    return Folded(after, hot, cores, drifted, {name: len(held) for name, held in used.items()}, tuple(stale))


def _taught(
    memory: PoolMemory,
    used: Mapping[str, Sequence[float]],
    vms: Mapping[str, Vm],
    hour: int,
    clock: int,
    skipped: int,
    rules: PoolRules,
    profiles: Profiles,
    days: Mapping[str, DaySums],
) -> tuple[dict[str, SubscriberMemory], tuple[str, ...]]:
    alive = {vm.subscriber for vm in vms.values()}
    found: dict[str, SubscriberMemory] = {}
    drifted: list[str] = []
    for name in sorted(used):
        before = memory.subscribers.get(name) or SubscriberMemory()
        n, usages = profiles.index(name), used[name]
        count = max(len(usages), 1)
        floor = np.sqrt(profiles.variance[n, clock] * ((1.0 - rules.rho) / count + rules.rho))
        after, has_drifted = learnt(
            before,
            usages,
            max(usages, default=None),
            float(profiles.mean[n, clock]),
            float(floor),
            hour,
            clock,
            skipped,
            days.get(name, before.days),
        )
        if not usages and name not in alive:
            # Nobody is there to be measured: that is no silence.
            after = replace(after, silent_h=0)
        found[name] = after
        if has_drifted:
            drifted.append(name)
    return found, tuple(drifted)


def _hot(machine: str, held: Sequence[tuple[Vm, float]], cores: float) -> HotMachine:
    by_subscriber: dict[str, float] = {}
    for vm, usage in held:
        by_subscriber[vm.subscriber] = by_subscriber.get(vm.subscriber, 0.0) + vm.cores * usage
    largest = sorted(by_subscriber, key=lambda name: (-by_subscriber[name], name))[:2]
    relief = sorted(held, key=lambda one: (-one[0].cores * one[1] / max(one[0].memory_gb, 1e-3), one[0].vm))
    return HotMachine(machine, cores, tuple(largest), tuple(vm.vm for vm, _ in relief[:MIGRATIONS]))
