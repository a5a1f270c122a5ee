"""Runs the baselines of the autoscaler specification, §9, on the reference simulator; shared by the tests here."""

from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import Measures
from trainer.autoscaling.policies import (
    NothingPolicy,
    QueueRulePolicy,
    SimulatedPolicy,
    TargetTrackingPolicy,
    ThresholdPolicy,
)

nothing = NothingPolicy()
"""Change nothing: a constant fleet."""


def run_policy(config: SimulationConfig, trace: Trace, policy: SimulatedPolicy, seed: int = 0) -> Measures:
    """Run one episode on the plain twin and return its measures."""
    simulation = Simulation(config, trace, seed)
    policy.start(config, trace)
    while not (simulation.finished or simulation.truncated):
        simulation.step_orders(policy.choose(simulation))
    return simulation.measures()


def queue_policy(horizon_s: float, idle_minutes: float, *, multi: bool, busy_counts: bool = True) -> SimulatedPolicy:
    """Return the queue rule with the work of the queue known."""
    return QueueRulePolicy(horizon_s, single=not multi, idle_s=60.0 * idle_minutes, busy_counts=busy_counts)


def threshold_policy(high: float, low: float, periods: int, warmup_s: float = 300.0) -> SimulatedPolicy:
    """Return the threshold rule without a cool-down of its own: the same step in every group."""
    return ThresholdPolicy(high, low, periods, warmup_s=warmup_s, cooldown_s=0.0)


def target_policy(
    target: float, out_periods: int = 3, in_periods: int = 15, warmup_s: float = 300.0
) -> SimulatedPolicy:
    """Return target tracking, one tracker per group on that group's CPU."""
    return TargetTrackingPolicy(target, 0.9, out_periods, in_periods, warmup_s, keep_one=True)
