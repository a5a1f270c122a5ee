"""A fleet that lives under the queue rule, minute by minute, and its record as a ledger would have it.

The numbers are those of `trainer.learning.replay.play`, at a fifth of its time: a minute in which nothing waits and no
VM above the minimum is idle is not decided, and of the rails only those run that hold a queue rule back in a simulated
world: steps, cool-downs, patience, lifetime, reversals and sickness. `apart` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.rails.inputs import sickness_of
from agent.rails.limits import largest_step
from agent.rails.stability import REVERSAL_WINDOW_S
from domain.rules.queue_rule import RuleSetting
from domain.snapshot import GroupSnapshot, Snapshot
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.actions import orders_of_vector
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.twin_world import READY
from simulator.autoscaling.view import StepResult
from trainer.learning.minutes import DecidedMinute, Minute, Record, Span
from trainer.learning.recorded import LEAST_BOOTS, QUANTILES
from trainer.learning.replay import Lived, Loop, RecordedBoot, RecordedBoots, never_ending, play, snapshot_of

Floats = NDArray[np.float64]
NEVER = -math.inf


class _Unseen(Simulation):
    """A simulation without the observation of a network, which takes a sixth of its time."""

    def observe(self) -> NDArray[np.float32]:
        """Return nothing."""
        return np.empty(0, dtype=np.float32)


@dataclass(slots=True)
class _Group:
    """The memory of the rails of a group: its last growth and shrinkage, changes, and scale-ins proposed in a row."""

    out_at: float = NEVER
    in_at: float = NEVER
    streak: int = 0
    changes: list[tuple[float, bool]] = field(default_factory=list)

    def turns(self, now: float) -> int:
        """Return the changes of direction within the last hour, one more scale-in included."""
        recent = [out for at, out in self.changes if now - at < REVERSAL_WINDOW_S]
        return sum(before != after for before, after in pairwise([*recent, False]))


class Life:
    """One fleet under way; it is advanced minute by minute under any setting."""

    def __init__(
        self,
        loop: Loop,
        config: SimulationConfig,
        trace: Trace,
        steps: int,
        seed: int,
        start_s: float,
        boots: Sequence[RecordedBoot] = (),
    ) -> None:
        """Begin a life of at most `steps` minutes; the other arguments are those of `play`."""
        later = tuple(tuple(loop.lag_s + point for point in points) for points in config.boot_points_s)
        world = replace(config, cooldown_s=0.0, max_steps=steps + 1, boot_quantiles_s=later)

        def streams(seed: int) -> RecordedBoots:
            return RecordedBoots(seed, boots, start_s, loop.lag_s)

        self._simulation = _Unseen(world, never_ending(trace, steps * MINUTE_S), seed, streams=streams)
        self._loop, self._start_s = loop, start_s
        self._groups = [_Group() for _ in config.types]
        self._info = self._simulation.info()
        self._waiting_core_s: float | None = None
        self._done = (0, 0.0)
        self.costs: list[float] = []
        self.minutes: list[DecidedMinute] = []

    @property
    def now_s(self) -> float:
        """Epoch seconds."""
        return self._start_s + len(self.costs) * MINUTE_S

    def live(self, minutes: int, setting: RuleSetting) -> None:
        """Live some minutes under a setting, and record them."""
        job_core_s = setting.job_core_s or (self._loop.terms.job_core_s if self._loop.terms else 120.0)
        policy = QueueRulePolicy(setting.horizon_s, job_core_s)
        for _ in range(minutes):
            self.minutes.append(self._recorded(policy.name, setting.idle_s))
            self.step(policy, setting.idle_s)

    def recorded(self) -> Record:
        """Return the record that a ledger would have by now."""
        last = self.minutes[-1]
        ended = self._recorded(last.policy, last.under.idle_s or 0.0, keep=False)
        minutes = (*self.minutes, ended)
        loop, boots = self._loop, [boot for minute in minutes for boot in minute.boots]
        terms = loop.terms and replace(loop.terms, idle_s=last.under.idle_s)
        return Record(loop.fleet, loop.limits, terms, loop.lag_s, (minutes,), {}, _points(loop, boots))

    def step(self, policy: QueueRulePolicy, idle_s: float, reported: Lived | None = None) -> StepResult:
        """Decide, and live one minute; reported: by the job source, else the mean work of the jobs that wait."""
        changes = [0] * len(self._groups)
        if self._info.waiting:
            queue = self._simulation.fleet_view().queue
            self._waiting_core_s = queue.queued_core_s / queue.waiting
        if self._is_still:
            for group in self._groups:
                group.streak = 0
        else:
            job_core_s = self._waiting_core_s if reported is None else reported.job_core_s
            loop = replace(self._loop, idle_s=idle_s)
            snapshot = snapshot_of(loop, self._simulation, self.now_s, job_core_s)
            desired = policy.decide(loop.fleet, snapshot, {})[0].desired
            changes = [self._change(k, snapshot, asked) for k, asked in enumerate(desired)]
        result = self._simulation.step_orders(orders_of_vector(changes, self._simulation.config.cores))
        self._info = result.info
        self.costs.append(result.rent + result.penalty)
        return result

    @property
    def _is_still(self) -> bool:
        """Whether the rule changes nothing: no job waits, and no VM above the minimum is idle."""
        if self._info.waiting:
            return False
        minimum = self._simulation.config.minimum
        above = [r + b - m for r, b, m in zip(self._info.ready, self._info.booting, minimum, strict=True)]
        if min(above) < 0:
            return False
        return not any(one.state == READY and one.vacant and above[one.kind] for one in self._simulation.machines)

    def _change(self, k: int, snapshot: Snapshot, asked: int) -> int:
        """Return a change after the rails, and remember it."""
        group, held, limits = snapshot.groups[k], self._groups[k], self._loop.limits
        current, now = group.requested, self.now_s + self._loop.lag_s
        held.streak = held.streak + 1 if asked < current else 0
        if asked < current and sickness_of(snapshot, limits) is not None:
            asked = current
        asked = min(max(asked, group.minimum), group.maximum)
        if asked > current:
            most = largest_step(current, limits.max_step_out, limits.max_step_out_percent)
            asked = current if held.out_at + limits.cooldown_out_s > now else min(asked, current + most)
        elif asked < current:
            asked = self._shrunk(group, held, asked, now)
        if asked > current:
            held.out_at = now
        elif asked < current:
            held.in_at = now
        if asked != current:
            held.changes.append((now, asked > current))
        return asked - current

    def _shrunk(self, group: GroupSnapshot, held: _Group, asked: int, now: float) -> int:
        limits, current = self._loop.limits, group.requested
        if held.in_at + limits.cooldown_in_s > now or held.streak < limits.in_periods:
            return current
        if held.turns(now) > limits.max_reversals:
            return current
        least = current - largest_step(current, limits.max_step_in, limits.max_step_in_percent)
        return min(max(asked, least, current - group.mature, current - len(group.removable)), current)

    def _recorded(self, policy: str, idle_s: float, *, keep: bool = True) -> DecidedMinute:
        """Return the minute that ends now."""
        simulation, loop, end_s = self._simulation, self._loop, self.now_s
        view, done = simulation.fleet_view(), (simulation.jobs_finished, simulation.finished_core_s)
        queue, there = view.queue, view.requested + view.draining
        job_core_s = self._waiting_core_s if loop.sizes_known else None
        if queue.waiting and loop.sizes_known:
            job_core_s = queue.queued_core_s / queue.waiting
        before = self._done
        self._done = done if keep else before
        prices = loop.fleet.prices_per_hour
        price = loop.terms.waiting_price_per_hour if loop.terms else 0.0
        ended, work = done[0] - before[0], done[1] - before[1]
        return DecidedMinute(
            load=Minute(end_s, queue.submitted_recent, job_core_s, float(view.busy_cores), done[0], ended, work),
            waiting=queue.waiting,
            running=queue.running,
            requested=tuple(view.requested.tolist()),
            booting=tuple(view.booting.tolist()),
            draining=tuple(view.draining.tolist()),
            rent=float(np.dot(there, prices)) * MINUTE_S / HOUR_S,
            penalty=queue.waiting * price * MINUTE_S / HOUR_S,
            policy=policy,
            acted=True,
            boots=tuple(self._boots(end_s)),
            under=Lived(None, idle_s),
        )

    def _boots(self, end_s: float) -> list[RecordedBoot]:
        """Return the boots of the VMs that came within the last minute; a ledger knows their launches to a minute."""
        found = []
        for one in self._simulation.machines:
            if one.state == READY and self._simulation.now_s - MINUTE_S < one.ready_at <= self._simulation.now_s:
                seconds = one.ready_at - one.requested_at - self._loop.lag_s
                if seconds > 0.0:
                    found.append(RecordedBoot(one.kind, end_s - MINUTE_S / 2.0 - seconds, seconds))
        return found


def _points(loop: Loop, boots: Sequence[RecordedBoot]) -> tuple[tuple[float, ...], ...]:
    """Return quantiles of recorded boot times per group as `trainer.learning.recorded.measured_world` has them."""
    found, at = [], np.linspace(0.0, 1.0, QUANTILES)
    assert loop.terms is not None
    usual = zip(loop.terms.boot_low_s, loop.terms.boot_high_s, strict=True)
    for k, bounds in enumerate(usual):
        own = [boot.seconds for boot in boots if boot.group == k]
        measured = own if len(own) >= LEAST_BOOTS else [boot.seconds for boot in boots]
        enough = len(measured) >= LEAST_BOOTS
        found.append(tuple(np.quantile(measured, at).round(1).tolist()) if enough else bounds)
    return tuple(found)


def simulate(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
    """Return the dollars of each minute of a span, as `trainer.learning.self_tuning.simulate` does."""
    rules = {name: rule for name in set(span.policies) if isinstance(rule := policy_from_name(name), QueueRulePolicy)}
    initial = tuple(min(there, limit) for there, limit in zip(span.first.requested, config.limits, strict=True))
    start = replace(config, initial=initial)
    life = Life(loop, start, span.trace, len(span.policies), seed, span.first.end_s, span.boots)
    for name, lived in zip(span.policies, span.lived, strict=True):
        life.step(rules[name], loop.idle_s if lived.idle_s is None else lived.idle_s, lived)
    return np.array(life.costs[span.lead :])


def apart(loop: Loop, config: SimulationConfig, trace: Trace, minutes: int, setting: RuleSetting, seed: int) -> float:
    """Return the share by which the cost of a life differs from that of `play`."""
    policy = QueueRulePolicy(setting.horizon_s, setting.job_core_s or 120.0)
    own = replace(loop, idle_s=setting.idle_s)
    life = Life(own, config, trace, minutes, seed, 0.0)
    for _ in range(minutes):
        life.step(policy, setting.idle_s)
    exact = play(own, config, trace, (policy.name,) * minutes, seed).cost
    return abs(sum(life.costs) - exact) / exact
