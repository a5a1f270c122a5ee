"""Runs the baselines of the autoscaler specification, §9, on the reference simulator; shared by the tests here."""

from collections.abc import Callable, Sequence

import numpy as np

from domain.rules.queue_rule import queue_rule_multi, queue_rule_single
from domain.rules.target_tracking import target_tracking_step
from domain.rules.threshold import threshold_step
from domain.workload import Trace
from simulator.reference import FleetView, Measures, Simulation, SimulationConfig

Action = int | Sequence[int] | np.ndarray
Policy = Callable[[FleetView], Action]


def run_policy(config: SimulationConfig, trace: Trace, policy: Policy, seed: int = 0) -> Measures:
    """Run one episode and return its measures."""
    simulation = Simulation(config, trace, seed)
    while not (simulation.finished or simulation.truncated):
        simulation.step(policy(simulation.fleet_view()))
    return simulation.measures()


def nothing(view: FleetView) -> Action:
    """Change nothing: a constant fleet."""
    return 0


def queue_policy(horizon_s: float, idle_minutes: float, *, multi: bool, busy_credit: float = 1.0) -> Policy:
    """Return the queue rule with the work of the queue known."""
    rule = queue_rule_multi if multi else queue_rule_single

    def decide(view: FleetView) -> Action:
        answer = rule(
            view.queue.queued_core_s,
            horizon_s,
            view.cores,
            view.requested,
            view.booting,
            view.idle_long(60.0 * idle_minutes),
            view.minimum,
            view.maximum,
            float(view.free_cores),
            busy_credit * view.busy_cores,
        )
        return answer - view.requested if isinstance(answer, np.ndarray) else answer

    return decide


def threshold_policy(high: float, low: float, periods: int, warmup_s: float = 300.0) -> Policy:
    """Return the threshold rule: the same step in every group."""
    streaks = [0, 0]

    def decide(view: FleetView) -> Action:
        delta, streaks[0], streaks[1] = threshold_step(view.cpu_mean(warmup_s=warmup_s), high, low, periods, *streaks)
        return [delta] * view.cores.size

    return decide


def target_policy(target: float, out_periods: int = 3, in_periods: int = 15, warmup_s: float = 300.0) -> Policy:
    """Return target tracking, one tracker per group on that group's CPU."""
    streaks: dict[int, tuple[int, int]] = {}

    def decide(view: FleetView) -> Action:
        changes = []
        for kind in range(view.cores.size):
            mine = view.vm_type == kind
            warm = int((mine & (view.vm_ready_s >= warmup_s)).sum())
            warming = bool(view.booting[kind] > 0 or warm < int(mine.sum()))
            cpu = view.cpu_mean(kind, warmup_s)
            desired, above, below = target_tracking_step(
                warm, cpu, target, 0.9, out_periods, in_periods, *streaks.get(kind, (0, 0)), warming
            )
            streaks[kind] = (above, below)
            size = int(view.requested[kind])
            wanted = max(size, desired) if desired > warm else desired if desired < warm else size
            changes.append(int(np.clip(wanted, 1, view.maximum[kind])) - size)
        return changes

    return decide
