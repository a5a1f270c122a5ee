"""The process inside the cluster, event by event in continuous time: cores end, deployments grow and shut down."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.admission.compiled import compiled
from simulator.admission.layout import (
    ADMITTED,
    CLASSES,
    CORE_ENDED,
    REFUSED,
    SCALE_REFUSED,
    SCALED,
    SHUT_DOWN,
    Record,
)
from simulator.admission.presets import HOURS_PER_MONTH
from simulator.admission.streams import extra_cores, key_of, uniform

CROWDED = 0.95
"""Time with more than this share of the cores taken is counted apart (admission specification §7)."""


class State(NamedTuple):
    """Everything of a run that changes; `books` has one record, `live` one for each slot."""

    books: NDArray[np.void]
    live: NDArray[np.void]
    heap_time: NDArray[np.float64]
    heap_slot: NDArray[np.int64]
    free: NDArray[np.int64]
    months: NDArray[np.void]
    log: NDArray[np.void]
    by_class: NDArray[np.int64]
    """Arrivals and admissions by size class."""


@compiled
def _sift_down(times: NDArray[np.float64], slots: NDArray[np.int64], count: int, time: float, slot: int) -> None:
    """Put an entry where the top of the heap was."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= count:
            break
        if child + 1 < count and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[hole], slots[hole] = times[child], slots[child]
        hole = child
    times[hole], slots[hole] = time, slot


@compiled
def _push(times: NDArray[np.float64], slots: NDArray[np.int64], count: int, time: float, slot: int) -> None:
    """Add an entry to a heap of `count` entries."""
    hole = count
    while hole > 0:
        parent = (hole - 1) // 2
        if times[parent] <= time:
            break
        times[hole], slots[hole] = times[parent], slots[parent]
        hole = parent
    times[hole], slots[hole] = time, slot


@compiled
def elapse(state: State, until: float) -> None:
    """Let time pass without an event; cores are integrated month by month."""
    books = state.books[0]
    while until >= books.month_end and books.month + 1 < len(state.months):
        elapsed = books.month_end - books.now
        state.months[books.month].core_hours += books.total * elapsed
        if books.total > CROWDED * books.capacity:
            books.above_h += elapsed
        books.now = books.month_end
        books.month += 1
        books.month_end = (books.month + 1) * HOURS_PER_MONTH
    elapsed = until - books.now
    state.months[books.month].core_hours += books.total * elapsed
    if books.total > CROWDED * books.capacity:
        books.above_h += elapsed
    books.now = until


@compiled
def _note(state: State, number: int, kind: int, cores: int) -> None:
    books = state.books[0]
    if books.logged < len(state.log):
        event = state.log[books.logged]
        event.time, event.deployment, event.kind = books.now, number, kind
        event.cores, event.total = cores, books.total
        books.logged += 1


@compiled
def _see(deployment: Record, now: float) -> None:
    """Add the time since the last look to a deployment's core-hours."""
    deployment.core_hours += deployment.size * (now - deployment.at)
    deployment.at = now


@compiled
def lose_core(state: State, slot: int) -> bool:
    """End one core; return whether the deployment is dead with it."""
    books, deployment = state.books[0], state.live[slot]
    _see(deployment, books.now)
    deployment.size -= 1
    deployment.deaths += 1
    books.total -= 1
    books.deaths += 1
    _note(state, deployment.number, CORE_ENDED, 1)
    return bool(deployment.size == 0 and books.absorb)


@compiled
def scale_out(state: State, slot: int, cores: int) -> bool:
    """Ask for more cores: all of them or, when they do not fit, none and one failure; return whether granted."""
    books, deployment = state.books[0], state.live[slot]
    _see(deployment, books.now)
    deployment.requests += 1
    deployment.extra += cores - 1
    deployment.sizes += 1
    month = state.months[books.month]
    month.requests += 1
    if books.total + cores > books.capacity:
        month.failures += 1
        _note(state, deployment.number, SCALE_REFUSED, cores)
        return False
    deployment.size += cores
    books.total += cores
    books.peak = max(books.peak, books.total)
    _note(state, deployment.number, SCALED, cores)
    return True


@compiled
def shut_down(state: State, slot: int) -> None:
    """End all cores of a deployment at once."""
    books, deployment = state.books[0], state.live[slot]
    cores = deployment.size
    books.total -= cores
    books.shutdowns += 1
    deployment.size = 0
    _note(state, deployment.number, SHUT_DOWN, cores)


@compiled
def _next_event(deployment: Record, now: float) -> float:
    """Draw when the deployment's next event is (admission specification §2)."""
    rate = deployment.size * deployment.mu + deployment.theta + deployment.stop_rate
    u = uniform(deployment.key, deployment.draws)
    return float(now - math.log(u) / rate) if rate > 0.0 else np.inf


@compiled
def _happen(state: State, slot: int) -> bool:
    """Let the event of a deployment happen whose clock has run down; return whether it is over."""
    deployment = state.live[slot]
    dying, stopping = deployment.size * deployment.mu, deployment.stop_rate
    which = uniform(deployment.key, deployment.draws + np.uint64(1)) * (dying + deployment.theta + stopping)
    size_draw = deployment.draws + np.uint64(2)
    # Each event takes three draws, used or not, so that the next begins at the same place for every policy.
    deployment.draws += np.uint64(3)
    state.books[0].events += 1
    if which < dying:
        return lose_core(state, slot)
    if which < dying + deployment.theta:
        scale_out(state, slot, 1 + extra_cores(deployment.sig, deployment.key, size_draw))
        return False
    shut_down(state, slot)
    return True


@compiled
def leave(state: State) -> None:
    """Take the deployment on top of the heap out of the cluster."""
    books = state.books[0]
    slot = state.heap_slot[0]
    books.waiting -= 1
    last = books.waiting
    _sift_down(state.heap_time, state.heap_slot, last, state.heap_time[last], state.heap_slot[last])
    state.free[books.free] = slot
    books.free += 1
    books.live -= 1


@compiled
def next_end(state: State, until: float) -> int:
    """Let events happen up to a time; stop at the end of a deployment and return its slot, -1 when there is none.

    The caller takes the deployment out with `leave` when it has dropped what it keeps for the slot.
    """
    books = state.books[0]
    while books.waiting > 0 and state.heap_time[0] <= until:
        slot = state.heap_slot[0]
        elapse(state, state.heap_time[0])
        if _happen(state, slot):
            return int(slot)
        time = _next_event(state.live[slot], books.now)
        _sift_down(state.heap_time, state.heap_slot, books.waiting, time, slot)
    elapse(state, until)
    return -1


@compiled
def size_class(cores: int) -> int:
    """Return the class of a size: 1, 2-3, 4-7 and so on."""
    place = 0
    while cores > 1 and place < CLASSES - 1:
        cores //= 2
        place += 1
    return place


@compiled
def turn_away(state: State, number: int, cores: int) -> None:
    """Note that an arrival was rejected."""
    state.by_class[0, size_class(cores)] += 1
    _note(state, number, REFUSED, cores)


@compiled
def admit(state: State, arrival: Record, number: int, seed: np.uint64, lifetimes: float, drawn: bool) -> int:
    """Take an arrival into the cluster and return its slot.

    drawn: whether its size is a draw of the request-size law, which then says something about that law (§3).
    """
    books = state.books[0]
    books.free -= 1
    slot = state.free[books.free]
    deployment = state.live[slot]
    deployment.number, deployment.size = number, arrival.size
    deployment.mu, deployment.theta, deployment.sig = arrival.mu, arrival.theta, arrival.sig
    deployment.stop_rate = arrival.mu / lifetimes
    deployment.key, deployment.draws = key_of(seed, arrival.stream), np.uint64(0)
    deployment.at = deployment.admitted_at = books.now
    deployment.deaths, deployment.core_hours = arrival.seen_deaths, arrival.seen_core_hours
    deployment.requests, deployment.gap_hours = arrival.seen_requests, arrival.seen_gap_hours
    deployment.extra, deployment.sizes = arrival.seen_extra, arrival.seen_sizes
    if drawn:
        deployment.extra += arrival.size - 1
        deployment.sizes += 1
    books.total += arrival.size
    books.peak = max(books.peak, books.total)
    books.admits += 1
    books.live += 1
    state.by_class[0, size_class(arrival.size)] += 1
    state.by_class[1, size_class(arrival.size)] += 1
    _push(state.heap_time, state.heap_slot, books.waiting, _next_event(deployment, books.now), slot)
    books.waiting += 1
    _note(state, number, ADMITTED, arrival.size)
    return int(slot)
