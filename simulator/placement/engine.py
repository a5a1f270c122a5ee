"""The compiled simulator of placement: plays a sequence of events under a policy (placement specification §1, §10.2).

It places exactly as `domain.rules.placement.cluster` does: the scores are the same functions, summed in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.cluster import Obstacle, hosts_of, most_on_host
from domain.rules.placement.instance import MOST, UNLIMITED, Instance
from domain.rules.placement.lifetimes import first_sums
from domain.rules.placement.policies import LARGE_REQUEST, TIERS, Policy
from domain.units import HOUR_S
from simulator.compilation import borrowing, compiled, inlined
from simulator.placement import lives
from simulator.placement.choosing import (
    CHANGES,
    CODES,
    FREE_OPEN,
    FULL,
    LARGE,
    LARGEST,
    LIFETIME,
    MIGRATED,
    MOVED,
    NONE,
    OPEN,
    OPENED,
    OPENINGS,
    PEAK,
    REJECTIONS,
    SIZE_OPEN,
    TIERS_COUNTED,
    TOP,
    WORD,
    Arrays,
    Floats,
    Ints,
    Rules,
    State,
    choose,
)

VERSION = "1"
"""Of what the simulator computes; a policy file names the one that it was trained with."""

PLACE, RELEASE, DRAIN, RESUME, FAIL, JOIN = range(6)
"""Kinds of events; the subject is a request, a container (numbered through all requests), or a host."""
REJECTED, ENDED, WAITING = -1, -2, -3
"""In place of a container's host: no host took it; it was released; its request has not come."""

OBSTACLES = (
    *(Obstacle.FAILED, Obstacle.DRAINED, Obstacle.LABEL, Obstacle.CPU, Obstacle.MEMORY, Obstacle.DISK),
    *(Obstacle.LIMIT, Obstacle.EXCLUSION, Obstacle.RACK),
)
IS_DRAINED, IS_FAILED = 1, 2
FIRST_SUMS = first_sums()
MOST_KEPT = 1 << 22
"""Scores, or words of levels, that a state keeps; where there would be more, every feasible host is scored."""


@inlined
def _account(arrays: Arrays, state: State, rules: Rules, h: int, free: int, sign: int) -> None:
    """Add a host with so many free cores, open and taking containers, to the totals, or take it out."""
    totals, tiers = state.totals, rules.tiers
    for k in range(TIERS_COUNTED):
        if free >= tiers[k]:
            totals[k] += sign
    totals[FREE_OPEN] += sign * free
    totals[SIZE_OPEN] += sign * arrays.size[0, h]
    if len(arrays.level):
        level = arrays.level[arrays.kind[h]] + max(0, free)
        state.filled[level] += sign
        state.members[level, h // WORD] ^= 1 << (h % WORD)


@inlined
def _note_change(state: State, h: int) -> None:
    """Write down that a host changed, for the scores that are kept."""
    state.changed[state.totals[CHANGES] & (len(state.changed) - 1)] = h
    state.totals[CHANGES] += 1


@inlined
def _note_request(state: State, count: int) -> None:
    """Take note of the count of a request that has come."""
    state.totals[LARGEST] = max(state.totals[LARGEST], count)
    if count >= LARGE_REQUEST:
        state.totals[LARGE] += 1


@inlined
def forget_scores(state: State) -> None:
    """Drop the scores that are kept: they are those of other rules, or of another state."""
    state.known[:] = -1


@borrowing
def _refresh(arrays: Arrays, state: State, h: int) -> None:
    """Find the first closed host of a kind again after host `h` of it was opened, closed, barred or let in."""
    kind, totals = arrays.kind[h], state.totals
    old = state.closed[kind]
    if old >= 0 and state.containers[old] == 0:
        state.room[old] = -1
    state.room[h] = state.free[0, h] if state.containers[h] > 0 and state.barred[h] == 0 else -1
    # Hosts before the first closed one are open or barred: the search begins behind it, or behind the host that was it.
    begin = old
    if state.containers[h] == 0 and state.barred[h] == 0:
        begin = h if old < 0 else min(old, h)
    found = -1
    for k in range(begin, len(arrays.kind) if begin >= 0 else begin):
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
    totals, free, bars = state.totals, state.free, state.bars
    before, held, barred = state.containers[h], int(state.instances[app, h]), state.barred[h] != 0
    if before != 0 and not barred:
        _account(arrays, state, rules, h, free[0, h], -1)
    for k in range(3):
        free[k, h] -= count * arrays.demand[app, k]
    state.containers[h] = before + count
    state.instances[app, h] = held + count
    most = arrays.most[app]
    bars[app, h] += (1 if held + count >= most else 0) - (1 if held >= most else 0)
    state.distinct[h] += (1 if held + count > 0 else 0) - (1 if held > 0 else 0)
    for k in range(arrays.pointer[app], arrays.pointer[app + 1]):
        bars[arrays.excluded[k], h] += count
    if before + count != 0 and not barred:
        _account(arrays, state, rules, h, free[0, h], 1)
    _note_change(state, h)
    if (before == 0) != (before + count == 0):
        totals[OPEN] += 1 if before == 0 else -1
        totals[OPENED] += 1 if before == 0 else 0
        totals[OPENINGS] += 1 if before == 0 else 0
        state.opening[h] = totals[OPENINGS] if before == 0 else 0
        totals[PEAK] = max(totals[PEAK], totals[OPEN])
        _refresh(arrays, state, h)
    elif state.room[h] >= 0:
        state.room[h] = free[0, h]


@borrowing
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


@borrowing
def place(arrays: Arrays, state: State, rules: Rules, app: int, count: int, first: int, prices: Floats) -> None:
    """Place the containers of a request, those from number `first` on, one after the other."""
    _note_request(state, count)
    state.clock[lives.HINT] = arrays.hint[first]
    for k in range(count):
        h = choose(arrays, state, rules, app, count, prices)
        if h < 0:
            state.totals[REJECTIONS] += count - k
            _note_obstacles(arrays, state, app, count - k)
            state.where[first + k : first + count] = REJECTED
            return
        put(arrays, state, rules, app, h, 1)
        state.where[first + k] = h
        if rules.first == LIFETIME:
            lives.begin(arrays, state, first + k, h)


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
        _note_request(state, count)
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
            if rules.first == LIFETIME:
                state.clock[lives.HINT] = arrays.hint[numbers[k]] if numbers[k] >= 0 else np.nan
                if numbers[k] >= 0:
                    lives.leave(arrays, state, numbers[k], h)
            chosen = choose(arrays, state, rules, app, count, prices)
            if chosen < 0:
                state.totals[REJECTIONS] += 1
                _note_obstacles(arrays, state, app, 1)
            else:
                put(arrays, state, rules, app, chosen, 1)
                if rules.first == LIFETIME and numbers[k] >= 0:
                    lives.begin(arrays, state, numbers[k], chosen)
            if numbers[k] >= 0:
                state.where[numbers[k]] = chosen


@borrowing
def _migrate(arrays: Arrays, state: State, rules: Rules, prices: Floats) -> None:
    """Move the container that shortens host-hours most, as predicted, to another open host; none where none does.

    A host's last container, with r1 seconds left, keeps it open for r1 - r2 seconds longer than the one before. On
    the host that the policy chooses it lasts max(0, r1 - R) seconds longer than the others there: the gain is the
    difference.
    """
    now, best_gain, best, target = state.clock[lives.NOW], 0.0, -1, -1
    for h in range(state.totals[TOP]):
        if state.containers[h] == 0 or state.barred[h] != 0:
            continue
        last, longest, second = lives.last_of(arrays, state, h)
        if last < 0 or longest - second <= best_gain:
            continue
        room, state.room[h] = state.room[h], -1
        state.clock[lives.HINT], state.clock[lives.AGE] = arrays.hint[last], now - state.began[last]
        other = choose(arrays, state, rules, arrays.owner[last], 1, prices)
        state.room[h] = room
        if other < 0 or state.containers[other] == 0:
            continue
        gain = longest - second - max(0.0, longest - max(state.ends[other] - now, 0.0))
        if gain > best_gain:
            best_gain, best, target = gain, last, other
    state.clock[lives.AGE] = 0.0
    if best >= 0:
        h, app = state.where[best], arrays.owner[best]
        put(arrays, state, rules, app, h, -1)
        lives.leave(arrays, state, best, h)
        put(arrays, state, rules, app, target, 1)
        lives.begin(arrays, state, best, target)
        state.where[best] = target
        state.totals[MIGRATED] += 1


@borrowing
def _bar(arrays: Arrays, state: State, rules: Rules, h: int, flag: int, on: bool) -> None:
    """Set or clear a flag of a host that keeps containers off it."""
    before, free = state.barred[h], state.free[0, h]
    after = before | flag if on else before & ~flag
    state.barred[h] = after
    if state.containers[h] != 0 and (before == 0) != (after == 0):
        _account(arrays, state, rules, h, free, 1 if after == 0 else -1)
    _note_change(state, h)
    _refresh(arrays, state, h)


@compiled
def clear(arrays: Arrays, state: State, rules: Rules) -> None:
    """Bring a cluster to the begin of its instance."""
    state.room[:] = -1
    state.free[:] = arrays.size
    for values in (state.containers, state.distinct, state.barred, state.opening):
        values[:] = 0
    for values in (state.totals, state.obstacles, state.filled):
        values[:] = 0
    state.members[:] = 0
    forget_scores(state)
    state.bars[:] = 0
    state.instances[:] = 0
    state.where[:] = WAITING
    state.began[:] = np.nan
    state.first[:] = -1
    state.clock[:] = 0.0
    state.sums[:] = FIRST_SUMS
    state.closed[:] = -1
    state.totals[LARGEST] = 1
    for h in range(len(arrays.kind)):
        if state.closed[arrays.kind[h]] < 0:
            _refresh(arrays, state, h)
    for k in range(len(arrays.held)):
        put(arrays, state, rules, arrays.held[k, 1], arrays.held[k, 0], arrays.held[k, 2])
    state.totals[OPENED] = 0
    state.totals[PEAK] = state.totals[OPEN]


@borrowing
def turn(arrays: Arrays, state: State, rules: Rules, kind: int, subject: int, prices: Floats) -> None:
    """Apply one event. A release of a container that does not run changes nothing."""
    if kind == PLACE:
        first = arrays.begin[subject]
        place(arrays, state, rules, arrays.apps[subject], arrays.counts[subject], first, prices)
    elif kind == RELEASE:
        h = state.where[subject]
        if h >= 0:
            put(arrays, state, rules, arrays.owner[subject], h, -1)
            if rules.first == LIFETIME:
                lives.end(arrays, state, subject, h)
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
    arrays: Arrays, state: State, rules: Rules, events: Ints, times: Floats, measured_from_s: float, marks: Floats,
    between: int,
) -> Floats:  # fmt: skip
    """Play events [E, 2], kind and subject; return the host-hours from `measured_from_s` to each mark [M], ascending.

    between: placements between two moves of a container, 0 for none.
    """
    clear(arrays, state, rules)
    prices = np.zeros((2, 4))
    hours = np.zeros(len(marks))
    host_s, last, placed, mark = 0.0, measured_from_s, 0, 0
    for k in range(len(events)):
        while mark < len(marks) and marks[mark] < times[k]:
            hours[mark] = (host_s + (marks[mark] - last) * state.totals[OPEN]) / HOUR_S
            mark += 1
        if times[k] > last:
            host_s += (times[k] - last) * state.totals[OPEN]
            last = times[k]
        state.clock[lives.NOW] = times[k]
        if rules.first == LIFETIME:
            lives.predict_all(arrays, state)
        if times[k] <= measured_from_s:
            state.totals[PEAK] = state.totals[OPEN]
        turn(arrays, state, rules, events[k, 0], events[k, 1], prices)
        if between > 0 and events[k, 0] == PLACE:
            placed += arrays.counts[events[k, 1]]
            if placed >= between:
                placed -= between
                _migrate(arrays, state, rules, prices)
    for k in range(mark, len(marks)):
        hours[k] = (host_s + (marks[k] - last) * state.totals[OPEN]) / HOUR_S
    return hours


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
    containers of failed hosts. migrated: those moved to spare host-hours. host: of each container, int32 [N], or
    REJECTED, ENDED, WAITING. obstacles: hosts by the obstacle of the rejected containers. headroom: N_q at the end.
    hours_to: host-hours to each mark.
    """

    hosts: int
    opened: int
    peak: int
    rejected: int
    moved: int
    migrated: int
    host_hours: float
    hours_to: tuple[float, ...]
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
    apps = _ints([index[request.application] for request in instance.requests])
    counts = _ints([request.count for request in instance.requests])
    hints = [math.nan if one.lifetime_s is None else math.log(one.lifetime_s) for one in instance.requests]
    labels = [kind.label for kind in instance.hosts]
    fits = [[not app.label or app.label == label for label in labels] for app in instance.applications]
    return Arrays(
        demand=_ints([app.demand for app in instance.applications], 3),
        limit=_ints([app.limit for app in instance.applications]),
        most=_ints([most_on_host(app) for app in instance.applications]),
        pointer=np.concatenate(([0], np.cumsum([len(one) for one in excluded]))).astype(np.int64),
        excluded=_ints([other for one in excluded for other in one]),
        fits=np.array(fits, dtype=np.bool_).reshape(len(fits), len(kinds)),
        size=np.ascontiguousarray(_ints([host.capacity for host in hosts], 3).T),
        kind=_ints([kinds[host.kind] for host in hosts]),
        endless=np.array([kind.count is None for kind in instance.hosts]),
        cores=_ints([kind.capacity[0] for kind in instance.hosts]),
        level=_levels(instance, len(hosts)),
        classes=_classes(instance, len(hosts)),
        apps=apps,
        counts=counts,
        begin=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        owner=np.repeat(apps, counts),
        hint=np.repeat(np.array(hints, dtype=np.float64), counts),
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
    marks: Sequence[float] = (),
    between: int = 0,
) -> Outcome:
    """Return what becomes of an instance under a policy.

    order: of the requests, as positions. events: others than those of the instance. arrays: those of the instance,
    where it is played often. Host-hours and the peak count from `measured_from_s`, host-hours to `until_s`, by default
    the last event. marks: earlier moments, ascending, to which they count too. between: placements between two moves of
    a container from its host to another, 0 for none; BadInput for a policy that follows no lives.
    """
    happens, times = events_of(instance, order) if events is None else events
    end = (float(times[-1]) if times.size else 0.0) if until_s is None else until_s
    rules = rules_of(policy)
    if between and rules.first != LIFETIME:
        raise BadInput("migrate_every", between, f"{policy.name} does not predict lifetimes: give lifetime")
    known, moments = arrays_of(instance) if arrays is None else arrays, np.array([*marks, end])
    while True:
        state = new_state(known)
        *before, hours = _play(known, state, rules, happens, times, measured_from_s, moments, between).tolist()
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
        migrated=totals[MIGRATED],
        host_hours=hours,
        hours_to=tuple(before),
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
    containers = int(arrays.begin[-1])
    ints = [np.zeros(hosts, dtype=np.int64) for _ in range(5)]
    levels = int(arrays.level[-1] + arrays.cores[-1]) + 1 if arrays.level.size else 0
    classes = int(arrays.classes.max()) + 1 if arrays.classes.size else 0
    return State(
        room=ints[0],
        free=np.zeros((3, hosts), dtype=np.int64),
        bars=np.zeros((apps, hosts), dtype=np.int32),
        instances=np.zeros((apps, hosts), dtype=np.int16),
        containers=ints[1],
        distinct=ints[2],
        barred=ints[3],
        opening=ints[4],
        closed=np.zeros(kinds, dtype=np.int64),
        totals=np.zeros(CHANGES + 1, dtype=np.int64),
        where=np.zeros(containers, dtype=np.int32),
        obstacles=np.zeros(len(OBSTACLES), dtype=np.int64),
        filled=np.zeros(levels, dtype=np.int64),
        members=np.zeros((levels, -(-hosts // WORD)), dtype=np.int64),
        changed=np.zeros(1 << max(0, hosts - 1).bit_length(), dtype=np.int64),
        scores=np.empty((classes, hosts)),
        known=np.full(classes, -1, dtype=np.int64),
        began=np.zeros(containers),
        after=np.zeros(containers, dtype=np.int64),
        before=np.zeros(containers, dtype=np.int64),
        first=np.zeros(hosts, dtype=np.int64),
        ends=np.zeros(hosts),
        sums=np.zeros(6),
        clock=np.zeros(4),
        places=np.zeros(apps, dtype=np.int64),
    )


def _ints(values: Sequence[object], columns: int = 0) -> Ints:
    made = np.array(values, dtype=np.int64)
    return made.reshape(len(values), columns) if columns else made


def _levels(instance: Instance, hosts: int) -> Ints:
    """Return the first level of each kind, none where the sets of their hosts would be too large."""
    cores = [kind.capacity[0] for kind in instance.hosts]
    first = list(accumulate((one + 1 for one in cores), initial=0))
    return _ints(first[:-1] if first[-1] * -(-hosts // WORD) <= MOST_KEPT else [])


def _classes(instance: Instance, hosts: int) -> Ints:
    """Return the class of each application, none where the scores of all classes would be too many."""
    numbers: dict[tuple[object, ...], int] = {}
    found = [numbers.setdefault((app.demand, app.limit, app.label), len(numbers)) for app in instance.applications]
    return _ints(found if len(numbers) * hosts <= MOST_KEPT else [])


def _guess(instance: Instance) -> int:
    """Return hosts that are nearly always enough: a third more than the cores need, of the smallest kind."""
    cores = {app.name: app.demand[0] for app in instance.applications}
    wanted = sum(cores[request.application] * request.count for request in instance.requests)
    smallest = min(kind.capacity[0] for kind in instance.hosts)
    guess = 32 + 4 * wanted // (3 * smallest)
    if all(kind.count is not None for kind in instance.hosts):
        return sum(kind.count or 0 for kind in instance.hosts)
    return min(guess, instance.containers) * len(instance.hosts)
