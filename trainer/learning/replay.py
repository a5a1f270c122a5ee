"""Plays the agent's own decision on a simulated fleet: policy, fallback and rails as they are, minute by minute.

Only the world is simulated: jobs, boots, rent. `agent.autoscaling.decide` decides from a snapshot of it under the
limits that the fleet has, so that a recorded day and its replay differ only where the world file does. With the
recorded boots, a VM that is launched as in the record takes as long as it took there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.decide import DecisionInputs, DecisionResult, decide
from agent.autoscaling.policies.fallback import Models, Proposer, evaluate_directly
from agent.rails.base import RailLimits
from agent.rails.state import LoopState
from domain.controls import Controls, Window
from domain.decisions import Mode
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.rules.queue_rule import IDLE_S
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot, Terms
from domain.units import DAY_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.actions import orders_of_vector
from simulator.autoscaling.configuration import RemovalMode, SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.twin_world import BOOTING, READY, Machine, Streams
from simulator.autoscaling.view import FleetView

MOST_REMOVABLE = 50
"""As the agent lists them."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What the agent's decision of a fleet depends on, beside the policy.

    idle_s: a VM idle for so long may be given back. lag_s: from a minute's end to its decision; boots begin so much
    later. sizes_known: the job source reports the work of its jobs. models: where
    learned policies come from; None where no policy is learned.
    """

    fleet: Fleet
    limits: RailLimits
    terms: Terms | None
    idle_s: float = IDLE_S
    lag_s: float = 0.0
    sizes_known: bool = True
    models: Models | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """What an episode cost and how it went, minute by minute: shape (steps,), dollars and counts at a minute's end.

    launched: VMs ordered in all. finished: jobs done. failures: minutes in which the policy failed and another one
    stood in, with the first reason.
    """

    rent: NDArray[np.float64]
    penalty: NDArray[np.float64]
    booting: NDArray[np.float64]
    requested: NDArray[np.int64]
    busy_cores: NDArray[np.float64]
    launched: int
    finished: int
    failures: int
    first_failure: str = ""

    @property
    def cost(self) -> float:
        """Dollars."""
        return float(self.rent.sum() + self.penalty.sum())


@dataclass(frozen=True, slots=True)
class Lived:
    """The settings and controls of a recorded decision; `Loop` has the others.

    job_core_s: the work of a job as the job source reported it, core-seconds. idle_s, limits: as of `Loop`. controls,
    windows: pauses, a pin, and the windows of the schedule.
    """

    job_core_s: float | None = None
    idle_s: float | None = None
    limits: RailLimits | None = None
    controls: Controls = field(default_factory=Controls)
    windows: tuple[Window, ...] = ()


LAUNCHED_WITHIN_S = 1.5 * MINUTE_S
"""A launch counts as the recorded one that is at most so far from it; recorded launches are known to a minute."""


@dataclass(frozen=True, slots=True)
class RecordedBoot:
    """The boot of one VM: the position of its group, its launch (epoch seconds), and seconds until it was ready."""

    group: int
    launched_s: float
    seconds: float


class RecordedBoots(Streams):
    """Random numbers of an episode in which a VM boots as long as the recorded VM of its group launched at that time.

    start_s: epoch seconds of the begin of the episode. lag_s: from a request to the launch. Each recorded boot is used
    once; a launch without one draws its boot time.
    """

    def __init__(self, seed: int, boots: Sequence[RecordedBoot], start_s: float, lag_s: float) -> None:
        super().__init__(seed)
        self._start_s, self._lag_s = start_s, lag_s
        self._left: dict[int, list[RecordedBoot]] = {}
        for boot in boots:
            self._left.setdefault(boot.group, []).append(boot)

    def ready_at(self, kind: int, index: int, points: Sequence[float], now: float) -> float:
        """Return when a VM requested at `now` is ready."""
        launched_s, left = self._start_s + now + self._lag_s, self._left.get(kind, [])
        near = min(left, key=lambda boot: abs(boot.launched_s - launched_s), default=None)
        if near is None or abs(near.launched_s - launched_s) > LAUNCHED_WITHIN_S:
            return super().ready_at(kind, index, points, now)
        left.remove(near)
        return now + self._lag_s + near.seconds


OnMinute = Callable[[DecisionInputs, DecisionResult], None]
"""Called with each minute's inputs and what was decided on them."""


def play(
    loop: Loop,
    config: SimulationConfig,
    trace: Trace,
    policies: Sequence[str],
    seed: int,
    start_s: float = 0.0,
    *,
    lead: int = 0,
    lived: Sequence[Lived] = (),
    boots: Sequence[RecordedBoot] = (),
    seen: OnMinute | None = None,
) -> Episode:
    """Play an episode of as many minutes as `policies` has, the name of what decides at the begin of each.

    config: its cool-down does not count, the limits have it; its fleet at the begin is `initial`. start_s: epoch
    seconds of the begin. lead: minutes at the begin that are played and left out of the answer. lived: the settings and
    controls of each minute; without them the job source reports the mean work of the jobs that wait. boots: as
    recorded. Raises BadInput where the world's step is no minute, or it has other types than the fleet.
    """
    _check(loop.fleet, config)
    steps = len(policies)
    later = tuple(tuple(loop.lag_s + point for point in points) for points in config.boot_points_s)
    world = replace(config, cooldown_s=0.0, max_steps=steps + 1, boot_quantiles_s=later)

    def streams(seed: int) -> Streams:
        return RecordedBoots(seed, boots, start_s, loop.lag_s)

    simulation = Simulation(world, never_ending(trace, steps * MINUTE_S), seed, streams=streams)
    proposer = Proposer(evaluate_directly, models=loop.models)
    state, view = LoopState(), simulation.fleet_view()
    rows: list[tuple[float, float, float, float]] = []
    requested: list[list[int]] = []
    launched = failures = done_before = 0
    first_failure, waiting_core_s = "", None
    for number, policy in enumerate(policies):
        now = start_s + number * MINUTE_S
        if view.queue.waiting:
            waiting_core_s = view.queue.queued_core_s / view.queue.waiting
        under = lived[number] if lived else Lived(waiting_core_s)
        idle_s = loop.idle_s if under.idle_s is None else under.idle_s
        limits = under.limits or loop.limits
        inputs = DecisionInputs(
            decision_id=f"{loop.fleet.name}-{now:.0f}",
            now=now + loop.lag_s,
            fleet=loop.fleet,
            snapshot=snapshot_of(replace(loop, idle_s=idle_s, limits=limits), simulation, now, under.job_core_s),
            state=state,
            controls=under.controls,
            limits=limits,
            mode=Mode.ACT,
            leader=True,
            epoch=0,
            policy=policy,
            windows=under.windows,
        )
        made = decide(inputs, proposer)
        if seen is not None:
            seen(inputs, made)
        state = made.state
        if made.decision.policy_failures:
            failures += 1
            first_failure = first_failure or made.decision.policy_failures[0]
        changes = [0] * len(loop.fleet.groups)
        for intent in made.decision.intents:
            changes[loop.fleet.index(intent.group)] += intent.target - intent.before
        result = simulation.step_orders(orders_of_vector(changes, config.cores))
        view = simulation.fleet_view()
        if number < lead:
            done_before = result.info.finished
            continue
        launched += sum(result.info.outcome.added)
        rows.append((result.rent, result.penalty, float(sum(result.info.booting)), float(view.busy_cores)))
        requested.append(view.requested.tolist())
    columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return Episode(
        columns[0],
        columns[1],
        columns[2],
        np.array(requested),
        columns[3],
        launched,
        result.info.finished - done_before,
        failures,
        first_failure,
    )


def snapshot_of(loop: Loop, simulation: Simulation, now: float, job_core_s: float | None) -> Snapshot:
    """Return what the agent would see of a simulated fleet at the end of a minute, with every VM reporting."""
    groups, config, view = loop.fleet.groups, simulation.config, simulation.fleet_view()
    drains = config.removal_mode is RemovalMode.DRAIN
    cpu = _cpu(view)
    made = []
    for kind, group in enumerate(groups):
        mine = view.vm_type == kind
        ready = [machine for machine in simulation.machines if machine.kind == kind and machine.state == READY]
        booting = [machine for machine in simulation.machines if machine.kind == kind and machine.state == BOOTING]
        idle_s = [idle_seconds(machine, simulation.now_s, config.sample_interval_s) for machine in ready]
        mature = [simulation.now_s - machine.requested_at >= loop.limits.min_lifetime_s for machine in ready]
        free = sum(old and (drains or idle > 0.0) for old, idle in zip(mature, idle_s, strict=True))
        overdue = sum(simulation.now_s - machine.requested_at > loop.limits.boot_deadline_s for machine in booting)
        made.append(
            GroupSnapshot(
                key=group.key,
                requested=int(view.requested[kind]),
                in_service=len(ready),
                warm=len(ready),
                booting=len(booting) - overdue,
                overdue=overdue,
                draining=int(view.draining[kind]),
                silent=0,
                unhealthy=0,
                idle_long=sum(idle > 0.0 and idle >= loop.idle_s for idle in idle_s),
                mature=sum(mature),
                minimum=group.minimum,
                maximum=group.maximum,
                removable=tuple(f"{group.key}-{k}" for k in range(min(free, MOST_REMOVABLE))),
                cpu_mean=float(cpu[mine].mean()) if mine.any() else None,
                busy_cores=float(cpu[mine].sum()) * config.cores[kind],
                idle=sum(idle > 0.0 for idle in idle_s),
            )
        )
    queue = view.queue
    whole = float(cpu.mean()) if cpu.size else None
    return Snapshot(
        fleet=loop.fleet.name,
        bin_end=now,
        taken_at=now,
        groups=tuple(made),
        queue=QueueSnapshot(
            queue.waiting,
            queue.running,
            queue.submitted,
            queue.submitted_recent,
            queue.oldest_wait_s,
            job_core_s if loop.sizes_known else None,
        ),
        coverage=1.0,
        age_s=0.0,
        cpu_mean=whole,
        cpu_mean_warmed_up=whole,
        terms=loop.terms,
    )


def idle_seconds(machine: Machine, now_s: float, sample_interval_s: float) -> float:
    """Return for how long the agent takes a VM to be idle at the end of a minute: from the begin of a minute on.

    That is the first minute without a reading of busy cores, and for a new VM the minute of its first reading.
    """
    if not machine.vacant:
        return 0.0
    if machine.idle_since <= machine.ready_at:
        since_s = math.floor(machine.ready_at / MINUTE_S) * MINUTE_S
    else:
        since_s = math.ceil((machine.idle_since - sample_interval_s) / MINUTE_S) * MINUTE_S
    return max(now_s - since_s, 0.0)


def never_ending(trace: Trace, horizon_s: float) -> Trace:
    """Return the trace with one more job, a day after all others: the fleet costs money until then, jobs or not."""
    last_s = max(horizon_s, float(trace.arrival_s.max(initial=0.0))) + DAY_S
    return make_trace(trace.name, np.append(trace.arrival_s, last_s), np.append(trace.service_s, 1.0))


def _cpu(view: FleetView) -> NDArray[np.float64]:
    """Return the CPU share of each VM; those without enough readings share what the others leave of the busy cores."""
    cores = view.cores[view.vm_type].astype(np.float64)
    unread = ~np.isfinite(view.vm_cpu)
    cpu = np.where(unread, 0.0, view.vm_cpu)
    if unread.any():
        left = max(float(view.busy_cores) - float((cpu * cores).sum()), 0.0)
        cpu[unread] = min(left / max(float(cores[unread].sum()), 1.0), 1.0)
    return cpu


def _check(fleet: Fleet, config: SimulationConfig) -> None:
    if config.step_s != MINUTE_S:
        raise BadInput("step_s", config.step_s, "give a world of 60 s: the agent decides once a minute")
    if [group.vm_type.cores for group in fleet.groups] != [*config.cores]:
        wanted = ", ".join(f"{group.key} of {group.vm_type.cores} cores" for group in fleet.groups)
        raise BadInput("world", config.cores, f"give the types of the fleet: {wanted}")
