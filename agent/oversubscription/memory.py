"""What a pool remembers between hours: rates, what was learnt of each subscriber and VM, and hours that were hot.

VMs are remembered column by column: an hour is folded for all of them at once (§12.4b).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.arrays import Floats
from agent.oversubscription.records import Vm
from domain.units import HOURS_PER_DAY

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

REMEMBERED_H: Final = 168
"""Hours of residuals by which a VM's own level is estimated; older ones fade, for levels are not for ever."""


@dataclass(frozen=True, slots=True)
class VmTable:
    """The VMs of a pool, one place each in every column: as the ledger keeps them.

    names: see `vm_key`. last, last_hour: last measured usage and when. residual_sum, hours: of standardised usage, by
    which its own level is known. day and day_*: the day under way, and its residuals so far.
    """

    names: tuple[str, ...] = ()
    last: tuple[float, ...] = ()
    last_hour: tuple[int, ...] = ()
    residual_sum: tuple[float, ...] = ()
    hours: tuple[int, ...] = ()
    day: tuple[int, ...] = ()
    day_count: tuple[int, ...] = ()
    day_sum: tuple[float, ...] = ()
    day_squares: tuple[float, ...] = ()


class VmColumns(NamedTuple):
    """The same in arrays, in the order of the VMs alive; `known` is False, and the rest 0, for new ones."""

    known: Flags
    last: Floats
    last_hour: Ints
    residual_sum: Floats
    hours: Ints
    day: Ints
    day_count: Ints
    day_sum: Floats
    day_squares: Floats


def vm_key(vm: Vm) -> str:
    """Return the name under which a VM is remembered."""
    return f"{vm.subscriber}/{vm.vm}"


def columns_of(table: VmTable, names: tuple[str, ...]) -> VmColumns:
    """Return what the table holds of these VMs."""
    at: Ints | slice = slice(len(names))
    known = np.ones(len(names), np.bool_)
    if table.names != names:
        rows = {name: k for k, name in enumerate(table.names)}
        at = np.fromiter((rows.get(name, -1) for name in names), np.int64, len(names))
        known = at >= 0

    def column(values: Sequence[float], kind: type) -> NDArray[Any]:
        # One place more, so that there is something to take where a VM is not known.
        padded: NDArray[Any] = np.zeros(len(values) + 1, kind)
        padded[:-1] = np.fromiter(values, kind, len(values))
        return padded[at]

    return VmColumns(
        known,
        column(table.last, np.float64),
        column(table.last_hour, np.int64),
        column(table.residual_sum, np.float64),
        column(table.hours, np.int64),
        column(table.day, np.int64),
        column(table.day_count, np.int64),
        column(table.day_sum, np.float64),
        column(table.day_squares, np.float64),
    )


def of_some(columns: VmColumns, places: Ints) -> VmColumns:
    """Return the columns of the VMs in these places."""
    return VmColumns._make(column[places] for column in columns)


def table_of(names: tuple[str, ...], columns: VmColumns) -> VmTable:
    """Return the table of the VMs that are known."""
    known = columns.known
    # The same names where all are known: then the next hour sees at once that they are.
    remaining = names if known.all() else tuple(compress(names, known.tolist()))
    return VmTable(remaining, *(tuple(column[known].tolist()) for column in columns[1:]))


def after_hour(before: VmColumns, usage: Floats, residual: Floats, hour: int, day: int) -> VmColumns:
    """Return the columns after an hour; usage: nan where nothing was measured, which teaches nothing."""
    measured = ~np.isnan(usage)
    same = measured & before.known & (before.day == day)
    old = measured & (before.hours >= REMEMBERED_H)
    faded = np.where(old, before.residual_sum * (REMEMBERED_H - 1) / REMEMBERED_H, before.residual_sum)

    def put(new: NDArray[Any], there: NDArray[Any]) -> NDArray[Any]:
        return np.where(measured, new, there)

    return VmColumns(
        known=before.known | measured,
        last=put(usage, before.last),
        last_hour=put(np.full(usage.shape, hour), before.last_hour),
        residual_sum=put(faded + residual, before.residual_sum),
        hours=put(np.minimum(before.hours + 1, REMEMBERED_H), before.hours),
        day=put(np.full(usage.shape, day), before.day),
        day_count=put(np.where(same, before.day_count, 0) + 1, before.day_count),
        day_sum=put(np.where(same, before.day_sum, 0.0) + residual, before.day_sum),
        day_squares=put(np.where(same, before.day_squares, 0.0) + residual * residual, before.day_squares),
    )


def levels(columns: VmColumns, persistence: Floats, rho: float | Floats) -> tuple[Floats, Floats]:
    """Return each VM's believed level in standard deviations, and the factor on its profile's spread.

    The conjugate update of `posterior.offset_belief`, on arrays. persistence, rho: of each VM's subscriber.
    """
    noise = 1.0 - persistence - rho
    scale = persistence * columns.hours + noise
    safe = np.where(scale > 0.0, scale, 1.0)
    level = np.where(scale > 0.0, persistence * columns.residual_sum / safe, 0.0)
    variance = np.where(scale > 0.0, persistence * noise / safe, persistence)
    return level, np.sqrt(np.maximum(variance + 1.0 - persistence, 0.0))


NO_HOURS: Final = (0.0,) * HOURS_PER_DAY
KEPT_PEAKS: Final = 48


@dataclass(frozen=True, slots=True)
class HourSums:
    """Usage by hour of the day: decayed count of VM-hours, sum and sum of squares, 24 each."""

    count: tuple[float, ...] = NO_HOURS
    total: tuple[float, ...] = NO_HOURS
    squares: tuple[float, ...] = NO_HOURS


@dataclass(frozen=True, slots=True)
class DaySums:
    """Sums over VM-days of standardised usage, from which comes the share that is each VM's own level (§12.4b)."""

    days: float = 0.0
    count: float = 0.0
    count_squared: float = 0.0
    within: float = 0.0
    weighted_mean: float = 0.0
    weighted_square: float = 0.0


@dataclass(frozen=True, slots=True)
class HourlyDemand:
    """What came in by hour of the day: decayed count of days, and sums of the sizes of new VMs, 24 each."""

    days: tuple[float, ...] = NO_HOURS
    cores: tuple[float, ...] = NO_HOURS
    memory_gb: tuple[float, ...] = NO_HOURS
    network_gbit: tuple[float, ...] = NO_HOURS


@dataclass(frozen=True, slots=True)
class SubscriberMemory:
    """A subscriber: its rate, what was learnt of its usage, and how its last hours compare with it.

    peaks: the largest usage among its VMs in each of the last hours, None where it had none; the last is of the pool's
    last hour. error_*: decayed statistics of the hours' scores, today_*: scores of the day under way, stray_*: decayed
    statistics of the days' mean scores, see `agent.oversubscription.drift`. strain_*: of the hours' strains; these,
    pairs and products: see `agent.oversubscription.drift`. strains: of the last day. drifted_rule: the digest of the
    rule in use when a drift of its usage, or of the pool's, was last found, "" for none.
    """

    rate: float = 1.0
    lowered_at: float | None = None
    long: HourSums = field(default_factory=HourSums)
    recent: HourSums = field(default_factory=HourSums)
    days: DaySums = field(default_factory=DaySums)
    first_hour: int | None = None
    history_h: float = 0.0
    vm_hours: float = 0.0
    peaks: tuple[float | None, ...] = ()
    silent_h: int = 0
    error_count: float = 0.0
    error_square: float = 0.0
    error_lag: float = 0.0
    error_last: float = 0.0
    today_h: int = 0
    today_sum: float = 0.0
    stray_days: float = 0.0
    stray_square: float = 0.0
    strains: tuple[float, ...] = ()
    strain_count: float = 0.0
    strain_mean: float = 0.0
    strain_square: float = 0.0
    pairs: float = 0.0
    products: float = 0.0
    risen: float = 0.0
    fallen: float = 0.0
    drifting: bool = False
    quiet_h: int = 0
    widened_until: int = 0
    drifted_rule: str = ""
    asked: HourlyDemand = field(default_factory=HourlyDemand)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counted since the start of the ledger. ruled: requests that a rule answered; held: requests that it could not."""

    decisions: int = 0
    requests: int = 0
    fallbacks: int = 0
    interventions: int = 0
    rejects: int = 0
    drift_alarms: int = 0
    hot_machine_hours: int = 0
    requested_cores: float = 0.0
    saved_cores: float = 0.0
    peak_machines: int = 0
    expected_hot_hours: float = 0.0
    realised_hot_hours: int = 0
    ruled: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """A pool: the last hour that was folded, -1 before any, and everything it goes by.

    hot_hours: hours of the horizon in which a machine was hot. rolled_back: every new VM at 1.0 until an operator
    re-arms; `armed_hour` is when that was last done, and hot hours before it do not count again. closed: machines
    without new oversold VMs. rule: the digest of the rule in use when the policy last answered, "" for none.
    """

    hour: int = -1
    subscribers: Mapping[str, SubscriberMemory] = field(default_factory=dict)
    hot_hours: tuple[int, ...] = ()
    rolled_back: bool = False
    armed_hour: int = -1
    closed: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)
    table: VmTable = field(default_factory=VmTable)
    rule: str = ""
