"""Plays a run under a rule: decides each arrival, on sums renewed as far as the decision depends on them."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.admission.policies import OVER, PART, UNDER
from domain.units import HOURS_PER_MONTH
from simulator.admission.arrivals import Cluster, Run
from simulator.admission.curves import Curves, drop, empty_curves, forecast_arrival, refresh, renew, take_in
from simulator.admission.engine import (
    BOOKS,
    CLASSES,
    DECISION,
    DEPLOYMENT,
    EVENT,
    MONTH,
    Record,
    State,
    admit,
    leave,
    next_end,
    turn_away,
)
from simulator.admission.moments import RULES, Floats
from simulator.admission.rule import BUDGET, GAMMA, SGAMMA, Rule, Setting, horizons_of, setting_of
from simulator.compilation import compiled

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
    """Return a horizon that forbids the current arrival with so many cores more, -1 for none (§5).

    The horizon `first` is checked first, or alone. One at which the new deployment is expected to be smaller than the
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
    """Return whether curves that may be off by so many cores in all would decide the same if they were exact."""
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
    forecast_arrival(curves, setting, arrival)
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


MODEL_VERSION = 4
"""Raised whenever the same run under the same rule may come to another outcome than before, so that hashes differ."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run (admission specification §7). Months are of 730 hours."""

    utilisation: float
    """Mean share of the cores taken."""
    utilisation_by_month: NDArray[np.float64]
    requests: NDArray[np.int64]
    """Scale-out requests by month."""
    failures: NDArray[np.int64]
    """Those refused for want of room."""
    arrivals: int
    admitted: int
    unfit: int
    """Arrivals refused because they were larger than the free room."""
    arrivals_by_class: NDArray[np.int64]
    """By size: 1, 2-3, 4-7 cores and so on, the last class open."""
    admitted_by_class: NDArray[np.int64]
    peak_cores: int
    crowded_h: float
    """Hours with more than 95 % of the cores taken."""
    live: int
    """Deployments inside at the end."""
    events: int
    deaths: int
    shutdowns: int
    refreshes: int
    """Curves computed for deployments inside."""
    horizons: Floats
    binding: NDArray[np.int64]
    """Arrivals rejected by the rule, by the horizon at which it was found to fail."""
    wall_s: float
    log: NDArray[np.void]
    """Events in order, records of layout EVENT; empty unless requested."""
    decisions: NDArray[np.void]
    """Arrivals that two rules decided, records of layout DECISION; empty unless requested."""
    seed: int
    config_hash: str
    """Of cluster, rule, how the run was drawn but for its seed, and the version of the model: outcomes are alike only
    where this is the same."""

    @property
    def failed_share_by_month(self) -> NDArray[np.float64]:
        """Share of requests refused, by month; nan where nothing was requested."""
        return np.where(self.requests > 0, self.failures / np.maximum(self.requests, 1), np.nan)

    @property
    def sla_metric(self) -> float:
        """Mean over the months with requests of the share refused, the primary metric of §1; 0 without requests."""
        shares = self.failed_share_by_month
        known = shares[~np.isnan(shares)]
        return float(known.mean()) if len(known) else 0.0

    @property
    def pooled_failed_share(self) -> float:
        """All refusals by all requests, the second metric of §1; 0 without requests."""
        asked = int(self.requests.sum())
        return int(self.failures.sum()) / asked if asked else 0.0


@compiled
def _advance(state: State, curves: Curves, setting: Setting, other: Curves, others: Setting, until: float) -> None:
    """Let time pass up to an arrival; what ends leaves the sums too."""
    while True:
        slot = next_end(state, until)
        if slot < 0:
            return
        if setting.moments:
            drop(curves, slot)
        if others.moments:
            drop(other, slot)
        leave(state)


@compiled
def _play(
    state: State,
    curves: Curves,
    setting: Setting,
    other: Curves,
    others: Setting,
    arrivals: NDArray[np.void],
    binding: NDArray[np.int64],
    decisions: NDArray[np.void],
    hours: float,
) -> int:
    """Play a run to its end; arrivals that do not fit are refused under any rule (§2).

    The other rule decides too where there is room for its decisions, without effect. Returns the count of decisions.
    """
    books, decided = state.books[0], 0
    # Of either rule: the horizon that refused last, and its decision on this arrival.
    last, found = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    for number in range(len(arrivals)):
        arrival = arrivals[number]
        _advance(state, curves, setting, other, others, arrival.time)
        if books.total + arrival.size > books.capacity:
            books.unfit += 1
            turn_away(state, number, arrival.size)
            continue
        for which in range(2 if decided < len(decisions) else 1):
            own, rule = (other, others) if which else (curves, setting)
            found[which] = refused_at(state, own, rule, arrivals, arrival, last[which])
            if found[which] >= 0:
                last[which] = found[which]
        refused = found[0]
        if decided < len(decisions):
            decision = decisions[decided]
            decision.deployment, decision.rule, decision.other = number, found[0], found[1]
            decision.slack = least_slack(curves, setting)
            decided += 1
        if refused >= 0:
            binding[refused] += 1
            turn_away(state, number, arrival.size)
            continue
        slot = admit(state, arrival, number, setting.seed, setting.prior.lifetimes, setting.drawn)
        if setting.moments:
            take_in(state, curves, slot)
        if others.moments:
            take_in(state, other, slot)
    _advance(state, curves, setting, other, others, hours)
    return decided


def empty_state(cluster: Cluster, hours: float, slots: int, log: int = 0) -> State:
    """Return an empty cluster at time 0 with room for so many deployments and logged events."""
    books = np.zeros(1, dtype=BOOKS)
    books["capacity"], books["absorb"], books["month_end"] = cluster.capacity, cluster.absorb, HOURS_PER_MONTH
    books["free"] = slots
    return State(
        books,
        np.zeros(slots, dtype=DEPLOYMENT),
        np.zeros(slots + 1),
        np.zeros(slots + 1, dtype=np.int64),
        np.arange(slots, dtype=np.int64)[::-1].copy(),
        np.zeros(max(1, math.ceil(hours / HOURS_PER_MONTH)), dtype=MONTH),
        np.zeros(log, dtype=EVENT),
        np.zeros((2, CLASSES), dtype=np.int64),
    )


def play(run: Run, rule: Rule, *, log: int = 0, beside: Rule | None = None) -> Outcome:
    """Play a run under a rule and return its outcome (admission specification §2, §5, §7).

    log: keep so many of the first events. beside: a rule that decides every arrival that fits, in the same state of
    the cluster, without effect. Raises BadInput for a rule of moments where deployments come back from 0 cores,
    which the moments know nothing of.
    """
    began = time.perf_counter()
    cluster = run.cluster
    for one in (rule, beside or rule):
        if one.looks_ahead and not cluster.absorb:
            raise BadInput("absorb", False, f"give true for {one.kind}, or take zeroth")
    # Every deployment inside has a core, unless empty ones may come back.
    slots = len(run.arrivals) if not cluster.absorb else min(len(run.arrivals), cluster.capacity)
    state = empty_state(cluster, run.hours, slots, log)
    curves, setting = _kept(run, rule, slots)
    other, others = _kept(run, beside or Rule("zeroth", 0.0), slots)
    decisions = np.zeros(len(run.arrivals) if beside else 0, dtype=DECISION)
    binding = np.zeros(len(curves.times), dtype=np.int64)
    if beside and beside.looks_ahead and not rule.looks_ahead:
        raise BadInput("beside", beside.kind, "put zeroth beside the rule that looks ahead, not the other way about")
    decided = _play(state, curves, setting, other, others, run.arrivals, binding, decisions, run.hours)
    horizons = curves.times if rule.looks_ahead else np.zeros(0)
    wall_s = time.perf_counter() - began
    refreshes = int(curves.refreshes[0])
    return _outcome(run, rule, state, horizons, binding, refreshes, decisions[:decided], wall_s)


def _kept(run: Run, rule: Rule, slots: int) -> tuple[Curves, Setting]:
    horizons = horizons_of(rule.grid) if rule.looks_ahead else np.ones(1)
    return empty_curves(horizons, slots if rule.looks_ahead else 0, rule), setting_of(run, rule, horizons)


def config_hash(run: Run, rule: Rule) -> str:
    """Return a hash of everything but the seed that a run's outcome depends on, 16 hexadecimal digits."""
    how = {name: getattr(run, name) for name in ("hours", "observations", "labels", "weights", "scale_outs")}
    if run.laws:
        how["laws"] = [asdict(law) for law in run.laws]
    model = {"cluster": asdict(run.cluster), "rule": asdict(rule), "run": how, "version": MODEL_VERSION}
    text = json.dumps(model, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _outcome(
    run: Run,
    rule: Rule,
    state: State,
    horizons: Floats,
    binding: NDArray[np.int64],
    refreshes: int,
    decisions: NDArray[np.void],
    wall_s: float,
) -> Outcome:
    books, months = state.books[0], state.months
    ends = np.minimum(np.arange(1, len(months) + 1) * HOURS_PER_MONTH, run.hours)
    lengths = np.diff(ends, prepend=0.0)
    capacity = run.cluster.capacity
    return Outcome(
        utilisation=float(months["core_hours"].sum() / (capacity * run.hours)),
        utilisation_by_month=months["core_hours"] / (capacity * lengths),
        requests=months["requests"],
        failures=months["failures"],
        arrivals=len(run.arrivals),
        admitted=int(books["admits"]),
        unfit=int(books["unfit"]),
        arrivals_by_class=state.by_class[0],
        admitted_by_class=state.by_class[1],
        peak_cores=int(books["peak"]),
        crowded_h=float(books["above_h"]),
        live=int(books["live"]),
        events=int(books["events"]),
        deaths=int(books["deaths"]),
        shutdowns=int(books["shutdowns"]),
        refreshes=refreshes,
        horizons=horizons,
        binding=binding,
        wall_s=wall_s,
        log=state.log[: int(books["logged"])],
        decisions=decisions,
        seed=run.seed,
        config_hash=config_hash(run, rule),
    )
