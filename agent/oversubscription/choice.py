"""One hour of a pool decided: rates from what is remembered, then the risk of the pool as it stands (§13)."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from agent.ledger import codec
from agent.oversubscription.arrays import Floats, hot_probabilities
from agent.oversubscription.fold import HourFold, hour_of_day
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import Counts, PoolMemory, SubscriberMemory
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import (
    HourDecision,
    HourRule,
    MachineRisk,
    PoolRisk,
    ShadowRates,
    Source,
    SubscriberRate,
)
from domain.decisions import Reason
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.rules.oversubscription.rates import KNOWN_AFTER_H, level_at_least, next_level, with_little_history
from domain.rules.oversubscription.risk import count_at_least
from domain.units import HOUR_S, HOURS_PER_DAY

FROZEN_RATE: Final = 0.6
DRIFT_SHARE: Final = 0.25
"""Where those that drift hold so much of the requested cores, the others are taken to drift too."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One subscriber at the time of a choice.

    wanted: what the policy says, None when it failed. known: whether the settings name it. silent_s: since its VMs were
    last measured, 0 without VMs. pressed: whether it is among the two that load a hot machine most. drifted_rule: the
    digest of the rule in use when its usage last drifted, "" for none.
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
    drifted_rule: str = ""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for the whole pool. fresh: whether the pool's measurements are recent enough to go by.

    drifting: whether subscribers with DRIFT_SHARE of its cores drift at once: a change met the pool, and it is not
    waited for the alarms of the others. rule: digest of the policy's rule, of the last one where the policy failed, ""
    without one.
    """

    at: float
    actions: tuple[float, ...]
    cooldown_s: float
    stale_s: float
    frozen: bool
    rolled_back: bool
    paused: bool
    fresh: bool
    drifting: bool = False
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A subscriber's rate from now on, its source and reasons. excluded: why no rule sets those of its requests."""

    subscriber: str
    rate: float
    source: Source
    reasons: tuple[Reason, ...]
    lowered_at: float | None
    excluded: Reason | None


@dataclass(frozen=True, slots=True)
class ChoiceInputs:
    """Everything that an hour's rates rest on, as replay needs it."""

    conditions: Conditions
    situations: tuple[Situation, ...]


def choose(inputs: ChoiceInputs) -> tuple[Choice, ...]:
    """Return every subscriber's choice, in the order of the situations (§12.9, §13)."""
    return tuple(_one(situation, inputs.conditions) for situation in inputs.situations)


def _one(s: Situation, c: Conditions) -> Choice:
    if s.known and s.opted_out:
        return Choice(s.subscriber, 1.0, Source.MANUAL, (Reason.OPTED_OUT,), s.lowered_at, Reason.OPTED_OUT)
    failed = _failure(s, c) or (Reason.RATES_ROLLED_BACK if c.rolled_back else None)
    if failed is not None:
        return Choice(s.subscriber, 1.0, Source.FALLBACK, (failed,), s.lowered_at, failed)
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
    if s.drifting or c.drifting:
        # What it was oversold by holds no longer, and VMs once placed cannot be taken back.
        floors.append((Reason.USAGE_DRIFTED, 1.0))
    if c.frozen:
        floors.append((Reason.RATES_FROZEN, max(_level(FROZEN_RATE, c.actions), s.previous)))
    if c.paused:
        floors.append((Reason.PAUSED, s.previous))
    for reason, floor in floors:
        if floor > rate + 1e-9:
            rate = floor
            reasons.append(reason)
    source, excluded, lowered_at = Source.MANUAL if manual else Source.POLICY, _exclusion(s, c), s.lowered_at
    if rate < s.previous - 1e-9:
        lower = _level_below(s.previous, c.actions)
        if lowered_at is not None and 0.0 <= c.at - lowered_at < c.cooldown_s - 1e-6:
            rate, limits = s.previous, [Reason.COOLING_DOWN]
        else:
            limits = [Reason.STEP_LIMIT] if rate < lower - 1e-9 else []
            rate, lowered_at = max(rate, lower), c.at
        reasons += limits
        excluded = excluded or next(iter(limits), None)
    return Choice(s.subscriber, rate, source, tuple(reasons), lowered_at, excluded)


def _exclusion(s: Situation, c: Conditions) -> Reason | None:
    """Return why no rule may set the rates of requests, which the hour's rate then answers, behind its guard.

    By the conditions and not by the reasons of the rate: one of 1.0 is raised by none of them. After a drift the same
    rule does not decide again: it was learnt from the usage before.
    """
    drifted = s.drifting or c.drifting or (c.rule != "" and s.drifted_rule == c.rule)
    conditions = (
        (Reason.OPERATOR, s.fixed_rate is not None),
        (Reason.LITTLE_HISTORY, with_little_history(0.0, s.history_h, s.vm_days) > 0.0),
        (Reason.USAGE_DRIFTED, drifted),
        (Reason.MACHINE_HOT, s.pressed),
        (Reason.RATES_FROZEN, c.frozen),
        (Reason.PAUSED, c.paused),
    )
    return next((reason for reason, holds in conditions if holds), None)


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


def _level(rate: float, actions: Sequence[float]) -> float:
    return actions[level_at_least(rate, actions)]


def _level_below(rate: float, actions: Sequence[float]) -> float:
    below = [level for level in actions if level < rate - 1e-9]
    return below[-1] if below else actions[0]


SHOWN: Final = 10
TWO_SIDED_95: Final = 1.96
WARNING_PROBABILITY: Final = 0.2


@dataclass(frozen=True, slots=True)
class RiskAssessment:
    """The pool's risk; each subscriber's part of it, in the order of the profiles; and what the next hour may bring.

    next_hot: chance that any machine is hot in the next hour. likely: machines, with their chance, that are hot in the
    next hour more likely than the warning allows.
    """

    risk: PoolRisk
    by_subscriber: Floats
    next_hot: float
    likely: tuple[tuple[str, float], ...]


def assess(
    loads: Loads,
    profiles: Profiles,
    rules: PoolRules,
    counts: Counts,
    hours_of_day: Sequence[int],
    hot_hours_seen: int,
    closed: Collection[str],
    multiplier: float | None,
) -> RiskAssessment:
    """Return the risk of the hours whose hours of the day these are; the first is the next one."""
    used = slice(0, loads.used)
    mean, variance, third = loads.mean[used], loads.variance[used], loads.third[used]
    probability = hot_probabilities(mean, variance, third, rules.threshold_cores)
    open_left = TWO_SIDED_95 * loads.by_owner[used] @ profiles.error
    low = hot_probabilities(mean - open_left, variance, third, rules.threshold_cores)
    high = hot_probabilities(mean + open_left, variance, third, rules.threshold_cores)
    hours = np.asarray(hours_of_day, dtype=np.int64)
    any_one = _any_hot(probability)
    by_machine = probability.sum(axis=1)
    order = np.argsort(-by_machine, kind="stable")[:SHOWN].tolist()
    peaks = probability.argmax(axis=1)
    now = probability[:, hours[0]]
    total = mean.sum(axis=1)
    weights = np.divide(by_machine, total, out=np.zeros_like(total), where=total > 0.0)
    return RiskAssessment(
        risk=PoolRisk(
            violation=count_at_least(any_one[hours], rules.violation),
            violation_low=count_at_least(_any_hot(low)[hours], rules.violation),
            violation_high=count_at_least(_any_hot(high)[hours], rules.violation),
            expected_hot_hours=float(any_one[hours].sum()),
            hot_hours_seen=hot_hours_seen,
            riskiest=tuple(
                MachineRisk(
                    machine=loads.names[k],
                    peak_hour=int(peaks[k]),
                    peak_probability=float(probability[k, peaks[k]]),
                    hot_hours=float(by_machine[k]),
                    cores_in_use=float(mean[k, hours[0]]),
                    closed=loads.names[k] in closed,
                )
                for k in order
            ),
            machines_used=loads.used,
            peak_machines=max(counts.peak_machines, loads.used),
            machines_without=_machines_without(loads, rules),
            saved_share=counts.saved_cores / counts.requested_cores if counts.requested_cores > 0.0 else None,
            multiplier=multiplier,
        ),
        by_subscriber=weights @ loads.by_owner[used] * profiles.mean.sum(axis=1),
        next_hot=float(any_one[hours[0]]),
        likely=tuple((loads.names[k], float(now[k])) for k in np.flatnonzero(now > WARNING_PROBABILITY).tolist()),
    )


def _any_hot(probability: Floats) -> Floats:
    """Return by hour of the day the chance that at least one machine is hot, as `risk.any_hot` does."""
    with np.errstate(divide="ignore"):
        found: Floats = -np.expm1(np.log1p(-probability).sum(axis=0))
    return found


def _machines_without(loads: Loads, rules: PoolRules) -> int:
    memory = rules.machine_memory_gb * len(loads.names) - float(loads.free_memory.sum())
    network = rules.machine_network_gbit * len(loads.names) - float(loads.free_network.sum())
    needed = (
        float(loads.requested.sum()) / rules.machine_cores,
        memory / rules.machine_memory_gb,
        network / rules.machine_network_gbit,
    )
    return math.ceil(max(needed) - 1e-9)


UNKNOWN = SubscriberRules()


@dataclass(frozen=True, slots=True)
class PolicyRates:
    """What a policy wants for an hour: rates by subscriber, a request's budget, and its file's digest and price.

    rule: sets the rates of requests, None where `rates` do.
    """

    rates: Mapping[str, float | None]
    budget: float
    model: str = ""
    multiplier: float | None = None
    rule: HourRule | None = None


@dataclass(frozen=True, slots=True)
class HourChoice:
    """An hour's decision, what it rests on, and the memory after it."""

    decision: HourDecision
    inputs: ChoiceInputs
    memory: PoolMemory
    assessed: RiskAssessment


def hot_hours(memory: PoolMemory, rules: PoolRules) -> int:
    """Return how many hours of the horizon were hot and count: those since the rates were last re-armed."""
    return sum(memory.hour - rules.horizon_h < hour and hour > memory.armed_hour for hour in memory.hot_hours)


def decide_hour(
    folded: HourFold,
    loads: Loads,
    profiles: Profiles,
    rules: PoolRules,
    wanted: PolicyRates | None,
    at: float,
    number: int,
    *,
    paused: bool,
    fresh: bool,
) -> HourChoice:
    """Return what is decided after an hour was folded; wanted: None when the policy failed, and nothing is oversold.

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
            drifting=_drifting(before, loads, profiles),
            rule=before.rule if wanted is None else _digest_of_rule(wanted),
        ),
        _situations(folded, rules, wanted),
    )
    choices = choose(inputs)
    closed = _closed(folded, rules)
    first = before.hour + 1
    clock = hour_of_day(first, rules)
    ahead = [(clock + k) % HOURS_PER_DAY for k in range(rules.horizon_h)]
    multiplier = wanted.multiplier if wanted is not None else None
    assessed = assess(loads, profiles, rules, before.counts, ahead, hot, closed, multiplier)
    rule = wanted.rule if wanted is not None else None
    rows = _rows(choices, before, inputs, loads, profiles, assessed, folded.reporting, ruled=rule is not None)
    counts = replace(
        before.counts,
        decisions=before.counts.decisions + 1,
        fallbacks=before.counts.fallbacks + sum(row.source is Source.FALLBACK for row in rows),
        expected_hot_hours=before.counts.expected_hot_hours + assessed.next_hot,
    )
    memory = replace(
        before,
        subscribers=_with_choices(before.subscribers, choices, inputs.conditions, folded.drifted),
        rolled_back=rolled_back,
        closed=closed,
        counts=counts,
        rule=inputs.conditions.rule,
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
        rule=rule,
    )
    return HourChoice(decision, inputs, memory, assessed)


def shadowed(inputs: ChoiceInputs, wanted: PolicyRates, before: ShadowRates | None) -> ShadowRates:
    """Return what a model on probation would have decided where this was.

    before: what it would have decided the hour before, None where it was not asked.
    """
    earlier = before if before is not None and before.model == wanted.model and not before.failed else None
    situations = tuple(
        replace(
            one,
            wanted=wanted.rates.get(one.subscriber),
            previous=one.previous if earlier is None else earlier.rate(one.subscriber),
            lowered_at=None,
        )
        for one in inputs.situations
    )
    choices = choose(ChoiceInputs(replace(inputs.conditions, rule=_digest_of_rule(wanted)), situations))
    return ShadowRates(
        wanted.model,
        tuple((one.subscriber, one.rate) for one in choices),
        wanted.budget,
        rule=wanted.rule,
        held=tuple(one.subscriber for one in choices if one.excluded is not None) if wanted.rule is not None else (),
    )


def _situations(folded: HourFold, rules: PoolRules, asked: PolicyRates | None) -> tuple[Situation, ...]:
    pressed = {name for machine in folded.hot for name in machine.subscribers}
    found = []
    for name, memory in sorted(folded.memory.subscribers.items()):
        own = rules.subscribers.get(name, UNKNOWN)
        # Without enough history no rate is wanted: a missing one would count as a failure of the policy's file.
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
                vm_days=memory.vm_hours / HOURS_PER_DAY,
                silent_s=memory.silent_h * HOUR_S,
                drifting=memory.drifting,
                pressed=name in pressed,
                lowered_at=memory.lowered_at,
                drifted_rule=memory.drifted_rule,
            )
        )
    return tuple(found)


def _digest_of_rule(wanted: PolicyRates | None) -> str:
    return "" if wanted is None or wanted.rule is None else wanted.model


def _drifting(memory: PoolMemory, loads: Loads, profiles: Profiles) -> bool:
    cores = loads.by_owner.sum(axis=0)
    drifting = sum(cores[profiles.index(name)] for name, one in memory.subscribers.items() if one.drifting)
    return bool(drifting > 0.0 and drifting >= DRIFT_SHARE * cores.sum())


def _closed(folded: HourFold, rules: PoolRules) -> tuple[str, ...]:
    hot = {machine.machine for machine in folded.hot}
    still = {name for name in folded.memory.closed if folded.cores_in_use.get(name, 0.0) >= rules.warning_cores}
    return tuple(sorted(hot | still))


def _with_choices(
    subscribers: Mapping[str, SubscriberMemory],
    choices: tuple[Choice, ...],
    conditions: Conditions,
    drifted: tuple[str, ...],
) -> dict[str, SubscriberMemory]:
    """Return the memories after the choices. drifted: subscribers in which a drift was found in this hour.

    They remember the rule in use. One that comes later, while the drift still lasts, may decide.
    """
    met = {*subscribers} if drifted and conditions.drifting else {*drifted}
    found = {}
    for choice in choices:
        before = subscribers[choice.subscriber]
        rule = conditions.rule if conditions.rule and choice.subscriber in met else before.drifted_rule
        found[choice.subscriber] = replace(before, rate=choice.rate, lowered_at=choice.lowered_at, drifted_rule=rule)
    return found


def _rows(
    choices: tuple[Choice, ...],
    memory: PoolMemory,
    inputs: ChoiceInputs,
    loads: Loads,
    profiles: Profiles,
    assessed: RiskAssessment,
    reporting: Mapping[str, int],
    *,
    ruled: bool,
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
                days=known.history_h / HOURS_PER_DAY,
                vm_days=known.vm_hours / HOURS_PER_DAY,
                lowered_at=choice.lowered_at,
                drifting=known.drifting,
                held=choice.excluded if ruled else None,
            )
        )
    return tuple(rows)


def _sentence(rows: tuple[SubscriberRate, ...], assessed: RiskAssessment, rules: PoolRules) -> str:
    moved = [row for row in rows if abs(row.rate - row.previous_rate) > 1e-9]
    words = ", ".join(f"{row.subscriber} {row.previous_rate:g} to {row.rate:g}" for row in moved) or "no rate moves"
    risk = assessed.risk
    return (
        f"{words}; {risk.violation:.1%} chance of {rules.violation} hot hours in the next {rules.horizon_h} h "
        f"({1.0 - rules.alpha:.1%} allowed), {risk.hot_hours_seen} seen"
    )
