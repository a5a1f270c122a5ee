"""Everything that may be varied in the reference autoscaling simulator, with the named presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from domain.errors import BadInput
from domain.fleet import VmType
from simulator.autoscaling.reference.compat import (
    CLOCK_OFFSET_STEPS,
    COMPAT,
    EXACT,
    MINUTE_S,
    START_LATENCY_S,
    Compat,
)

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
    """Which VM with room a job goes to (autoscaler specification §2.3)."""

    FIRST_FIT = "first_fit"
    BEST_FIT = "best_fit"
    NEXT_FIT = "next_fit"


class RemovalChoice(StrEnum):
    """Which ready VM of a type is removed (§2.4)."""

    NEWEST = "newest"
    LEAST_WORK_LOST = "least_work_lost"
    RANDOM = "random"


class RemovalMode(StrEnum):
    """What happens to the jobs of a removed VM (§2.4)."""

    IMMEDIATE = "immediate"
    DRAIN = "drain"
    CHECKPOINT = "checkpoint"


class CooldownScope(StrEnum):
    """What an accepted change blocks: its type, every type, or its type in its own direction (as live)."""

    PER_TYPE = "per_type"
    GLOBAL = "global"
    PER_DIRECTION = "per_direction"


class CpuSampling(StrEnum):
    """How the CPU of a VM is measured: at the step's end, as an integral over it, or as readings of a monitor."""

    INSTANT = "instant"
    AVERAGE = "average"
    SAMPLED = "sampled"


class Billing(StrEnum):
    """How rent is counted (§5): whole steps, seconds with a minimum of 60, or started hours."""

    STEP = "step"
    EXACT = "exact"
    HOUR = "hour"


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """One setting of the world; tuples are per VM type in the order of `types`.

    limits, minimum, initial: VMs per type. speed: relative core speed per type, empty for 1 everywhere. step_s: length
    of a control step. waiting_price_per_hour: dollars per waiting job and hour. boot_low_s, boot_high_s: boot time is
    uniform between them; boot_lows_s, boot_highs_s: the same per type, empty for one pair for all. dispatch_latency_s:
    time from a job's getting a core to its running; it waits that long. backfill: let later jobs start when the head
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
        pairs = tuple(zip(self.boot_lows_s, self.boot_highs_s, strict=True))
        return pairs or ((self.boot_low_s, self.boot_high_s),) * len(self.types)

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
        """The order in which VMs are looked at."""
        return Dispatch.NEXT_FIT if self.compat.next_fit else self.dispatch


TRAIN = SimulationConfig()
LIVE_LIKE = SimulationConfig(
    types=PRICES_M5A,
    cooldown_s=300.0,
    cooldown_scope=CooldownScope.PER_DIRECTION,
    removal_choice=RemovalChoice.LEAST_WORK_LOST,
    removal_mode=RemovalMode.DRAIN,
    cpu_sampling=CpuSampling.SAMPLED,
)
PAPER_LIVE = SimulationConfig(
    types=PRICES_M5A,
    cooldown_s=300.0,
    cooldown_scope=CooldownScope.PER_TYPE,
    cpu_sampling=CpuSampling.AVERAGE,
    idle_cpu=0.1,
)
PUBLISHED = SimulationConfig(removal_choice=RemovalChoice.RANDOM, compat=COMPAT)
PRESETS: Mapping[str, SimulationConfig] = MappingProxyType(
    {
        "train-text": TRAIN,
        "train-fit": TRAIN,
        "train-rand": TRAIN,
        "live-like": LIVE_LIKE,
        "paper-live": PAPER_LIVE,
        "compat": PUBLISHED,
    }
)


def preset(name: str, **changes: Any) -> SimulationConfig:
    """Return a named configuration with some fields changed; BadInput lists the names there are.

    `train-*`: prices-train, no cool-down, immediate removal of the newest VM. `compat`: the same in the published
    simulator, every row of §8 and a random VM removed. `live-like`: prices-m5a, cool-down of 300 s per type and
    direction, least work lost, drain, CPU sampled every 10 s. `paper-live`: prices-m5a, 300 s per type, as in the
    published live experiment.
    """
    if name not in PRESETS:
        raise BadInput("preset", name, f"choose one of {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)
