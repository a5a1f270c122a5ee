"""What a fleet's status is: the one definition that the command line, the HTTP interface, the page and metrics show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.autoscaling.known_fleets import last_record
from agent.autoscaling.spending import DAY_S, dollars_per_hour
from agent.autoscaling.state import Breaker, CapacityMark, Controls, Cooldown, LoopState, Pause, Pin
from agent.ledger import DecisionRecord, Ledger
from domain.decisions import Intent
from domain.snapshot import QueueSnapshot


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group: its type and bounds, and VMs as of the last decision (None when AWS could not be read).

    requested: desired capacity that AWS holds. observed: in service. warm: of those, the ones that have reported.
    booting: requested or launching and not yet warm, within the boot deadline; overdue: the same beyond it. silent:
    warm and without enough samples in the minute. draining: leaving. desired: what was decided. price_per_hour: dollars
    for one VM.
    """

    key: str
    vm_type: str
    price_per_hour: float
    minimum: int
    maximum: int
    requested: int | None = None
    observed: int | None = None
    warm: int | None = None
    booting: int | None = None
    overdue: int | None = None
    draining: int | None = None
    silent: int | None = None
    unhealthy: int | None = None
    desired: int | None = None


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """A group's circuit breaker: failures in a row, and whether (until `open_until`, epoch seconds) it is open."""

    group: str
    failures: int
    open_until: float
    open: bool


@dataclass(frozen=True, slots=True)
class LastDecision:
    """The newest decision in short; `absent` are the inputs that were missing."""

    id: str
    at: float
    reason: str
    sentence: str
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A fleet as the ledger knows it; before the first decision only its name, its switches and what is open.

    last_tick_at: epoch seconds of the last decision. due: VMs that should have reported in the minute (warm and not new
    in it, or in service beyond the boot deadline without ever reporting); reported: those of them that did; coverage:
    reported of due, 1 where none is due. sample_age_s: age of the newest sample of any kind; vm_age_s, queue_age_s: of
    the newest of a VM and of the queue. stale_minutes: minutes in a row without a needed input. cost_per_hour,
    cost_today: dollars, the day being UTC's; budget_per_hour, budget_per_day: what the fleet does not grow beyond, None
    where nothing is set.
    """

    fleet: str
    last_tick_at: float | None
    mode: str | None = None
    policy: str | None = None
    shadow: str | None = None
    leader: bool | None = None
    groups: tuple[GroupStatus, ...] = ()
    queue: QueueSnapshot | None = None
    coverage: float | None = None
    due: int | None = None
    reported: int | None = None
    sample_age_s: float | None = None
    vm_age_s: float | None = None
    queue_age_s: float | None = None
    stale_minutes: int | None = None
    cost_per_hour: float | None = None
    cost_today: float = 0.0
    budget_per_hour: float | None = None
    budget_per_day: float | None = None
    last_decision: LastDecision | None = None
    pauses: tuple[Pause, ...] = ()
    pin: Pin | None = None
    open_intents: tuple[Intent, ...] = ()
    breakers: tuple[BreakerStatus, ...] = ()
    capacity_marks: tuple[CapacityMark, ...] = ()
    cooldowns: tuple[Cooldown, ...] = ()


def fleet_status(ledger: Ledger, name: str, now: float) -> FleetStatus:
    """Return what the ledger knows of a fleet at `now`; LedgerUnavailable when it cannot be read."""
    return fleet_statuses(ledger, [name], now)[0]


def fleet_statuses(ledger: Ledger, names: Sequence[str], now: float) -> tuple[FleetStatus, ...]:
    """Return what the ledger knows of each of these fleets at `now`; LedgerUnavailable when it cannot be read."""
    controls, states = ledger.all_controls(names), ledger.loop_states(names)
    intents: dict[str, tuple[Intent, ...]] = {}
    for intent in ledger.open_intents(names[0] if len(names) == 1 else None):
        intents[intent.fleet] = (*intents.get(intent.fleet, ()), intent)
    return tuple(
        _status(name, controls[name], states[name], intents.get(name, ()), last_record(ledger, name), now)
        for name in names
    )


def _status(
    name: str,
    controls: Controls,
    state: LoopState,
    intents: tuple[Intent, ...],
    record: DecisionRecord | None,
    now: float,
) -> FleetStatus:
    known = FleetStatus(
        fleet=name,
        last_tick_at=None if record is None else record.decision.at,
        cost_today=state.spend.dollars if now < state.spend.day_start + DAY_S else 0.0,
        pauses=tuple(pause for pause in controls.pauses if pause.active(now)),
        pin=controls.pin if controls.pin is not None and controls.pin.active(now) else None,
        open_intents=intents,
        breakers=tuple(_breaker(breaker, now) for breaker in state.breakers),
        capacity_marks=tuple(mark for mark in state.capacity if mark.active(now)),
        cooldowns=tuple(cooldown for cooldown in state.cooldowns if cooldown.remaining_s(now) > 0.0),
    )
    return known if record is None else _with_last(known, record)


def _breaker(breaker: Breaker, now: float) -> BreakerStatus:
    return BreakerStatus(breaker.group, breaker.failures, breaker.open_until, breaker.open_until > now)


def _with_last(known: FleetStatus, record: DecisionRecord) -> FleetStatus:
    decision, inputs = record.decision, record.inputs
    snapshot = inputs.snapshot
    groups = []
    for k, group in enumerate(inputs.fleet.groups):
        status = GroupStatus(
            group.key,
            group.vm_type.name,
            group.vm_type.price_per_hour,
            group.minimum,
            group.maximum,
            desired=decision.desired[k] if decision.desired else None,
        )
        if snapshot is not None:
            seen = snapshot.groups[k]
            status = replace(
                status,
                requested=seen.requested,
                observed=seen.in_service,
                warm=seen.warm,
                booting=seen.booting,
                overdue=seen.overdue,
                draining=seen.draining,
                silent=seen.silent,
                unhealthy=seen.unhealthy,
            )
        groups.append(status)
    absent = () if snapshot is None else snapshot.absent
    last = LastDecision(decision.decision_id, decision.at, decision.reason.value, decision.sentence, absent)
    known = replace(
        known,
        mode=decision.mode.value,
        policy=inputs.policy,
        shadow=inputs.shadow,
        leader=inputs.leader,
        groups=tuple(groups),
        budget_per_hour=inputs.limits.budget_per_hour,
        budget_per_day=inputs.limits.budget_per_day,
        last_decision=last,
    )
    if snapshot is None:
        return known
    return replace(
        known,
        queue=snapshot.queue,
        coverage=snapshot.coverage,
        due=snapshot.due,
        reported=snapshot.reported,
        sample_age_s=snapshot.age_s,
        vm_age_s=snapshot.vm_age_s,
        queue_age_s=snapshot.queue_age_s,
        stale_minutes=snapshot.stale_bins,
        cost_per_hour=dollars_per_hour(inputs.fleet, snapshot.requested),
    )
