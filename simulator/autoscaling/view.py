"""The output of a simulation: a step's result, the fleet as an outside policy sees it, a run's figures (§11)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import TrimtabError
from simulator.autoscaling.actions import Outcome

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class EpisodeOver(TrimtabError):
    """A step after the last job had finished, or after truncation."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The state at the end of a step (autoscaler specification §15.1); counts by type are tuples.

    step: steps done. now_s: simulated seconds. waiting, executing, finished, submitted: jobs. cores_ready,
    cores_booting, cores_busy: cores (draining VMs excluded). outcome: that of the step's orders.
    """

    step: int
    now_s: float
    waiting: int
    executing: int
    finished: int
    submitted: int
    ready: tuple[int, ...]
    booting: tuple[int, ...]
    draining: tuple[int, ...]
    cores_ready: int
    cores_booting: int
    cores_busy: int
    outcome: Outcome

    @property
    def accepted(self) -> bool:
        """Whether everything that was ordered was accepted."""
        return not any(self.outcome.refused)


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One control step: the observation at its end and what it cost in dollars.

    done: every job has finished. truncated: max_steps was reached before that.
    """

    obs: NDArray[np.float32]
    rent: float
    penalty: float
    done: bool
    truncated: bool
    info: StepInfo

    @property
    def reward(self) -> float:
        """The reward of the step: minus its cost (§5)."""
        return -(self.rent + self.penalty)


@dataclass(frozen=True, slots=True, eq=False)
class QueueView:
    """The job queue: counts of jobs, age of the oldest waiting one, core-seconds waiting and of a mean finished job.

    oldest_wait_s and queued_core_s are those of jobs without a core. mean_job_core_s is None until a job has finished:
    a live controller knows no more.
    """

    waiting: int
    running: int
    submitted: int
    submitted_recent: int
    oldest_wait_s: float
    queued_core_s: float
    mean_job_core_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class FleetView:
    """The fleet at a decision, for policies outside the simulator.

    Per type, int64: cores, requested (booting + ready; draining VMs are leaving), ready, booting, draining, minimum,
    maximum; cooldown_out_s, cooldown_in_s in seconds. Per ready VM in request order: vm_type, vm_cpu and vm_ram (0..1,
    nan without enough readings), vm_ready_s (seconds since it became ready), vm_idle_s (seconds without a busy core).
    """

    now_s: float
    cores: Ints
    requested: Ints
    ready: Ints
    booting: Ints
    draining: Ints
    minimum: Ints
    maximum: Ints
    cooldown_out_s: Floats
    cooldown_in_s: Floats
    free_cores: int
    busy_cores: int
    removes_newest: bool
    vm_type: Ints
    vm_cpu: Floats
    vm_ram: Floats
    vm_ready_s: Floats
    vm_idle_s: Floats
    queue: QueueView

    def idle_long(self, idle_s: float) -> Ints:
        """Return, per type, how many VMs could be removed before one that is busy or idle for less than `idle_s`.

        Where removals take the newest VM, an idle one behind a newer busy one does not count.
        """
        idle = (self.vm_idle_s > 0.0) & (self.vm_idle_s >= idle_s)
        found = np.zeros(self.cores.size, dtype=np.int64)
        for kind in range(self.cores.size):
            newest_first = idle[self.vm_type == kind][::-1]
            found[kind] = np.cumprod(newest_first).sum() if self.removes_newest else newest_first.sum()
        return found

    def cpu_mean(self, kind: int | None = None, warmup_s: float = 0.0) -> float:
        """Return the mean CPU of the VMs (of one type) ready for `warmup_s` or longer; nan when there is none."""
        counted = np.isfinite(self.vm_cpu) & (self.vm_ready_s >= warmup_s)
        if kind is not None:
            counted &= self.vm_type == kind
        return float(self.vm_cpu[counted].mean()) if counted.any() else float("nan")


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
