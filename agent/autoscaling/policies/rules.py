"""Rules as policies: a fixed size, the CPU threshold, target tracking on CPU or signals, and the queue rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agent.autoscaling.policies.base import InputAbsent, clamp, hold, spelled
from agent.rails.state import Memory
from domain.decisions import Proposal, Reason
from domain.fleet import Fleet
from domain.rules.autoscaling import (
    queue_rule_multi,
    queue_rule_single,
    signal_need,
    signal_tracking_step,
    target_tracking_step,
    threshold_step,
)
from domain.rules.queue_rule import HORIZON_S, JOB_CORE_S
from domain.snapshot import OnMissing, SignalKind, SignalSnapshot, Snapshot


@dataclass(frozen=True, slots=True)
class HoldPolicy:
    """Leaves every group as it is: the last resort of the fallback order."""

    @property
    def name(self) -> str:
        """Its name."""
        return "hold"

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose what is requested now."""
        return hold(fleet, snapshot, self.name, Reason.NOTHING_TO_DO, "the hold policy never changes anything"), memory


@dataclass(frozen=True, slots=True)
class ConstantPolicy:
    """Keeps a fixed size per group: the baseline of autoscaler specification §9.1."""

    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name and sizes."""
        return f"constant:{','.join(map(str, self.sizes))}"

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose the fixed sizes."""
        return Proposal(fleet.name, self.name, self.sizes, Reason.NOTHING_TO_DO, "a constant fleet"), memory


@dataclass(frozen=True, slots=True)
class ThresholdPolicy:
    """Autoscaler specification §9.2: one rule on the mean CPU of all managed VMs, applied to each group.

    high, low: thresholds, 0..1; equal = the published form, low < high = hysteresis. periods: minutes in a row beyond a
    threshold. exclude_warming: leave VMs younger than the warm-up out of the mean.
    """

    needs: ClassVar[tuple[str, ...]] = ("cpu",)

    high: float = 0.75
    low: float = 0.75
    periods: int = 1
    exclude_warming: bool = True

    @property
    def name(self) -> str:
        """Name and parameters."""
        return spelled("threshold", self)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose from the fleet's mean CPU; InputAbsent when it is absent.

        While no VM counts, because none is warm or none has warmed up, there is no mean: that begins the count of
        minutes anew, as a mean between the thresholds does.
        """
        if snapshot.cpu_mean is None:
            raise InputAbsent("the threshold rule needs the fleet's CPU, and too few VMs reported it this minute")
        cpu = snapshot.cpu_mean_warmed_up if self.exclude_warming else snapshot.cpu_mean
        if cpu is None or not any(snapshot.warm):
            wanted = "warmed up" if any(snapshot.warm) else "reported"
            detail = f"no VM has {wanted} yet, so no CPU to go by"
            return hold(fleet, snapshot, self.name, Reason.WARMING_UP, detail), {"streaks": (0.0, 0.0)}
        high, low = (int(n) for n in memory.get("streaks", (0.0, 0.0)))
        delta, high, low = threshold_step(cpu, self.high, self.low, self.periods, high, low)
        desired = clamp(fleet, tuple(n + delta for n in snapshot.requested)) if delta else snapshot.requested
        reason = (Reason.LOAD_IN_BAND, Reason.LOAD_HIGH, Reason.LOAD_LOW)[delta]
        limit = f"{self.low:.0%}" if self.low == self.high else f"{self.low:.0%} to {self.high:.0%}"
        detail = f"mean CPU {cpu:.1%} against {limit}, {max(high, low)} of {self.periods} minutes"
        proposal = Proposal(fleet.name, self.name, desired, reason, detail, counts_pending=False)
        return proposal, {"streaks": (float(high), float(low))}


@dataclass(frozen=True, slots=True)
class TargetTrackingPolicy:
    """Autoscaler specification §9.3.

    target: mean CPU aimed at, 0..1. scale_in_factor: the low alarm stands at this share of the target. out_periods,
    in_periods: minutes in a row beyond the alarm. A group without a warm VM keeps its size.
    """

    needs: ClassVar[tuple[str, ...]] = ("cpu",)

    target: float = 0.65
    scale_in_factor: float = 0.9
    out_periods: int = 3
    in_periods: int = 15

    @property
    def name(self) -> str:
        """Name and parameters."""
        return spelled("target-tracking", self)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose per group from its warmed-up VMs' mean CPU; InputAbsent when no group with warm VMs reports."""
        if snapshot.cpu_mean is None:
            raise InputAbsent("target tracking needs the groups' CPU, and too few VMs reported it this minute")
        desired, sentences, streaks = [], [], {}
        for group in snapshot.groups:
            above, below = (int(n) for n in memory.get(group.key, (0.0, 0.0)))
            wanted = group.requested
            if group.warm and group.cpu_mean is not None:
                size, above, below = target_tracking_step(
                    group.warm,
                    group.cpu_mean,
                    self.target,
                    self.scale_in_factor,
                    self.out_periods,
                    self.in_periods,
                    above,
                    below,
                    group.booting > 0,
                )
                if size > group.warm:
                    wanted = max(group.requested, size)
                elif size < group.warm:
                    wanted = min(group.requested, size)
                sentences.append(f"{group.key} {group.cpu_mean:.1%}")
            desired.append(wanted)
            streaks[group.key] = (float(above), float(below))
        sizes = clamp(fleet, tuple(desired))
        change = sum(sizes) - sum(snapshot.requested)
        reason = Reason.LOAD_HIGH if change > 0 else Reason.LOAD_LOW if change < 0 else Reason.LOAD_IN_BAND
        detail = f"mean CPU {', '.join(sentences) or 'of no warm VM'} against {self.target:.0%}"
        return Proposal(fleet.name, self.name, sizes, reason, detail), streaks


STREAK = "signals"


@dataclass(frozen=True, slots=True)
class SignalTrackingPolicy:
    """Sizes the fleet by its own signals, of which the one that needs most cores counts: see `signal_tracking_step`.

    Which signals there are, with their targets and what an absent one does, is part of the snapshot.
    """

    scale_in_factor: float = 0.9
    out_periods: int = 1
    in_periods: int = 15

    @property
    def name(self) -> str:
        """Name and parameters."""
        return spelled("signal-tracking", self)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose from the largest need; InputAbsent without any signal, and while one is absent that holds."""
        absent = [one.signal for one in snapshot.signals if one.value is None]
        holding = [signal.name for signal in absent if signal.on_missing is OnMissing.HOLD]
        if holding:
            raise InputAbsent(
                f"no reading of the signal {' and '.join(holding)} arrived lately, and on_missing is hold"
            )
        if len(absent) == len(snapshot.signals):
            raise InputAbsent("signal tracking needs a signal, and no reading of any arrived lately")
        cores, requested = list(fleet.cores), list(snapshot.requested)
        ready_cores = float(sum(n * c for n, c in zip(snapshot.warm, cores, strict=True)))
        needs = [
            (signal_need(one.value, one.signal.target, one.signal.kind is SignalKind.LEVEL, ready_cores), one)
            for one in snapshot.signals
            if one.value is not None
        ]
        needs.sort(key=lambda pair: -pair[0])
        keeping = [signal.name for signal in absent if signal.on_missing is OnMissing.NO_SCALE_IN]
        above, below = (int(n) for n in memory.get(STREAK, (0.0, 0.0)))
        # A VM that never came carries nothing, whatever was requested.
        usable = [max(group.requested - group.overdue, 0) for group in snapshot.groups]
        held = sum(n * c for n, c in zip(usable, cores, strict=True))
        all_ready = ready_cores > 0.0 and not any(group.booting or group.overdue for group in snapshot.groups)
        desired, above, below = signal_tracking_step(
            needs[0][0],
            held,
            cores,
            requested,
            [group.minimum for group in fleet.groups],
            [group.maximum for group in fleet.groups],
            self.scale_in_factor,
            self.out_periods,
            self.in_periods,
            above,
            below,
            all_ready and not keeping,
        )
        change = sum(n * c for n, c in zip(desired, cores, strict=True)) - sum(
            n * c for n, c in zip(requested, cores, strict=True)
        )
        reason = Reason.LOAD_HIGH if change > 0 else Reason.LOAD_LOW if change < 0 else Reason.LOAD_IN_BAND
        said = [f"{_signal_text(one)} needs {need:.4g} cores" for need, one in needs]
        detail = f"{said[0]}{', the most' if len(said) > 1 else ''}, of {held} ready or under way"
        others = [*said[1:], *(f"{name} is absent: no VM is removed" for name in keeping)]
        others += [f"{one.name} is absent and left out" for one in absent if one.name not in keeping]
        proposal = Proposal(fleet.name, self.name, tuple(int(n) for n in desired), reason, "; ".join((detail, *others)))
        return proposal, {STREAK: (float(above), float(below))}


def _signal_text(one: SignalSnapshot) -> str:
    signal = one.signal
    of = "aimed at" if signal.kind is SignalKind.LEVEL else "a core"
    return f"{signal.name} {one.value:.4g} with {signal.target:.4g} {of}"


def cover_of(fleet: Fleet, snapshot: Snapshot) -> tuple[float, float]:
    """Return the free and the busy cores of the fleet's ready VMs.

    A silent VM covers nothing. A VM that reports no busy cores, or need not report, counts as busy with all of them.
    """
    ready = [((g.warm - g.silent) * c, g.busy_cores) for g, c in zip(snapshot.groups, fleet.cores, strict=True)]
    busy_cores = sum(float(total) if busy is None else busy for total, busy in ready)
    free_cores = sum(max(0.0, total - busy) for total, busy in ready if busy is not None)
    return free_cores, busy_cores


@dataclass(frozen=True, slots=True)
class QueueRulePolicy:
    """Autoscaler specification §9.4, in its stronger form: busy cores count as cover, since they take up what waits.

    It needs the queue alone: without VM reports it adds VMs and removes none. It already counts booting VMs, so pending
    capacity counts once. horizon_s: time in which waiting work should be taken up. job_core_s: core-seconds of a job
    where the job source reports none. single: change at most one VM a minute (act-7) instead of as many as needed.
    """

    needs: ClassVar[tuple[str, ...]] = ("queue",)

    horizon_s: float = HORIZON_S
    job_core_s: float = JOB_CORE_S
    single: bool = False

    @property
    def name(self) -> str:
        """Name and parameters."""
        return spelled("queue-rule", self)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose from queue length, booting and idle VMs; InputAbsent without queue data."""
        queue = snapshot.queue
        if queue is None:
            raise InputAbsent("the queue rule needs the queue's length, and no reading of it arrived this minute")
        job_core_s = queue.job_core_s if queue.job_core_s is not None else self.job_core_s
        cores = np.array(fleet.cores, dtype=np.int64)
        requested = np.array(snapshot.requested, dtype=np.int64)
        idle = np.array([g.idle_long for g in snapshot.groups], dtype=np.int64)
        free_cores, busy_cores = cover_of(fleet, snapshot)
        arguments = (
            queue.waiting * job_core_s,
            self.horizon_s,
            cores,
            requested,
            np.array(snapshot.booting, dtype=np.int64),
            idle,
            np.array([g.minimum for g in fleet.groups], dtype=np.int64),
            np.array([g.maximum for g in fleet.groups], dtype=np.int64),
            free_cores,
            busy_cores,
        )
        if self.single:
            action = queue_rule_single(*arguments)
            desired = list(snapshot.requested)
            if action:
                desired[(action - 1) // 2] += 1 if action % 2 else -1
        else:
            desired = [int(n) for n in queue_rule_multi(*arguments)]
        booting_cores = sum(b * c for b, c in zip(snapshot.booting, fleet.cores, strict=True))
        sentence = (
            f"{queue.waiting} jobs waiting ({job_core_s:.0f} core-s each), {busy_cores:.0f} cores busy, "
            f"{free_cores:.0f} free, {booting_cores} booting, {int(idle.sum())} VMs long idle"
        )
        change = sum(desired) - sum(snapshot.requested)
        reason = Reason.QUEUE_GREW if change > 0 else Reason.IDLE_CAPACITY if change < 0 else Reason.QUEUE_COVERED
        return Proposal(fleet.name, self.name, tuple(desired), reason, sentence), memory
