"""What the outcome of an intent changes in the loop's state: capacity marks, circuit breaker, cool-down taken back."""

from __future__ import annotations

from dataclasses import replace

from agent.intents import state_after_nothing_done
from agent.rails.base import RailLimits
from agent.rails.capacity_memory import record_shortage
from agent.rails.circuit_breaker import after_outcome
from agent.state import Breaker, LoopState
from domain.decisions import Direction, Intent, Outcome, Status


def state_after_outcome(
    state: LoopState, intent: Intent, outcome: Outcome, limits: RailLimits, now: float
) -> LoopState:
    """Return the state after the outcome; an outcome that is not final changes nothing yet."""
    if not outcome.status.final:
        return state
    state = state_after_nothing_done(state, intent, outcome)
    resized = intent.direction is not Direction.REPLACE
    if resized and outcome.status in (Status.PARTIAL, Status.FAILED) and outcome.achieved:
        reached = intent.before + (outcome.achieved if intent.direction is Direction.OUT else -outcome.achieved)
        state = replace(state, known_desired={**state.known_desired, intent.group: reached})
    if outcome.shortages:
        state = replace(state, capacity=record_shortage(state.capacity, outcome.shortages, now, limits))
    breakers = {breaker.group: breaker for breaker in state.breakers}
    breakers[intent.group] = after_outcome(breakers.get(intent.group, Breaker(intent.group)), outcome, limits, now)
    kept = tuple(breaker for breaker in breakers.values() if breaker.failures)
    return replace(state, breakers=kept)
