"""Follows what an earlier turn left open to its end, and records what became of it."""

from __future__ import annotations

import structlog

from agent.autoscaling.clock_step import on_this_clock
from agent.autoscaling.late_calls import with_former_call
from agent.autoscaling.outcomes import state_after_outcome, with_cause
from agent.autoscaling.permission import Permission
from agent.autoscaling.ports import Ports
from agent.autoscaling.state import LoopState
from domain.decisions import Direction, Event, Intent, Mode, Outcome, Reason, Status
from domain.errors import Fenced, LedgerError
from domain.observed import Observed

log = structlog.get_logger(__name__)


def settle(
    now: float,
    ports: Ports,
    states: dict[str, LoopState],
    observed: Observed,
    permission: Permission,
    events: list[Event],
) -> list[tuple[Intent, Outcome]]:
    """Follow every open intent and record what became of it; when that cannot be recorded, none is followed.

    An intent that cannot be followed for an error nobody foresaw stays open, and its fleet is told so in `events`.
    """
    limits = {managed.fleet.name: managed.limits for managed in ports.fleets}
    fleets = {managed.fleet.name: managed.fleet for managed in ports.fleets}
    settled: list[tuple[Intent, Outcome]] = []
    open_intents = ports.ledger.open_intents()
    ports.ages.keep(frozenset(intent.intent_id for intent in open_intents))
    if open_intents and ports.mode is Mode.ACT:
        ports.ledger.check_writable()
    for intent in open_intents:
        if intent.fleet in states:
            intent = on_this_clock(intent, states[intent.fleet])
        if intent.fleet in fleets and ports.ledger.shared:
            state = states[intent.fleet]
            states[intent.fleet] = with_former_call(state, intent, fleets[intent.fleet], observed, ports.epoch, now)
        if intent.fleet not in limits:
            outcome = _closed(intent, Reason.SUPERSEDED, "the fleet is no longer configured", now)
        elif ports.mode is Mode.OBSERVE:
            outcome = _closed(intent, Reason.OBSERVE_MODE, "this process only observes", now)
        else:
            try:
                outcome = ports.actuator.follow(intent, observed, now, permission)
            except (LedgerError, Fenced):
                raise
            except Exception as error:
                log.exception("follow_failed", fleet=intent.fleet, intent_id=intent.intent_id)
                detail = f"{intent.intent_id} could not be followed and stays open: {type(error).__name__}: {error}"
                events.append(Event(intent.fleet, now, Reason.INTERNAL_ERROR, detail, intent.intent_id))
                continue
            if outcome.reason is Reason.OVERDUE:
                outcome = with_cause(outcome, ports.ledger.last_outcome(intent.intent_id))
        changed: dict[str, LoopState] = {}
        if intent.fleet in limits:
            after = state_after_outcome(states[intent.fleet], intent, outcome, limits[intent.fleet], now)
            states[intent.fleet] = changed[intent.fleet] = after
        ports.ledger.record_outcomes([(intent, outcome)], states=changed, epoch=ports.epoch)
        settled.append((intent, outcome))
    return settled


def may_have_changed(intent: Intent, outcome: Outcome) -> bool:
    """Return whether settling the intent may have changed its group since it was read.

    A scale-out is done when its VMs are there: then nothing more was sent.
    """
    grown = intent.direction is Direction.OUT and outcome.status is Status.DONE
    return outcome.status is not Status.IN_PROGRESS and not grown


def _closed(intent: Intent, reason: Reason, detail: str, now: float) -> Outcome:
    asked = abs(intent.target - intent.before) or len(intent.victims)
    return Outcome(intent.intent_id, Status.SKIPPED, reason, asked, 0, now, detail)
