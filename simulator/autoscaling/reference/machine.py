"""One VM of the reference simulator: its state, the jobs on it, and what a monitor would read from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from simulator.autoscaling.reference.configuration import CpuSampling, SimulationConfig

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
        """Forget the readings of the last step and note where the integral of busy cores stands."""
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
