"""What the reference simulator shows: the result of a step, and the fleet and queue as an outside policy sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.reference.actions import IN, OUT, Cooldowns, Outcome
from simulator.autoscaling.reference.configuration import RemovalChoice
from simulator.autoscaling.reference.machine import BOOTING, DRAINING
from simulator.autoscaling.reference.world import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The state at the end of a step (autoscaler specification §15.1); counts by type are tuples.

    step: steps done. now_s: simulated seconds. waiting, executing, finished, submitted: jobs. cores_ready,
    cores_booting, cores_busy: cores (draining VMs excluded). outcome: what became of the step's orders.
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


def counts(world: World, state: int | None = None) -> tuple[int, ...]:
    """Return the VMs per type, all of them or those in one state."""
    found = [0] * len(world.config.types)
    for machine in world.machines:
        if state is None or machine.state == state:
            found[machine.kind] += 1
    return tuple(found)


def step_info(world: World, steps: int, outcome: Outcome) -> StepInfo:
    """Read the counts of a step's end."""
    booting = counts(world, BOOTING)
    return StepInfo(
        step=steps,
        now_s=world.now,
        waiting=world.waiting,
        executing=len(world.running),
        finished=world.finished,
        submitted=world.submitted,
        ready=tuple(world.ready_count),
        booting=booting,
        draining=counts(world, DRAINING),
        cores_ready=world.ready_cores,
        cores_booting=sum(n * cores for n, cores in zip(booting, world.config.cores, strict=True)),
        cores_busy=world.busy_cores,
        outcome=outcome,
    )


def fleet_view(world: World, cooldowns: Cooldowns, step_start: float, submitted_before: int) -> FleetView:
    """Build the view of the fleet at the end of the step that began at `step_start`."""
    config, now = world.config, world.now
    kinds = range(len(config.types))
    measured = [machine.measured(config, step_start, now) for machine in world.ready]
    ready, booting = np.array(world.ready_count, dtype=np.int64), np.array(counts(world, BOOTING), dtype=np.int64)
    finished = world.finished
    return FleetView(
        now_s=now,
        cores=np.array(config.cores, dtype=np.int64),
        requested=ready + booting,
        ready=ready,
        booting=booting,
        draining=np.array(counts(world, DRAINING), dtype=np.int64),
        minimum=np.array(config.minimum, dtype=np.int64),
        maximum=np.array(config.limits, dtype=np.int64),
        cooldown_out_s=np.array([cooldowns.remaining_s(config, k, OUT, now) for k in kinds]),
        cooldown_in_s=np.array([cooldowns.remaining_s(config, k, IN, now) for k in kinds]),
        free_cores=world.free_cores,
        busy_cores=world.busy_cores,
        removes_newest=config.removal_choice is RemovalChoice.NEWEST,
        vm_type=np.array([machine.kind for machine in world.ready], dtype=np.int64),
        vm_cpu=np.array([cpu for cpu, _ in measured], dtype=np.float64),
        vm_ram=np.array([ram for _, ram in measured], dtype=np.float64),
        vm_ready_s=np.array([now - machine.ready_at for machine in world.ready], dtype=np.float64),
        vm_idle_s=np.array([now - m.idle_since if m.vacant else 0.0 for m in world.ready], dtype=np.float64),
        queue=QueueView(
            waiting=world.waiting,
            running=len(world.running),
            submitted=world.submitted,
            submitted_recent=world.submitted - submitted_before,
            oldest_wait_s=now - world.queue[0][0] if world.queue else 0.0,
            queued_core_s=world.queued_core_s,
            mean_job_core_s=world.finished_core_s / finished if finished else None,
        ),
    )
