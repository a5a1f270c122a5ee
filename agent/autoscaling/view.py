"""What a fleet's status is: the one definition that the command line, the HTTP interface, the page and metrics show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.autoscaling.announcements import in_words
from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.holds import holds
from agent.autoscaling.policies.fallback import STANDING_IN
from agent.autoscaling.sentence import oldest_wait, plain_sentence
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Led
from agent.kernel.metrics import Reading
from agent.kernel.text import columns, duration_text, in_minutes, time_text
from agent.rails.budget import dollars_per_hour
from agent.rails.schedule import ranked
from agent.rails.state import Breaker, CapacityMark, Cooldown, LoopState
from domain.announcements import Announcement
from domain.capacity_units import size_text
from domain.controls import Controls, Pause, PauseScope, Pin, Window
from domain.decisions import Decision, Intent
from domain.fleet import Fleet, Group
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot
from domain.subject import AUTOSCALING
from domain.units import DAY_S


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group: its type and bounds, and VMs as of the last decision (None when AWS could not be read).

    requested: desired capacity that AWS holds; requested_units: the same in AWS's capacity units, None where that is
    the same number; weight: units of a VM launched from now on. observed: in service. warm: of those, the ones that
    have reported. booting: requested or launching and not yet warm, within the boot deadline; overdue: the same beyond
    it. silent: warm and without enough samples in the minute. draining: leaving. desired: what was decided.
    price_per_hour: dollars for one VM.
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
    requested_units: int | None = None
    weight: int = 1


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
class ShadowStatus:
    """What a shadow proposed at the last decision: VMs per group, in the order of the groups, and why.

    policy: its name. stands_in: it failed, and another policy made the proposal.
    """

    policy: str
    desired: tuple[int, ...]
    detail: str
    stands_in: bool = False


@dataclass(frozen=True, slots=True)
class FleetStatus(Led):
    """A fleet as the ledger knows it; before the first decision only its name, its switches and what is open.

    last_tick_at: epoch seconds of the last decision. due: VMs that should have reported in the minute (warm and not new
    in it, or in service beyond the boot deadline without ever reporting); reported: those of them that did; coverage:
    reported of due, 1 where none is due. sample_age_s: age of the newest sample of any kind; vm_age_s, queue_age_s: of
    the newest of a VM and of the queue. stale_minutes: minutes in a row without a needed input. cost_per_hour,
    cost_today: dollars, the day being UTC's; budget_per_hour, budget_per_day: what the fleet does not grow beyond, None
    where nothing is set. announced: work that the last decision knew to come soon or to be overdue, None where nobody
    announces any. shadows: what was proposed beside the policy and not done. windows: of its schedule, open or within a
    week of the last decision, by time. tuned: the origin of the queue rule's setting, "" for the settings' own.
    """

    fleet: str
    last_tick_at: float | None
    mode: str | None = None
    policy: str | None = None
    shadows: tuple[ShadowStatus, ...] = ()
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
    announced: tuple[Announcement, ...] | None = None
    windows: tuple[Window, ...] = ()
    tuned: str = ""


def fleet_status(store: FleetStore, name: str, now: float) -> FleetStatus:
    """Return what the ledger knows of a fleet at `now`; LedgerUnavailable when it cannot be read."""
    return fleet_statuses(store, [name], now)[0]


def fleet_statuses(store: FleetStore, names: Sequence[str], now: float) -> tuple[FleetStatus, ...]:
    """Return what the ledger knows of each of these fleets at `now`; LedgerUnavailable when it cannot be read."""
    ledger = store.ledger
    controls, states = ledger.all_controls(AUTOSCALING, names), store.loop_states(names)
    intents: dict[str, tuple[Intent, ...]] = {}
    for intent in ledger.open_intents(names[0] if len(names) == 1 else None):
        intents[intent.fleet] = (*intents.get(intent.fleet, ()), intent)
    newest = store.newest_of(names)
    return tuple(
        _status(name, controls[name], states[name], intents.get(name, ()), newest.get(name), now) for name in names
    )


def _status(
    name: str,
    controls: Controls,
    state: LoopState,
    intents: tuple[Intent, ...],
    newest: tuple[DecisionInputs, Decision] | None,
    now: float,
) -> FleetStatus:
    known = FleetStatus(
        fleet=name,
        last_tick_at=None if newest is None else newest[1].at,
        cost_today=state.spend.dollars if now < state.spend.day_start + DAY_S else 0.0,
        pauses=tuple(pause for pause in controls.pauses if pause.active(now)),
        pin=controls.pin if controls.pin is not None and controls.pin.active(now) else None,
        open_intents=intents,
        breakers=tuple(_breaker(breaker, now) for breaker in state.breakers),
        capacity_marks=tuple(mark for mark in state.capacity if mark.active(now)),
        cooldowns=tuple(cooldown for cooldown in state.cooldowns if cooldown.remaining_s(now) > 0.0),
    )
    if newest is None:
        return known
    return _with_last(known, *newest, now)


def _breaker(breaker: Breaker, now: float) -> BreakerStatus:
    return BreakerStatus(breaker.group, breaker.failures, breaker.open_until, breaker.open_until > now)


def _group_status(group: Group, seen: GroupSnapshot | None, desired: int | None) -> GroupStatus:
    of_type = group.vm_type
    bounds = (group.key, of_type.name, of_type.price_per_hour, group.minimum, group.maximum)
    if seen is None:
        return GroupStatus(*bounds, desired=desired)
    return GroupStatus(
        *bounds,
        requested=seen.requested,
        observed=seen.in_service,
        warm=seen.warm,
        booting=seen.booting,
        overdue=seen.overdue,
        draining=seen.draining,
        silent=seen.silent,
        unhealthy=seen.unhealthy,
        desired=desired,
        requested_units=seen.requested_units,
        weight=seen.weight,
    )


def _with_last(known: FleetStatus, inputs: DecisionInputs, decision: Decision, now: float) -> FleetStatus:
    snapshot = inputs.snapshot
    groups = tuple(
        _group_status(
            group,
            None if snapshot is None else snapshot.groups[k],
            decision.desired[k] if decision.desired else None,
        )
        for k, group in enumerate(inputs.fleet.groups)
    )
    windows = (window for window in ranked(inputs.windows) if window.end > now)
    absent = () if snapshot is None else snapshot.absent
    last = LastDecision(
        decision.decision_id, decision.at, decision.reason.value, plain_sentence(decision, inputs), absent
    )
    return replace(
        known,
        mode=decision.mode.value,
        policy=inputs.policy,
        tuned=inputs.tuned,
        shadows=tuple(
            ShadowStatus(name, made.desired, made.detail, STANDING_IN in made.detail)
            for name, made in zip(inputs.shadows, decision.shadows, strict=False)
        ),
        leader=inputs.leader,
        groups=groups,
        budget_per_hour=inputs.limits.budget_per_hour,
        budget_per_day=inputs.limits.budget_per_day,
        last_decision=last,
        windows=tuple(sorted(windows, key=lambda one: one.start)),
        **({} if snapshot is None else _measured(inputs.fleet, snapshot)),
    )


def _measured(fleet: Fleet, snapshot: Snapshot) -> dict[str, Any]:
    """Return what a status has of the minute, by the names of its fields."""
    return {
        "queue": snapshot.queue,
        "coverage": snapshot.coverage,
        "due": snapshot.due,
        "reported": snapshot.reported,
        "sample_age_s": snapshot.age_s,
        "vm_age_s": snapshot.vm_age_s,
        "queue_age_s": snapshot.queue_age_s,
        "stale_minutes": snapshot.stale_bins,
        "cost_per_hour": dollars_per_hour(fleet, snapshot.requested),
        "announced": snapshot.announced,
    }


LATE_S = 180.0
"""Three turns of the usual length without a decision."""


def status_lines(known: FleetStatus, now: float) -> list[str]:
    """Return one fleet's status as lines."""
    if known.last_tick_at is None or known.last_decision is None:
        return [f"{known.fleet}  no turn yet", *_hold_lines(known, now)]
    age_s = now - known.last_tick_at
    turned = f"last turn {duration_text(age_s)} ago" if age_s >= 0 else f"last turn {time_text(known.last_tick_at)}"
    late = ", stale: is the agent running?" if age_s > LATE_S else ""
    names = ", ".join(one.policy for one in known.shadows)
    shadows = f", {'shadow' if len(known.shadows) == 1 else 'shadows'} {names}" if names else ""
    lines = [f"{known.fleet}  {known.mode}  {turned}{late}", f"  policy {known.policy}{shadows}"]
    # What is rare has a column while there is any, so that the table fits 80 columns else.
    rare = [name for name in ("overdue", "silent") if any(getattr(group, name) for group in known.groups)]
    rows: list[tuple[object, ...]] = [
        ("group", "type", "requested", "in service", "warm", "booting", *rare, "bounds", "decided")
    ]
    for group in known.groups:
        counts = [group.requested, group.observed, group.warm, group.booting, *(getattr(group, name) for name in rare)]
        sizes = [("?" if size is None else size) for size in counts]
        bounds = f"{group.minimum}..{group.maximum}"
        decided = "" if group.desired in (None, group.requested) else f"-> {group.desired}"
        rows.append((group.key, group.vm_type, *sizes, bounds, decided))
    lines += columns(rows)
    lines += [f"  {g.key}: {units_text(g)}" for g in known.groups if g.requested_units is not None]
    lines.append(f"  reports: {_reports(known)}")
    lines.append(f"  queue: {_queue(known.queue)}")
    lines += [f"  announced: {in_words(one)}" for one in known.announced or ()]
    hourly = "?" if known.cost_per_hour is None else f"{known.cost_per_hour:.3f}"
    lines.append(f"  cost: ${hourly} an hour, ${known.cost_today:.2f} today (UTC)")
    lines.append(f"  {known.last_decision.id}: {in_minutes(known.last_decision.sentence)}")
    return lines + _hold_lines(known, now)


def _hold_lines(known: FleetStatus, now: float) -> list[str]:
    return [f"  {one.word}: {one.detail}" for one in holds(known, now)]


def units_text(group: GroupStatus | GroupSnapshot) -> str:
    """Return how AWS counts a group's requested size, and a VM of it: `6 VMs = 12 units, a new VM counts as 2`."""
    sizes = size_text(group.requested or 0, group.requested_units or 0)
    return f"{sizes}, a new VM counts as {group.weight}"


def _reports(known: FleetStatus) -> str:
    """Return the coverage with what it is a share of, and the ages of the newest VM report and queue report."""
    if known.coverage is None or known.due is None:
        return "not measured"
    due = "1 VM" if known.due == 1 else f"{known.due} VMs"
    share = f"{known.reported} of {due} due reported ({known.coverage:.0%})" if known.due else "no VM is due"
    ages = [
        f"no report of {what}" if age_s is None else f"newest of {what} {duration_text(age_s)} old"
        for what, age_s in (("a VM", known.vm_age_s), ("the queue", known.queue_age_s))
    ]
    return "; ".join([share, *ages])


def _queue(queue: QueueSnapshot | None) -> str:
    if queue is None:
        return "not measured"
    waiting = ", ".join(filter(None, [f"{queue.waiting} wait", oldest_wait(queue)]))
    return f"{waiting}; {queue.running} run"


def minute_readings(
    fleets: Sequence[Fleet], snapshots: Mapping[str, Snapshot], decisions: Mapping[str, Decision]
) -> Iterator[Reading]:
    """Yield what each fleet's last minute was like, and what was decided in it."""
    for fleet in fleets:
        snapshot = snapshots.get(fleet.name)
        if snapshot is None or len(snapshot.groups) != len(fleet.groups):
            continue
        decision = decisions.get(fleet.name)
        decided = decision.desired if decision is not None else ()
        for k, (group, seen) in enumerate(zip(fleet.groups, snapshot.groups, strict=True)):
            yield from _group(fleet, group, seen)
            if len(decided) == len(fleet.groups):
                yield "group_decided", (fleet.name, group.key, group.vm_type.name), decided[k]
        yield from _minute(fleet, snapshot)


def ledger_readings(store: FleetStore, fleets: Sequence[Fleet], now: float) -> Iterator[Reading]:
    """Yield what the ledger knows of each fleet; LedgerUnavailable when it cannot be read."""
    names, open_intents = [fleet.name for fleet in fleets], store.ledger.open_intents()
    states, all_controls = store.loop_states(names), store.ledger.all_controls(AUTOSCALING, names)
    for fleet in fleets:
        name = fleet.name
        state, controls = states[name], all_controls[name]
        yield "open_intents", (name,), sum(intent.fleet == name for intent in open_intents)
        yield "cost_today_dollars", (name,), state.spend.dollars if now < state.spend.day_start + DAY_S else 0.0
        held = {pause.scope for pause in controls.pauses if pause.active(now)}
        for scope in PauseScope:
            yield "paused", (name, scope), scope in held
        yield "pinned", (name,), controls.pin is not None and controls.pin.active(now)
        broken = {breaker.group for breaker in state.breakers if breaker.open_until > now}
        for group in fleet.groups:
            yield "circuit_open", (name, group.key), group.key in broken


def _group(fleet: Fleet, group: Group, seen: GroupSnapshot) -> Iterator[Reading]:
    labels = (fleet.name, group.key, group.vm_type.name)
    yield "group_requested", labels, seen.requested
    yield "group_requested_units", labels, seen.requested if seen.requested_units is None else seen.requested_units
    yield "group_observed", labels, seen.in_service
    yield "group_warm", labels, seen.warm
    yield "group_booting", labels, seen.booting
    yield "group_overdue", labels, seen.overdue
    yield "group_draining", labels, seen.draining
    yield "group_silent", labels, seen.silent
    yield "group_unhealthy", labels, seen.unhealthy
    yield "group_minimum", labels, seen.minimum
    yield "group_maximum", labels, seen.maximum


def _minute(fleet: Fleet, snapshot: Snapshot) -> Iterator[Reading]:
    """Return what the fleet's last minute was like; what was absent is left out, never shown as zero."""
    queue = snapshot.queue
    found: dict[str, float | None] = {
        "cpu_ratio": snapshot.cpu_mean,
        "ram_ratio": snapshot.ram_mean,
        "queue_waiting_jobs": queue.waiting if queue else None,
        "queue_running_jobs": queue.running if queue else None,
        "queue_submitted_jobs": queue.submitted if queue else None,
        "queue_oldest_wait_seconds": queue.oldest_wait_s if queue else None,
        "cost_dollars_per_hour": dollars_per_hour(fleet, snapshot.requested),
        "coverage_ratio": snapshot.coverage,
        "newest_sample_age_seconds": snapshot.age_s,
        "newest_vm_sample_age_seconds": snapshot.vm_age_s,
        "newest_queue_sample_age_seconds": snapshot.queue_age_s,
        "stale_minutes": snapshot.stale_bins,
    }
    for name, value in found.items():
        if value is not None:
            yield name, (fleet.name,), value
    for one in snapshot.signals:
        yield "signal_target", (fleet.name, one.signal.name), one.signal.target
        if one.value is not None:
            yield "signal_value", (fleet.name, one.signal.name), one.value
