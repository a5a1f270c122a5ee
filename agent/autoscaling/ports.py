"""What a turn of the loop talks to, and what it reports when it is over."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from actuators.activities import Resize
from actuators.base import Actuator
from actuators.drift import DriftRule
from agent.autoscaling.minutes import Refusals
from agent.autoscaling.policies.fallback import Proposer
from agent.autoscaling.policies.registry import inputs_needed, with_own_settings
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.stalls import Stalls
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.schedule import Planned, policy_at, windows_at
from agent.rails.state import Ages, LoopState
from agent.settings import Settings
from agent.settings.fleet import MeasuredBy
from agent.settings.model import named_policy
from collectors.intake import Claims
from collectors.interruptions import InterruptionQueue
from collectors.mapping import Hosts
from domain.announcements import Recurring
from domain.clock import JumpDetector
from domain.controls import Window
from domain.decisions import Event, Mode
from domain.fleet import Fleet


@dataclass(frozen=True, slots=True)
class ManagedFleet:
    """A fleet with everything its decisions depend on but the measurements.

    shadows: policies whose proposals are recorded beside its own. schedule: work that settings announce. planned:
    windows with limits, a pause or a policy of their own.
    """

    fleet: Fleet
    limits: RailLimits
    policy: str
    shadows: tuple[str, ...] = ()
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    drift: DriftRule = DriftRule.ADOPT
    schedule: tuple[Recurring, ...] = ()
    planned: tuple[Planned, ...] = ()

    def in_minute(self, now: float) -> tuple[ManagedFleet, tuple[Window, ...]]:
        """Return the fleet with the policy that decides at `now`, and the windows that are open or come."""
        if not self.planned:
            return self, ()
        windows = windows_at(self.planned, now)
        policy = policy_at(windows, now)
        if not policy:
            return self, windows
        aggregation = replace(self.aggregation, needed=inputs_needed(policy, self.aggregation.signals))
        return replace(self, policy=policy, aggregation=aggregation), windows


def _nobody(fleet: str) -> str | None:
    return None


@dataclass(slots=True)
class Ports:
    """What a tick talks to.

    `wall` and `monotonic` are the host's clocks, read again before each call: together they tell a clock step from the
    passing of time. `ages` holds how old intents are; `epoch` fences a deposed leader; `fence` raises Fenced when
    nothing new may be decided any more; `protect_busy` says that the actuator keeps scale-in protection on busy VMs;
    `clock_step_s` is a step of the clock seen but not recorded yet, `stepped` the states moved by it; `refusals` are
    AWS's that no minute has recorded, `unrecorded` events of calls whose record the ledger refused.
    `probationer` returns the policy that is on probation for a fleet, by its name, which is a shadow of it then.
    `hosts` holds the names of the VMs for the map of other senders' paths; None without one. `resized` returns AWS's
    changes of groups' sizes since a moment, raising CloudError: it is asked until it has answered once, and set again
    when the lead is taken. `stalls` tells of measurements that
    do not fit together. `listening_since` is when this process began to take readings, epoch seconds.
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
    interruptions: InterruptionQueue | None = None
    jumps: JumpDetector = field(default_factory=JumpDetector)
    fence: Callable[[], None] | None = None
    clock_step_s: float = 0.0
    stepped: Mapping[str, LoopState] = field(default_factory=dict)
    ages: Ages = field(default_factory=Ages)
    refusals: Refusals = field(default_factory=Refusals)
    unrecorded: Sequence[Event] = ()
    probationer: Callable[[str], str | None] = _nobody
    hosts: Hosts | None = None
    resized: Callable[[Collection[str], float], Sequence[Resize]] | None = None
    listening_since: float = -math.inf
    stalls: Stalls = field(default_factory=Stalls)


def managed_fleets(settings: Settings, environ: Mapping[str, str] | None = None) -> tuple[ManagedFleet, ...]:
    """Return the configured fleets, each with the inputs of its decisions.

    environ: where the own settings of other packages' policies are, by default this process's environment. Raises
    ConfigurationError for such a policy that cannot be used.
    """
    environ = os.environ if environ is None else environ
    fleets = []
    for name, fleet in settings.fleets.items():
        limits = settings.limits(name)
        aggregation = AggregationSettings(
            limits=limits,
            sample_interval_s=settings.sample_interval_s,
            grace_s=settings.grace_s,
            idle_s=fleet.idle_s,
            needed=inputs_needed(fleet.policy, fleet.own_signals),
            submitted_late=fleet.submitted_from is MeasuredBy.CLOUDWATCH,
            job_core_s=fleet.queue_rule.job_core_s,
            terms=fleet.terms,
            signals=fleet.own_signals,
        )
        drift = DriftRule(settings.drift.value)
        policy = with_own_settings(named_policy(settings, fleet.policy_text), environ)
        shadows = tuple(with_own_settings(named_policy(settings, text), environ) for text in fleet.shadow_texts)
        planned = tuple(
            replace(one, policy=one.policy and with_own_settings(named_policy(settings, one.policy), environ))
            for one in fleet.planned
        )
        described = settings.fleet(name)
        fleets.append(
            ManagedFleet(described, limits, policy, shadows, aggregation, drift, fleet.announced_work, planned)
        )
    return tuple(fleets)


def claims_of(settings: Settings) -> dict[str, Claims]:
    """Return the claim limits of the sources, by fleet."""
    return {name: fleet.claim_limits() for name, fleet in settings.fleets.items()}
