"""What the same jobs would have cost otherwise: the reference simulator, driven by the agent's own decisions.

A policy decides through the same pure function as in the live loop, rails and all; only the fleet and its measurements
are simulated, and no fault strikes. Rent is by the second from a VM's launch, as EC2 bills it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agent.autoscaling.decide import DecisionInputs, decide
from agent.autoscaling.policies.fallback import Models, Proposer, evaluate_directly
from agent.autoscaling.snapshot.aggregate import EXPECTED_JOB_CORE_S
from agent.autoscaling.state import Controls, Cooldown, LoopState
from agent.rails.base import RailLimits
from domain.decisions import Mode
from domain.fleet import Fleet
from domain.observations.autoscaling import Vector, obs_v2
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot
from domain.workload import Trace
from simulator.autoscaling.reference import FleetView, Simulation, SimulationConfig, preset
from simulator.autoscaling.reference.configuration import Billing, Dispatch

WARM_UP_S = 300.0
AFTER_THE_END_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """One run over the jobs: dollars of rent and of waiting, seconds waited per finished job, jobs finished."""

    policy: str
    rent: float
    waiting_cost: float
    mean_wait_s: float
    p95_wait_s: float
    jobs_finished: int

    @property
    def cost(self) -> float:
        """Rent and waiting together (J of autoscaler specification §5)."""
        return self.rent + self.waiting_cost


@dataclass(frozen=True, slots=True)
class Settled:
    """What a fleet's decisions depend on besides measurements: limits, when a VM is idle for long, a job's size."""

    fleet: Fleet
    limits: RailLimits
    idle_s: float
    job_core_s: float = EXPECTED_JOB_CORE_S


def world_of(fleet: Fleet, initial: tuple[int, ...]) -> SimulationConfig:
    """Return the simulated world that behaves like the dry run's cloud for this fleet.

    It has no cool-down of its own: the agent's rails keep it. Jobs go to one VM after the other, as workers that pull
    them spread them.
    """
    return preset(
        "live-like",
        types=tuple(group.vm_type for group in fleet.groups),
        limits=tuple(group.maximum for group in fleet.groups),
        minimum=tuple(group.minimum for group in fleet.groups),
        initial=initial,
        cooldown_s=0.0,
        dispatch=Dispatch.NEXT_FIT,
        billing=Billing.EXACT,
        integral_penalty=True,
    )


def never_ending(trace: Trace, horizon_s: float) -> Trace:
    """Return the trace with one more job, a day after the horizon: the fleet costs money until then, jobs or not."""
    last: dict[str, float] = {
        "job_id": int(trace.job_id.max(initial=0)) + 1,
        "arrival_s": max(horizon_s, float(trace.arrival_s.max(initial=0.0))) + AFTER_THE_END_S,
        "service_s": 1.0,
        "width": 1,
        "ram_gb": 0.0,
        "stage": int(trace.stage.max(initial=0)),
        "release_after": -1,
        "pause_s": 0.0,
    }
    columns: dict[str, Any] = {name: np.append(getattr(trace, name), value) for name, value in last.items()}
    return replace(trace, **columns)


def snapshot_of(settled: Settled, view: FleetView) -> Snapshot:
    """Return what the agent's aggregation would have seen of the simulated fleet."""
    fleet = settled.fleet
    idle = view.idle_long(settled.idle_s)
    reported = np.isfinite(view.vm_cpu)
    groups = []
    for k, group in enumerate(fleet.groups):
        mine = view.vm_type == k
        mature = int((mine & (view.vm_ready_s >= settled.limits.min_lifetime_s)).sum())
        groups.append(
            GroupSnapshot(
                key=group.key,
                requested=int(view.requested[k]),
                in_service=int(view.ready[k]),
                warm=int(view.ready[k]),
                booting=int(view.booting[k]),
                overdue=0,
                draining=int(view.draining[k]),
                silent=0,
                unhealthy=0,
                idle_long=int(idle[k]),
                mature=mature,
                minimum=group.minimum,
                maximum=group.maximum,
                removable=tuple(f"{group.key}-{n}" for n in range(mature)),
                cpu_mean=_mean(view.vm_cpu[mine & reported]),
                ram_mean=_mean(view.vm_ram[mine & reported]),
                busy_cores=float(view.vm_cpu[mine & reported].sum() * group.vm_type.cores),
                cooldown_out_s=float(view.cooldown_out_s[k]),
                cooldown_in_s=float(view.cooldown_in_s[k]),
            )
        )
    cpu = view.vm_cpu[reported]
    warmed_up = view.vm_cpu[reported & (view.vm_ready_s >= WARM_UP_S)]
    queue = view.queue
    return Snapshot(
        fleet=fleet.name,
        bin_end=view.now_s,
        taken_at=view.now_s,
        groups=tuple(groups),
        queue=QueueSnapshot(
            queue.waiting,
            queue.running,
            queue.submitted,
            queue.submitted_recent,
            queue.oldest_wait_s,
            queue.mean_job_core_s,
        ),
        coverage=1.0,
        age_s=0.0,
        cpu_mean=_mean(cpu) if cpu.size else 0.0,
        cpu_mean_warmed_up=_mean(warmed_up),
    )


def _extended(settled: Settled, simulation: Simulation, view: FleetView, cooldowns: tuple[Cooldown, ...]) -> Vector:
    """Return obs-v2 as the agent has it: jobs as long as those that have finished, and the cool-downs of its rails."""
    queue, limits = view.queue, settled.limits
    job_core_s = settled.job_core_s if queue.mean_job_core_s is None else queue.mean_job_core_s
    left = [
        max((c.remaining_s(view.now_s) for c in cooldowns if c.group == group.key), default=0.0)
        for group in settled.fleet.groups
    ]
    return obs_v2(
        simulation.observe(),
        view.ready,
        view.booting,
        view.maximum,
        np.array(left),
        max(limits.cooldown_out_s, limits.cooldown_in_s),
        queue.waiting,
        queue.waiting * job_core_s,
        settled.fleet.max_cores,
        queue.oldest_wait_s,
        float(simulation.observe_v2()[-1]),
    )


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(values.mean()) if values.size else None


Choose = Callable[[Simulation], tuple[int, ...]]
"""From what is there to the VMs wanted per group."""


def run_agent(
    policy: str,
    settled: Settled,
    trace: Trace,
    initial: tuple[int, ...],
    horizon_s: float,
    seed: int,
    models: Models | None = None,
) -> Counterfactual:
    """Run the jobs under the agent with this policy and all its rails for `horizon_s`; `models`: for a learned one."""
    proposer = Proposer(evaluate_directly, models=models)
    state = LoopState()

    def choose(simulation: Simulation) -> tuple[int, ...]:
        nonlocal state
        view = simulation.fleet_view()
        snapshot = replace(
            snapshot_of(settled, view),
            obs7=tuple(simulation.observe().tolist()),
            obs_v2=tuple(_extended(settled, simulation, view, state.cooldowns).tolist()),
        )
        inputs = DecisionInputs(
            decision_id=f"{settled.fleet.name}-{state.decisions + 1}",
            now=view.now_s,
            fleet=settled.fleet,
            snapshot=snapshot,
            state=state,
            controls=Controls(),
            limits=settled.limits,
            mode=Mode.ACT,
            leader=True,
            epoch=1,
            policy=policy,
        )
        decided = decide(inputs, proposer)
        state = decided.state
        targets = {intent.group: intent.target for intent in decided.decision.intents}
        groups = zip(settled.fleet.groups, view.requested, strict=True)
        return tuple(targets.get(group.key, int(requested)) for group, requested in groups)

    return _run(policy, choose, world_of(settled.fleet, initial), trace, horizon_s, seed)


def run_constant(sizes: tuple[int, ...], fleet: Fleet, trace: Trace, horizon_s: float, seed: int) -> Counterfactual:
    """Run the jobs on a fleet of constant size, up from the start."""
    name = f"constant:{','.join(map(str, sizes))}"
    return _run(name, lambda _: sizes, world_of(fleet, sizes), trace, horizon_s, seed)


def _run(
    name: str, choose: Choose, world: SimulationConfig, trace: Trace, horizon_s: float, seed: int
) -> Counterfactual:
    simulation = Simulation(world, never_ending(trace, horizon_s), seed)
    for _ in range(round(horizon_s / world.step_s)):
        simulation.step(np.array(choose(simulation), dtype=np.int64) - simulation.fleet_view().requested)
    measures = simulation.measures()
    return Counterfactual(
        name, measures.rent, measures.penalty, measures.mean_wait_s, measures.p95_wait_s, measures.jobs_finished
    )


def best_constant(fleet: Fleet, trace: Trace, horizon_s: float, seed: int) -> Counterfactual:
    """Return the run of the constant fleet with the least rent and waiting cost, over every size the limits allow.

    It is chosen in hindsight: nobody knows it before the jobs have come. Of sizes that cost as much and have as many
    cores one is tried, that with the fewest VMs: with jobs of one core they come to the same.
    """
    ranges = [range(group.minimum, group.maximum + 1) for group in fleet.groups]
    by_worth: dict[tuple[float, int], tuple[int, ...]] = {}
    for sizes in sorted(itertools.product(*ranges), key=sum):
        cores = sum(n * c for n, c in zip(sizes, fleet.cores, strict=True))
        price = sum(n * p for n, p in zip(sizes, fleet.prices_per_hour, strict=True))
        if cores:
            by_worth.setdefault((round(price, 9), cores), sizes)
    runs = (run_constant(sizes, fleet, trace, horizon_s, seed) for sizes in by_worth.values())
    return min(runs, key=lambda run: run.cost)
