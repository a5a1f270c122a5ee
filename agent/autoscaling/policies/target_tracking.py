"""Target tracking as a policy: per group, the size that brings its mean CPU to a target, as cloud groups do it."""

from __future__ import annotations

from dataclasses import dataclass

from agent.autoscaling.policies.base import InputAbsent, clamp, spelled
from agent.autoscaling.state import Memory
from domain.decisions import Proposal, Reason
from domain.fleet import Fleet
from domain.rules.autoscaling.target_tracking import target_tracking_step
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TargetTrackingPolicy:
    """Autoscaler specification §9.3.

    target: mean CPU aimed at, 0..1. scale_in_factor: the low alarm stands at this share of the target. out_periods,
    in_periods: minutes in a row beyond the alarm. A group without a warm VM keeps its size.
    """

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
