"""The futures of the deployments inside, added up: each computed when it is out of date, and the sums kept in step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission import policies
from simulator.admission.compiled import compiled
from simulator.admission.engine import State
from simulator.admission.layout import Record
from simulator.admission.moments import NODES, Floats, Prior, Seen, ab_fast

second_refusal = compiled(policies.second_refusal)
REBUILD = 1000
"""Sums are added up anew after so many changes, which stops the drift of rounding (admission specification §5.2)."""
MEMORY = 512
"""Curves of fresh deployments below this size are kept."""


class Freshness(NamedTuple):
    """When a deployment's curves are out of date (admission specification §5.2)."""

    tolerance: float
    """Share by which its size may have changed, and share of its age that may have passed; 0 for always."""
    dead_band: float
    """Cores by which its size may have changed in any case, unless the tolerance is 0."""
    reuse_h: float
    """Hours for which sums may turn arrivals away, at the horizon that failed last, without being brought up to date;
    none when the tolerance is 0."""


class Curves(NamedTuple):
    """Mean and variance by horizon: of each slot, in total, and of fresh deployments by size."""

    times: Floats
    mean: Floats
    variance: Floats
    total_mean: Floats
    total_variance: Floats
    new_mean: Floats
    new_variance: Floats
    fresh_mean: Floats
    fresh_variance: Floats
    fresh_known: NDArray[np.bool_]
    changes: NDArray[np.int64]
    refreshed_at: Floats
    nodes: Floats
    weights: Floats


def empty_curves(times: Floats, slots: int) -> Curves:
    """Return room for the curves of so many deployments at some horizons."""
    count = len(times)
    kept = MEMORY if slots and count < 1000 else 1
    return Curves(
        times=times,
        mean=np.zeros((slots, count)),
        variance=np.zeros((slots, count)),
        total_mean=np.zeros(count),
        total_variance=np.zeros(count),
        new_mean=np.zeros(count),
        new_variance=np.zeros(count),
        fresh_mean=np.zeros((kept, count)),
        fresh_variance=np.zeros((kept, count)),
        fresh_known=np.zeros(kept, dtype=np.bool_),
        changes=np.zeros(1, dtype=np.int64),
        refreshed_at=np.full(1, -np.inf),
        nodes=np.zeros(NODES),
        weights=np.zeros(NODES),
    )


@compiled
def look_at_new(curves: Curves, prior: Prior, arrival: Record, drawn: bool) -> None:
    """Compute the curves of an arrival; those of a fresh one are remembered by its size."""
    extra, sizes = arrival.seen_extra, arrival.seen_sizes
    fresh = sizes == 0 and drawn and arrival.size < len(curves.fresh_known)
    if fresh and curves.fresh_known[arrival.size]:
        curves.new_mean[:] = curves.fresh_mean[arrival.size]
        curves.new_variance[:] = curves.fresh_variance[arrival.size]
        return
    if drawn:
        extra, sizes = extra + arrival.size - 1, sizes + 1
    seen = Seen(
        *(arrival.size, arrival.seen_deaths, arrival.seen_core_hours, arrival.seen_requests),
        *(0.0, arrival.seen_gap_hours, extra, sizes),
    )
    ab_fast(prior, seen, curves.times, curves.nodes, curves.weights, curves.new_mean, curves.new_variance)
    if fresh:
        curves.fresh_known[arrival.size] = True
        curves.fresh_mean[arrival.size] = curves.new_mean
        curves.fresh_variance[arrival.size] = curves.new_variance


@compiled
def take_in(state: State, curves: Curves, slot: int) -> None:
    """Add the arrival that was looked at last to the sums."""
    deployment = state.live[slot]
    deployment.curve_size, deployment.curve_at = deployment.size, state.books[0].now
    curves.changes[0] += 1
    for k in range(len(curves.times)):
        curves.mean[slot, k], curves.variance[slot, k] = curves.new_mean[k], curves.new_variance[k]
        curves.total_mean[k] += curves.new_mean[k]
        curves.total_variance[k] += curves.new_variance[k]


@compiled
def drop(curves: Curves, slot: int) -> None:
    """Take a deployment out of the sums."""
    curves.changes[0] += 1
    for k in range(len(curves.times)):
        curves.total_mean[k] -= curves.mean[slot, k]
        curves.total_variance[k] -= curves.variance[slot, k]


@compiled
def _outdated(deployment: Record, now: float, freshness: Freshness) -> bool:
    if freshness.tolerance <= 0.0:
        return True
    moved = abs(deployment.size - deployment.curve_size)
    if moved > max(freshness.tolerance * deployment.curve_size, freshness.dead_band):
        return True
    return bool(now - deployment.curve_at > freshness.tolerance * (now - deployment.admitted_at + 0.1))


@compiled
def refresh(state: State, curves: Curves, prior: Prior, freshness: Freshness) -> None:
    """Compute the curves that are out of date and bring the sums up to date."""
    books = state.books[0]
    now = books.now
    curves.refreshed_at[0] = now
    for place in range(books.waiting):
        slot = state.heap_slot[place]
        deployment = state.live[slot]
        if not _outdated(deployment, now, freshness):
            continue
        deployment.core_hours += deployment.size * (now - deployment.at)
        deployment.at = now
        drop(curves, slot)
        seen = Seen(
            *(deployment.size, deployment.deaths, deployment.core_hours, deployment.requests),
            *(now - deployment.admitted_at, deployment.gap_hours, deployment.extra, deployment.sizes),
        )
        mean, variance = curves.mean[slot], curves.variance[slot]
        ab_fast(prior, seen, curves.times, curves.nodes, curves.weights, mean, variance)
        deployment.curve_size, deployment.curve_at = deployment.size, now
        books.refreshes += 1
        for k in range(len(curves.times)):
            curves.total_mean[k] += mean[k]
            curves.total_variance[k] += variance[k]
    if curves.changes[0] >= REBUILD:
        _add_up(state, curves)


@compiled
def _add_up(state: State, curves: Curves) -> None:
    curves.changes[0] = 0
    curves.total_mean[:] = 0.0
    curves.total_variance[:] = 0.0
    for place in range(state.books[0].waiting):
        slot = state.heap_slot[place]
        for k in range(len(curves.times)):
            curves.total_mean[k] += curves.mean[slot, k]
            curves.total_variance[k] += curves.variance[slot, k]


@compiled
def violated(curves: Curves, limit: float, kappas: Floats, marginal: float, last: int) -> int:
    """Return a horizon at which the rule fails for the arrival that was looked at last, -1 for none (§5).

    The horizon `last` is asked first. One at which the new deployment is expected to be smaller than `marginal` cores
    never fails.
    """
    return second_refusal(
        *(curves.total_mean, curves.total_variance, curves.new_mean, curves.new_variance),
        *(kappas, limit, marginal, last),
    )


@compiled
def fails_at(curves: Curves, limit: float, kappas: Floats, marginal: float, k: int) -> bool:
    """Whether the rule fails at one horizon, as the sums stand."""
    one = slice(k, k + 1)
    refused = second_refusal(
        *(curves.total_mean[one], curves.total_variance[one], curves.new_mean[one], curves.new_variance[one]),
        *(kappas[one], limit, marginal, 0),
    )
    return refused >= 0
