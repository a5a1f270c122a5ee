"""What the outcome of an intent changes in the loop's state: capacity marks, circuit breaker, cool-down, known size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.autoscaling.intents import state_after_nothing_done
from agent.autoscaling.state import LoopState
from agent.rails.base import RailLimits
from agent.rails.capacity_memory import record_shortage
from agent.rails.circuit_breaker import record_outcome
from domain.decisions import Direction, Intent, Outcome, Reason, Status

_WAITED = frozenset((Reason.STALE_INPUT, Reason.LOW_COVERAGE, Reason.NOT_FINITE, Reason.SCHEMA_MISMATCH, Reason.PAUSED))
"""Reasons of ours for which an open intent was not sent."""


def state_after_outcome(
    state: LoopState, intent: Intent, outcome: Outcome, limits: RailLimits, now: float
) -> LoopState:
    """Return the state after the outcome; an outcome that is not final changes nothing yet."""
    if not outcome.status.final:
        return state
    state = replace(
        state_after_nothing_done(state, intent, outcome),
        known_desired=_known_desired(state.known_desired, intent, outcome),
        intent_times={name: times for name, times in state.intent_times.items() if name != intent.intent_id},
    )
    if outcome.shortages:
        state = replace(state, capacity=record_shortage(state.capacity, outcome.shortages, now, limits))
    return replace(state, breakers=record_outcome(state.breakers, intent.group, outcome, limits, now))


def with_cause(outcome: Outcome, before: Outcome | None) -> Outcome:
    """Return an overdue outcome with what stood in the way: the failure that the intent's last outcome `before` met.

    A change that AWS throttled up to its deadline is no sign of a broken group, and must not count as one. Nor is one
    that was never sent because it waited for measurements.
    """
    if outcome.reason is not Reason.OVERDUE or outcome.failure is not None or before is None:
        return outcome
    if before.failure is None and before.reason in _WAITED:
        status = Status.PARTIAL if outcome.achieved else Status.SKIPPED
        detail = f"{outcome.detail}; last: {before.detail}"
        return replace(outcome, status=status, reason=Reason.SUPERSEDED, detail=detail)
    if before.failure is None:
        return outcome
    return replace(outcome, failure=before.failure, detail=f"{outcome.detail}; last: {before.detail}")


def _known_desired(known: Mapping[str, int], intent: Intent, outcome: Outcome) -> dict[str, int]:
    """Return the sizes that are ours, by which the next reading tells what somebody else has changed.

    An overdue intent leaves its group's size open: what was achieved could not be read, or AWS may or may not have
    been asked, or what it did not launch was not given back. The next reading is taken as it is then.
    """
    after = dict(known)
    if intent.direction is Direction.REPLACE or outcome.status is Status.DONE:
        return after
    if outcome.reason is Reason.OVERDUE:
        after.pop(intent.group, None)
    else:
        achieved = outcome.achieved if intent.direction is Direction.OUT else -outcome.achieved
        after[intent.group] = intent.before + achieved
    return after
