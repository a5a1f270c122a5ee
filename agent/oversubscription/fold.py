"""Folds an hour of a pool: what its VMs used, what that teaches, and which machines were hot (§2, §11, §13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from agent.oversubscription.alive import Alive
from agent.oversubscription.arrays import Floats
from agent.oversubscription.drift import Surprise, surprise_of
from agent.oversubscription.memory import (
    DaySums,
    Ints,
    PoolMemory,
    SubscriberMemory,
    VmColumns,
    after_hour,
    columns_of,
    of_some,
    table_of,
)
from agent.oversubscription.profiles import HourUse, Profiles, learnt, with_requests
from agent.oversubscription.records import Vm
from agent.oversubscription.usage import VmKey
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.usage import HELD_H
from domain.units import HOUR_S

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
class HourFold:
    """An hour: the memory after it, machines that were hot, cores in use, and subscribers in which a drift was found.

    reporting: VMs measured, by subscriber. columns: the VMs after the hour.
    """

    memory: PoolMemory
    hot: tuple[HotMachine, ...]
    cores_in_use: Mapping[str, float]
    drifted: tuple[str, ...]
    reporting: Mapping[str, int]
    columns: VmColumns


def hour_of_day(hour: int, rules: PoolRules) -> int:
    """Return the hour on the pool's wall clock: on days of 23 or 25 hours one is left out or comes twice (§11)."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).astimezone(rules.zone).hour


def day_of(hour: int, rules: PoolRules) -> int:
    """Return the number of the day on the pool's wall clock."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).astimezone(rules.zone).toordinal()


def fold(
    memory: PoolMemory,
    alive: Alive,
    readings: Mapping[VmKey, float],
    hour: int,
    rules: PoolRules,
    profiles: Profiles,
) -> HourFold:
    """Return the hour folded into the memory. Values that fill gaps count as use, and teach nothing."""
    skipped = max(0, hour - memory.hour - 1) if memory.hour >= 0 else 0
    names = sorted({*rules.subscribers, *memory.subscribers, *alive.subscribers})
    seen = _seen(memory, alive, readings, names, hour, rules, profiles)
    uses = _uses(seen, len(names))
    ended = _ended_days(seen, len(names), day_of(hour, rules))
    new = _new(alive, seen, len(names))
    here = np.bincount(seen.group, minlength=len(names)).tolist()
    clock = hour_of_day(hour, rules)
    subscribers: dict[str, SubscriberMemory] = {}
    drifted: list[str] = []
    for n, name in enumerate(names):
        before = memory.subscribers.get(name) or SubscriberMemory()
        days = DaySums(*(getattr(before.days, key) + value for key, value in ended[n].items()))
        if memory.hour >= 0:
            before = replace(before, asked=with_requests(before.asked, clock, new[n]))
        after, has_drifted = learnt(before, uses[n], hour, clock, skipped, days)
        if not here[n]:
            # Nobody is there to be measured: that is no silence.
            after = replace(after, silent_h=0)
        subscribers[name] = after
        if has_drifted:
            drifted.append(name)
    columns = after_hour(seen.before, seen.usage, seen.residual, hour, day_of(hour, rules))
    if drifted:
        # Levels were estimated against a profile that holds no longer.
        left = np.isin(seen.group, [names.index(name) for name in drifted])
        columns = columns._replace(
            residual_sum=np.where(left, 0.0, columns.residual_sum), hours=np.where(left, 0, columns.hours)
        )
    cores, hot = _machines(alive, seen, rules)
    hot_hours = tuple(h for h in memory.hot_hours if hour - rules.horizon_h < h < hour) + ((hour,) if hot else ())
    counts = replace(
        memory.counts,
        hot_machine_hours=memory.counts.hot_machine_hours + len(hot),
        realised_hot_hours=memory.counts.realised_hot_hours + bool(hot),
        drift_alarms=memory.counts.drift_alarms + len(drifted),
        peak_machines=max(memory.counts.peak_machines, len(cores)),
    )
    after_it = replace(
        memory,
        hour=hour,
        subscribers=subscribers,
        hot_hours=hot_hours,
        counts=counts,
        table=table_of(alive.names, columns),
    )
    reporting = {name: use.count for name, use in zip(names, uses, strict=True)}
    return HourFold(after_it, hot, cores, tuple(drifted), reporting, columns)


class _HourVms(NamedTuple):
    """An hour's VMs. group: the subscriber of each, of all names; owner: its place among the profiles.

    usage: as measured, nan without; counted: with what stands in for it.
    """

    before: VmColumns
    group: Ints
    usage: Floats
    counted: Floats
    residual: Floats
    surprise: Surprise


def _seen(
    memory: PoolMemory,
    alive: Alive,
    readings: Mapping[VmKey, float],
    names: Sequence[str],
    hour: int,
    rules: PoolRules,
    profiles: Profiles,
) -> _HourVms:
    place = {name: n for n, name in enumerate(names)}
    group = np.array([place[name] for name in alive.subscribers], np.int64)[alive.subscriber]
    owner = np.array([profiles.index(name) for name in names], np.int64)[group]
    # nan for None.
    usage = np.array(list(map(readings.get, alive.keys)), np.float64)
    before = columns_of(memory.table, alive.names)
    clock = hour_of_day(hour, rules)
    mu, sd, mean = (table[:, clock][owner] for table in (profiles.mu, profiles.narrow, profiles.mean))
    measured = ~np.isnan(usage)
    stale = ~measured & before.known & (hour - before.last_hour > HELD_H)
    standing_in = np.where(before.known & ~stale, before.last, mean)
    some = np.flatnonzero(measured)
    surprise = surprise_of(
        usage[some],
        of_some(before, some),
        group[some],
        len(names),
        mu[some],
        sd[some],
        profiles.persistence[owner[some]],
        profiles.rho[owner[some]],
    )
    return _HourVms(
        before=before,
        group=group,
        usage=usage,
        counted=np.where(measured, usage, standing_in),
        residual=np.where(measured, np.clip((usage - mu) / sd, -LARGEST_RESIDUAL, LARGEST_RESIDUAL), 0.0),
        surprise=surprise,
    )


def _uses(seen: _HourVms, groups: int) -> list[HourUse]:
    measured = ~np.isnan(seen.usage)
    group, usage = seen.group[measured], seen.usage[measured]
    peak = np.full(groups, -np.inf)
    np.maximum.at(peak, group, usage)
    columns = (
        np.bincount(group, minlength=groups),
        np.bincount(group, weights=usage, minlength=groups),
        np.bincount(group, weights=usage * usage, minlength=groups),
        peak,
        *seen.surprise,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [HourUse(*row) if row[0] else HourUse() for row in rows]


def _ended_days(seen: _HourVms, groups: int, day: int) -> list[dict[str, float]]:
    """Return what the VM-days that are over add to each subscriber's sums; days of one hour add nothing."""
    before = seen.before
    over = ~np.isnan(seen.usage) & before.known & (before.day != day) & (before.day_count >= 2)
    group, count = seen.group[over], before.day_count[over].astype(np.float64)
    total, squares = before.day_sum[over], before.day_squares[over]
    mean = total / count
    parts = {
        "days": np.ones_like(count),
        "count": count,
        "count_squared": count * count,
        "within": np.maximum(squares - count * mean * mean, 0.0),
        "weighted_mean": total,
        "weighted_square": total * mean,
    }
    sums = [np.bincount(group, weights=part, minlength=groups).tolist() for part in parts.values()]
    return [dict(zip(parts, row, strict=True)) for row in zip(*sums, strict=True)]


def _new(alive: Alive, seen: _HourVms, groups: int) -> list[tuple[float, float, float]]:
    first = ~np.isnan(seen.usage) & ~seen.before.known
    group = seen.group[first]
    columns = (alive.cores, alive.memory_gb, alive.network_gbit)
    sums = [np.bincount(group, weights=column[first], minlength=groups).tolist() for column in columns]
    return list(zip(*sums, strict=True))


def _machines(alive: Alive, seen: _HourVms, rules: PoolRules) -> tuple[dict[str, float], tuple[HotMachine, ...]]:
    cores = np.bincount(alive.machine, weights=alive.cores * seen.counted, minlength=len(alive.machines))
    # Equality is hot; sums of shares are a rounding error away from it.
    places = np.flatnonzero(cores >= rules.threshold_cores - 1e-9).tolist()
    rows = tuple(alive.vms.values()) if places else ()
    hot = []
    for place in sorted(places, key=alive.machines.__getitem__):
        there = np.flatnonzero(alive.machine == place).tolist()
        placed = [(rows[k], float(seen.counted[k])) for k in there]
        hot.append(_hot(alive.machines[place], placed, float(cores[place])))
    return dict(zip(alive.machines, cores.tolist(), strict=True)), tuple(hot)


def _hot(machine: str, placed: Sequence[tuple[Vm, float]], cores: float) -> HotMachine:
    by_subscriber: dict[str, float] = {}
    for vm, usage in placed:
        by_subscriber[vm.subscriber] = by_subscriber.get(vm.subscriber, 0.0) + vm.cores * usage
    largest = sorted(by_subscriber, key=lambda name: (-by_subscriber[name], name))[:2]
    relief = sorted(placed, key=lambda one: (-one[0].cores * one[1] / max(one[0].memory_gb, 1e-3), one[0].vm))
    return HotMachine(machine, cores, tuple(largest), tuple(vm.vm for vm, _ in relief[:MIGRATIONS]))
