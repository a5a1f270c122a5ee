"""What a turn of the loop talks to, and what it reports when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actuators.base import Actuator
from actuators.drift import DriftRule
from agent.autoscaling.clock_step import Ages
from agent.autoscaling.policies.fallback import Proposer
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from collectors.interruptions import Interruption
from domain.clock import JumpDetector
from domain.decisions import Decision, Event, Mode, Outcome, Reason
from domain.fleet import Fleet
from domain.snapshot import Snapshot


class InterruptionSource(Protocol):
    """Where notices of VMs about to be taken away come from."""

    def receive(self, now: float) -> Sequence[Interruption]:
        """Return the notices waiting now, without blocking the tick; never raises."""
        ...

    def acknowledge(self, notices: Sequence[Interruption]) -> None:
        """Forget notices that are safely recorded; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class ManagedFleet:
    """A fleet with everything its decisions depend on but the measurements."""

    fleet: Fleet
    limits: RailLimits
    policy: str
    shadow: str | None = None
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    drift: DriftRule = DriftRule.ADOPT


@dataclass(slots=True)
class Ports:
    """What a tick talks to.

    `wall` and `monotonic` are the host's clocks, read again before each call: together they tell a clock step from the
    passing of time. `ages` holds how old intents are; `epoch` fences a deposed leader; `fence` raises Fenced when
    nothing new may be decided any more; `protect_busy` says that the actuator keeps scale-in protection on busy VMs;
    `clock_step_s` is a step of the clock seen but not recorded yet.
    """

    fleets: tuple[ManagedFleet, ...]
    ledger: Ledger
    actuator: Actuator
    aggregator: Aggregator
    proposer: Proposer
    wall: Callable[[], float]
    monotonic: Callable[[], float]
    mode: Mode
    epoch: int
    protect_busy: bool = True
    interruptions: InterruptionSource | None = None
    jumps: JumpDetector = field(default_factory=JumpDetector)
    fence: Callable[[], None] | None = None
    clock_step_s: float = 0.0
    ages: Ages = field(default_factory=Ages)


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did; `failure` says why nothing was executed, when the ledger could not be used.

    failure_reason: what the failure is an alarm for.
    """

    at: float
    snapshots: tuple[Snapshot, ...] = ()
    decisions: tuple[Decision, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    events: tuple[Event, ...] = ()
    failure: str | None = None
    failure_reason: Reason = Reason.LEDGER_UNAVAILABLE
