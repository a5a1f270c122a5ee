"""What the same jobs would have cost under other policies: the reference simulator run with the agent's own policies.

The simulated fleet boots, drains and cools down like the live one; only the policies differ. No rail but bounds,
minimum and cool-down applies, so each row shows the policy itself.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from agent.policies.base import InputAbsent, Policy
from agent.policies.fixed import ConstantPolicy
from agent.state import Memory
from domain.fleet import Fleet
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot
from domain.workload import Trace
from simulator.reference import FleetView, Simulation, SimulationConfig, preset

WARM_UP_S = 300.0


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """One policy's run over the jobs.

    Dollars of rent in the horizon, dollars of waiting, seconds waited, jobs finished.
    """

    policy: str
    rent: float
    waiting_cost: float
    mean_wait_s: float
    p95_wait_s: float
    jobs_finished: int

    @property
    def cost(self) -> float:
        """Rent and waiting together."""
        return self.rent + self.waiting_cost


def world_of(fleet: Fleet, initial: tuple[int, ...]) -> SimulationConfig:
    """Return the simulated world that behaves like the dry run's cloud for this fleet."""
    return preset(
        "live-like",
        types=tuple(group.vm_type for group in fleet.groups),
        limits=tuple(group.maximum for group in fleet.groups),
        minimum=tuple(group.minimum for group in fleet.groups),
        initial=initial,
    )


def snapshot_of(fleet: Fleet, view: FleetView, idle_s: float) -> Snapshot:
    """Return what the agent's aggregation would have seen of the simulated fleet."""
    idle = view.idle_long(idle_s)
    reported = np.isfinite(view.vm_cpu)
    groups = []
    for k, group in enumerate(fleet.groups):
        mine = view.vm_type == k
        busy = float(view.vm_cpu[mine & reported].sum() * group.vm_type.cores)
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
                mature=int((mine & (view.vm_ready_s >= WARM_UP_S)).sum()),
                minimum=group.minimum,
                maximum=group.maximum,
                cpu_mean=_mean(view.vm_cpu[mine & reported]),
                ram_mean=_mean(view.vm_ram[mine & reported]),
                busy_cores=busy,
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
        cpu_mean_warmed_up=_mean(warmed_up) if warmed_up.size else _mean(cpu) if cpu.size else 0.0,
    )


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(values.mean()) if values.size else None


def run_policy(
    policy: Policy, fleet: Fleet, trace: Trace, initial: tuple[int, ...], horizon_s: float, idle_s: float, seed: int
) -> Counterfactual:
    """Run the jobs under the policy for `horizon_s`; when they end earlier, the last size is paid to its end."""
    world = world_of(fleet, initial)
    simulation = Simulation(world, trace, seed)
    simulation.reset()
    memory: Memory = {}
    rent, steps = 0.0, round(horizon_s / world.step_s)
    last = 0.0
    while simulation.steps < steps and not simulation.finished:
        view = simulation.fleet_view()
        try:
            proposal, memory = policy.decide(fleet, snapshot_of(fleet, view, idle_s), memory)
            change = np.array(proposal.desired, dtype=np.int64) - view.requested
        except InputAbsent:
            change = np.zeros(len(fleet.groups), dtype=np.int64)
        last = simulation.step(change).rent
        rent += last
    rent += last * (steps - simulation.steps)
    measures = simulation.measures()
    return Counterfactual(
        policy.name, rent, measures.penalty, measures.mean_wait_s, measures.p95_wait_s, measures.jobs_finished
    )


def best_constant(fleet: Fleet, trace: Trace, horizon_s: float, seed: int) -> Counterfactual:
    """Return the run of the constant fleet with the least rent and waiting cost, over every size the limits allow.

    Sizes that cost as much and have as many cores are tried once, the fewest VMs first.
    """
    ranges = [range(group.minimum, group.maximum + 1) for group in fleet.groups]
    by_worth: dict[tuple[float, int], tuple[int, ...]] = {}
    for sizes in sorted(itertools.product(*ranges), key=sum):
        cores = sum(n * c for n, c in zip(sizes, fleet.cores, strict=True))
        price = sum(n * p for n, p in zip(sizes, fleet.prices_per_hour, strict=True))
        if cores:
            by_worth.setdefault((round(price, 9), cores), sizes)
    runs = (
        run_policy(ConstantPolicy(sizes), fleet, trace, sizes, horizon_s, WARM_UP_S, seed)
        for sizes in by_worth.values()
    )
    return min(runs, key=lambda run: run.cost)
