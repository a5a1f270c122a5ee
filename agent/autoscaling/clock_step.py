"""Carries deadlines over a step of the wall clock, so that none vanishes and none lasts longer; ages on both clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.autoscaling.state import LoopState
from domain.clock import BothTimes
from domain.decisions import Intent


def shifted(state: LoopState, step_s: float, open_intents: Sequence[Intent] = ()) -> LoopState:
    """Return the state with every stored time moved by `step_s`, the seconds by which the wall clock was set.

    Intents stand in the ledger as they were opened; where the open ones are on the new clock is part of the state.
    """
    times = {intent.intent_id: _times(intent, state) for intent in open_intents}
    return replace(
        state,
        cooldowns=tuple(replace(c, until=c.until + step_s) for c in state.cooldowns),
        changes=tuple(replace(c, at=c.at + step_s) for c in state.changes),
        capacity=tuple(replace(m, until=m.until + step_s) for m in state.capacity),
        breakers=tuple(replace(b, open_until=b.open_until + step_s) if b.open_until else b for b in state.breakers),
        spend=replace(state.spend, at=state.spend.at + step_s) if state.spend.at else state.spend,
        interrupted={vm: at + step_s for vm, at in state.interrupted.items()},
        seen_interruptions={vm: at + step_s for vm, at in state.seen_interruptions.items()},
        last_busy_at=None if state.last_busy_at is None else state.last_busy_at + step_s,
        last_bin_end=None,
        former_calls=tuple(replace(call, at=call.at + step_s) for call in state.former_calls),
        intent_times={name: (created + step_s, deadline + step_s) for name, (created, deadline) in times.items()},
    )


def not_ahead(state: LoopState, open_intents: Sequence[Intent], now: float) -> LoopState:
    """Return the state with no time further ahead than it can be, as when the clock was set back while no agent ran.

    Then nobody saw the step: what rests begins its rest anew, and what happened counts as having happened now. A step
    forward in such a time cannot be told from the time passing.
    """
    ahead = {
        intent.intent_id: (now, now + deadline - created)
        for intent in open_intents
        for created, deadline in [_times(intent, state)]
        if created > now
    }
    return replace(
        state,
        cooldowns=tuple(replace(c, until=min(c.until, now + c.length_s)) for c in state.cooldowns),
        changes=tuple(replace(c, at=min(c.at, now)) for c in state.changes),
        capacity=tuple(replace(m, until=min(m.until, now + m.length_s)) for m in state.capacity),
        breakers=tuple(replace(b, open_until=min(b.open_until, now + b.length_s)) for b in state.breakers),
        spend=replace(state.spend, at=min(state.spend.at, now)),
        interrupted={vm: min(at, now) for vm, at in state.interrupted.items()},
        seen_interruptions={vm: min(at, now) for vm, at in state.seen_interruptions.items()},
        last_busy_at=None if state.last_busy_at is None else min(state.last_busy_at, now),
        last_bin_end=None if state.last_bin_end is None or state.last_bin_end > now else state.last_bin_end,
        former_calls=tuple(replace(call, at=min(call.at, now)) for call in state.former_calls),
        intent_times={**state.intent_times, **ahead},
    )


def on_this_clock(intent: Intent, state: LoopState) -> Intent:
    """Return an open intent with its times as the clock now reads, however often it was set since."""
    created_at, deadline_at = _times(intent, state)
    return replace(intent, created_at=created_at, deadline_at=deadline_at)


def _times(intent: Intent, state: LoopState) -> tuple[float, float]:
    return state.intent_times.get(intent.intent_id, (intent.created_at, intent.deadline_at))


class Ages:
    """How long each intent has been there by the clock that nobody sets, whatever the wall clock says."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def age_s(self, intent: Intent, now: float, monotonic: float) -> float:
        """Return the seconds since the intent was made; one of an earlier process is as old as it then looked."""
        since = self._since.setdefault(intent.intent_id, monotonic - max(0.0, now - intent.created_at))
        return monotonic - since

    def keep(self, intent_ids: frozenset[str]) -> None:
        """Forget all but these."""
        self._since = {name: since for name, since in self._since.items() if name in intent_ids}


def late_s(began: BothTimes, now: float, monotonic: float) -> float:
    """Return the seconds since a turn began, by the clock that shows more of them; one alone may have stood still."""
    return max(0.0, now - began.now, monotonic - began.monotonic)
