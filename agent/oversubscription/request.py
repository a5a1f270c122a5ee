"""The rate for one request: the hour's rate, raised by the shield or placed by the risk filter (§12.4, §12.6, §13)."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from agent.oversubscription.fold import hour_of_day
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import Counts, PoolMemory
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import (
    HourDecision,
    HourRule,
    RateDecision,
    RateRequest,
    RuleDecision,
    ShadowRate,
    ShadowRates,
    Source,
    Vm,
)
from agent.oversubscription.request_rule import ask_rule
from agent.oversubscription.shield import Answer, ask_filter, ask_shield
from domain.decisions import Reason
from domain.errors import StateConflict
from domain.rules.oversubscription.pool import PoolRules
from domain.units import HOUR_S

NOTHING: Final = Answer(1.0, -1, None, False, ())


def answer(
    request: RateRequest,
    number: int,
    now: float,
    rules: PoolRules,
    hour: HourDecision | None,
    memory: PoolMemory,
    loads: Loads | None,
    profiles: Profiles | None,
    failed: Reason | None,
) -> tuple[RateDecision, int]:
    """Return the decision and the place of its machine, -1 where none has room. failed: why everything is reserved."""
    began = time.perf_counter()
    base, source, reasons, excluded, failed = _base(request, rules, hour, failed)
    budget = rules.budget(None) if hour is None or hour.budget is None else hour.budget
    found, chosen = NOTHING, None
    if loads is not None and profiles is not None:
        rule = None if hour is None or failed is not None or excluded is not None else hour.rule
        chosen, found = _found(request, base, rule, now, rules, budget, loads, profiles, memory.closed)
        base = base if chosen is None else chosen.level
        if found.hot_hours is not None and not math.isfinite(found.hot_hours):
            found, source, reasons = replace(NOTHING, machine=found.machine), Source.FALLBACK, (Reason.NOT_FINITE,)
            chosen = None
        elif found.rate > base + 1e-9:
            source, reasons = Source.SHIELD, (*reasons, Reason.SHIELDED)
        if found.machine < 0:
            reasons = (*reasons, Reason.NO_MACHINE)
        elif not found.safe:
            reasons = (*reasons, Reason.NO_SAFE_LEVEL)
    shadow = None
    if hour is not None and hour.shadow is not None and failed is None and loads is not None and profiles is not None:
        shadow = shadow_rate(hour.shadow, request, now, rules, loads, profiles, memory.closed)
    machine = loads.names[found.machine] if loads is not None and found.machine >= 0 else ""
    hash_of = f"{hour.state_hash if hour else ''}{machine}{found.hot_hours!r}"
    decision = RateDecision(
        decision_id=f"{rules.name}-o{number}",
        at=now,
        pool=rules.name,
        request_id=request.request_id,
        vm=request.vm,
        subscriber=request.subscriber,
        cores=request.cores,
        memory_gb=request.memory_gb,
        network_gbit=request.network_gbit,
        rate=found.rate,
        base_rate=base,
        source=source,
        reasons=reasons,
        detail=_sentence(request, base, found, machine, budget, reasons, chosen),
        machine=machine,
        hot_hours=found.hot_hours,
        budget=budget,
        threshold_cores=rules.threshold_cores,
        safe=found.safe,
        tried=found.tried,
        policy=rules.policy,
        model=hour.model if hour is not None else "",
        config_hash=rules.config_hash,
        state_hash=hashlib.sha256(hash_of.encode()).hexdigest()[:16],
        hour=hour.hour if hour is not None else -1,
        evaluation_us=0.0,
        requested_by=request.requested_by,
        shadow=shadow,
        rule=chosen,
        held=excluded,
    )
    return replace(decision, evaluation_us=(time.perf_counter() - began) * 1e6), found.machine


def _found(
    request: RateRequest,
    base: float,
    rule: HourRule | None,
    now: float,
    rules: PoolRules,
    budget: float,
    loads: Loads,
    profiles: Profiles,
    closed: Collection[str],
) -> tuple[RuleDecision | None, Answer]:
    """Return the choice of the rule, None without one, and the response behind the shield or filter of the pool."""
    chosen = None
    if rule is not None:
        clock = hour_of_day(math.floor(now / HOUR_S), rules)
        chosen, found = ask_rule(loads, profiles, request, rule, clock, rules, closed)
        if found.hot_hours is not None and math.isnan(found.hot_hours):
            return chosen, found
        base = chosen.level
    ask = ask_filter if rules.risk_filter else ask_shield
    return chosen, ask(loads, profiles, request, base, rules, budget, closed)


def shadow_rate(
    shadow: ShadowRates,
    request: RateRequest,
    now: float,
    rules: PoolRules,
    loads: Loads,
    profiles: Profiles,
    closed: Collection[str],
) -> ShadowRate | None:
    """Return the answer of a model on probation, None where it has no rates for the hour."""
    if shadow.failed:
        return None
    # A subscriber without a row in the hour is reserved in full.
    ruled = request.subscriber in dict(shadow.rates) and request.subscriber not in shadow.held
    rule = shadow.rule if ruled else None
    rate = shadow.rate(request.subscriber)
    _, found = _found(request, rate, rule, now, rules, shadow.budget, loads, profiles, closed)
    return ShadowRate(shadow.model, found.rate, found.safe)


def _base(
    request: RateRequest, rules: PoolRules, hour: HourDecision | None, failed: Reason | None
) -> tuple[float, Source, tuple[Reason, ...], Reason | None, Reason | None]:
    """Return the hour's rate, its source and reasons, why no rule may replace it, and why everything is reserved."""
    if failed is None and request.subscriber not in rules.subscribers:
        failed = Reason.UNKNOWN_SUBSCRIBER
    if failed is not None or hour is None:
        failed = failed or Reason.STALE_INPUT
        return 1.0, Source.FALLBACK, (failed,), None if hour is None or hour.rule is None else failed, failed
    rows = {row.subscriber: row for row in hour.subscribers}
    row, opted_out = rows.get(request.subscriber), rules.subscribers[request.subscriber].opted_out
    if row is None or opted_out:
        # Named, or opted out, in the settings since the last hour.
        reason = Reason.OPTED_OUT if opted_out else Reason.LITTLE_HISTORY
        excluded = None if hour.rule is None else reason
        return 1.0, Source.MANUAL if opted_out else Source.POLICY, (reason,), excluded, None
    excluded = row.held
    if excluded is None and hour.rule is not None and hour.config_hash != rules.config_hash:
        # The settings may name another policy now, or levels and machines that the rule was not trained for.
        excluded = Reason.STALE_INPUT
    unnamed = () if excluded is None or excluded in row.reasons else (excluded,)
    return row.rate, row.source, (*row.reasons, *unnamed), excluded, None


def _sentence(
    request: RateRequest,
    base: float,
    found: Answer,
    machine: str,
    budget: float,
    reasons: tuple[Reason, ...],
    chosen: RuleDecision | None,
) -> str:
    asked = f"{request.subscriber} asks for {request.cores:g} cores: rate {found.rate:g}"
    if Reason.NO_MACHINE in reasons:
        return f"{asked}; no machine has room for it in full"
    if found.hot_hours is None:
        return f"{asked}, everything reserved: {', '.join(reasons)}"
    risk = f"{machine} would be hot for {found.hot_hours:.2g} h of the next day ({budget:g} allowed)"
    if chosen is not None and found.safe and found.rate == base:
        taken = chosen.seen[-1]
        need = f"a need of {taken.need:.2f}, margin {taken.margin:.2f}, {taken.free:.2f} of its cores free"
        return f"{asked} by the rule: {machine} has {need}; {risk}"
    if not found.safe:
        return f"{asked}; no level keeps within the budget: {risk}"
    if found.rate > base + 1e-9:
        return f"{asked} instead of {base:g}, whose machine would run too hot; {risk}"
    return f"{asked}; {risk}"


def vm_of(decision: RateDecision) -> Vm:
    """Return the VM that a decision promises room to, under its decision's id where it has no name yet."""
    return Vm(
        vm=decision.vm or decision.decision_id,
        subscriber=decision.subscriber,
        machine=decision.machine,
        cores=decision.cores,
        memory_gb=decision.memory_gb,
        network_gbit=decision.network_gbit,
        rate=decision.rate,
    )


def check_same(request: RateRequest, decision: RateDecision) -> None:
    """Raise StateConflict when a request id that was answered is used for another request."""
    before = (decision.subscriber, decision.cores, decision.memory_gb, decision.network_gbit, decision.vm)
    if before != (request.subscriber, request.cores, request.memory_gb, request.network_gbit, request.vm):
        raise StateConflict("request_id", request.request_id, f"it belongs to another request ({decision.decision_id})")


def counted(counts: Counts, decision: RateDecision) -> Counts:
    """Return the counts with one more answer."""
    placed = decision.machine != ""
    return replace(
        counts,
        requests=counts.requests + 1,
        fallbacks=counts.fallbacks + (decision.source is Source.FALLBACK),
        interventions=counts.interventions + (decision.source is Source.SHIELD),
        ruled=counts.ruled + (decision.rule is not None),
        held=counts.held + (decision.held is not None),
        rejects=counts.rejects + (Reason.NO_MACHINE in decision.reasons),
        requested_cores=counts.requested_cores + decision.cores,
        saved_cores=counts.saved_cores + ((1.0 - decision.rate) * decision.cores if placed else 0.0),
    )
