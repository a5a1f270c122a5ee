"""The settings of the autoscaling simulator.

Among them are the differences of the published simulator from the exact one: sixteen switches (§8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.fleet import VmType
from domain.units import HOUR_MS, HOUR_S, MINUTE_S

CLOCK_OFFSET_STEPS = 0.1
START_LATENCY_S = 60.0
CHAIN_LOSS_S = 0.59
RENT_FACTOR = 0.00028 * HOUR_S
CORE_MIPS = 10_000.0
LOW_PERCENTILE = 0.9


@dataclass(frozen=True, slots=True)
class Compat:
    """One switch per row of the table, in its order; all off is the exact simulator.

    1 offset_clock: steps end a tenth of a step late, and an event at a step's very end belongs to the next step.
    2 arrivals_by_minute: a job that arrives in minute d is handed over at the start of step d; those of minute 0 at the
    reset, if the clock is offset, else in step 1. Released jobs keep their own time.
    3 start_latency: a job runs 60 s after it was given a core; until then it waits and its core is not busy.
    4 chain_loss: 0.59 s more for a job on a VM where another has just ended.
    5 rounded_price: a second costs 0.00028 of the hourly price.
    6 interrupted_to_tail: a job whose run was interrupted goes to the queue's tail and never counts as waiting again;
    one that had its core and had not begun keeps its place.
    7 free_last_step: the step in which the last job ends costs nothing.
    8 low_percentile: "p90" is the 0.9th percentile, the least value of up to 110 VMs.
    9 single_ram_slot: of the VMs' RAM only the last one is known, the others count as 0.
    10 recent_minus_vms: wait_recent is divided by the jobs submitted so far less the VMs ever made; 0 where that is not
    positive.
    11 single_limit: allocated_ratio is divided by one limit for every type, the largest. (The published program takes
    3000 where none is given, which makes the entry nearly 0.)
    12 blank_first_observation: the observation before step 1 is all zeros.
    13 truncated_service: a job is a whole number of instructions, at least one, at 10,000 a step's unit of time.
    14 next_fit: placement resumes where the last job was placed, whatever `dispatch` is.
    15 lone_initial_ignored: an initial fleet given as one number for all types is ignored: one VM of each.
    16 minute_steps: the step is 60 s, the unit of rows 2 and 13; another length is refused.
    """

    offset_clock: bool = False
    arrivals_by_minute: bool = False
    start_latency: bool = False
    chain_loss: bool = False
    rounded_price: bool = False
    interrupted_to_tail: bool = False
    free_last_step: bool = False
    low_percentile: bool = False
    single_ram_slot: bool = False
    recent_minus_vms: bool = False
    single_limit: bool = False
    blank_first_observation: bool = False
    truncated_service: bool = False
    next_fit: bool = False
    lone_initial_ignored: bool = False
    minute_steps: bool = False


ROWS: tuple[str, ...] = tuple(row.name for row in fields(Compat))
"""Names of the switches; row r of the table is `ROWS[r - 1]`."""
EXACT = Compat()
COMPAT = Compat(**dict.fromkeys(ROWS, True))


def compat_rows(*rows: int) -> Compat:
    """Return a setting with only these rows of the table (1 to 16) switched on; BadInput for a row there is not."""
    for row in rows:
        if not 1 <= row <= len(ROWS):
            raise BadInput("compat row", row, f"give a row in 1..{len(ROWS)}")
    return Compat(**{ROWS[row - 1]: True for row in rows})


def truncated_service_s(service_s: float, step_s: float) -> float:
    """Return the service time of row 13: whole instructions on a core, in a clock sped up by the step's length."""
    return max(math.trunc(service_s * CORE_MIPS / step_s), 1) / CORE_MIPS * step_s


def published_observation(
    compat: Compat,
    seven: NDArray[np.float32],
    cpu: NDArray[np.float64],
    ram: NDArray[np.float64],
    allocated_ratio: float,
    waiting_recent: int,
    submitted: int,
    vms_made: int,
) -> NDArray[np.float32]:
    """Return obs-7 as the published simulator shows it: rows 8 to 11 applied to `seven`, every entry in 0..1.

    cpu, ram: use of the ready VMs in request order. allocated_ratio: ready cores over those of row 11. waiting_recent:
    jobs of this step that wait. submitted: jobs submitted in the episode. vms_made: VMs in the episode, the first ones
    included.
    """
    shown = seven.copy()
    percentile = _lowest if compat.low_percentile else _ninetieth
    if compat.single_ram_slot and ram.size:
        ram = np.append(ram[-1:], np.zeros(ram.size - 1))
        shown[3] = ram.sum() / ram.size
    if compat.low_percentile or compat.single_ram_slot:
        shown[2], shown[4] = percentile(cpu), percentile(ram)
    if compat.recent_minus_vms:
        counted = submitted - vms_made
        shown[6] = waiting_recent / counted if counted > 0 else 0.0
    if compat.single_limit:
        shown[0] = allocated_ratio
    clipped: NDArray[np.float32] = np.clip(shown, 0.0, 1.0).astype(np.float32)
    return clipped


def _lowest(values: NDArray[np.float64]) -> float:
    """Return the 0.9th percentile at rank 0.009 (n + 1), counted from 1."""
    if values.size == 0:
        return 0.0
    in_order = np.sort(values)
    rank = LOW_PERCENTILE / 100.0 * (values.size + 1)
    if rank < 1.0:
        return float(in_order[0])
    below = int(rank)
    above = min(below + 1, values.size)
    return float(in_order[below - 1] + (rank - below) * (in_order[above - 1] - in_order[below - 1]))


def _ninetieth(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 90.0)) if values.size else 0.0


PRICES_TRAIN: tuple[VmType, ...] = (
    VmType("m5a.large", 2, 8.0, 0.20),
    VmType("m5a.xlarge", 4, 16.0, 0.40),
    VmType("m5a.2xlarge", 8, 32.0, 0.80),
)
PRICES_M5A: tuple[VmType, ...] = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
PRICES: Mapping[str, tuple[VmType, ...]] = MappingProxyType({"prices-train": PRICES_TRAIN, "prices-m5a": PRICES_M5A})
"""Price tables of the autoscaler specification, §2.1."""


class Dispatch(StrEnum):
    """The choice among the VMs with room for a job (autoscaler specification §2.3)."""

    FIRST_FIT = "first_fit"
    BEST_FIT = "best_fit"
    NEXT_FIT = "next_fit"


class RemovalChoice(StrEnum):
    """The choice of the ready VM that is removed (§2.4)."""

    NEWEST = "newest"
    LEAST_WORK_LOST = "least_work_lost"
    RANDOM = "random"


class RemovalMode(StrEnum):
    """The fate of the jobs of a removed VM (§2.4)."""

    IMMEDIATE = "immediate"
    DRAIN = "drain"
    CHECKPOINT = "checkpoint"


class CooldownScope(StrEnum):
    """The scope that an accepted change blocks: its type, every type, or its type in its own direction (as live)."""

    PER_TYPE = "per_type"
    GLOBAL = "global"
    PER_DIRECTION = "per_direction"


class CpuSampling(StrEnum):
    """The measurement of a VM's CPU: at the step's end, as an integral over it, or as readings of a monitor."""

    INSTANT = "instant"
    AVERAGE = "average"
    SAMPLED = "sampled"


class Billing(StrEnum):
    """The unit of rent (§5): whole steps, seconds with a minimum of 60, or started hours."""

    STEP = "step"
    EXACT = "exact"
    HOUR = "hour"


def _rises(points: tuple[float, ...]) -> bool:
    return len(points) > 1 and points[0] >= 0 and all(low <= high for low, high in pairwise(points))


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """One setting of the world; tuples are per VM type in the order of `types`.

    limits, minimum, initial: VMs per type. speed: relative core speed per type, empty for 1 everywhere. step_s: length
    of a control step. waiting_price_per_hour: dollars per waiting job and hour. boot_low_s, boot_high_s: boot time is
    uniform between them; boot_lows_s, boot_highs_s: the same per type, empty for one pair for all. boot_quantiles_s:
    measured boot times per type, at evenly spaced quantiles from the shortest to the longest, which a draw
    interpolates; where given, the others do not count. dispatch_latency_s: time from a job's getting a core to its
    running; it waits that long. backfill: let later jobs start when the head
    does not fit. cancel_booting: let a removal take a booting VM (newest first). cooldown_s, cooldown_scope: see
    `CooldownScope`. sample_interval_s, samples_needed: for sampled CPU, as a monitor reads it. idle_cpu: CPU share that
    an idle core shows. base_ram_gb: memory used by an empty VM. bill_from_ready: exact and hourly billing start when a
    VM is ready, not at its request. integral_penalty: price the waiting over the step, not at its end. max_steps: the
    episode is truncated there. reclaims_per_hour: per type, how often the provider takes a spot VM back (a Poisson
    process from its readiness on), empty for never. reclaim_notice_s: a VM under notice takes no new job, leaves when
    its last one ends, and is gone after this time (§12.2). compat: differences of the published simulator (§8). Raises
    BadInput.
    """

    types: tuple[VmType, ...] = PRICES_TRAIN
    limits: tuple[int, ...] = (10, 10, 10)
    minimum: tuple[int, ...] = (1, 0, 0)
    initial: tuple[int, ...] = (1, 1, 1)
    speed: tuple[float, ...] = ()
    step_s: float = 60.0
    waiting_price_per_hour: float = 0.036
    boot_low_s: float = 45.0
    boot_high_s: float = 97.0
    boot_lows_s: tuple[float, ...] = ()
    boot_highs_s: tuple[float, ...] = ()
    boot_quantiles_s: tuple[tuple[float, ...], ...] = ()
    dispatch_latency_s: float = 0.0
    dispatch: Dispatch = Dispatch.FIRST_FIT
    backfill: bool = False
    removal_choice: RemovalChoice = RemovalChoice.NEWEST
    removal_mode: RemovalMode = RemovalMode.IMMEDIATE
    cancel_booting: bool = False
    cooldown_s: float = 0.0
    cooldown_scope: CooldownScope = CooldownScope.PER_TYPE
    cpu_sampling: CpuSampling = CpuSampling.INSTANT
    sample_interval_s: float = 10.0
    samples_needed: int = 3
    idle_cpu: float = 0.0
    base_ram_gb: float = 0.0
    billing: Billing = Billing.STEP
    bill_from_ready: bool = False
    integral_penalty: bool = False
    max_steps: int = 20_000
    reclaims_per_hour: tuple[float, ...] = ()
    reclaim_notice_s: float = 120.0
    compat: Compat = EXACT

    def __post_init__(self) -> None:
        kinds = len(self.types)
        if kinds == 0:
            raise BadInput("types", (), "give at least one VM type")
        if self.compat.lone_initial_ignored and len(self.initial) == 1 < kinds:
            object.__setattr__(self, "initial", (1,) * kinds)
        for name in ("limits", "minimum", "initial"):
            values = getattr(self, name)
            if len(values) != kinds or any(value < 0 for value in values):
                raise BadInput(name, values, f"give {kinds} whole numbers of 0 or more, one per VM type")
        for name in ("minimum", "initial"):
            if any(value > limit for value, limit in zip(getattr(self, name), self.limits, strict=True)):
                raise BadInput(name, getattr(self, name), f"stay within limits {self.limits}")
        if self.speed and (len(self.speed) != kinds or not all(value > 0 for value in self.speed)):
            raise BadInput("speed", self.speed, f"give {kinds} numbers above 0, or none")
        if not 0 <= self.boot_low_s <= self.boot_high_s:
            raise BadInput("boot_low_s, boot_high_s", (self.boot_low_s, self.boot_high_s), "give 0 <= low <= high")
        if (self.boot_lows_s or self.boot_highs_s) and not (
            len(self.boot_lows_s) == len(self.boot_highs_s) == kinds
            and all(0 <= low <= high for low, high in zip(self.boot_lows_s, self.boot_highs_s, strict=True))
        ):
            wrong = (self.boot_lows_s, self.boot_highs_s)
            raise BadInput("boot_lows_s, boot_highs_s", wrong, f"give {kinds} pairs with 0 <= low <= high, or none")
        if self.boot_quantiles_s and not (
            len(self.boot_quantiles_s) == kinds and all(_rises(points) for points in self.boot_quantiles_s)
        ):
            remedy = f"give {kinds} lists of two or more seconds of 0 or more that do not fall, or none"
            raise BadInput("boot_quantiles_s", self.boot_quantiles_s, remedy)
        if self.reclaims_per_hour and (
            len(self.reclaims_per_hour) != kinds or not all(rate >= 0 for rate in self.reclaims_per_hour)
        ):
            raise BadInput("reclaims_per_hour", self.reclaims_per_hour, f"give {kinds} rates of 0 or more, or none")
        for name in ("step_s", "sample_interval_s", "max_steps"):
            if not getattr(self, name) > 0:
                raise BadInput(name, getattr(self, name), "give a number above 0")
        if self.step_s * 1000 != round(self.step_s * 1000):
            raise BadInput("step_s", self.step_s, "give whole milliseconds, so that rent stays exact")
        if self.compat.minute_steps and self.step_s != MINUTE_S:
            raise BadInput("step_s", self.step_s, "give 60, the step of the published simulator (compat row 16)")
        for name in ("waiting_price_per_hour", "cooldown_s", "base_ram_gb", "dispatch_latency_s", "reclaim_notice_s"):
            if not getattr(self, name) >= 0:
                raise BadInput(name, getattr(self, name), "give a number of 0 or more")
        if not 0 <= self.idle_cpu <= 1:
            raise BadInput("idle_cpu", self.idle_cpu, "give a share in 0..1")

    @property
    def cores(self) -> tuple[int, ...]:
        """Cores of one VM per type."""
        return tuple(kind.cores for kind in self.types)

    @property
    def max_cores(self) -> int:
        """Cores at the limits (C_max)."""
        return sum(limit * kind.cores for limit, kind in zip(self.limits, self.types, strict=True))

    @property
    def speeds(self) -> tuple[float, ...]:
        """Relative core speed per type."""
        return self.speed or (1.0,) * len(self.types)

    @property
    def boot_ranges_s(self) -> tuple[tuple[float, float], ...]:
        """Shortest and longest boot time per type."""
        return tuple((points[0], points[-1]) for points in self.boot_points_s)

    @property
    def boot_points_s(self) -> tuple[tuple[float, ...], ...]:
        """Boot times at evenly spaced quantiles per type, from the shortest to the longest; two where it is uniform."""
        pairs = tuple(zip(self.boot_lows_s, self.boot_highs_s, strict=True))
        return self.boot_quantiles_s or pairs or ((self.boot_low_s, self.boot_high_s),) * len(self.types)

    @property
    def boot_extremes_s(self) -> tuple[float, float]:
        """Shortest and longest boot time of any type."""
        return min(points[0] for points in self.boot_points_s), max(points[-1] for points in self.boot_points_s)

    def boots_scaled(self, factor: float) -> SimulationConfig:
        """Return the world in which every boot takes `factor` times as long."""

        def scaled(times_s: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(factor * time_s for time_s in times_s)

        return replace(
            self,
            boot_low_s=factor * self.boot_low_s,
            boot_high_s=factor * self.boot_high_s,
            boot_lows_s=scaled(self.boot_lows_s),
            boot_highs_s=scaled(self.boot_highs_s),
            boot_quantiles_s=tuple(map(scaled, self.boot_quantiles_s)),
        )

    @property
    def start_latency_s(self) -> float:
        """Time from a job's getting a core to its running."""
        return self.dispatch_latency_s + (START_LATENCY_S if self.compat.start_latency else 0.0)

    @property
    def clock_offset_s(self) -> float:
        """How much later than n steps the n-th step ends."""
        return CLOCK_OFFSET_STEPS * self.step_s if self.compat.offset_clock else 0.0

    @property
    def placement(self) -> Dispatch:
        """The order in which VMs are tried."""
        return Dispatch.NEXT_FIT if self.compat.next_fit else self.dispatch


BOOT = 1
REMOVAL = 2
RECLAIM = 3
"""Streams of random numbers, the first argument of a draw (§2.5)."""

UNITS_PER_DOLLAR = 1_000_000 * HOUR_MS
"""Rent and penalty are whole numbers of a millionth of a dollar per hour, held for a millisecond (§5)."""


def dollars(units: int) -> float:
    """Return an amount in dollars."""
    return units / UNITS_PER_DOLLAR
