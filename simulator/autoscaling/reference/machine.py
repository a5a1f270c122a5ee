"""One VM of the reference simulator: its state, its jobs, what a monitor would read from it, and what it costs (§5).

Rent and waiting penalty are whole numbers, so that totals do not depend on the order of summation. The unit is a
millionth of a dollar per hour, held for a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from domain.units import HOUR_MS
from simulator.autoscaling.reference.configuration import RENT_FACTOR, Billing, CpuSampling, SimulationConfig

BOOTING, READY, DRAINING = 0, 1, 2


@dataclass(slots=True)
class Machine:
    """One VM: its type, its state and what runs on it (`jobs`: job index to start time, in order of start).

    free: cores that no job has. starting: cores of jobs that have one and do not run yet. freed_at: when a job last
    ended here. busy_core_s: busy cores integrated from the VM's readiness to `counted_to`; step_busy_core_s: its value
    at the start of the step. readings, cpu_readings, ram_readings: number and sums of the step's monitor readings.
    """

    number: int
    kind: int
    cores: int
    ram_gb: float
    speed: float
    requested_at: float
    state: int = BOOTING
    ready_at: float = math.inf
    idle_since: float = math.inf
    freed_at: float = -math.inf
    free: int = 0
    starting: int = 0
    jobs: dict[int, float] = field(default_factory=dict)
    used_ram_gb: float = 0.0
    busy_core_s: float = 0.0
    step_busy_core_s: float = 0.0
    counted_to: float = 0.0
    readings: int = 0
    cpu_readings: float = 0.0
    ram_readings: float = 0.0
    billed_ms: int = 0

    def __lt__(self, other: Machine) -> bool:
        return self.number < other.number

    @property
    def busy(self) -> int:
        """Cores on which jobs run."""
        return self.cores - self.free - self.starting

    @property
    def vacant(self) -> bool:
        """Whether no job has a core here."""
        return self.free == self.cores

    def count_busy(self, now: float) -> None:
        """Bring the integral of busy cores up to `now`."""
        self.busy_core_s += self.busy * (now - self.counted_to)
        self.counted_to = now

    def begin_step(self, now: float) -> None:
        """Clear the readings of the last step and save the integral of busy cores."""
        if self.state != BOOTING:
            self.count_busy(now)
        self.step_busy_core_s = self.busy_core_s
        self.readings, self.cpu_readings, self.ram_readings = 0, 0.0, 0.0

    def read(self, idle_cpu: float) -> None:
        """Take one reading of CPU and RAM, as a monitor does."""
        self.readings += 1
        self.cpu_readings += _shown(1.0 - (self.free + self.starting) / self.cores, idle_cpu)
        self.ram_readings += self.used_ram_gb / self.ram_gb

    def measured(self, config: SimulationConfig, step_start: float, now: float) -> tuple[float, float]:
        """Return (CPU, RAM), 0..1, for the step from `step_start` to `now`; nan where there were too few readings."""
        if config.cpu_sampling is CpuSampling.SAMPLED:
            if self.readings < config.samples_needed:
                return math.nan, math.nan
            return self.cpu_readings / self.readings, self.ram_readings / self.readings
        ram = self.used_ram_gb / self.ram_gb
        elapsed = now - max(step_start, self.ready_at)
        if config.cpu_sampling is CpuSampling.AVERAGE and elapsed > 0:
            self.count_busy(now)
            busy_share = (self.busy_core_s - self.step_busy_core_s) / (elapsed * self.cores)
            return _shown(busy_share, config.idle_cpu), ram
        return _shown(1.0 - (self.free + self.starting) / self.cores, config.idle_cpu), ram


def _shown(busy_share: float, idle_cpu: float) -> float:
    """Return the CPU a VM shows: its busy cores in full and its idle ones at `idle_cpu`."""
    return busy_share + (1.0 - busy_share) * idle_cpu


UNITS_PER_DOLLAR = 1_000_000 * HOUR_MS
_MINIMUM_CHARGE_MS = 60_000


def dollars(units: int) -> float:
    """Return an amount in dollars."""
    return units / UNITS_PER_DOLLAR


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(slots=True)
class Account:
    """Rent and penalty of an episode so far, and of its last step, in units of this module."""

    rent: int = 0
    penalty: int = 0
    step_rent: int = 0
    step_penalty: int = 0

    def charge_step_start(self, config: SimulationConfig, machines: Iterable[Machine]) -> None:
        """Charge a whole step for every VM that exists after the step's action (booting, ready or draining)."""
        self.step_rent = 0
        if config.billing is Billing.STEP:
            held_ms = _millis(config.step_s)
            self.step_rent = sum(_price_micro(config, machine) * held_ms for machine in machines)

    def forgive_step(self) -> None:
        """Take back what the last step cost (compat row 7)."""
        self.rent -= self.step_rent
        self.penalty -= self.step_penalty
        self.step_rent = self.step_penalty = 0

    def charge_step_end(
        self,
        config: SimulationConfig,
        machines: Iterable[Machine],
        departed: Iterable[tuple[Machine, float]],
        now: float,
        waiting: int,
        waiting_job_s: float,
    ) -> None:
        """Charge what billing by time added in the step, and the penalty for `waiting` jobs or `waiting_job_s`."""
        if config.billing is not Billing.STEP:
            for machine in machines:
                self.step_rent += _charge_time(config, machine, now)
            for machine, left_at in departed:
                self.step_rent += _charge_time(config, machine, left_at)
        waited_ms = _millis(waiting_job_s) if config.integral_penalty else waiting * _millis(config.step_s)
        self.step_penalty = round(config.waiting_price_per_hour * 1_000_000) * waited_ms
        self.rent += self.step_rent
        self.penalty += self.step_penalty


def _price_micro(config: SimulationConfig, machine: Machine) -> int:
    factor = RENT_FACTOR if config.compat.rounded_price else 1.0
    return round(config.types[machine.kind].price_per_hour * 1_000_000 * factor)


def _charge_time(config: SimulationConfig, machine: Machine, until: float) -> int:
    """Bring a VM's bill up to `until` and return what that adds."""
    since = machine.ready_at if config.bill_from_ready else machine.requested_at
    if until < since:
        return 0
    owed_ms = _millis(until - since)
    if config.billing is Billing.EXACT:
        owed_ms = max(owed_ms, _MINIMUM_CHARGE_MS)
    else:
        owed_ms = max(-(-owed_ms // HOUR_MS), 1) * HOUR_MS
    added_ms = max(owed_ms - machine.billed_ms, 0)
    machine.billed_ms += added_ms
    return _price_micro(config, machine) * added_ms
