"""The contract of an actuator: observe what is there, apply an intent, follow it until it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from domain.decisions import Event, Intent, Outcome
from domain.fleet import Fleet
from domain.observed import Observed

Fence = Callable[[], None]
"""Called right before every mutating call; raises Fenced when this process may no longer act."""


class Actuator(Protocol):
    """Acts on groups. Never raises for a failed call: the outcome, or the observation's failures, say what happened."""

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Read every group of the fleets in as few calls as possible."""
        ...

    def apply(self, intent: Intent, observed: Observed, now: float) -> Outcome:
        """Do what the intent says, once; IN_PROGRESS or UNKNOWN outcomes are settled later by `follow`."""
        ...

    def follow(self, intent: Intent, observed: Observed, now: float) -> Outcome:
        """Settle an open intent from what AWS shows now.

        Scaling activities since the intent, instances, deadline; retry only what is still undone.
        """
        ...

    def clock_stepped(self, step_s: float) -> None:
        """Carry times kept in memory over a step of the wall clock by `step_s` seconds."""
        ...

    def tend(
        self, fleet: Fleet, observed: Observed, busy_cores: Mapping[str, float | None], now: float
    ) -> tuple[Event, ...]:
        """Care for VMs between decisions: heartbeat or complete drains, protect busy VMs and unprotect idle ones.

        busy_cores: per VM id, busy cores as last reported (None = no fresh report).
        """
        ...
