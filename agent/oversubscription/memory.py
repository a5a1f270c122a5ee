"""What a pool remembers between hours: rates, what was learnt of each subscriber and VM, and hours that were hot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.oversubscription.vm_table import VmTable

HOURS: Final = 24
NO_HOURS: Final = (0.0,) * HOURS
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
class Asked:
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
    pairs and products: see `agent.oversubscription.surprise`. strains: of the last day.
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
    asked: Asked = field(default_factory=Asked)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counted since the start of the ledger."""

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


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """A pool: the last hour that was folded, -1 before any, and everything it goes by.

    hot_hours: hours of the horizon in which a machine was hot. rolled_back: every new VM at 1.0 until an operator
    re-arms; `armed_hour` is when that was last done, and hot hours before it do not count again. closed: machines
    without new oversold VMs.
    """

    hour: int = -1
    subscribers: Mapping[str, SubscriberMemory] = field(default_factory=dict)
    hot_hours: tuple[int, ...] = ()
    rolled_back: bool = False
    armed_hour: int = -1
    closed: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)
    table: VmTable = field(default_factory=VmTable)
