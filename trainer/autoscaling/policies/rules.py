"""The rules of the autoscaler specification, §9, as policies: their maths is that of `domain.rules`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from domain.errors import BadInput
from domain.rules.autoscaling import queue_rule_multi, queue_rule_single, target_tracking_step, threshold_step
from domain.workload import Trace
from simulator.autoscaling.actions import Order, orders_of_index, orders_of_vector
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import FleetView
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy

TYPICAL_JOB_CORE_S, SHORTEST_HORIZON_S = 150.0, 1e-3


@dataclass(slots=True)
class ThresholdPolicy(SimulatedPolicy):
    """One VM more or fewer in every group on the mean CPU of all VMs (autoscaler specification §9.2).

    high, low: thresholds, 0..1; equal = the published form, low < high = hysteresis. periods: minutes in a row beyond a
    threshold. exclude_warming: leave VMs ready for less than warmup_s out of the mean. cooldown_s: a group changes no
    sooner than this after its last accepted change; a longer cool-down of the world binds beside it.
    """

    kind: ClassVar[str] = "threshold"

    high: float = 0.75
    low: float = 0.75
    periods: int = 1
    exclude_warming: bool = True
    warmup_s: float = 300.0
    cooldown_s: float = 300.0
    _streaks: tuple[int, int] = field(init=False, repr=False, compare=False, default=(0, 0))
    _changed_s: list[float] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise BadInput("policy threshold: low", self.low, f"give at most high, which is {self.high:g}")

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Forget streaks and cool-downs."""
        self._streaks = (0, 0)
        self._changed_s = [-np.inf] * len(config.types)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order the same step in every group that may change now."""
        if simulation.steps == 0:
            # No minute has passed, so nothing was measured.
            return ()
        view = simulation.fleet_view()
        cpu = view.cpu_mean(warmup_s=self.warmup_s if self.exclude_warming else 0.0)
        delta, *streaks = threshold_step(cpu, self.high, self.low, self.periods, *self._streaks)
        self._streaks = (streaks[0], streaks[1])
        if delta == 0:
            return ()
        mask = simulation.mask()
        changes = [0] * view.cores.size
        for kind, changed_s in enumerate(self._changed_s):
            if mask[2 * kind + (1 if delta > 0 else 2)] and view.now_s - changed_s >= self.cooldown_s:
                changes[kind] = delta
                self._changed_s[kind] = view.now_s
        return orders_of_vector(changes, simulation.config.cores)


@dataclass(slots=True)
class TargetTrackingPolicy(SimulatedPolicy):
    """One tracker per group on that group's CPU, as a cloud group does it (autoscaler specification §9.3).

    target: mean CPU aimed at, 0..1. scale_in_factor: the low alarm stands at this share of it. out_periods, in_periods:
    minutes in a row beyond an alarm. warmup_s: a VM's CPU counts, and its group stops warming, so long after it is
    ready. keep_one: a group keeps at least one VM where its limit allows; without any it shows no CPU and never grows
    again, as live.
    """

    kind: ClassVar[str] = "target-tracking"

    target: float = 0.65
    scale_in_factor: float = 0.9
    out_periods: int = 3
    in_periods: int = 15
    warmup_s: float = 300.0
    keep_one: bool = False
    _streaks: list[tuple[int, int]] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise BadInput("policy target-tracking: target", self.target, "give a share above 0 and up to 1")

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Forget the streaks."""
        self._streaks = [(0, 0)] * len(config.types)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order each group to the size its tracker asks for."""
        if simulation.steps == 0:
            return ()
        view = simulation.fleet_view()
        changes = [self._change(view, kind) for kind in range(view.cores.size)]
        return orders_of_vector(changes, simulation.config.cores)

    def _change(self, view: FleetView, kind: int) -> int:
        mine = view.vm_type == kind
        warm = int((mine & (view.vm_ready_s >= self.warmup_s)).sum())
        warming = bool(view.booting[kind] > 0 or warm < int(mine.sum()))
        desired, above, below = target_tracking_step(
            warm,
            view.cpu_mean(kind, self.warmup_s),
            self.target,
            self.scale_in_factor,
            self.out_periods,
            self.in_periods,
            *self._streaks[kind],
            warming,
        )
        self._streaks[kind] = (above, below)
        size = int(view.requested[kind])
        wanted = max(size, desired) if desired > warm else desired if desired < warm else size
        least = max(int(view.minimum[kind]), min(1, int(view.maximum[kind])) if self.keep_one else 0)
        return int(np.clip(wanted, least, view.maximum[kind])) - size


@dataclass(slots=True)
class QueueRulePolicy(SimulatedPolicy):
    """Enough cores to take up what waits within a horizon, idle VMs given back (autoscaler specification §9.4).

    horizon_s: time in which waiting work should be taken up. job_core_s: core-seconds of a waiting job until one has
    finished, then their mean, as a live controller counts; 0: the work of the queue is known. single: change at most
    one VM a minute (act-7). idle_s: a VM idle for so long is given back. busy_counts: busy cores are cover, since they
    take up what waits; else the specification's text. skip_cooling: choose among the types that may change now.
    length_power: the horizon is taken times (mean length of the waiting jobs / 150 s) to this power; a core bought for
    long jobs is paid for longer, so 0.5 weighs its rent against the waiting whatever the length.
    """

    kind: ClassVar[str] = "queue-rule"

    horizon_s: float = 150.0
    job_core_s: float = 0.0
    single: bool = False
    idle_s: float = 120.0
    busy_counts: bool = True
    skip_cooling: bool = False
    length_power: float = 0.0

    def __post_init__(self) -> None:
        if self.horizon_s <= 0:
            raise BadInput("policy queue-rule: horizon_s", self.horizon_s, "give seconds above 0")

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order what the rule asks for."""
        view = simulation.fleet_view()
        minimum, maximum = view.minimum, view.maximum
        if self.skip_cooling:
            minimum = np.where(view.cooldown_in_s > 0, np.maximum(view.requested, minimum), minimum)
            maximum = np.where(view.cooldown_out_s > 0, np.minimum(view.requested, maximum), maximum)
        queued_core_s, horizon_s = self._queued_core_s(view), self.horizon_s
        if self.length_power and view.queue.waiting:
            horizon_s *= (queued_core_s / view.queue.waiting / TYPICAL_JOB_CORE_S) ** self.length_power
        arguments = (
            queued_core_s,
            max(horizon_s, SHORTEST_HORIZON_S),
            view.cores,
            view.requested,
            view.booting,
            view.idle_long(self.idle_s),
            minimum,
            maximum,
            float(view.free_cores),
            float(view.busy_cores) if self.busy_counts else 0.0,
        )
        if self.single:
            return orders_of_index(queue_rule_single(*arguments), view.cores.size)
        return orders_of_vector(queue_rule_multi(*arguments) - view.requested, simulation.config.cores)

    def _queued_core_s(self, view: FleetView) -> float:
        if self.job_core_s <= 0.0:
            return view.queue.queued_core_s
        mean = view.queue.mean_job_core_s
        return view.queue.waiting * (self.job_core_s if mean is None else mean)
