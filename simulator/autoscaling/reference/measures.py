"""The figures stored for every run of a policy on a trace (autoscaler specification §11)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulator.autoscaling.reference.accounting import Account, dollars
from simulator.autoscaling.reference.configuration import SimulationConfig
from simulator.autoscaling.reference.view import StepInfo
from simulator.autoscaling.reference.world import World


@dataclass(frozen=True, slots=True)
class Measures:
    """One run in figures: dollars, seconds, core-hours, counts.

    cost = rent + penalty. run_time_s: end of the last step. mean_wait_s, p95_wait_s: time in the queue per finished
    job, all its stays together. allocated_ratio: ready cores at step ends over the cores at the limits, mean over
    steps. utilisation: busy over ready core-seconds. idle_core_h: ready and not busy. added, removed, refused: VMs per
    type. interruptions: jobs sent back to the queue. lost_core_s: work thrown away by that. peak_cores: most ready at a
    step end. bursts: how often jobs came to be without a core where none was before. first_core_s: time to the first
    core after a burst, from its beginning to the first VM that became ready while it lasted, mean over the bursts in
    which one did, else 0. reclaimed: spot VMs that the provider gave notice to.
    """

    steps: int
    run_time_s: float
    cost: float
    rent: float
    penalty: float
    jobs_finished: int
    jobs_submitted: int
    mean_wait_s: float
    p95_wait_s: float
    allocated_ratio: float
    utilisation: float
    idle_core_h: float
    executed_core_s: float
    added: tuple[int, ...]
    removed: tuple[int, ...]
    refused: tuple[int, ...]
    interruptions: int
    lost_core_s: float
    peak_cores: int
    bursts: int = 0
    first_core_s: float = 0.0
    reclaimed: int = 0


@dataclass(slots=True)
class Tally:
    """What has to be added up step by step."""

    allocated: float = 0.0
    peak_cores: int = 0
    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def add(self, info: StepInfo, config: SimulationConfig) -> None:
        """Count one step."""
        self.allocated += info.cores_ready / config.max_cores
        self.peak_cores = max(self.peak_cores, info.cores_ready)
        for total, new in zip((self.added, self.removed, self.refused), info.outcome, strict=True):
            total[:] = [a + b for a, b in zip(total or [0] * len(new), new, strict=True)]

    def measures(self, world: World, account: Account, steps: int, config: SimulationConfig) -> Measures:
        """Return the figures of the episode so far."""
        waits = np.array(world.finished_waits, dtype=np.float64)
        none = (0,) * len(config.types)
        return Measures(
            steps=steps,
            run_time_s=world.now,
            cost=dollars(account.rent + account.penalty),
            rent=dollars(account.rent),
            penalty=dollars(account.penalty),
            jobs_finished=world.finished,
            jobs_submitted=world.submitted,
            mean_wait_s=float(waits.mean()) if waits.size else 0.0,
            p95_wait_s=float(np.percentile(waits, 95.0)) if waits.size else 0.0,
            allocated_ratio=self.allocated / steps if steps else 0.0,
            utilisation=world.busy_core_s / world.ready_core_s if world.ready_core_s > 0 else 0.0,
            idle_core_h=(world.ready_core_s - world.busy_core_s) / 3600.0,
            executed_core_s=world.executed_core_s,
            added=tuple(self.added) or none,
            removed=tuple(self.removed) or none,
            refused=tuple(self.refused) or none,
            interruptions=world.interruptions,
            lost_core_s=world.lost_core_s,
            peak_cores=self.peak_cores,
            bursts=world.bursts.began,
            first_core_s=world.bursts.first_core_s,
            reclaimed=world.reclaimed,
        )
