"""A scorer's model file in the simulator: the agent's own policy, shown the simulated fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.scorer import ScorerPolicy, Sight
from domain.observations.autoscaling_scorer import MEMORY
from domain.workload import Trace
from simulator.autoscaling.actions import Order, orders_of_vector
from simulator.autoscaling.branching import RuleSetting
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import FleetView
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy

Floats = NDArray[np.float64]


@dataclass(slots=True)
class SimulatedScorer(SimulatedPolicy):
    """A scorer beside the queue rule.

    rule: its setting in this world; where job_core_s is 0 the work of the jobs that came and wait is known, but not of
    those of a trace whose jobs wait for one another: they count with the mean of the queue.
    """

    kind: ClassVar[str] = "scorer"

    policy: ScorerPolicy
    rule: RuleSetting
    _memory: list[float] = field(init=False, repr=False, compare=False, default_factory=list)
    _config: SimulationConfig | None = field(init=False, repr=False, compare=False, default=None)
    _work: Floats | None = field(init=False, repr=False, compare=False, default=None)

    @property
    def name(self) -> str:
        """The SHA-256 of the model file, with the rule's setting."""
        rule = self.rule
        beside = f"horizon_s={rule.horizon_s:g},idle_s={rule.idle_s:g},job_core_s={rule.job_core_s:g}"
        return f"{self.policy.model.name}:{beside}"

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Empty the memory."""
        self._memory, self._config, self._work = [0.0] * MEMORY, config, None
        if self.rule.job_core_s <= 0.0 and not trace.staged:
            self._work = np.cumsum(np.concatenate(([0.0], np.maximum(trace.width, 1) * trace.service_s)))

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order what leads to the best candidate."""
        assert self._config is not None, "started"
        sight = _sight(self._config, simulation.fleet_view(), self.rule, self._work)
        weighed = self.policy.weigh(sight, self._memory)
        changes = np.array(weighed.targets[weighed.chosen]) - np.array(sight.requested)
        return orders_of_vector(changes, self._config.cores)


def _sight(config: SimulationConfig, view: FleetView, rule: RuleSetting, work: Floats | None) -> Sight:
    """Return what the agent would see. work: core-seconds of the first n jobs of the trace, where they are known."""
    queue = view.queue
    mean = queue.mean_job_core_s
    if rule.job_core_s <= 0.0:
        job_core_s = queue.queued_core_s / queue.waiting if queue.waiting else mean or 0.0
    else:
        job_core_s = rule.job_core_s if mean is None else mean
    arrived_core_s = queue.submitted_recent * job_core_s
    if work is not None:
        arrived_core_s = float(work[queue.submitted] - work[queue.submitted - queue.submitted_recent])
    low, high = zip(*config.boot_ranges_s, strict=True)
    return Sight(
        cores=view.cores.tolist(),
        prices=[kind.price_per_hour for kind in config.types],
        requested=view.requested.tolist(),
        ready=view.ready.tolist(),
        booting=view.booting.tolist(),
        idle=view.idle_long(0.0).tolist(),
        idle_long=view.idle_long(rule.idle_s).tolist(),
        floor=list(config.minimum),
        limits=list(config.limits),
        minimum=np.where(view.cooldown_in_s > 0, np.maximum(view.requested, view.minimum), view.minimum).tolist(),
        maximum=np.where(view.cooldown_out_s > 0, np.minimum(view.requested, view.maximum), view.maximum).tolist(),
        cooling_out_s=view.cooldown_out_s.tolist(),
        cooling_in_s=view.cooldown_in_s.tolist(),
        boot_low_s=list(low),
        boot_high_s=list(high),
        waiting=queue.waiting,
        arrived=queue.submitted_recent,
        arrived_core_s=arrived_core_s,
        oldest_wait_s=queue.oldest_wait_s if queue.waiting else 0.0,
        job_core_s=job_core_s,
        free_cores=float(view.free_cores),
        busy_cores=float(view.busy_cores),
        horizon_s=rule.horizon_s,
        cooldown_s=config.cooldown_s,
        waiting_price=config.waiting_price_per_hour,
        now_s=view.now_s,
        announcements=[],
        given=0.0,
    )
