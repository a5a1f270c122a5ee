"""One turn of the loop, on any clock and any cloud: observe, settle, aggregate, decide, record, act, record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from actuators.base import Actuator
from actuators.drift import DriftRule, drift
from actuators.protection import owned_from_now
from agent.aggregate import AggregationSettings, Aggregator
from agent.clock_jump import not_ahead, on_this_clock, shifted
from agent.consequences import state_after_outcome, with_cause
from agent.decide import Decided, DecisionInputs, decide
from agent.happenings import happenings
from agent.intents import with_open_targets
from agent.ledger import Ledger
from agent.policies.fallback import Proposer
from agent.rails.base import RailLimits
from agent.state import Controls, LoopState
from collectors.interruptions import Interruption, InterruptionKind
from domain.clock import JumpDetector
from domain.decisions import Decision, Direction, Event, Intent, Mode, Outcome, Reason, Status
from domain.errors import Fenced, LedgerError, LedgerUnavailable, TrimtabError
from domain.fleet import Fleet
from domain.observed import Lifecycle, Observed, ReadFailure
from domain.snapshot import Snapshot

log = structlog.get_logger(__name__)


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

    `monotonic` tells a clock step from the passing of time; `epoch` fences a deposed leader; `fence` raises Fenced when
    nothing new may be decided any more; `protect_busy` says that the actuator keeps scale-in protection on busy VMs;
    `clock_step_s` is a step of the clock seen but not recorded yet.
    """

    fleets: tuple[ManagedFleet, ...]
    ledger: Ledger
    actuator: Actuator
    aggregator: Aggregator
    proposer: Proposer
    monotonic: Callable[[], float]
    mode: Mode
    epoch: int
    protect_busy: bool = True
    interruptions: InterruptionSource | None = None
    jumps: JumpDetector = field(default_factory=JumpDetector)
    fence: Callable[[], None] | None = None
    clock_step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did; `failure` says why nothing was executed, when the ledger could not be used."""

    at: float
    snapshots: tuple[Snapshot, ...] = ()
    decisions: tuple[Decision, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    events: tuple[Event, ...] = ()
    failure: str | None = None


def run_tick(now: float, ports: Ports) -> TickReport:
    """Turn the loop once for every fleet.

    One fleet's trouble never stops another's decision. When the ledger cannot be read or written, or a newer leader has
    taken over, nothing is executed and the report says so; measuring goes on and the next tick tries again.
    """
    try:
        return _turn(now, ports)
    except (LedgerError, Fenced) as error:
        log.error("nothing_executed", reason=Reason.LEDGER_UNAVAILABLE, detail=str(error))
        return TickReport(now, failure=str(error))


def _turn(now: float, ports: Ports) -> TickReport:
    if ports.fence is None:
        ports.ledger.check_epoch(ports.epoch)
    else:
        ports.fence()
    names = [managed.fleet.name for managed in ports.fleets]
    states = ports.ledger.loop_states(names)
    jumps = _carry_over_clock_step(now, ports, states)
    events: list[Event] = []
    before = dict(states)
    fleets = [managed.fleet for managed in ports.fleets]
    observed = ports.actuator.observe(fleets, now)
    settled = _settle(now, ports, states, observed)
    if any(_may_have_changed(intent, outcome) for intent, outcome in settled):
        observed = ports.actuator.observe(fleets, now)
    notices = _read_interruptions(now, ports, states, observed, events)

    records: list[tuple[DecisionInputs, Decided]] = []
    open_intents = ports.ledger.open_intents()
    controls = ports.ledger.all_controls(names)
    for managed in ports.fleets:
        try:
            record = _decide_fleet(now, ports, managed, states, controls, observed, open_intents, events)
            name, snapshot = managed.fleet.name, record[0].snapshot
            events.extend(happenings(name, before[name], record[1].state, snapshot, now))
        except LedgerError:
            raise
        except Exception as error:
            log.exception("fleet_failed", fleet=managed.fleet.name)
            detail = f"this minute was skipped: {type(error).__name__}: {error}"
            events.append(Event(managed.fleet.name, now, Reason.INTERNAL_ERROR, detail))
            continue
        records.append(record)
    if ports.fence is not None:
        ports.fence()
    undecided = {name: state for name, state in states.items() if name not in {i.fleet.name for i, _ in records}}
    records = _record(now, ports, records, events, undecided)
    states.update({inputs.fleet.name: decided.state for inputs, decided in records})
    if ports.interruptions is not None and notices:
        ports.interruptions.acknowledge(notices)

    outcomes = [outcome for _, outcome in settled]
    for _, decided in records:
        _log(decided.decision)
        outcomes.extend(_execute(now, ports, states, intent, observed) for intent in decided.decision.intents)
    if ports.mode is Mode.ACT:
        events.extend(_tend(now, ports, observed))
    return TickReport(
        now,
        tuple(inputs.snapshot for inputs, _ in records if inputs.snapshot is not None),
        tuple(decided.decision for _, decided in records),
        tuple(outcomes),
        (*jumps, *events),
    )


def _record(
    now: float,
    ports: Ports,
    records: list[tuple[DecisionInputs, Decided]],
    events: list[Event],
    undecided: dict[str, LoopState],
) -> list[tuple[DecisionInputs, Decided]]:
    """Write all decisions at once, or fleet by fleet when one of them cannot be stored; return those written."""
    try:
        ports.ledger.record(records, events=events, states=undecided, epoch=ports.epoch)
    except (LedgerUnavailable, Fenced):
        raise
    except TrimtabError:
        log.exception("record_failed")
    else:
        return records
    written = []
    for inputs, decided in records:
        try:
            ports.ledger.record([(inputs, decided)])
        except (LedgerUnavailable, Fenced):
            raise
        except TrimtabError as error:
            detail = f"the decision could not be recorded, so it is not executed: {error}"
            events.append(Event(inputs.fleet.name, now, Reason.INTERNAL_ERROR, detail))
        else:
            written.append((inputs, decided))
    ports.ledger.record((), events=events, states=undecided, epoch=ports.epoch)
    return written


def _carry_over_clock_step(now: float, ports: Ports, states: dict[str, LoopState]) -> tuple[Event, ...]:
    """Move every remembered time along when the clock was set, and record that before anything else is done."""
    seen_s = ports.jumps.observe(now, ports.monotonic())
    if seen_s:
        ports.aggregator.clock_stepped(seen_s)
        ports.actuator.clock_stepped(seen_s)
    # What could not be recorded the last time is still to be carried over.
    ports.clock_step_s += seen_s
    step_s = ports.clock_step_s
    open_intents = ports.ledger.open_intents()
    for name, state in states.items():
        ours = [intent for intent in open_intents if intent.fleet == name]
        states[name] = not_ahead(shifted(state, step_s, ours) if step_s else state, ours, now)
    if not step_s:
        return ()
    direction = "forward" if step_s > 0 else "back"
    detail = f"the clock was set {direction} by {abs(step_s):.0f} s; stored times moved with it"
    events = tuple(Event(name, now, Reason.CLOCK_JUMP, detail) for name in states)
    ports.ledger.record((), events, states, epoch=ports.epoch)
    ports.clock_step_s = 0.0
    return events


def _settle(now: float, ports: Ports, states: dict[str, LoopState], observed: Observed) -> list[tuple[Intent, Outcome]]:
    """Follow every open intent and record what became of it; when that cannot be recorded, none is followed."""
    limits = {managed.fleet.name: managed.limits for managed in ports.fleets}
    settled: list[tuple[Intent, Outcome]] = []
    open_intents = ports.ledger.open_intents()
    if open_intents and ports.mode is Mode.ACT:
        ports.ledger.check_writable()
    for intent in open_intents:
        if intent.fleet in states:
            intent = on_this_clock(intent, states[intent.fleet])
        if intent.fleet not in limits:
            outcome = _closed(intent, Reason.SUPERSEDED, "the fleet is no longer configured", now)
        elif ports.mode is Mode.OBSERVE:
            outcome = _closed(intent, Reason.OBSERVE_MODE, "this process only observes", now)
        else:
            outcome = ports.actuator.follow(intent, observed, now)
            if outcome.reason is Reason.OVERDUE:
                outcome = with_cause(outcome, ports.ledger.last_outcome(intent.intent_id))
        changed: dict[str, LoopState] = {}
        if intent.fleet in limits:
            after = state_after_outcome(states[intent.fleet], intent, outcome, limits[intent.fleet], now)
            states[intent.fleet] = changed[intent.fleet] = after
        ports.ledger.record_outcomes([(intent, outcome)], states=changed, epoch=ports.epoch)
        settled.append((intent, outcome))
    return settled


def _may_have_changed(intent: Intent, outcome: Outcome) -> bool:
    """Return whether settling the intent may have changed its group since it was read.

    A scale-out is done when its VMs are there: then nothing more was sent.
    """
    grown = intent.direction is Direction.OUT and outcome.status is Status.DONE
    return outcome.status is not Status.IN_PROGRESS and not grown


def _closed(intent: Intent, reason: Reason, detail: str, now: float) -> Outcome:
    asked = abs(intent.target - intent.before) or len(intent.victims)
    return Outcome(intent.intent_id, Status.SKIPPED, reason, asked, 0, now, detail)


def _read_interruptions(
    now: float, ports: Ports, states: dict[str, LoopState], observed: Observed, events: list[Event]
) -> Sequence[Interruption]:
    """Put new notices into the states of the fleets whose VMs they name; each VM counts once.

    Returns those that may be forgotten once that is recorded. A notice of a VM that no group shows is forgotten too, it
    is somebody else's, but not while a group cannot be read: the VM may be in there, and the notice comes again.
    """
    if ports.interruptions is None or ports.mode is not Mode.ACT:
        return ()
    notices = ports.interruptions.receive(now)
    homes = {
        instance.vm: managed.fleet
        for managed in ports.fleets
        for group in managed.fleet.groups
        if group.name in observed.groups
        for instance in observed.groups[group.name].instances
    }
    settled = []
    for notice in notices:
        fleet = homes.get(notice.vm)
        if fleet is None and observed.failures:
            continue
        settled.append(notice)
        if fleet is None:
            continue
        state = states[fleet.name]
        if notice.vm in state.interrupted or notice.vm in state.seen_interruptions:
            continue
        if notice.kind is InterruptionKind.REBALANCE:
            detail = f"AWS hints that {notice.vm} is at risk; it is not replaced before its notice comes"
            events.append(Event(fleet.name, now, Reason.REBALANCE_HINT, detail, notice.vm))
            continue
        if notice.kind is not InterruptionKind.SPOT:
            continue
        states[fleet.name] = replace(state, interrupted={**state.interrupted, notice.vm: now})
        detail = f"AWS takes {notice.vm} back within two minutes: draining it and asking for another"
        events.append(Event(fleet.name, now, Reason.SPOT_INTERRUPTION, detail, notice.vm))
    return settled


def _decide_fleet(
    now: float,
    ports: Ports,
    managed: ManagedFleet,
    states: Mapping[str, LoopState],
    controls: Mapping[str, Controls],
    observed: Observed,
    open_intents: Sequence[Intent],
    events: list[Event],
) -> tuple[DecisionInputs, Decided]:
    fleet, before = managed.fleet, states[managed.fleet.name]
    failure = _unreadable(fleet, observed)
    ours = {intent.group: intent for intent in open_intents if intent.fleet == fleet.name}
    in_flight = tuple(group.key for group in fleet.groups if group.key in ours)
    snapshot, state = None, before
    if failure is None:
        drifts, known = drift(fleet, before.known_desired, observed, in_flight, managed.drift, now)
        events.extend(drifts)
        state = replace(before, known_desired=known)
        coming = with_open_targets(fleet, observed, ours)
        snapshot, state = ports.aggregator.snapshot(fleet, coming, state, managed.aggregation, now)
    inputs = DecisionInputs(
        decision_id=f"{fleet.name}-{state.decisions + 1}",
        now=now,
        fleet=fleet,
        snapshot=snapshot,
        state=replace(state, protected=()),
        controls=controls[fleet.name],
        limits=managed.limits,
        mode=ports.mode,
        leader=True,
        epoch=ports.epoch,
        policy=managed.policy,
        shadow=managed.shadow,
        in_flight=in_flight,
        interrupted=_interrupted(fleet, state, observed),
        cloud_failure=failure,
    )
    decided = decide(inputs, ports.proposer)
    if ports.protect_busy and ports.mode is Mode.ACT:
        # Written before the actuator protects them, so that a restart knows whose protection it is.
        mine = owned_from_now(fleet, observed, before.protected, ports.aggregator.busy_cores(fleet, now))
        decided = replace(decided, state=replace(decided.state, protected=mine))
    events.extend(Event(fleet.name, now, Reason.POLICY_FAILED, why) for why in decided.decision.policy_failures)
    return inputs, decided


def _unreadable(fleet: Fleet, observed: Observed) -> ReadFailure | None:
    return next((observed.failures[g.name] for g in fleet.groups if g.name in observed.failures), None)


def _interrupted(fleet: Fleet, state: LoopState, observed: Observed) -> tuple[tuple[str, str], ...]:
    return tuple(
        (group.key, instance.vm)
        for group in fleet.groups
        if group.name in observed.groups
        for instance in observed.groups[group.name].instances
        if instance.vm in state.interrupted and instance.lifecycle is Lifecycle.IN_SERVICE
    )


def _execute(now: float, ports: Ports, states: dict[str, LoopState], intent: Intent, observed: Observed) -> Outcome:
    """Act on one recorded intent and record its outcome."""
    limits = next(managed.limits for managed in ports.fleets if managed.fleet.name == intent.fleet)
    outcome = ports.actuator.apply(intent, observed, now)
    states[intent.fleet] = state_after_outcome(states[intent.fleet], intent, outcome, limits, now)
    ports.ledger.record_outcomes([(intent, outcome)], states={intent.fleet: states[intent.fleet]}, epoch=ports.epoch)
    log.info(
        "outcome",
        decision_id=intent.decision_id,
        fleet=intent.fleet,
        group=intent.group,
        status=outcome.status,
        reason=outcome.reason,
        detail=outcome.detail,
    )
    return outcome


def _tend(now: float, ports: Ports, observed: Observed) -> list[Event]:
    events: list[Event] = []
    for managed in ports.fleets:
        busy = ports.aggregator.busy_cores(managed.fleet, now)
        events.extend(ports.actuator.tend(managed.fleet, observed, busy, now))
    if events:
        ports.ledger.record((), events=events)
    return events


def _log(decision: Decision) -> None:
    log.info(
        "decision",
        decision_id=decision.decision_id,
        fleet=decision.fleet,
        reason=decision.reason,
        desired=decision.desired,
        sentence=decision.sentence,
    )
