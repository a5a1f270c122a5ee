"""The process inside the cluster, event by event in continuous time: cores end, deployments grow and shut down."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.units import HOURS_PER_MONTH
from simulator.admission.streams import extra_cores, key_of, uniform
from simulator.compilation import compiled, fields

Record = Any
"""A row of one of these layouts inside compiled code, its fields as attributes."""

ARRIVAL = np.dtype(
    [
        *fields("f8", "time mu lam sig theta"),
        *fields("i8", "size"),
        *fields("u8", "stream"),
        *fields("i8", "seen_deaths"),
        *fields("f8", "seen_core_hours"),
        *fields("i8", "seen_requests"),
        *fields("f8", "seen_gap_hours"),
        *fields("i8", "seen_extra seen_sizes"),
        # Observations of the other kind that it may be of, if its kind is unknown (admission specification §8).
        *fields("i8", "kinds other_deaths"),
        *fields("f8", "other_core_hours"),
        *fields("i8", "other_requests"),
        *fields("f8", "other_gap_hours"),
        *fields("i8", "other_extra other_sizes"),
        # The law that it is judged by: 0 for the population, else its place among the laws of the run, from 1.
        *fields("i8", "law"),
    ]
)
ONE_KIND, WEIGHED, HALVES = range(3)
"""`kinds`: known; one of two, weighed by evidence; one of two, half and half for ever."""

DEPLOYMENT = np.dtype(
    [
        *fields("i8", "number size"),
        *fields("f8", "mu theta sig stop_rate"),
        *fields("u8", "key draws"),
        # The cluster's statistics of it (admission specification §3); core_hours up to the time `at`.
        *fields("f8", "at admitted_at"),
        *fields("i8", "deaths"),
        *fields("f8", "core_hours"),
        *fields("i8", "requests"),
        *fields("f8", "gap_hours"),
        *fields("i8", "extra sizes"),
    ]
)

BOOKS = np.dtype(
    [
        *fields("f8", "now"),
        *fields("i8", "capacity"),
        *fields("?", "absorb"),
        *fields("i8", "total live waiting free month"),
        *fields("f8", "month_end area above_h"),
        *fields("i8", "peak events deaths shutdowns admits unfit logged"),
    ]
)
"""`waiting`: entries of the heap; `free`: entries of the list of free slots; `unfit`: arrivals larger than the room."""

MONTH = np.dtype([("core_hours", np.float64), ("requests", np.int64), ("failures", np.int64)])

EVENT = np.dtype(
    [("time", np.float64), ("deployment", np.int64), ("kind", np.int64), ("cores", np.int64), ("total", np.int64)]
)

DECISION = np.dtype([("deployment", np.int64), ("rule", np.int64), ("other", np.int64), ("slack", np.float64)])
"""An arrival that two rules decided: the horizons that refuse it, -1 for none, and its slack."""

REFUSED, ADMITTED, CORE_ENDED, SCALED, SCALE_REFUSED, SHUT_DOWN = range(6)
"""Kinds of events; CORE_ENDED with a total that leaves the deployment without cores is its end."""

CLASSES = 12
"""Arrivals and admissions are counted by size: 1, 2-3, 4-7 and so on, the last class open."""


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
def _carry_out(state: State, slot: int) -> bool:
    """Carry out the next event of a deployment; return whether the deployment has ended."""
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
    """Carry out events up to a time; stop at the end of a deployment and return its slot, -1 when there is none.

    The caller takes the deployment out with `leave` when it has dropped what it keeps for the slot.
    """
    books = state.books[0]
    while books.waiting > 0 and state.heap_time[0] <= until:
        slot = state.heap_slot[0]
        elapse(state, state.heap_time[0])
        if _carry_out(state, slot):
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

    drawn: whether its size is a draw of the request-size law, which is then an observation of that law (§3).
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
