"""The reference autoscaling simulator: exact, event by event, in plain Python (autoscaler specification §2-§6).

It is the slow twin that faster kernels are held to, and the counterfactual of the dry run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import TrimtabError
from domain.observations.autoscaling import next_removal_share, obs7, obs_v2, waiting_recent_fifo
from domain.workload import Trace
from simulator.autoscaling.reference.actions import (
    Cooldowns,
    Order,
    Outcome,
    apply_orders,
    mask_index,
    mask_multi,
    orders_of_index,
    orders_of_vector,
)
from simulator.autoscaling.reference.configuration import EXACT, SimulationConfig, published_observation
from simulator.autoscaling.reference.machine import Account, Machine, dollars
from simulator.autoscaling.reference.view import FleetView, Measures, StepInfo, StepResult, Tally, fleet_view, step_info
from simulator.autoscaling.reference.world import JobColumns, Streams, World


class EpisodeOver(TrimtabError):
    """A step after the last job had finished, or after truncation."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A snapshot of an episode; restores into any simulation of the same configuration, trace and seed."""

    steps: int
    submitted_before: int
    world: World
    cooldowns: Cooldowns
    account: Account
    tally: Tally
    identity: tuple[SimulationConfig, str, int]


@dataclass(frozen=True, slots=True)
class Watch:
    """An observer that is called every `every_s` within each step, at its end too, and changes nothing."""

    every_s: float
    look: Callable[[Simulation], None]


class Simulation:
    """One episode at a time over one trace. The same configuration, trace, seed and actions give the same bits."""

    def __init__(self, config: SimulationConfig, trace: Trace, seed: int = 0, watch: Watch | None = None) -> None:
        """Check the trace against the configuration and reset; TraceError when a job is wider than every VM type."""
        self.config = config
        self.trace = trace
        self.seed = seed
        self._watch = watch
        self._jobs = JobColumns(trace, config)
        self.reset()

    def reset(self, seed: int | None = None) -> NDArray[np.float32]:
        """Begin a new episode (with another seed, if given) and return the first observation, obs-7."""
        self.seed = self.seed if seed is None else seed
        self._world = World(self.config, self._jobs, Streams(self.seed))
        self._cooldowns = Cooldowns.none(len(self.config.types))
        self._account = Account()
        self._tally = Tally()
        self._steps = 0
        self._submitted_before = 0
        if self.config.compat.offset_clock:
            self._world.hand_over(0)
            self._world.dispatch()
            self._world.run_until(self.config.clock_offset_s)
        return self.observe()

    @property
    def steps(self) -> int:
        """Steps done in this episode."""
        return self._steps

    @property
    def finished(self) -> bool:
        """Whether every job has finished; true from the start for an empty trace."""
        return self._world.finished == self._jobs.jobs

    @property
    def truncated(self) -> bool:
        """Whether max_steps was reached with jobs left."""
        return self._steps >= self.config.max_steps and not self.finished

    @property
    def _step_start(self) -> float:
        return max(self._steps - 1, 0) * self.config.step_s + self.config.clock_offset_s

    def step(self, action: int | np.integer | Sequence[int] | NDArray[np.int64]) -> StepResult:
        """Apply an act-7 index, or a change per type (any size), and run one control step.

        Raises EpisodeOver after the end, BadInput for an action that does not exist.
        """
        if isinstance(action, int | np.integer):
            return self.step_orders(orders_of_index(int(action), len(self.config.types)))
        return self.step_orders(orders_of_vector(action, self.config.cores))

    def step_orders(self, orders: Sequence[Order]) -> StepResult:
        """Apply orders in the order given, and run one control step."""
        if self.finished or self.truncated:
            raise EpisodeOver(f"the episode ended after {self._steps} steps: call reset() first")
        world = self._world
        self._submitted_before = world.submitted
        waited_before = world.waiting_job_s
        world.begin_step()
        outcome = apply_orders(world, self._cooldowns, orders)
        world.hand_over(self._steps + 1)
        world.dispatch()
        self._account.charge_step_start(self.config, world.machines)
        self._steps += 1
        self._run_until(self._steps * self.config.step_s + self.config.clock_offset_s)
        self._account.charge_step_end(
            self.config, world.machines, world.departed, world.now, world.waiting, world.waiting_job_s - waited_before
        )
        if self.config.compat.free_last_step and world.finished == self._jobs.jobs:
            self._account.forgive_step()
        info = step_info(world, self._steps, outcome)
        self._tally.add(info, self.config)
        return StepResult(
            obs=self.observe(),
            rent=dollars(self._account.step_rent),
            penalty=dollars(self._account.step_penalty),
            done=self.finished,
            truncated=self.truncated,
            info=info,
        )

    def _run_until(self, end: float) -> None:
        if self._watch is not None:
            start, every_s = self._world.now, self._watch.every_s
            for number in range(1, round((end - start) / every_s) + 1):
                self._world.run_until(min(start + number * every_s, end))
                self._watch.look(self)
        self._world.run_until(end)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the episode began."""
        return self._world.now

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Every VM there is, booting and draining ones too, in the order of their requests; for reading only."""
        return tuple(self._world.machines)

    @property
    def jobs_finished(self) -> int:
        """How many jobs have finished."""
        return self._world.finished

    def newest_finished_core_s(self, most: int) -> list[float]:
        """Return the core-seconds of at most so many jobs that finished last."""
        return self._world.finished_lengths[-most:]

    def work_lost(self, machine: Machine) -> float:
        """Return the core-seconds that the jobs of a VM would lose if it went now."""
        return self._world.work_lost(machine)

    def take_back_busiest(self) -> bool:
        """Let the provider give notice to the ready VM with the most busy cores now; return whether there is one."""
        busy = [machine for machine in self._world.ready if machine.busy]
        if not busy:
            return False
        self._world.give_notice(max(busy, key=lambda machine: (machine.busy, machine.number)))
        return True

    def observe(self) -> NDArray[np.float32]:
        """Return obs-7 at this instant."""
        world = self._world
        if self._steps == 0:
            cpu = ram = np.empty(0, dtype=np.float64)
        else:
            pairs = [machine.measured(self.config, self._step_start, world.now) for machine in world.ready]
            both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
            both = both[np.isfinite(both[:, 0])]
            cpu, ram = both[:, 0], both[:, 1]
        waiting, recent = world.waiting, world.submitted - self._submitted_before
        max_cores = self.config.max_cores
        # Jobs interrupted at the step's start precede its arrivals, so two counters give the recent jobs exactly.
        still = waiting_recent_fifo(waiting, recent)
        seven = obs7(world.ready_cores, max_cores, cpu, ram, waiting, world.submitted, still, recent)
        if self.config.compat == EXACT:
            return seven
        if self._steps == 0 and self.config.compat.blank_first_observation:
            return np.zeros_like(seven)
        allocated = world.ready_cores / (max(self.config.limits) * sum(self.config.cores))
        return published_observation(
            self.config.compat, seven, cpu, ram, allocated, still, world.submitted, world.next_number
        )

    def observe_v2(self) -> NDArray[np.float32]:
        """Return obs-v2 at this instant."""
        world, view = self._world, self.fleet_view()
        victims = [world.victim(kind) for kind in range(len(self.config.types))]
        busy = np.array([0.0 if m is None else float(m.busy) for m in victims])
        return obs_v2(
            self.observe(),
            view.ready,
            view.booting,
            view.maximum,
            np.maximum(view.cooldown_out_s, view.cooldown_in_s),
            self.config.cooldown_s,
            view.queue.waiting,
            view.queue.queued_core_s,
            self.config.max_cores,
            view.queue.oldest_wait_s,
            next_removal_share(view.cores, view.ready, view.minimum, busy, float(world.busy_cores)),
        )

    def fleet_view(self) -> FleetView:
        """Return what an outside policy may decide on."""
        return fleet_view(self._world, self._cooldowns, self._step_start, self._submitted_before)

    def info(self) -> StepInfo:
        """Return the counts at this instant, with no outcome."""
        none = (0,) * len(self.config.types)
        return step_info(self._world, self._steps, Outcome(none, none, none))

    def mask(self) -> NDArray[np.bool_]:
        """Return which act-7 indices would have an effect now, shape (1 + 2 N,)."""
        return mask_index(self._world, self._cooldowns)

    def mask_multi(self) -> NDArray[np.bool_]:
        """Return which changes of `actions.MULTI_CHANGES` would have an effect now, shape (N, 7)."""
        return mask_multi(self._world, self._cooldowns)

    def measures(self) -> Measures:
        """Return the measures of the episode so far (§11)."""
        return self._tally.measures(self._world, self._account, self._steps, self.config)

    def state(self) -> SavedState:
        """Return a snapshot that later steps leave untouched."""
        return SavedState(
            self._steps,
            self._submitted_before,
            self._world.copy(),
            copy.deepcopy(self._cooldowns),
            copy.copy(self._account),
            copy.deepcopy(self._tally),
            (self.config, self.trace.digest, self.seed),
        )

    def restore(self, saved: SavedState) -> None:
        """Go on from a snapshot; TrimtabError when it belongs to another configuration or trace."""
        config, digest, seed = saved.identity
        if config != self.config or digest != self.trace.digest:
            raise TrimtabError(
                "the snapshot belongs to another configuration or trace: build the simulation it came from"
            )
        self.seed = seed
        self._steps = saved.steps
        self._submitted_before = saved.submitted_before
        self._world = saved.world.copy()
        self._cooldowns = copy.deepcopy(saved.cooldowns)
        self._account = copy.copy(saved.account)
        self._tally = copy.deepcopy(saved.tally)
