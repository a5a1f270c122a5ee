"""Plays a run under a rule: arrivals are admitted or turned away, and the cluster's figures come back."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from simulator.admission.answer import least_slack, refused_at
from simulator.admission.arrivals import Run
from simulator.admission.compiled import compiled
from simulator.admission.curves import Curves, drop, empty_curves, take_in
from simulator.admission.engine import State, admit, leave, next_end, turn_away
from simulator.admission.layout import BOOKS, CLASSES, DECISION, DEPLOYMENT, EVENT, MONTH
from simulator.admission.moments import Floats
from simulator.admission.presets import HOURS_PER_MONTH, Cluster
from simulator.admission.rule import Rule, horizons_of
from simulator.admission.setting import Setting, setting_of

MODEL_VERSION = 4
"""Raised whenever the same run under the same rule may come to another outcome than before, so that hashes differ."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run (admission specification §7). Months are of 730 hours."""

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
    """Arrivals turned away because they were larger than the room there was."""
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
    """Events in order, records of layout EVENT; empty unless asked for."""
    decisions: NDArray[np.void]
    """Arrivals that two rules were asked about, records of layout DECISION; empty unless asked for."""
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
    """Play a run to its end; arrivals that do not fit are turned away whatever the rule says (§2).

    The other rule is asked where there is room for its decisions, but has no say. Returns how many decisions there are.
    """
    books, decided = state.books[0], 0
    # Of either rule: the horizon that refused last, and what it says of this arrival.
    last, says = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    for number in range(len(arrivals)):
        arrival = arrivals[number]
        _advance(state, curves, setting, other, others, arrival.time)
        if books.total + arrival.size > books.capacity:
            books.unfit += 1
            turn_away(state, number, arrival.size)
            continue
        for who in range(2 if decided < len(decisions) else 1):
            own, rule = (other, others) if who else (curves, setting)
            says[who] = refused_at(state, own, rule, arrivals, arrival, last[who])
            if says[who] >= 0:
                last[who] = says[who]
        refused = says[0]
        if decided < len(decisions):
            decision = decisions[decided]
            decision.deployment, decision.rule, decision.other = number, says[0], says[1]
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
    """Play a run under a rule and return what became of it (admission specification §2, §5, §7).

    log: keep so many of the first events. beside: a rule that is asked about every arrival that fits, in the same state
    of the cluster, and decides nothing. Raises BadInput for a rule of moments where deployments come back from 0 cores,
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
    """Return 16 hexadecimal digits that stand for everything but the seed that a run's outcome depends on."""
    how = {name: getattr(run, name) for name in ("hours", "observations", "labels", "weights", "scale_outs")}
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
