"""One hour of a pool decided: rates from what is remembered, then the risk of the pool as it stands (§13)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.ledger import codec
from agent.oversubscription.assessment import Assessed, assess
from agent.oversubscription.choice import Choice, ChoiceInputs, Conditions, Situation, choose
from agent.oversubscription.hours import Folded, hour_of_day
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import PoolMemory, SubscriberMemory
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import HourDecision, Source, SubscriberRate
from agent.oversubscription.rules import PoolRules, SubscriberRules
from agent.oversubscription.usage_book import HOUR_S
from domain.rules.oversubscription.rates import KNOWN_AFTER_H

UNKNOWN = SubscriberRules()
HOURS_OF_DAY = 24


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a policy wants for an hour: rates by subscriber, a request's budget, and its file's digest and price."""

    rates: Mapping[str, float | None]
    budget: float
    model: str = ""
    multiplier: float | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """An hour's decision, what it rests on, and the memory after it."""

    decision: HourDecision
    inputs: ChoiceInputs
    memory: PoolMemory
    assessed: Assessed


def hot_hours(memory: PoolMemory, rules: PoolRules) -> int:
    """Return how many hours of the horizon were hot and count: those since the rates were last re-armed."""
    return sum(memory.hour - rules.horizon_h < hour and hour > memory.armed_hour for hour in memory.hot_hours)


def decide_hour(
    folded: Folded,
    loads: Loads,
    profiles: Profiles,
    rules: PoolRules,
    wanted: Wanted | None,
    at: float,
    number: int,
    *,
    paused: bool,
    fresh: bool,
) -> Decided:
    """Return what is decided after an hour was folded; wanted: None when the policy failed, so that nobody is oversold.

    Pure but for its clock, which only says how long it took.
    """
    began = time.perf_counter()
    before = folded.memory
    hot = hot_hours(before, rules)
    rolled_back = before.rolled_back or hot >= rules.violation
    inputs = ChoiceInputs(
        Conditions(
            at=at,
            actions=rules.actions,
            cooldown_s=rules.cooldown_s,
            stale_s=rules.stale_s,
            frozen=hot >= rules.violation - 1,
            rolled_back=rolled_back,
            paused=paused,
            fresh=fresh,
        ),
        _situations(folded, rules, wanted),
    )
    choices = choose(inputs)
    closed = _closed(folded, rules)
    first = before.hour + 1
    clock = hour_of_day(first, rules)
    ahead = [(clock + k) % HOURS_OF_DAY for k in range(rules.horizon_h)]
    multiplier = wanted.multiplier if wanted is not None else None
    assessed = assess(loads, profiles, rules, before.counts, ahead, hot, closed, multiplier)
    rows = _rows(choices, before, inputs, loads, profiles, assessed, folded.reporting)
    counts = replace(
        before.counts,
        decisions=before.counts.decisions + 1,
        fallbacks=before.counts.fallbacks + sum(row.source is Source.FALLBACK for row in rows),
        expected_hot_hours=before.counts.expected_hot_hours + assessed.next_hot,
    )
    memory = replace(
        before,
        subscribers=_with_choices(before.subscribers, choices),
        rolled_back=rolled_back,
        closed=closed,
        counts=counts,
    )
    decision = HourDecision(
        decision_id=f"{rules.name}-o{number}",
        at=at,
        hour=before.hour,
        pool=rules.name,
        policy=rules.policy,
        model=wanted.model if wanted is not None else "",
        config_hash=rules.config_hash,
        state_hash=hashlib.sha256(codec.encode(inputs)).hexdigest()[:16],
        subscribers=rows,
        risk=assessed.risk,
        frozen=inputs.conditions.frozen,
        rolled_back=rolled_back,
        closed=closed,
        detail=_sentence(rows, assessed, rules),
        budget=rules.budget(None) if wanted is None else wanted.budget,
        evaluation_us=(time.perf_counter() - began) * 1e6,
    )
    return Decided(decision, inputs, memory, assessed)


def _situations(folded: Folded, rules: PoolRules, asked: Wanted | None) -> tuple[Situation, ...]:
    pressed = {name for machine in folded.hot for name in machine.subscribers}
    found = []
    for name, memory in sorted(folded.memory.subscribers.items()):
        own = rules.subscribers.get(name, UNKNOWN)
        # A rate of somebody of whom too little is known is not asked for: it would be a failure of the policy's file.
        young = memory.history_h < KNOWN_AFTER_H
        wanted = asked.rates.get(name) if asked is not None else None
        found.append(
            Situation(
                subscriber=name,
                previous=memory.rate,
                wanted=1.0 if wanted is None and young and asked is not None else wanted,
                known=name in rules.subscribers,
                opted_out=own.opted_out,
                minimum_rate=own.minimum_rate,
                fixed_rate=own.fixed_rate,
                history_h=memory.history_h,
                vm_days=memory.vm_hours / HOURS_OF_DAY,
                silent_s=memory.silent_h * HOUR_S,
                drifting=memory.drifting,
                pressed=name in pressed,
                lowered_at=memory.lowered_at,
            )
        )
    return tuple(found)


def _closed(folded: Folded, rules: PoolRules) -> tuple[str, ...]:
    """Return the machines that take no new oversold VM: hot ones, until they have been cool for an hour."""
    hot = {machine.machine for machine in folded.hot}
    still = {name for name in folded.memory.closed if folded.cores_in_use.get(name, 0.0) >= rules.warning_cores}
    return tuple(sorted(hot | still))


def _with_choices(
    subscribers: Mapping[str, SubscriberMemory], choices: tuple[Choice, ...]
) -> dict[str, SubscriberMemory]:
    return {
        choice.subscriber: replace(subscribers[choice.subscriber], rate=choice.rate, lowered_at=choice.lowered_at)
        for choice in choices
    }


def _rows(
    choices: tuple[Choice, ...],
    memory: PoolMemory,
    inputs: ChoiceInputs,
    loads: Loads,
    profiles: Profiles,
    assessed: Assessed,
    reporting: Mapping[str, int],
) -> tuple[SubscriberRate, ...]:
    rows = []
    place = {name: n for n, name in enumerate(profiles.names)}
    for choice, situation in zip(choices, inputs.situations, strict=True):
        known, n = memory.subscribers[choice.subscriber], place.get(choice.subscriber)
        rows.append(
            SubscriberRate(
                subscriber=choice.subscriber,
                rate=choice.rate,
                previous_rate=known.rate,
                source=choice.source,
                reasons=choice.reasons,
                wanted_rate=situation.wanted,
                vms=int(loads.vms[n]) if n is not None else 0,
                reporting=reporting.get(choice.subscriber, 0),
                saved_cores=float(loads.saved[n]) if n is not None else 0.0,
                risk_24h=float(assessed.by_subscriber[n]) if n is not None else 0.0,
                days=known.history_h / HOURS_OF_DAY,
                vm_days=known.vm_hours / HOURS_OF_DAY,
                lowered_at=choice.lowered_at,
                drifting=known.drifting,
            )
        )
    return tuple(rows)


def _sentence(rows: tuple[SubscriberRate, ...], assessed: Assessed, rules: PoolRules) -> str:
    moved = [row for row in rows if abs(row.rate - row.previous_rate) > 1e-9]
    words = ", ".join(f"{row.subscriber} {row.previous_rate:g} to {row.rate:g}" for row in moved) or "no rate moves"
    risk = assessed.risk
    return (
        f"{words}; {risk.violation:.1%} chance of {rules.violation} hot hours in the next {rules.horizon_h} h "
        f"({1.0 - rules.alpha:.1%} allowed), {risk.hot_hours_seen} seen"
    )
