"""Plays a run under a rule: arrivals are admitted or turned away, and the cluster's figures come back."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from simulator.admission.arrivals import Run
from simulator.admission.compiled import compiled
from simulator.admission.curves import (
    Curves,
    Freshness,
    drop,
    empty_curves,
    fails_at,
    look_at_new,
    refresh,
    take_in,
    violated,
)
from simulator.admission.engine import State, admit, leave, next_end, turn_away
from simulator.admission.layout import BOOKS, CLASSES, DEPLOYMENT, EVENT, MONTH
from simulator.admission.moments import Floats, Prior
from simulator.admission.presets import HOURS_PER_MONTH, Cluster
from simulator.admission.rule import Rule, horizons_of, kappas_of


class Setting(NamedTuple):
    """What of a rule and a cluster stays the same during a run, as compiled code takes it."""

    seed: np.uint64
    moments: bool
    limit: float
    kappas: Floats
    marginal: float
    drawn: bool
    freshness: Freshness
    prior: Prior


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


@compiled
def _advance(state: State, curves: Curves, keeps_curves: bool, until: float) -> None:
    """Let time pass up to an arrival; what ends leaves the sums too."""
    while True:
        slot = next_end(state, until)
        if slot < 0:
            return
        if keeps_curves:
            drop(curves, slot)
        leave(state)


@compiled
def _refused_at(state: State, curves: Curves, setting: Setting, arrival: NDArray[np.void], last: int) -> int:
    """Return the horizon at which the rule fails for an arrival, -1 to admit it."""
    look_at_new(curves, setting.prior, arrival, setting.drawn)
    freshness, marginal = setting.freshness, setting.marginal
    recent = state.books[0].now - curves.refreshed_at[0] < freshness.reuse_h and freshness.tolerance > 0.0
    if recent and fails_at(curves, setting.limit, setting.kappas, marginal, last):
        return last
    refresh(state, curves, setting.prior, freshness)
    return violated(curves, setting.limit, setting.kappas, marginal, last)


@compiled
def _play(
    state: State,
    curves: Curves,
    setting: Setting,
    arrivals: NDArray[np.void],
    binding: NDArray[np.int64],
    hours: float,
) -> None:
    """Play a run to its end; arrivals that do not fit are turned away whatever the rule says (§2)."""
    books, last = state.books[0], 0
    for number in range(len(arrivals)):
        arrival = arrivals[number]
        _advance(state, curves, setting.moments, arrival.time)
        if books.total + arrival.size > books.capacity:
            books.unfit += 1
            turn_away(state, number, arrival.size)
            continue
        if setting.moments:
            refused_at = _refused_at(state, curves, setting, arrival, last)
            if refused_at >= 0:
                binding[refused_at] += 1
                last = refused_at
                turn_away(state, number, arrival.size)
                continue
        elif not books.total + arrival.size < setting.limit:
            binding[0] += 1
            turn_away(state, number, arrival.size)
            continue
        slot = admit(state, arrival, number, setting.seed, setting.prior.lifetimes, setting.drawn)
        if setting.moments:
            take_in(state, curves, slot)
    _advance(state, curves, setting.moments, hours)


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


def play(run: Run, rule: Rule, *, log: int = 0) -> Outcome:
    """Play a run under a rule and return what became of it (admission specification §2, §5, §7).

    log: keep so many of the first events. Raises BadInput for a rule of moments where deployments come back from 0
    cores, which the moments know nothing of.
    """
    began = time.perf_counter()
    cluster, moments = run.cluster, rule.kind != "zeroth"
    if moments and not cluster.absorb:
        raise BadInput("absorb", False, f"give true for {rule.kind}, or take zeroth")
    # Every deployment inside has a core, unless empty ones may come back.
    slots = len(run.arrivals) if not cluster.absorb else min(len(run.arrivals), cluster.capacity)
    horizons = horizons_of(rule.grid) if moments else np.zeros(1)
    state, binding = empty_state(cluster, run.hours, slots, log), np.zeros(len(horizons), dtype=np.int64)
    curves = empty_curves(horizons, slots if moments else 0)
    limit = float(cluster.capacity if rule.limit is None else rule.limit)
    law = cluster.population
    setting = Setting(
        np.uint64(run.seed),
        moments,
        # The first-moment rule asks for less than its limit, the second for no more.
        float(np.nextafter(limit, -np.inf)) if rule.kind == "first" else limit,
        kappas_of(rule, horizons) if rule.kind == "second" else np.zeros(len(horizons)),
        rule.marginal_cores,
        True,
        Freshness(rule.tolerance, rule.dead_band_cores, rule.reuse_h),
        Prior(
            *(law.mu_shape, law.mu_rate, law.lam_shape, law.lam_rate, law.sig_shape, law.sig_rate),
            *(law.power, law.lifetimes),
        ),
    )
    _play(state, curves, setting, run.arrivals, binding, run.hours)
    return _outcome(run, state, horizons if moments else np.zeros(0), binding, time.perf_counter() - began)


def _outcome(run: Run, state: State, horizons: Floats, binding: NDArray[np.int64], wall_s: float) -> Outcome:
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
        refreshes=int(books["refreshes"]),
        horizons=horizons,
        binding=binding,
        wall_s=wall_s,
        log=state.log[: int(books["logged"])],
    )
