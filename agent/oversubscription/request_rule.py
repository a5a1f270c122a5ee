"""Before a guard: a rule sets the rate of a request by the machine that best fit takes at each level.

The rule is `domain.rules.oversubscription.request_rule`. It was trained on machines without room for usual drifts, and
sees them without it; a rise and a shift of usage that the settings name (DRIFT_LEVEL, DRIFT_HOURS) count here too.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agent.oversubscription.loads import Loads
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import HourRule, RateDecision, RateRequest, RuleDecision, RuleLevel
from agent.oversubscription.shield import Answer, fitting, machines_among
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.rates import level_at_least
from domain.rules.oversubscription.request_rule import RequestRule, Weights, choose_level, least_margin, need_of
from domain.rules.oversubscription.shield import expected_hot_hours
from domain.units import HOURS_PER_DAY

if TYPE_CHECKING:
    from domain.rules.oversubscription.request_rule import LevelSeen

NO_HOURS = np.zeros(HOURS_PER_DAY)


def ask_rule(
    loads: Loads,
    profiles: Profiles,
    request: RateRequest,
    rule: HourRule,
    hour_of_day: int,
    rules: PoolRules,
    closed: Collection[str],
) -> tuple[RuleDecision, Answer]:
    """Return the choice of the rule, with every level that it looked at, and the response without a guard after it.

    Levels below the subscriber's minimum rate are left out. Closed machines take nothing that is oversold. A response
    is not safe where the rule wants more than 1.0. Where a number is not finite, everything is to be reserved, and the
    hot hours are nan.
    """
    least = level_at_least(rules.subscribers[request.subscriber].minimum_rate, rules.actions)
    levels, weights = rules.actions[least:], Weights(**rule.weights)
    base = np.array([rule.base[request.subscriber]])
    wanted = float(RequestRule(base, NO_HOURS[:0], np.array(rule.day), weights).wanted([hour_of_day])[0, 0])
    fits, candidates = fitting(loads, request, levels, closed)
    if not candidates:
        seen = tuple(RuleLevel(level, "", None, None, None) for level in levels)
        hot_hours = None if math.isfinite(wanted) else math.nan
        return RuleDecision(wanted, rule.weights, seen), Answer(1.0, -1, hot_hours, False, ())
    machines, demand = machines_among(
        loads, profiles, request, candidates, rules.threshold_cores, replace(rules.margin, spread=0.0)
    )
    places = [candidates.index(k) if k >= 0 else -1 for k in fits]
    chosen = choose_level(levels, places, machines, rules.machine_cores, demand, wanted, weights)
    rows: list[RuleLevel] = []
    looked: set[int] = set()
    for one in chosen.seen:
        rows.append(_row(one, loads, candidates))
        if one.machine >= 0 and one.machine not in looked:
            looked.add(one.machine)
            mean, variance = (
                tuple((on[one.machine] + added).tolist())
                for on, added in ((machines.mean, demand.mean), (machines.variance, demand.variance))
            )
            rows[-1] = replace(rows[-1], mean=mean, variance=variance)
    taken = chosen.taken
    hot_hours = expected_hot_hours(machines, taken.machine, demand) if taken.machine >= 0 else None
    machine = candidates[taken.machine] if taken.machine >= 0 else -1
    response = Answer(taken.level, machine, hot_hours, taken.level >= taken.need, ())
    if not all(math.isfinite(x) for x in (hot_hours, *(one.need for one in rows)) if x is not None):
        response = Answer(1.0, fits[-1], math.nan, False, ())
    return RuleDecision(wanted, rule.weights, tuple(rows)), response


def _row(seen: LevelSeen, loads: Loads, candidates: list[int]) -> RuleLevel:
    if seen.machine < 0:
        return RuleLevel(seen.level, "", None, None, None)
    return RuleLevel(seen.level, loads.names[candidates[seen.machine]], seen.need, seen.margin, seen.free)


def level_again(decision: RateDecision) -> float:
    """Return the level that the recorded moments and free cores give again, the hour's rate where no rule decided."""
    rule = decision.rule
    if rule is None:
        return decision.base_rate
    weights, margins = Weights(**rule.weights), dict[str, float]()
    for one in rule.seen:
        if one.mean:
            moments = (np.array(one.mean), np.array(one.variance), NO_HOURS, NO_HOURS)
            margins[one.machine] = least_margin(*moments, weights.spread, decision.threshold_cores)
        need = math.inf
        if one.machine and one.free is not None:
            need = need_of(rule.wanted, margins[one.machine], one.free, weights)
        if one.level >= need:
            return one.level
    return 1.0
