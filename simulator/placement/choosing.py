"""A cluster as arrays, and the choice of a host for a container (placement specification §1.2, §1.3, §2).

The scores are the functions of `domain.rules.placement.policies`, summed in the same order. How the highest is found
depends on what a score looks at. Of the cores of a host alone: one score stands for all hosts of a kind with equally
many free (a level). Of the host alone: a class of applications keeps the scores of all hosts, and those that changed
since it last asked are scored again. Of more than that, and for BF, which leaves few hosts with room: every feasible
host is scored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.placement import lifetimes, policies
from domain.rules.placement.policies import TIERS
from simulator.compilation import borrowing, inlined

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CODES = {name: code for code, name in enumerate(policies.FAMILIES)}
(
    NONE, FF, BF, BF_CPU, DP, WF, RESERVE, LINEAR, POTENTIAL, TIERED, ADAPTIVE, FILLING, OLDEST, LIFETIME,
    PLACES,
) = -1, *range(14)  # fmt: skip
"""LIFETIME follows the lives of containers."""

TIERS_COUNTED = len(TIERS) + 1
"""Those of the headroom counters, and the one of RESERVE."""
(
    FREE_OPEN, SIZE_OPEN, OPEN, OPENED, PEAK, TOP, LARGEST, LARGE, REJECTIONS, FULL, MOVED, MIGRATED, OPENINGS, CHANGES,
) = range(TIERS_COUNTED, TIERS_COUNTED + 14)  # fmt: skip
"""Places in the totals after the headroom counters. FULL: more hosts are needed than the arrays hold. OPENINGS:
of hosts, those of the snapshot included. CHANGES: of
hosts, whose numbers the ring `State.changed` has."""
WORD = 64
"""Hosts in a word of a level."""
LOWEST_BIT = 0x03F79D71B4CB0A89
BIT_OF = np.array(sorted(range(WORD), key=lambda bit: ((1 << bit) * LOWEST_BIT % 2**WORD) >> 58), dtype=np.int64)
"""The number of a single bit, by the six highest digits of its product with LOWEST_BIT (a de Bruijn sequence)."""

best_fit_terms = inlined(policies.best_fit_terms)
dot_product_terms = inlined(policies.dot_product_terms)
reserve_terms = inlined(policies.reserve_terms)
linear_terms = inlined(policies.linear_terms)
potential_terms = inlined(policies.potential_terms)
places_terms = inlined(policies.places_terms)
tier_threshold = inlined(policies.tier_threshold)
tier_price = inlined(policies.tier_price)
tier_terms = inlined(policies.tier_terms)
reserve_share = inlined(policies.reserve_share)
reserve_left = inlined(policies.reserve_left)
fit = inlined(lifetimes.fit)
life_left = inlined(lifetimes.life_left)
lifetime_terms = inlined(lifetimes.lifetime_terms)


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
    cores: Ints
    """[T]: of a host of the kind."""
    level: Ints
    """[T]: the level of a host of the kind without a free core; the next ones follow. Empty where they are too many."""
    classes: Ints
    """[A]: those of one class are scored alike on a host that runs none of them. Empty where they are too many."""
    apps: Ints
    """[R]."""
    counts: Ints
    """[R]."""
    begin: Ints
    """[R + 1]: number of the first container of a request."""
    owner: Ints
    """[N]: the application of each container."""
    hint: Floats
    """[N]: logarithm of the lifetime in seconds that its request declares, nan without one."""
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
    opening: Ints
    """[H] each; barred: drained and failed, as bits. opening: number of the present opening, 0 for a closed host."""
    closed: Ints
    """[T]: the first closed host of each kind, -1 for none."""
    totals: Ints
    where: NDArray[np.int32]
    """[N]: the host of each container, or why it has none."""
    obstacles: Ints
    """Hosts by what kept each rejected container from them."""
    filled: Ints
    """[L]: open hosts at each level that take containers."""
    members: Ints
    """[L, W]: these hosts as bits, from the lowest of the first word on."""
    changed: Ints
    """[a power of two]: the hosts that changed last, a ring."""
    scores: Floats
    """[C, H]: of open hosts with room for a class of applications, -inf of others."""
    known: Ints
    """[C]: changes that the scores of a class take in, -1 for none."""
    began: Floats
    after: Ints
    before: Ints
    """[N]: second of the begin of a container, nan for none; the next and the previous one of its host, -1 for none."""
    first: Ints
    """[H]: the container that came last to a host, -1 for none."""
    ends: Floats
    """[H]: predicted second at which its last container ends."""
    sums: Floats
    """[6]: the calibration of hints."""
    clock: Floats
    """[4]: see `simulator.placement.lives`."""
    places: Ints
    """[A]: of each application on the open hosts, for PLACES; 0 for one that runs or is placed now."""


@inlined
def _part_of_level(
    code: int, theta: Floats, light: bool, prices: Floats, count: int, reserved: int, d0: int, f0: int, s0: int,
    new: int,
) -> float:  # fmt: skip
    """Return the score of a family that looks at the cores of a host alone; reserved: hosts that RESERVE counts."""
    after = f0 - d0
    if code == BF_CPU:
        return -1.0 * after
    if code == RESERVE:
        c = reserve_terms(theta, f0, after, new, reserved, count < theta[2])
        return float(c[0] + c[1] + c[2])
    a = tier_terms(theta, light, after / s0, f0, after, new, prices)
    return float(a[0] + a[1] + a[2] + a[3] + a[4] + a[5])


@inlined
def _part(
    code: int, theta: Floats, scale: float, light: bool, prices: Floats, count: int, limit: int, totals: Ints,
    d0: int, d1: int, d2: int, f0: int, f1: int, f2: int, s0: int, s1: int, s2: int,
    new: int, same: int, distinct: int, place: int, lost: float,
) -> float:  # fmt: skip
    """Return the score of one family for one host; d: demand, f: what is free, s: size; place: in FF and OLDEST.

    lost: the share of places, for PLACES.
    """
    if code == PLACES:
        return float(places_terms(theta, lost)[0])
    if code in (TIERED, ADAPTIVE, FILLING, BF_CPU, RESERVE):
        return _part_of_level(code, theta, light, prices, count, totals[TIERS_COUNTED - 1], d0, f0, s0, new)
    if code in (FF, OLDEST):
        return -1.0 * place
    after = f0 - d0
    rest = (after / s0, (f1 - d1) / s1, (f2 - d2) / s2)
    if code in (BF, WF):
        b = best_fit_terms(rest, -1.0 if code == BF else 1.0)
        return float(b[0] + b[1] + b[2])
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
    return bool(code in (TIERED, ADAPTIVE, FILLING) and count < tier_threshold(theta))


@inlined
def _set_prices(code: int, theta: Floats, light: bool, totals: Ints, prices: Floats) -> None:
    if code in (TIERED, ADAPTIVE, FILLING):
        scale = 1.0 if code == TIERED else reserve_share(totals[LARGEST])
        if code == FILLING:
            scale *= reserve_left(theta, totals[LARGE])
        for k in range(4):
            prices[k] = tier_price(theta, k, light, totals[k], scale)


@borrowing
def choose(arrays: Arrays, state: State, rules: Rules, app: int, count: int, prices: Floats) -> int:
    """Return the host for a container of a request of `count` containers, or -1; prices: float64 [2, 4], scratch.

    It is the feasible one of the highest score, of equal ones that of the lowest index.
    """
    code = rules.first
    if rules.second == NONE and len(arrays.level) and code in (BF_CPU, RESERVE, TIERED, ADAPTIVE, FILLING):
        return _choose_by_level(arrays, state, rules, app, count, prices)
    if rules.second == NONE and len(arrays.classes) and code in (DP, WF, POTENTIAL):
        return _choose_by_class(arrays, state, rules, app, count, prices)
    if code == LIFETIME:
        return _choose_by_lifetime(arrays, state, rules.theta, app)
    return _choose_of_all(arrays, state, rules, app, count, prices)


@borrowing
def _choose_by_lifetime(arrays: Arrays, state: State, theta: Floats, app: int) -> int:
    """Choose by the remaining lives on the open hosts, against that of the container."""
    d0, d1, d2 = arrays.demand[app, 0], arrays.demand[app, 1], arrays.demand[app, 2]
    free1, free2, bars = state.free[1], state.free[2], state.bars[app]
    a, b, residual, r2 = fit(state.sums)
    now, hint, age_s = state.clock[0], state.clock[2], state.clock[3]
    if math.isnan(hint):
        life = 0.0
    elif age_s > 0.0:
        life = float(life_left(a + b * hint, residual, age_s))
    else:
        life = max(math.exp(a + b * hint), lifetimes.LEAST_LEFT_S)
    best, best_score, open_seen = -1, 0.0, False
    for h in range(state.totals[TOP]):
        if state.room[h] < d0 or bars[h] != 0 or free1[h] < d1 or free2[h] < d2:
            continue
        if not arrays.fits[app, arrays.kind[h]]:
            continue
        if state.containers[h] == 0:
            best = h if best < 0 else best
            continue
        left = max(state.ends[h] - now, lifetimes.LEAST_LEFT_S)
        size = arrays.size[:, h]
        rest = (state.room[h] - d0) / size[0], (free1[h] - d1) / size[1], (free2[h] - d2) / size[2]
        x = lifetime_terms(theta, left, life, residual, r2, rest, state.opening[h], state.totals[OPENINGS])
        score = x[0] + x[1] + x[2] + x[3] + x[4] + x[5]
        if not open_seen or score > best_score:
            best, best_score, open_seen = h, score, True
    return best


@borrowing
def _choose_by_level(arrays: Arrays, state: State, rules: Rules, app: int, count: int, prices: Floats) -> int:
    """Choose by scores that depend on the kind and the free cores of a host alone."""
    code, theta, totals, bars = rules.first, rules.theta, state.totals, state.bars[app]
    light = _is_light(code, theta, count)
    _set_prices(code, theta, light, totals, prices[0])
    return _best_of_levels(
        code, theta, light, prices[0], count, rules.open_first, totals,
        arrays.demand[app, 0], arrays.demand[app, 1], arrays.demand[app, 2], state.filled, state.members, bars,
        state.free[0], state.free[1], state.free[2], arrays.fits[app], arrays.level, arrays.cores, state.closed,
    )  # fmt: skip


@borrowing
def _choose_by_class(arrays: Arrays, state: State, rules: Rules, app: int, count: int, prices: Floats) -> int:
    """Choose by scores that depend on the host alone, and on how many of the application it runs."""
    code, theta, totals, limit = rules.first, rules.theta, state.totals, arrays.limit[app]
    bars, free, fits, size = state.bars[app], state.free, arrays.fits[app], arrays.size
    d0, d1, d2 = arrays.demand[app, 0], arrays.demand[app, 1], arrays.demand[app, 2]
    one = arrays.classes[app]
    row = state.scores[one]
    _score_anew(
        code, theta, rules.scale, limit, totals, d0, d1, d2, row, state.changed, state.known[one],
        state.containers, state.barred, arrays.kind, fits,
        free[0], free[1], free[2], size[0], size[1], size[2], state.distinct, prices[0],
    )  # fmt: skip
    state.known[one] = totals[CHANGES]
    if code == POTENTIAL and arrays.most[app] > 1:
        best, score = _best_of_own(
            code, theta, rules.scale, limit, totals, d0, d1, d2, row[: totals[TOP]], bars, state.instances[app],
            free[0], free[1], free[2], size[0], size[1], size[2], state.distinct, prices[0],
        )  # fmt: skip
    else:
        best, score = _best_of_row(row[: totals[TOP]], bars)
    if rules.open_first and best >= 0:
        return best
    for kind in range(len(fits)):
        h = state.closed[kind]
        if h < 0 or not fits[kind] or bars[h] != 0 or free[0, h] < d0 or free[1, h] < d1 or free[2, h] < d2:
            continue
        other = _part(
            code, theta, rules.scale, False, prices[0], count, limit, totals, d0, d1, d2, free[0, h], free[1, h],
            free[2, h], size[0, h], size[1, h], size[2, h], 1, state.instances[app, h], state.distinct[h], h, 0.0,
        )  # fmt: skip
        if best < 0 or other > score or (other == score and h < best):
            best, score = h, other
    return int(best)


@borrowing
def _best_of_levels(
    code: int, theta: Floats, light: bool, prices: Floats, count: int, open_first: bool, totals: Ints,
    d0: int, d1: int, d2: int, filled: Ints, members: Ints, bars: NDArray[np.int32], free0: Ints, free1: Ints,
    free2: Ints, fits: NDArray[np.bool_], level: Ints, cores: Ints, closed: Ints,
) -> int:  # fmt: skip
    """Return the best host, -1 for none; a level is searched only where its score is as high as the best so far."""
    reserved, words = totals[TIERS_COUNTED - 1], (totals[TOP] + WORD - 1) // WORD
    best, best_score = -1, 0.0
    for kind in range(len(level)):
        if not fits[kind]:
            continue
        for free in range(d0, cores[kind] + 1):
            place = level[kind] + free
            if filled[place] == 0:
                continue
            score = _part_of_level(code, theta, light, prices, count, reserved, d0, free, cores[kind], 0)
            if best >= 0 and score < best_score:
                continue
            found = -1
            for word in range(words):
                bits = members[place, word]
                while bits != 0 and found < 0:
                    bit = bits & -bits
                    h = WORD * word + BIT_OF[((bit * LOWEST_BIT) >> 58) & (WORD - 1)]
                    if bars[h] == 0 and free1[h] >= d1 and free2[h] >= d2:
                        found = h
                    bits ^= bit
                if found >= 0:
                    break
            if found >= 0 and (best < 0 or score > best_score or found < best):
                best, best_score = found, score
    if open_first and best >= 0:
        return int(best)
    for kind in range(len(closed)):
        h = closed[kind]
        if h < 0 or not fits[kind] or bars[h] != 0 or free0[h] < d0 or free1[h] < d1 or free2[h] < d2:
            continue
        score = _part_of_level(code, theta, light, prices, count, reserved, d0, free0[h], cores[kind], 1)
        if best < 0 or score > best_score or (score == best_score and h < best):
            best, best_score = h, score
    return int(best)


@borrowing
def _score_anew(
    code: int, theta: Floats, scale: float, limit: int, totals: Ints, d0: int, d1: int, d2: int, row: Floats,
    changed: Ints, known: int, containers: Ints, barred: Ints, kind: Ints, fits: NDArray[np.bool_],
    f0: Ints, f1: Ints, f2: Ints, s0: Ints, s1: Ints, s2: Ints, distinct: Ints, prices: Floats,
) -> None:  # fmt: skip
    """Bring the scores of a class up to date: of the hosts that changed since it was `known`, or of all."""
    changes = totals[CHANGES]
    everything = known < 0 or changes - known > len(changed)
    for k in range(0 if everything else known, len(row) if everything else changes):
        h = k if everything else changed[k & (len(changed) - 1)]
        if f0[h] < d0 or containers[h] == 0 or barred[h] != 0 or f1[h] < d1 or f2[h] < d2 or not fits[kind[h]]:
            row[h] = -np.inf
        else:
            row[h] = _part(
                code, theta, scale, False, prices, 0, limit, totals, d0, d1, d2, f0[h], f1[h], f2[h],
                s0[h], s1[h], s2[h], 0, 0, distinct[h], h, 0.0,
            )  # fmt: skip


@borrowing
def _best_of_row(row: Floats, bars: NDArray[np.int32]) -> tuple[int, float]:
    """Return the host of the highest score that nothing keeps an application from, and the score."""
    best, best_score = -1, -np.inf
    for h in range(len(row)):
        if row[h] > best_score and bars[h] == 0:
            best, best_score = h, row[h]
    return best, best_score


@borrowing
def _best_of_own(
    code: int, theta: Floats, scale: float, limit: int, totals: Ints, d0: int, d1: int, d2: int, row: Floats,
    bars: NDArray[np.int32], held: NDArray[np.int16], f0: Ints, f1: Ints, f2: Ints, s0: Ints, s1: Ints, s2: Ints,
    distinct: Ints, prices: Floats,
) -> tuple[int, float]:  # fmt: skip
    """Do the same where a host that runs the application is scored otherwise than the rest of its class."""
    best, best_score = -1, -np.inf
    for h in range(len(row)):
        if row[h] == -np.inf or bars[h] != 0:
            continue
        score = row[h]
        if held[h] > 0:
            score = _part(
                code, theta, scale, False, prices, 0, limit, totals, d0, d1, d2, f0[h], f1[h], f2[h],
                s0[h], s1[h], s2[h], 0, held[h], distinct[h], h, 0.0,
            )  # fmt: skip
        if score > best_score:
            best, best_score = h, score
    return best, best_score


@inlined
def _places(arrays: Arrays, state: State, app: int, h: int, d0: int, d1: int, d2: int) -> int:
    """Return the containers of an application that a host can take once so much more of it is used.

    None of the application runs there.
    """
    if state.bars[app, h] > 0 or not arrays.fits[app, arrays.kind[h]]:
        return 0
    found = min(arrays.most[app], (state.free[0, h] - d0) // arrays.demand[app, 0])
    found = min(found, (state.free[1, h] - d1) // arrays.demand[app, 1])
    return int(max(0, min(found, (state.free[2, h] - d2) // arrays.demand[app, 2])))


@borrowing
def _count_places(arrays: Arrays, state: State, app: int) -> None:
    """Count the places of the other applications of which no container runs."""
    for other in range(len(arrays.limit)):
        found = 0
        for h in range(state.totals[TOP]):
            if other == app or state.instances[other, h] > 0:
                found = 0
                break
            if state.containers[h] > 0 and state.barred[h] == 0:
                found += _places(arrays, state, other, h, 0, 0, 0)
        state.places[other] = found


@borrowing
def _places_lost(arrays: Arrays, state: State, app: int, h: int) -> float:
    """Return the share of the places of others that a container takes on a host, as `Cluster.places_lost` does."""
    lost = 0.0
    if state.containers[h] == 0:
        return lost
    d0, d1, d2 = arrays.demand[app, 0], arrays.demand[app, 1], arrays.demand[app, 2]
    for other in range(len(arrays.limit)):
        if state.places[other] == 0:
            continue
        before, after = _places(arrays, state, other, h, 0, 0, 0), _places(arrays, state, other, h, d0, d1, d2)
        for k in range(arrays.pointer[app], arrays.pointer[app + 1]):
            if arrays.excluded[k] == other:
                after = 0
        lost += (before - after) / state.places[other]
    return lost


@borrowing
def _choose_of_all(arrays: Arrays, state: State, rules: Rules, app: int, count: int, prices: Floats) -> int:
    """Choose by the score of every feasible host."""
    d0, d1, d2 = arrays.demand[app, 0], arrays.demand[app, 1], arrays.demand[app, 2]
    limit, totals = arrays.limit[app], state.totals
    light, more_light = _is_light(rules.first, rules.theta, count), _is_light(rules.second, rules.more, count)
    _set_prices(rules.first, rules.theta, light, totals, prices[0])
    _set_prices(rules.second, rules.more, more_light, totals, prices[1])
    room, free1, free2, bars = state.room, state.free[1], state.free[2], state.bars[app]
    free0, size0, size1, size2 = state.free[0], arrays.size[0], arrays.size[1], arrays.size[2]
    scarce, lost = PLACES in (rules.first, rules.second), 0.0
    if scarce:
        _count_places(arrays, state, app)
    best, best_score, open_seen = -1, 0.0, False
    for h in range(totals[TOP]):
        if room[h] < d0 or bars[h] != 0 or free1[h] < d1 or free2[h] < d2:
            continue
        if not arrays.fits[app, arrays.kind[h]]:
            continue
        if scarce:
            lost = _places_lost(arrays, state, app, h)
        new = 1 if state.containers[h] == 0 else 0
        if rules.open_first:
            if new == 1 and open_seen:
                continue
            if new == 0 and not open_seen:
                best, open_seen = -1, True
        place = state.opening[h] if rules.first == OLDEST else h
        score = _part(
            rules.first, rules.theta, rules.scale, light, prices[0], count, limit, totals,
            d0, d1, d2, free0[h], free1[h], free2[h], size0[h], size1[h], size2[h],
            new, state.instances[app, h], state.distinct[h], place, lost,
        )  # fmt: skip
        if rules.second != NONE:
            score += _part(
                rules.second, rules.more, rules.scale, more_light, prices[1], count, limit, totals,
                d0, d1, d2, free0[h], free1[h], free2[h], size0[h], size1[h], size2[h],
                new, state.instances[app, h], state.distinct[h], h, lost,
            )  # fmt: skip
        if best < 0 or score > best_score:
            best, best_score = h, score
            if rules.first == FF and new == 0:
                return best
    return best
