"""The plain twin of the kernel: exact, event by event, in plain Python (autoscaler specification §2-§6).

The kernel is held to it. It plays short runs, where loading the kernel takes longer, and the counterfactual of the dry
run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from domain.errors import TrimtabError
from domain.observations.autoscaling import next_removal_share, obs7, obs_v2, waiting_recent_fifo
from domain.units import HOUR_MS, HOUR_S
from domain.workload import Trace
from simulator.autoscaling.actions import IN, MULTI_CHANGES, OUT, Order, Outcome, orders_of_index, orders_of_vector
from simulator.autoscaling.columns import JobColumns
from simulator.autoscaling.configuration import (
    EXACT,
    RENT_FACTOR,
    Billing,
    CooldownScope,
    RemovalChoice,
    SimulationConfig,
    dollars,
    published_observation,
)
from simulator.autoscaling.twin_world import BOOTING, DRAINING, Machine, Streams, World
from simulator.autoscaling.view import EpisodeOver, FleetView, Measures, QueueView, StepInfo, StepResult

_MINIMUM_CHARGE_MS = 60_000


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


@dataclass(slots=True)
class Cooldowns:
    """When each type was last changed, per direction (seconds; -inf: never)."""

    changed: list[list[float]]

    @classmethod
    def none(cls, kinds: int) -> Cooldowns:
        """Return a state in which nothing cools down."""
        return cls([[-math.inf, -math.inf] for _ in range(kinds)])

    def remaining_s(self, config: SimulationConfig, kind: int, direction: int, now: float) -> float:
        """Return the seconds until a change of this type and direction is accepted again."""
        if config.cooldown_scope is CooldownScope.PER_DIRECTION:
            last = self.changed[kind][direction]
        elif config.cooldown_scope is CooldownScope.PER_TYPE:
            last = max(self.changed[kind])
        else:
            last = max(max(both) for both in self.changed)
        return max(last + config.cooldown_s - now, 0.0)


def may_add(world: World, kind: int) -> bool:
    """Whether the limit leaves room for one more VM of a type (booting and draining ones count)."""
    return world.present[kind] < world.config.limits[kind]


def may_remove(world: World, kind: int) -> bool:
    """Whether a VM of a type may go: the minimum must stay ready (with cancel_booting: ready or booting)."""
    minimum = world.config.minimum[kind]
    booting = world.booting_count(kind) if world.config.cancel_booting else 0
    return world.ready_count[kind] + booting > minimum


def apply_orders(world: World, cooldowns: Cooldowns, orders: Sequence[Order]) -> Outcome:
    """Carry out the orders in turn, VM by VM; each VM is accepted or refused on its own.

    A cool-down that began before this step refuses; one that begins in it does not, the step being one decision.
    """
    kinds = len(world.config.types)
    added, removed, refused = [0] * kinds, [0] * kinds, [0] * kinds
    cooling = [[cooldowns.remaining_s(world.config, k, d, world.now) > 0 for d in (OUT, IN)] for k in range(kinds)]
    for kind, change in orders:
        for _ in range(abs(change)):
            if change > 0 and not cooling[kind][OUT] and may_add(world, kind):
                world.request(kind)
                added[kind] += 1
                cooldowns.changed[kind][OUT] = world.now
            elif change < 0 and not cooling[kind][IN] and may_remove(world, kind):
                _remove_one(world, kind)
                removed[kind] += 1
                cooldowns.changed[kind][IN] = world.now
            else:
                refused[kind] += 1
    return Outcome(tuple(added), tuple(removed), tuple(refused))


def _remove_one(world: World, kind: int) -> None:
    if world.config.cancel_booting and world.booting_count(kind) > 0:
        world.cancel_boot(kind)
        return
    victim = world.victim(kind, draw=True)
    if victim is not None:
        world.remove(victim)


def mask_index(world: World, cooldowns: Cooldowns) -> NDArray[np.bool_]:
    """Return, per act-7 index, whether it would have an effect now; index 0 is always allowed."""
    mask = np.zeros(1 + 2 * len(world.config.types), dtype=bool)
    mask[0] = True
    for kind in range(len(world.config.types)):
        cooling_out = cooldowns.remaining_s(world.config, kind, OUT, world.now) > 0
        cooling_in = cooldowns.remaining_s(world.config, kind, IN, world.now) > 0
        mask[2 * kind + 1] = not cooling_out and may_add(world, kind)
        mask[2 * kind + 2] = not cooling_in and may_remove(world, kind)
    return mask


def mask_multi(world: World, cooldowns: Cooldowns) -> NDArray[np.bool_]:
    """Return, per type and change of MULTI_CHANGES, whether at least one VM of it would be accepted; shape (N, 7)."""
    flat = mask_index(world, cooldowns)
    rows = [
        [change == 0 or bool(flat[2 * kind + (1 if change > 0 else 2)]) for change in MULTI_CHANGES]
        for kind in range(len(world.config.types))
    ]
    return np.array(rows, dtype=bool)


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


@dataclass(slots=True)
class Tally:
    """The sums kept step by step."""

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
            idle_core_h=(world.ready_core_s - world.busy_core_s) / HOUR_S,
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

    def __init__(
        self,
        config: SimulationConfig,
        trace: Trace,
        seed: int = 0,
        watch: Watch | None = None,
        streams: Callable[[int], Streams] = Streams,
    ) -> None:
        """Check the trace against the configuration and reset; TraceError when a job is wider than every VM type.

        streams: of random numbers, made from a seed at each reset.
        """
        self.config = config
        self.trace = trace
        self.seed = seed
        self._watch = watch
        self._streams = streams
        self._jobs = JobColumns(trace, config)
        self.reset()

    def reset(self, seed: int | None = None) -> NDArray[np.float32]:
        """Begin a new episode (with another seed, if given) and return the first observation, obs-7."""
        self.seed = self.seed if seed is None else seed
        self._world = World(self.config, self._jobs, self._streams(self.seed))
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

    @property
    def finished_core_s(self) -> float:
        """Core-seconds of the jobs that finished."""
        return self._world.finished_core_s

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
