"""The compiled simulator of placement: plays a sequence of events under a policy (placement specification §1, §10.2).

It places exactly as `domain.rules.placement.cluster` does: the scores are the same functions, summed in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.placement import policies
from domain.rules.placement.cluster import Obstacle, hosts_of
from domain.rules.placement.instance import MOST, UNLIMITED, Application, Instance
from domain.rules.placement.policies import TIERS, Policy
from domain.units import HOUR_S
from simulator.compilation import compiled, inlined

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VERSION = "1"
"""Of what the simulator computes; a policy file names the one that it was trained with."""

PLACE, RELEASE, DRAIN, RESUME, FAIL, JOIN = range(6)
"""Kinds of events; the subject is a request, a container (numbered through all requests), or a host."""
REJECTED, ENDED, WAITING = -1, -2, -3
"""In place of a container's host: no host took it; it was released; its request has not come."""

CODES = {name: code for code, name in enumerate(policies.FAMILIES)}
NONE, FF, BF, BF_CPU, DP, WF, RESERVE, LINEAR, POTENTIAL, TIERED, ADAPTIVE = -1, *range(10)

TIERS_COUNTED = len(TIERS) + 1
"""Those of the headroom counters, and the one of RESERVE."""
FREE_OPEN, SIZE_OPEN, OPEN, OPENED, PEAK, TOP, LARGEST, REJECTIONS, FULL, MOVED = range(
    TIERS_COUNTED, TIERS_COUNTED + 10
)
"""Places in the totals after the headroom counters. FULL: more hosts are needed than the arrays hold."""
OBSTACLES = (
    *(Obstacle.FAILED, Obstacle.DRAINED, Obstacle.LABEL, Obstacle.CPU, Obstacle.MEMORY, Obstacle.DISK),
    *(Obstacle.LIMIT, Obstacle.EXCLUSION, Obstacle.RACK),
)
IS_DRAINED, IS_FAILED = 1, 2

best_fit_terms = inlined(policies.best_fit_terms)
dot_product_terms = inlined(policies.dot_product_terms)
reserve_terms = inlined(policies.reserve_terms)
linear_terms = inlined(policies.linear_terms)
potential_terms = inlined(policies.potential_terms)
tier_threshold = inlined(policies.tier_threshold)
tier_price = inlined(policies.tier_price)
tier_terms = inlined(policies.tier_terms)
reserve_share = inlined(policies.reserve_share)


class Arrays(NamedTuple):
    """An instance: A applications, H hosts of T kinds, R requests of N containers."""

    demand: Ints
    """[A, 3]."""
    limit: Ints
    """[A]: as the application states it, for the score."""
    most: Ints
    """[A]: instances on one host in fact; each host is a rack of its own."""
    pointer: Ints
    """[A + 1]: where the exclusions of an application begin in `excluded`."""
    excluded: Ints
    fits: NDArray[np.bool_]
    """[A, T]: whether the label of the kind is one that the application takes."""
    size: Ints
    """[3, H]."""
    kind: Ints
    """[H]."""
    endless: NDArray[np.bool_]
    """[T]: whether there are always more hosts of the kind."""
    apps: Ints
    """[R]."""
    counts: Ints
    """[R]."""
    begin: Ints
    """[R + 1]: number of the first container of a request."""
    held: Ints
    """[K, 3]: what runs at the begin, as host, application and instances."""


class Rules(NamedTuple):
    """A policy: one family, or two that are summed."""

    first: int
    second: int
    theta: Floats
    more: Floats
    """Parameters of the first and of the second."""
    open_first: bool
    scale: float
    tiers: Ints
    """[5]: TIERS, and the free cores of the hosts that RESERVE counts."""


class State(NamedTuple):
    """A cluster between two events."""

    room: Ints
    """[H]: free cores of a candidate, -1 for other hosts."""
    free: Ints
    """[3, H]."""
    bars: NDArray[np.int32]
    """[A, H]: instances that exclude the application, and one more where its limit is reached."""
    instances: NDArray[np.int16]
    """[A, H]."""
    containers: Ints
    distinct: Ints
    barred: Ints
    """[H] each; barred: drained and failed, as bits."""
    closed: Ints
    """[T]: the first closed host of each kind, -1 for none."""
    totals: Ints
    where: NDArray[np.int32]
    """[N]: the host of each container, or why it has none."""
    obstacles: Ints
    """Hosts by what kept each rejected container from them."""


@inlined
def _part(
    code: int, theta: Floats, scale: float, light: bool, prices: Floats, count: int, limit: int, totals: Ints,
    d0: int, d1: int, d2: int, f0: int, f1: int, f2: int, s0: int, s1: int, s2: int,
    new: int, same: int, distinct: int, host: int,
) -> float:  # fmt: skip
    """Return the score of one family for one host; d: demand, f: what is free, s: size of the host."""
    after = f0 - d0
    if code in (TIERED, ADAPTIVE):
        a = tier_terms(theta, light, after / s0, f0, after, new, prices)
        return float(a[0] + a[1] + a[2] + a[3] + a[4] + a[5])
    if code == BF_CPU:
        return -1.0 * after
    if code == FF:
        return -1.0 * host
    rest = (after / s0, (f1 - d1) / s1, (f2 - d2) / s2)
    if code in (BF, WF):
        b = best_fit_terms(rest, -1.0 if code == BF else 1.0)
        return float(b[0] + b[1] + b[2])
    if code == RESERVE:
        c = reserve_terms(theta, f0, after, new, totals[TIERS_COUNTED - 1], count < theta[2])
        return float(c[0] + c[1] + c[2])
    if code == POTENTIAL:
        d = potential_terms(theta, f0 * scale / s0, after * scale / s0, rest, new, same, distinct, limit)
        return float(d[0] + d[1] + d[2] + d[3] + d[4] + d[5])
    before, share = (f0 / s0, f1 / s1, f2 / s2), (d0 / s0, d1 / s1, d2 / s2)
    if code == DP:
        e = dot_product_terms(share, before)
        return float(e[0] + e[1] + e[2])
    mean = totals[FREE_OPEN] / totals[SIZE_OPEN] if totals[SIZE_OPEN] else 0.0
    f = linear_terms(theta, rest, before, share, after, same, distinct, limit, mean)
    return float(f[0] + f[1] + f[2] + f[3] + f[4] + f[5] + f[6] + f[7] + f[8] + f[9] + f[10] + f[11] + f[12])


@inlined
def _is_light(code: int, theta: Floats, count: int) -> bool:
    return bool(code in (TIERED, ADAPTIVE) and count < tier_threshold(theta))


@inlined
def _set_prices(code: int, theta: Floats, light: bool, totals: Ints, prices: Floats) -> None:
    if code in (TIERED, ADAPTIVE):
        scale = reserve_share(totals[LARGEST]) if code == ADAPTIVE else 1.0
        for k in range(4):
            prices[k] = tier_price(theta, k, light, totals[k], scale)


@compiled
def choose(arrays: Arrays, state: State, rules: Rules, app: int, count: int, prices: Floats) -> int:
    """Return the host for a container of a request of `count` containers, or -1; prices: float64 [2, 4], scratch."""
    d0, d1, d2 = arrays.demand[app, 0], arrays.demand[app, 1], arrays.demand[app, 2]
    limit, totals = arrays.limit[app], state.totals
    light, more_light = _is_light(rules.first, rules.theta, count), _is_light(rules.second, rules.more, count)
    _set_prices(rules.first, rules.theta, light, totals, prices[0])
    _set_prices(rules.second, rules.more, more_light, totals, prices[1])
    room, free1, free2, bars = state.room, state.free[1], state.free[2], state.bars[app]
    free0, size0, size1, size2 = state.free[0], arrays.size[0], arrays.size[1], arrays.size[2]
    best, best_score, open_seen = -1, 0.0, False
    for h in range(totals[TOP]):
        if room[h] < d0 or bars[h] != 0 or free1[h] < d1 or free2[h] < d2:
            continue
        if not arrays.fits[app, arrays.kind[h]]:
            continue
        new = 1 if state.containers[h] == 0 else 0
        if rules.open_first:
            if new == 1 and open_seen:
                continue
            if new == 0 and not open_seen:
                best, open_seen = -1, True
        score = _part(
            rules.first, rules.theta, rules.scale, light, prices[0], count, limit, totals,
            d0, d1, d2, free0[h], free1[h], free2[h], size0[h], size1[h], size2[h],
            new, state.instances[app, h], state.distinct[h], h,
        )  # fmt: skip
        if rules.second != NONE:
            score += _part(
                rules.second, rules.more, rules.scale, more_light, prices[1], count, limit, totals,
                d0, d1, d2, free0[h], free1[h], free2[h], size0[h], size1[h], size2[h],
                new, state.instances[app, h], state.distinct[h], h,
            )  # fmt: skip
        if best < 0 or score > best_score:
            best, best_score = h, score
            if rules.first == FF:
                return best
    return best


@inlined
def _account(arrays: Arrays, state: State, rules: Rules, h: int, sign: int) -> None:
    """Add an open host that takes containers to the totals, or take it out."""
    if state.containers[h] == 0 or state.barred[h] != 0:
        return
    free = state.free[0, h]
    for k in range(TIERS_COUNTED):
        if free >= rules.tiers[k]:
            state.totals[k] += sign
    state.totals[FREE_OPEN] += sign * free
    state.totals[SIZE_OPEN] += sign * arrays.size[0, h]


@compiled
def _refresh(arrays: Arrays, state: State, h: int) -> None:
    """Find the first closed host of a kind again after host `h` of it was opened, closed, barred or let in."""
    kind, totals = arrays.kind[h], state.totals
    old = state.closed[kind]
    if old >= 0 and state.containers[old] == 0:
        state.room[old] = -1
    state.room[h] = state.free[0, h] if state.containers[h] > 0 and state.barred[h] == 0 else -1
    found = -1
    for k in range(len(arrays.kind)):
        if arrays.kind[k] == kind and state.containers[k] == 0 and state.barred[k] == 0:
            found = k
            break
    state.closed[kind] = found
    if found >= 0:
        state.room[found] = state.free[0, found]
        totals[TOP] = max(totals[TOP], found + 1)
    elif arrays.endless[kind]:
        totals[FULL] = 1
    totals[TOP] = max(totals[TOP], h + 1)


@inlined
def put(arrays: Arrays, state: State, rules: Rules, app: int, h: int, count: int) -> None:
    """Add so many containers of an application to a host; below 0, take them from it."""
    before, held = state.containers[h], state.instances[app, h]
    _account(arrays, state, rules, h, -1)
    for k in range(3):
        state.free[k, h] -= count * arrays.demand[app, k]
    state.containers[h] = before + count
    state.instances[app, h] = held + count
    most = arrays.most[app]
    state.bars[app, h] += (1 if held + count >= most else 0) - (1 if held >= most else 0)
    state.distinct[h] += (1 if held + count > 0 else 0) - (1 if held > 0 else 0)
    for k in range(arrays.pointer[app], arrays.pointer[app + 1]):
        state.bars[arrays.excluded[k], h] += count
    _account(arrays, state, rules, h, 1)
    if (before == 0) != (before + count == 0):
        state.totals[OPEN] += 1 if before == 0 else -1
        state.totals[OPENED] += 1 if before == 0 else 0
        state.totals[PEAK] = max(state.totals[PEAK], state.totals[OPEN])
        _refresh(arrays, state, h)
    elif state.room[h] >= 0:
        state.room[h] = state.free[0, h]


@compiled
def _note_obstacles(arrays: Arrays, state: State, app: int, times: int) -> None:
    """Count every host by the first obstacle that it has, once for each container that was rejected."""
    for h in range(len(arrays.kind)):
        if state.barred[h] & IS_FAILED:
            k = 0
        elif state.barred[h] & IS_DRAINED:
            k = 1
        elif not arrays.fits[app, arrays.kind[h]]:
            k = 2
        elif state.free[0, h] < arrays.demand[app, 0]:
            k = 3
        elif state.free[1, h] < arrays.demand[app, 1]:
            k = 4
        elif state.free[2, h] < arrays.demand[app, 2]:
            k = 5
        elif state.instances[app, h] >= (MOST if arrays.limit[app] >= UNLIMITED else arrays.limit[app]):
            k = 6
        elif state.bars[app, h] > (1 if state.instances[app, h] >= arrays.most[app] else 0):
            k = 7
        else:
            k = 8
        state.obstacles[k] += times


@compiled
def place(arrays: Arrays, state: State, rules: Rules, app: int, count: int, first: int, prices: Floats) -> None:
    """Place the containers of a request, those from number `first` on, one after the other."""
    state.totals[LARGEST] = max(state.totals[LARGEST], count)
    for k in range(count):
        h = choose(arrays, state, rules, app, count, prices)
        if h < 0:
            state.totals[REJECTIONS] += count - k
            _note_obstacles(arrays, state, app, count - k)
            state.where[first + k : first + count] = REJECTED
            return
        put(arrays, state, rules, app, h, 1)
        state.where[first + k] = h


@compiled
def _fail(arrays: Arrays, state: State, rules: Rules, h: int, prices: Floats) -> None:
    """Take a host out; what ran on it comes again, application by application, before all that is later.

    What a snapshot put there comes again too, though no container of a request has its number.
    """
    lost = state.instances[:, h].copy()
    for app in range(len(lost)):
        if lost[app] > 0:
            put(arrays, state, rules, app, h, -lost[app])
    _bar(arrays, state, rules, h, IS_FAILED, True)
    for app in range(len(lost)):
        if lost[app] == 0:
            continue
        count = int(lost[app])
        state.totals[LARGEST] = max(state.totals[LARGEST], count)
        state.totals[MOVED] += count
        numbers = np.full(count, -1)
        found = 0
        for r in range(len(arrays.apps)):
            if arrays.apps[r] == app:
                for number in range(arrays.begin[r], arrays.begin[r + 1]):
                    if state.where[number] == h:
                        numbers[found] = number
                        found += 1
        for k in range(count):
            chosen = choose(arrays, state, rules, app, count, prices)
            if chosen < 0:
                state.totals[REJECTIONS] += 1
                _note_obstacles(arrays, state, app, 1)
            else:
                put(arrays, state, rules, app, chosen, 1)
            if numbers[k] >= 0:
                state.where[numbers[k]] = chosen


@compiled
def _bar(arrays: Arrays, state: State, rules: Rules, h: int, flag: int, on: bool) -> None:
    """Set or clear a flag of a host that keeps containers off it."""
    _account(arrays, state, rules, h, -1)
    state.barred[h] = state.barred[h] | flag if on else state.barred[h] & ~flag
    _account(arrays, state, rules, h, 1)
    _refresh(arrays, state, h)


@compiled
def clear(arrays: Arrays, state: State, rules: Rules) -> None:
    """Bring a cluster to the begin of its instance."""
    state.room[:] = -1
    state.free[:] = arrays.size
    for values in (state.containers, state.distinct, state.barred, state.totals, state.obstacles):
        values[:] = 0
    state.bars[:] = 0
    state.instances[:] = 0
    state.where[:] = WAITING
    state.closed[:] = -1
    state.totals[LARGEST] = 1
    for h in range(len(arrays.kind)):
        if state.closed[arrays.kind[h]] < 0:
            _refresh(arrays, state, h)
    for k in range(len(arrays.held)):
        put(arrays, state, rules, arrays.held[k, 1], arrays.held[k, 0], arrays.held[k, 2])
    state.totals[OPENED] = 0
    state.totals[PEAK] = state.totals[OPEN]


@compiled
def turn(arrays: Arrays, state: State, rules: Rules, kind: int, subject: int, prices: Floats) -> None:
    """Apply one event. A release of a container that does not run changes nothing."""
    if kind == PLACE:
        first = arrays.begin[subject]
        place(arrays, state, rules, arrays.apps[subject], arrays.counts[subject], first, prices)
    elif kind == RELEASE:
        h = state.where[subject]
        if h >= 0:
            r = np.searchsorted(arrays.begin, subject, side="right") - 1
            put(arrays, state, rules, arrays.apps[r], h, -1)
        if h != WAITING:
            state.where[subject] = ENDED
    elif kind == FAIL:
        if state.barred[subject] & IS_FAILED == 0:
            _fail(arrays, state, rules, subject, prices)
    elif kind == JOIN:
        _bar(arrays, state, rules, subject, IS_FAILED | IS_DRAINED, False)
    else:
        _bar(arrays, state, rules, subject, IS_DRAINED, kind == DRAIN)


@compiled
def _play(
    arrays: Arrays, state: State, rules: Rules, events: Ints, times: Floats, measured_from_s: float, until_s: float
) -> float:
    """Play events [E, 2], kind and subject; return the host-hours from `measured_from_s` to `until_s`."""
    clear(arrays, state, rules)
    prices = np.zeros((2, 4))
    host_s, last = 0.0, measured_from_s
    for k in range(len(events)):
        if times[k] > last:
            host_s += (min(times[k], until_s) - last) * state.totals[OPEN]
            last = min(times[k], until_s)
        if times[k] <= measured_from_s:
            state.totals[PEAK] = state.totals[OPEN]
        turn(arrays, state, rules, events[k, 0], events[k, 1], prices)
    return float((host_s + (until_s - last) * state.totals[OPEN]) / HOUR_S)


@compiled
def _play_orders(arrays: Arrays, state: State, rules: Rules, orders: Ints) -> Ints:
    """Return open hosts, rejected containers and whether the arrays were too small, int64 [K, 3], for each order."""
    found = np.zeros((len(orders), 3), dtype=np.int64)
    prices = np.zeros((2, 4))
    for k in range(len(orders)):
        clear(arrays, state, rules)
        for request in orders[k]:
            turn(arrays, state, rules, PLACE, request, prices)
        found[k, 0], found[k, 1], found[k, 2] = state.totals[OPEN], state.totals[REJECTIONS], state.totals[FULL]
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a sequence.

    hosts: open at the end. opened: how often one was opened. peak: most open at once. rejected: containers. moved:
    containers of failed hosts. host: of each container, int32 [N], or REJECTED, ENDED, WAITING. obstacles: hosts by
    what kept the rejected containers from them. headroom: N_q at the end.
    """

    hosts: int
    opened: int
    peak: int
    rejected: int
    moved: int
    host_hours: float
    host: NDArray[np.int32]
    obstacles: dict[Obstacle, int]
    headroom: tuple[int, ...]


def arrays_of(instance: Instance, most: int | None = None) -> Arrays:
    """Return an instance as arrays; most: hosts beyond those of the snapshot, by default a guess from its size."""
    index = {app.name: k for k, app in enumerate(instance.applications)}
    kinds = {kind.name: k for k, kind in enumerate(instance.hosts)}
    hosts = hosts_of(instance, _guess(instance) if most is None else most)
    excluded = [sorted(index[name] for name in app.excludes) for app in instance.applications]
    held = [
        (host, index[name], count)
        for host, (_, instances) in enumerate(instance.snapshot)
        for name, count in sorted(instances.items())
    ]
    counts = [request.count for request in instance.requests]
    labels = [kind.label for kind in instance.hosts]
    fits = [[not app.label or app.label == label for label in labels] for app in instance.applications]
    return Arrays(
        demand=_ints([app.demand for app in instance.applications], 3),
        limit=_ints([app.limit for app in instance.applications]),
        most=_ints([_most(app) for app in instance.applications]),
        pointer=np.concatenate(([0], np.cumsum([len(one) for one in excluded]))).astype(np.int64),
        excluded=_ints([other for one in excluded for other in one]),
        fits=np.array(fits, dtype=np.bool_).reshape(len(fits), len(kinds)),
        size=np.ascontiguousarray(_ints([host.capacity for host in hosts], 3).T),
        kind=_ints([kinds[host.kind] for host in hosts]),
        endless=np.array([kind.count is None for kind in instance.hosts]),
        apps=_ints([index[request.application] for request in instance.requests]),
        counts=_ints(counts),
        begin=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        held=_ints(held, 3),
    )


def rules_of(policy: Policy) -> Rules:
    """Return a policy as arrays."""
    parts = policy.parts
    vectors = [np.array(theta, dtype=np.float64) for _, theta in parts]
    codes = [CODES[name] for name, _ in parts]
    return Rules(
        first=codes[0],
        second=codes[1] if len(codes) > 1 else NONE,
        theta=vectors[0],
        more=vectors[1] if len(vectors) > 1 else np.zeros(0),
        open_first=policy.open_first,
        scale=float(policy.host_scale),
        tiers=_ints([*TIERS, policy.reserve_cores]),
    )


def events_of(instance: Instance, order: Sequence[int] | Ints | None = None) -> tuple[Ints, Floats]:
    """Return the events of an instance, [E, 2], and their seconds [E]: requests in the order given, and releases.

    Without an order all come by time, of one moment releases first. With one, moments stay with the places, and
    releases are left out.
    """
    moments = np.array([request.at_s for request in instance.requests], dtype=np.float64)
    places = np.arange(len(moments)) if order is None else np.asarray(order, dtype=np.int64)
    events = np.stack([np.full(len(places), PLACE), places], axis=1).astype(np.int64)
    if order is not None or not instance.releases:
        return events, moments
    begin = dict(
        zip(
            [request.name for request in instance.requests],
            accumulate((request.count for request in instance.requests), initial=0),
            strict=False,
        )
    )
    ends = _ints([(RELEASE, begin[end.request] + end.index) for end in instance.releases], 2)
    times = np.concatenate(([end.at_s for end in instance.releases], moments))
    by_time = np.argsort(times, kind="stable")
    return np.concatenate((ends, events))[by_time], times[by_time]


def play(
    instance: Instance,
    policy: Policy,
    order: Sequence[int] | Ints | None = None,
    *,
    events: tuple[Ints, Floats] | None = None,
    arrays: Arrays | None = None,
    measured_from_s: float = 0.0,
    until_s: float | None = None,
) -> Outcome:
    """Return what becomes of an instance under a policy.

    order: of the requests, as positions. events: others than those of the instance. arrays: those of the instance,
    where it is played often. Host-hours and the peak count from `measured_from_s`, host-hours to `until_s`, by default
    the last event.
    """
    happens, times = events_of(instance, order) if events is None else events
    end = (float(times[-1]) if times.size else 0.0) if until_s is None else until_s
    rules = rules_of(policy)
    known = arrays_of(instance) if arrays is None else arrays
    while True:
        state = new_state(known)
        hours = _play(known, state, rules, happens, times, measured_from_s, end)
        if not state.totals[FULL]:
            break
        known = arrays_of(instance, 2 * len(known.kind))
    totals = state.totals.tolist()
    return Outcome(
        hosts=totals[OPEN],
        opened=totals[OPENED],
        peak=totals[PEAK],
        rejected=totals[REJECTIONS],
        moved=totals[MOVED],
        host_hours=hours,
        host=state.where,
        obstacles={one: count for one, count in zip(OBSTACLES, state.obstacles.tolist(), strict=True) if count},
        headroom=tuple(totals[: len(TIERS)]),
    )


def play_orders(instance: Instance, policy: Policy, orders: Ints, arrays: Arrays | None = None) -> Ints:
    """Return open hosts and rejected containers, int64 [K, 2], of an instance without releases in each order [K, R]."""
    rules, known = rules_of(policy), arrays_of(instance) if arrays is None else arrays
    while True:
        found = _play_orders(known, new_state(known), rules, np.ascontiguousarray(orders, dtype=np.int64))
        if not found[:, 2].any():
            return found[:, :2]
        known = arrays_of(instance, 2 * len(known.kind))


def new_state(arrays: Arrays) -> State:
    """Return room for the state of a cluster; `clear` brings it to the begin."""
    apps, hosts, kinds = len(arrays.limit), len(arrays.kind), len(arrays.endless)
    ints = [np.zeros(hosts, dtype=np.int64) for _ in range(4)]
    return State(
        room=ints[0],
        free=np.zeros((3, hosts), dtype=np.int64),
        bars=np.zeros((apps, hosts), dtype=np.int32),
        instances=np.zeros((apps, hosts), dtype=np.int16),
        containers=ints[1],
        distinct=ints[2],
        barred=ints[3],
        closed=np.zeros(kinds, dtype=np.int64),
        totals=np.zeros(MOVED + 1, dtype=np.int64),
        where=np.zeros(int(arrays.begin[-1]), dtype=np.int32),
        obstacles=np.zeros(len(OBSTACLES), dtype=np.int64),
    )


def _ints(values: Sequence[object], columns: int = 0) -> Ints:
    made = np.array(values, dtype=np.int64)
    return made.reshape(len(values), columns) if columns else made


def _most(app: Application) -> int:
    limit = MOST if app.limit >= UNLIMITED else app.limit
    return limit if app.rack_limit is None else min(limit, app.rack_limit)


def _guess(instance: Instance) -> int:
    """Return hosts that are nearly always enough: a third more than the cores need, of the smallest kind."""
    cores = {app.name: app.demand[0] for app in instance.applications}
    wanted = sum(cores[request.application] * request.count for request in instance.requests)
    smallest = min(kind.capacity[0] for kind in instance.hosts)
    guess = 32 + 4 * wanted // (3 * smallest)
    if all(kind.count is not None for kind in instance.hosts):
        return sum(kind.count or 0 for kind in instance.hosts)
    return min(guess, instance.containers) * len(instance.hosts)
