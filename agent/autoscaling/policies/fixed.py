"""Policies that look at nothing: hold what is requested, or keep a constant fleet."""

from __future__ import annotations

from dataclasses import dataclass

from agent.autoscaling.policies.base import hold
from agent.autoscaling.state import Memory
from domain.decisions import Proposal, Reason
from domain.fleet import Fleet
from domain.snapshot import Snapshot


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
