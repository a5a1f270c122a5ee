"""The CPU threshold as a policy: one VM more or fewer in every group (the published comparison)."""

from __future__ import annotations

from dataclasses import dataclass

from agent.autoscaling.policies.base import InputAbsent, clamp, hold, spelled
from agent.autoscaling.state import Memory
from domain.decisions import Proposal, Reason
from domain.fleet import Fleet
from domain.rules.autoscaling.threshold import threshold_step
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ThresholdPolicy:
    """Autoscaler specification §9.2: one rule on the mean CPU of all managed VMs, applied to each group.

    high, low: thresholds, 0..1; equal = the published form, low < high = hysteresis. periods: minutes in a row beyond a
    threshold. exclude_warming: leave VMs younger than the warm-up out of the mean.
    """

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
