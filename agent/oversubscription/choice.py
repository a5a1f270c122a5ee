"""Which rate a subscriber's new VMs get this hour: pure, so that every rate can be had again from what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.oversubscription.records import Source
from domain.decisions import Reason
from domain.rules.oversubscription.rates import level_at_least, next_level, with_little_history

FROZEN_RATE: Final = 0.6


@dataclass(frozen=True, slots=True)
class Situation:
    """One subscriber at the time of a choice.

    wanted: what the policy says, None when it failed. known: whether the settings name it. silent_s: since its VMs were
    last measured, 0 without VMs. pressed: whether it is among the two that load a hot machine most.
    """

    subscriber: str
    previous: float
    wanted: float | None
    known: bool
    opted_out: bool
    minimum_rate: float
    fixed_rate: float | None
    history_h: float
    vm_days: float
    silent_s: float
    drifting: bool
    pressed: bool
    lowered_at: float | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for the whole pool. fresh: whether the pool's measurements are recent enough to go by."""

    at: float
    actions: tuple[float, ...]
    cooldown_s: float
    stale_s: float
    frozen: bool
    rolled_back: bool
    paused: bool
    fresh: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A subscriber's rate from now on, who spoke last, and why."""

    subscriber: str
    rate: float
    source: Source
    reasons: tuple[Reason, ...]
    lowered_at: float | None


@dataclass(frozen=True, slots=True)
class ChoiceInputs:
    """Everything that an hour's rates rest on, as it is kept for replay."""

    conditions: Conditions
    situations: tuple[Situation, ...]


def choose(inputs: ChoiceInputs) -> tuple[Choice, ...]:
    """Return every subscriber's choice, in the order of the situations (§12.9, §13)."""
    return tuple(_one(situation, inputs.conditions) for situation in inputs.situations)


def _one(s: Situation, c: Conditions) -> Choice:
    if s.known and s.opted_out:
        return Choice(s.subscriber, 1.0, Source.MANUAL, (Reason.OPTED_OUT,), s.lowered_at)
    failed = _failure(s, c)
    if failed is not None:
        return Choice(s.subscriber, 1.0, Source.FALLBACK, (failed,), s.lowered_at)
    if c.rolled_back:
        return Choice(s.subscriber, 1.0, Source.FALLBACK, (Reason.RATES_ROLLED_BACK,), s.lowered_at)
    manual = s.fixed_rate is not None
    rate = _level(s.fixed_rate if s.fixed_rate is not None else s.wanted or 1.0, c.actions)
    reasons = [Reason.OPERATOR if manual else Reason.RATE_OF_POLICY]
    # A rate that a person fixed is theirs; what was measured for lowers none of it.
    floors: list[tuple[Reason, float]] = []
    if not manual:
        blended = _level(with_little_history(rate, s.history_h, s.vm_days), c.actions)
        floors.append((Reason.LITTLE_HISTORY, blended))
    floors.append((Reason.MINIMUM_RATE, _level(s.minimum_rate, c.actions) if s.minimum_rate > rate else rate))
    safer = next_level(s.previous, c.actions)
    if s.pressed:
        floors.append((Reason.MACHINE_HOT, safer))
    if s.drifting:
        floors.append((Reason.USAGE_DRIFTED, safer))
    if c.frozen:
        floors.append((Reason.RATES_FROZEN, max(_level(FROZEN_RATE, c.actions), s.previous)))
    if c.paused:
        floors.append((Reason.PAUSED, s.previous))
    for reason, floor in floors:
        if floor > rate + 1e-9:
            rate = floor
            reasons.append(reason)
    if rate >= s.previous - 1e-9:
        return Choice(s.subscriber, rate, _source(manual), tuple(reasons), s.lowered_at)
    if s.lowered_at is not None and 0.0 <= c.at - s.lowered_at < c.cooldown_s - 1e-6:
        return Choice(s.subscriber, s.previous, _source(manual), (*reasons, Reason.COOLING_DOWN), s.lowered_at)
    lower = _level_below(s.previous, c.actions)
    if rate < lower - 1e-9:
        rate = lower
        reasons.append(Reason.STEP_LIMIT)
    return Choice(s.subscriber, rate, _source(manual), tuple(reasons), c.at)


def _failure(s: Situation, c: Conditions) -> Reason | None:
    """Return why nothing may be oversold for this subscriber: the fail-safe of §13."""
    if not s.known:
        return Reason.UNKNOWN_SUBSCRIBER
    if not c.fresh or s.silent_s > c.stale_s:
        return Reason.STALE_INPUT
    if s.wanted is None and s.fixed_rate is None:
        return Reason.POLICY_FAILED
    numbers = (s.previous, s.minimum_rate, s.history_h, s.vm_days, s.wanted or 1.0)
    if not all(math.isfinite(number) for number in numbers):
        return Reason.NOT_FINITE
    return None


def _source(manual: bool) -> Source:
    return Source.MANUAL if manual else Source.POLICY


def _level(rate: float, actions: Sequence[float]) -> float:
    return actions[level_at_least(rate, actions)]


def _level_below(rate: float, actions: Sequence[float]) -> float:
    """Return the next level below a rate, the lowest from there on down."""
    below = [level for level in actions if level < rate - 1e-9]
    return below[-1] if below else actions[0]
