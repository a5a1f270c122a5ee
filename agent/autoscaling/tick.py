"""One turn of the loop, on any clock and any cloud: observe, settle, aggregate, decide, record, act, record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from actuators.drift import drift
from actuators.protection import owned_from_now
from agent.autoscaling.clock_step import not_ahead, shifted
from agent.autoscaling.decide import Decided, DecisionInputs, decide
from agent.autoscaling.intents import with_open_targets
from agent.autoscaling.interruptions import interrupted_vms, read_interruptions
from agent.autoscaling.late_calls import recognise
from agent.autoscaling.open_intents import may_have_changed, settle
from agent.autoscaling.outcomes import state_after_outcome
from agent.autoscaling.permission import Permission
from agent.autoscaling.ports import ManagedFleet, Ports, TickReport
from agent.autoscaling.state import Controls, LoopState
from agent.autoscaling.state_events import happenings
from domain.clock import BothTimes
from domain.decisions import Decision, Event, Intent, Mode, Outcome, Reason
from domain.errors import FailureClass, Fenced, LedgerError, LedgerReplaced, LedgerUnavailable, TrimtabError
from domain.fleet import Fleet
from domain.observed import Observed, ReadFailure

log = structlog.get_logger(__name__)


def run_tick(now: float, ports: Ports, times: BothTimes | None = None) -> TickReport:
    """Turn the loop once for every fleet; times: `now` and the monotonic time of the same moment, where both were read.

    One fleet's trouble never stops another's decision. When the ledger cannot be read or written, or a newer leader has
    taken over, nothing is executed and the report says so; measuring goes on and the next tick tries again.
    """
    # Before anything that takes time: read later, the monotonic time would make the wait look like a step of the clock.
    times = times or BothTimes(now, ports.monotonic())
    try:
        return _turn(now, ports, times)
    except (LedgerError, Fenced) as error:
        reason = Reason.LEDGER_REPLACED if isinstance(error, LedgerReplaced) else Reason.LEDGER_UNAVAILABLE
        log.error("nothing_executed", reason=reason, detail=str(error))
        return TickReport(now, failure=str(error), failure_reason=reason)


def _turn(now: float, ports: Ports, times: BothTimes) -> TickReport:
    if ports.fence is None:
        ports.ledger.check_epoch(ports.epoch)
    else:
        ports.fence()
    names = [managed.fleet.name for managed in ports.fleets]
    states = ports.ledger.loop_states(names)
    permission = Permission(now, ports, states, times)
    jumps = _carry_over_clock_step(now, ports, states, times)
    events: list[Event] = []
    before = dict(states)
    fleets = [managed.fleet for managed in ports.fleets]
    observed = ports.actuator.observe(fleets, now)
    permission.read(observed)
    settled = settle(now, ports, states, observed, permission, events)
    if any(may_have_changed(intent, outcome) for intent, outcome in settled):
        observed = ports.actuator.observe(fleets, now)
    notices = read_interruptions(now, ports, states, observed, events)

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
    records = _record(now, ports, records, events, states)
    states.update({inputs.fleet.name: decided.state for inputs, decided in records})
    if ports.interruptions is not None and notices:
        ports.interruptions.acknowledge(notices)

    outcomes = [outcome for _, outcome in settled]
    for inputs, decided in records:
        _log(decided.decision)
        permission.decided(inputs, decided)
        for intent in decided.decision.intents:
            try:
                outcomes.append(_execute(now, ports, states, intent, observed, permission))
            except (LedgerError, Fenced):
                raise
            except Exception as error:
                log.exception("execute_failed", fleet=intent.fleet, intent_id=intent.intent_id)
                what = f"{intent.intent_id} could not be carried out and stays open"
                events.append(_failed(now, ports, intent.fleet, what, error))
    if ports.mode is Mode.ACT:
        events.extend(_tend(now, ports, observed, permission))
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
    states: Mapping[str, LoopState],
) -> list[tuple[DecisionInputs, Decided]]:
    """Write all decisions at once, or fleet by fleet when one of them cannot be stored; return those written.

    A fleet without a decision gets its state as it was before one: with the notices that are deleted after this.
    """
    undecided = {name: state for name, state in states.items() if name not in {i.fleet.name for i, _ in records}}
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
            undecided[inputs.fleet.name] = states[inputs.fleet.name]
        else:
            written.append((inputs, decided))
    ports.ledger.record((), events=events, states=undecided, epoch=ports.epoch)
    return written


def _carry_over_clock_step(
    now: float, ports: Ports, states: dict[str, LoopState], times: BothTimes
) -> tuple[Event, ...]:
    """Move every remembered time along when the clock was set, and record that before anything else is done."""
    seen_s = ports.jumps.observe(times.now, times.monotonic, times.doubt_s)
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
        state, late = recognise(fleet, before, observed, in_flight, ports.epoch, now)
        drifts, known = drift(fleet, state.known_desired, observed, in_flight, managed.drift, now)
        events.extend((*late, *drifts))
        state = replace(state, known_desired=known)
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
        policy=ports.proposer.resolve(managed.policy, fleet),
        shadow=None if managed.shadow is None else ports.proposer.resolve(managed.shadow, fleet),
        in_flight=in_flight,
        interrupted=interrupted_vms(fleet, state, observed),
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
    failures = [(group.key, observed.failures[group.name]) for group in fleet.groups if group.name in observed.failures]
    for key, failed in failures:
        # Named first, by its key in the settings: it needs a person, whatever else AWS does meanwhile.
        if failed.failure is FailureClass.UNSUPPORTED:
            return replace(failed, detail=f"group {key} cannot be managed: {failed.detail}")
    return failures[0][1] if failures else None


def _execute(
    now: float,
    ports: Ports,
    states: dict[str, LoopState],
    intent: Intent,
    observed: Observed,
    permission: Permission,
) -> Outcome:
    """Act on one recorded intent and record its outcome."""
    limits = next(managed.limits for managed in ports.fleets if managed.fleet.name == intent.fleet)
    outcome = ports.actuator.apply(intent, observed, now, permission)
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


def _failed(now: float, ports: Ports, fleet: str, what: str, error: Exception) -> Event:
    """Record an error nobody foresaw, after the turn's own record was written; return the event."""
    event = Event(fleet, now, Reason.INTERNAL_ERROR, f"{what}: {type(error).__name__}: {error}")
    ports.ledger.record((), events=[event])
    return event


def _tend(now: float, ports: Ports, observed: Observed, permission: Permission) -> list[Event]:
    events: list[Event] = []
    for managed in ports.fleets:
        try:
            busy = ports.aggregator.busy_cores(managed.fleet, now)
            events.extend(ports.actuator.tend(managed.fleet, observed, busy, now, permission))
        except (LedgerError, Fenced):
            raise
        except Exception as error:
            log.exception("tend_failed", fleet=managed.fleet.name)
            detail = f"its VMs were not cared for this minute: {type(error).__name__}: {error}"
            events.append(Event(managed.fleet.name, now, Reason.INTERNAL_ERROR, detail))
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
