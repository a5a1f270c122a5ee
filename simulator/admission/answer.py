"""What a rule says of an arrival: on sums that are brought up to date as far as the answer hangs on it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.freshness import OVER, PART, UNDER
from simulator.admission.compiled import compiled
from simulator.admission.curves import Curves, look_at_new, refresh, renew
from simulator.admission.engine import State
from simulator.admission.layout import Record
from simulator.admission.moments import RULES
from simulator.admission.setting import BUDGET, GAMMA, SGAMMA, Setting

_second_refusal, _gamma_refusal, _sgamma_refusal = RULES.second_refusal, RULES.gamma_refusal, RULES.sgamma_refusal
_budget_refusal, _unused_budget = RULES.budget_refusal, RULES.unused_budget
_staleness, _cores_per_variance = RULES.staleness, RULES.cores_per_variance


@compiled
def _permitted(state: State, setting: Setting) -> float:
    """Return the share of failures that a budget permits now."""
    if not setting.feedback:
        return setting.risk
    failures, requests = 0, 0
    for month in range(state.books[0].month + 1):
        failures += state.months[month].failures
        requests += state.months[month].requests
    unused: float = _unused_budget(setting.sla, float(failures), float(requests))
    return setting.risk * unused


@compiled
def _violated(state: State, curves: Curves, setting: Setting, asked: int, alone: bool, more: float) -> int:
    """Return a horizon that forbids the arrival looked at last with so many cores more, -1 for none (§5).

    The horizon `asked` is asked first, or alone. One at which the new deployment is expected to be smaller than the
    marginal cores never forbids. A budget always looks at all horizons.
    """
    total, new, limit, marginal = curves.total, curves.new, setting.limit + more, setting.marginal
    if setting.question == BUDGET:
        worst: int = _budget_refusal(
            *(total.mean, total.variance, total.third, total.requests),
            *(new.mean, new.variance, new.third, new.requests, setting.hours),
            *(_permitted(state, setting), limit, marginal),
        )
        return worst
    some = slice(asked, asked + 1) if alone else slice(0, len(curves.times))
    mean, variance = total.mean[some], total.variance[some]
    new_mean, new_variance = new.mean[some], new.variance[some]
    at = asked - some.start
    if setting.question == GAMMA:
        found = _gamma_refusal(mean, variance, new_mean, new_variance, setting.risk, limit, marginal, at)
    elif setting.question == SGAMMA:
        found = _sgamma_refusal(
            *(mean, variance, total.third[some], new_mean, new_variance, new.third[some]),
            *(setting.risk, limit, marginal, at),
        )
    else:
        found = _second_refusal(*(mean, variance, new_mean, new_variance, setting.kappas[some], limit, marginal, at))
    return found + some.start if found >= 0 else -1


@compiled
def _doubts(state: State, curves: Curves, setting: Setting, k: int) -> tuple[float, float]:
    """Return by how many cores all curves together may be off at a horizon, and the one that is off most; fill `doubt`.

    A deployment's part of the sums, its mean and what its variance adds to the spread, is in doubt by the share of its
    cores that came or went since its curves were computed, and by the share of its life that has passed since.
    """
    total, new, one, now = curves.total, curves.new, curves.slot, state.books[0].now
    room = setting.limit - total.mean[k] - new.mean[k]
    weight = _cores_per_variance(room, total.variance[k] + new.variance[k], setting.kappas[k])
    added, most = 0.0, 0.0
    for place in range(state.books[0].waiting):
        slot = state.heap_slot[place]
        deployment = state.live[slot]
        stale = _staleness(
            *(float(deployment.size), float(curves.computed_size[slot])),
            *(now - curves.computed_at[slot], now - deployment.admitted_at),
        )
        doubt = stale * (one.mean[slot, k] + weight * one.variance[slot, k])
        curves.doubt[slot] = doubt
        added += doubt
        most = max(most, doubt)
    return added, most


@compiled
def _certain(state: State, curves: Curves, setting: Setting, found: int, last: int, added: float) -> bool:
    """Return whether curves that may be off by so many cores in all would say the same if they were not."""
    if found >= 0:
        return _violated(state, curves, setting, found, False, OVER * added) >= 0
    return _violated(state, curves, setting, last, False, -UNDER * added) < 0


@compiled
def refused_at(
    state: State, curves: Curves, setting: Setting, arrivals: NDArray[np.void], arrival: Record, last: int
) -> int:
    """Return the horizon at which the rule fails for an arrival, -1 to admit it.

    last: the horizon that refused last. What is out of date is computed anew; then, while the answer might be another
    one without them, the curves in most doubt are.
    """
    if not setting.moments:
        return -1 if state.books[0].total + arrival.size < setting.limit else 0
    look_at_new(curves, setting, arrival)
    freshness = setting.freshness
    if freshness.tolerance > 0.0 and state.books[0].now - curves.refreshed_at[0] < freshness.reuse_h:
        found = _violated(state, curves, setting, last, True, 0.0)
        if found >= 0 and _certain(state, curves, setting, found, last, _doubts(state, curves, setting, found)[0]):
            return found
    refresh(state, curves, setting, arrivals)
    while True:
        found = _violated(state, curves, setting, last, False, 0.0)
        last = found if found >= 0 else last
        added, most = _doubts(state, curves, setting, last)
        if most == 0.0 or _certain(state, curves, setting, found, last, added):
            return found
        for place in range(state.books[0].waiting):
            slot = state.heap_slot[place]
            if curves.doubt[slot] > PART * most:
                renew(state, curves, setting, arrivals, slot)


@compiled
def least_slack(curves: Curves, setting: Setting) -> float:
    """Return how many cores are left at the tightest horizon by mean and kappa standard deviations, the new one in."""
    total, new, least = curves.total, curves.new, np.inf
    for k in range(len(curves.times)):
        spread = math.sqrt(max(total.variance[k] + new.variance[k], 0.0))
        least = min(least, setting.limit - total.mean[k] - new.mean[k] - setting.kappas[k] * spread)
    return least
