"""The futures of the deployments inside, added up: each computed when it is out of date, and the sums kept in step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.policies import YOUNG_H
from simulator.admission.engine import ONE_KIND, Record, State
from simulator.admission.moments import (
    DeploymentStatistics,
    Floats,
    Prior,
    Room,
    Sums,
    forecast,
    forecast_mixed,
    room_for,
    share_of_first,
)
from simulator.admission.rule import Freshness, Rule, Setting
from simulator.compilation import compiled

REBUILD = 1000
"""Sums are added up anew after so many changes, which stops the drift of rounding (admission specification §5.2)."""
MEMORY = 512
"""Curves of fresh deployments below this size are kept."""


class Curves(NamedTuple):
    """Curves of each slot, in total, of the current arrival, and of fresh deployments by size."""

    times: Floats
    slot: Sums
    total: Sums
    new: Sums
    fresh: Sums
    fresh_known: NDArray[np.bool_]
    changes: NDArray[np.int64]
    refreshed_at: Floats
    refreshes: NDArray[np.int64]
    computed_size: NDArray[np.int64]
    """By slot: the size its curves were computed for, and when."""
    computed_at: Floats
    doubt: Floats
    """By slot: cores by which its curves may be off, as computed last."""
    room: Room


def empty_curves(times: Floats, slots: int, rule: Rule) -> Curves:
    """Return room for the curves of so many deployments at some horizons."""
    count = len(times)
    kept = MEMORY if slots and count < 1000 else 1
    thirds, requests = count * rule.wants_third, count * (rule.kind == "budget")

    def sums(*shape: int) -> Sums:
        return Sums(*(np.zeros((*shape, length)) for length in (count, count, thirds, requests)))

    return Curves(
        times=times,
        slot=sums(slots),
        total=sums(),
        new=sums(),
        fresh=sums(kept),
        fresh_known=np.zeros(kept, dtype=np.bool_),
        changes=np.zeros(1, dtype=np.int64),
        refreshed_at=np.full(1, -np.inf),
        refreshes=np.zeros(1, dtype=np.int64),
        computed_size=np.zeros(slots, dtype=np.int64),
        computed_at=np.zeros(slots),
        doubt=np.zeros(slots),
        room=room_for(count, thirds, requests),
    )


@compiled
def _add(total: Floats, part: Floats, sign: float) -> None:
    for k in range(len(part)):
        total[k] += sign * part[k]


@compiled
def _of_one(sums: Sums, place: int) -> Sums:
    """Return the curves of one of many deployments, as views."""
    return Sums(sums.mean[place], sums.variance[place], sums.third[place], sums.requests[place])


@compiled
def _write(target: Sums, source: Sums) -> None:
    target.mean[:] = source.mean
    target.variance[:] = source.variance
    target.third[:] = source.third
    target.requests[:] = source.requests


@compiled
def _add_slot(curves: Curves, slot: int, sign: float) -> None:
    one, total = _of_one(curves.slot, slot), curves.total
    _add(total.mean, one.mean, sign)
    _add(total.variance, one.variance, sign)
    _add(total.third, one.third, sign)
    _add(total.requests, one.requests, sign)


@compiled
def _before(arrival: Record, other: bool) -> DeploymentStatistics:
    """Return the observations of a kind before the deployment arrived."""
    if other:
        return DeploymentStatistics(
            *(1, arrival.other_deaths, arrival.other_core_hours, arrival.other_requests),
            *(0.0, arrival.other_gap_hours, arrival.other_extra, arrival.other_sizes),
        )
    return DeploymentStatistics(
        *(1, arrival.seen_deaths, arrival.seen_core_hours, arrival.seen_requests),
        *(0.0, arrival.seen_gap_hours, arrival.seen_extra, arrival.seen_sizes),
    )


@compiled
def _of_other(arrival: Record, seen: DeploymentStatistics) -> DeploymentStatistics:
    """Return the observations of the other kind if the deployment is of it: its own events belong to it then."""
    return DeploymentStatistics(
        seen.size,
        seen.deaths - arrival.seen_deaths + arrival.other_deaths,
        seen.core_hours - arrival.seen_core_hours + arrival.other_core_hours,
        seen.requests - arrival.seen_requests + arrival.other_requests,
        seen.hours,
        seen.gap_hours - arrival.seen_gap_hours + arrival.other_gap_hours,
        seen.extra - arrival.seen_extra + arrival.other_extra,
        seen.sizes - arrival.seen_sizes + arrival.other_sizes,
    )


@compiled
def _prior_of(setting: Setting, arrival: Record) -> Prior:
    """Return the law that an arrival is judged by."""
    population = setting.prior
    if arrival.law == 0:
        return population
    law = setting.laws[arrival.law - 1]
    return Prior(law[0], law[1], law[2], law[3], law[4], law[5], population.power, population.lifetimes)


@compiled
def _forecast(
    setting: Setting, method: int, arrival: Record, seen: DeploymentStatistics, curves: Curves, out: Sums
) -> None:
    """Fill in the curves of a deployment that arrived as `arrival`."""
    prior, times, room, conjugate = _prior_of(setting, arrival), curves.times, curves.room, setting.conjugate
    if arrival.kinds == ONE_KIND:
        forecast(method, conjugate, prior, seen, times, room, out)
        return
    other = _of_other(arrival, seen)
    share = share_of_first(*(arrival.kinds, prior, seen, _before(arrival, False), other, _before(arrival, True), room))
    forecast_mixed(method, conjugate, prior, share, seen, other, times, room, out)


@compiled
def forecast_arrival(curves: Curves, setting: Setting, arrival: Record) -> None:
    """Compute the curves of an arrival; those of a fresh one are remembered by its size."""
    extra, sizes, new, kept = arrival.seen_extra, arrival.seen_sizes, curves.new, curves.fresh
    fresh = sizes == 0 and arrival.seen_gap_hours == 0.0 and arrival.kinds == ONE_KIND and arrival.law == 0
    remembered = fresh and arrival.size < len(curves.fresh_known)
    if remembered and curves.fresh_known[arrival.size]:
        _write(new, _of_one(kept, arrival.size))
        return
    if setting.drawn:
        extra, sizes = extra + arrival.size - 1, sizes + 1
    seen = DeploymentStatistics(
        *(arrival.size, arrival.seen_deaths, arrival.seen_core_hours, arrival.seen_requests),
        *(0.0, arrival.seen_gap_hours, extra, sizes),
    )
    method = setting.fresh_method if fresh else setting.method
    _forecast(setting, method, arrival, seen, curves, new)
    if remembered:
        curves.fresh_known[arrival.size] = True
        _write(_of_one(kept, arrival.size), new)


@compiled
def take_in(state: State, curves: Curves, slot: int) -> None:
    """Add the current arrival to the sums."""
    curves.computed_size[slot], curves.computed_at[slot] = state.live[slot].size, state.books[0].now
    curves.changes[0] += 1
    _write(_of_one(curves.slot, slot), curves.new)
    _add_slot(curves, slot, 1.0)


@compiled
def drop(curves: Curves, slot: int) -> None:
    """Take a deployment out of the sums."""
    curves.changes[0] += 1
    _add_slot(curves, slot, -1.0)


@compiled
def _outdated(curves: Curves, slot: int, deployment: Record, now: float, freshness: Freshness) -> bool:
    if freshness.tolerance <= 0.0:
        return True
    computed = curves.computed_size[slot]
    if abs(deployment.size - computed) > max(freshness.tolerance * computed, freshness.dead_band):
        return True
    return bool(now - curves.computed_at[slot] > freshness.tolerance * (now - deployment.admitted_at + YOUNG_H))


@compiled
def renew(state: State, curves: Curves, setting: Setting, arrivals: NDArray[np.void], slot: int) -> None:
    """Compute the curves of one deployment and bring the sums up to date."""
    deployment, now = state.live[slot], state.books[0].now
    drop(curves, slot)
    seen = DeploymentStatistics(
        *(deployment.size, deployment.deaths, deployment.core_hours + deployment.size * (now - deployment.at)),
        *(deployment.requests, now - deployment.admitted_at, deployment.gap_hours),
        *(deployment.extra, deployment.sizes),
    )
    _forecast(setting, setting.method, arrivals[deployment.number], seen, curves, _of_one(curves.slot, slot))
    curves.computed_size[slot], curves.computed_at[slot] = deployment.size, now
    curves.refreshes[0] += 1
    _add_slot(curves, slot, 1.0)


@compiled
def refresh(state: State, curves: Curves, setting: Setting, arrivals: NDArray[np.void]) -> None:
    """Compute the curves that are out of date and bring the sums up to date."""
    now = state.books[0].now
    curves.refreshed_at[0] = now
    for place in range(state.books[0].waiting):
        slot = state.heap_slot[place]
        if _outdated(curves, slot, state.live[slot], now, setting.freshness):
            renew(state, curves, setting, arrivals, slot)
    if curves.changes[0] >= REBUILD:
        _add_up(state, curves)


@compiled
def _add_up(state: State, curves: Curves) -> None:
    curves.changes[0] = 0
    total = curves.total
    total.mean[:] = 0.0
    total.variance[:] = 0.0
    total.third[:] = 0.0
    total.requests[:] = 0.0
    for place in range(state.books[0].waiting):
        _add_slot(curves, state.heap_slot[place], 1.0)
