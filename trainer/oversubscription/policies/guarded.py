"""A policy behind a guard: rates raised where a machine would run hot (§12.4), or machines filtered by risk (§12.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.oversubscription.guard import guard_of
from trainer.oversubscription.policies.base import OversubscriptionPolicy, Plan, Task


@dataclass(frozen=True, slots=True)
class Guarded:
    """A base policy whose requests are checked one by one."""

    name: str
    base: OversubscriptionPolicy
    kind: str
    """shield or filter."""
    budget: float
    """Expected hot hours that a machine may have in the next day."""
    posterior: bool = False
    persistence: float = 0.85
    shared: float = 0.0

    def plan(self, task: Task) -> Plan:
        """Return the base's plan with the guard; raises BadInput."""
        guard = guard_of(
            task.scenario,
            self.kind,
            self.budget,
            posterior=self.posterior,
            persistence=self.persistence,
            shared=self.shared,
        )
        return replace(self.base.plan(task), guard=guard)
