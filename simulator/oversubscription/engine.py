"""One cluster hour by hour: VMs leave, requests are placed by best fit, usage is drawn (specification §2)."""

from __future__ import annotations

import numpy as np

from domain.rules.oversubscription import request_rule, risk, shield
from simulator.compilation import compiled, inlined, without_nan
from simulator.oversubscription.layout import (
    ESCALATE,
    FILTER,
    NOWHERE,
    REJECTED,
    UNGUARDED,
    Cluster,
    Copies,
    Floats,
    Guard,
    State,
    Tables,
    Weeks,
)
from simulator.oversubscription.usage import Keys, Stays, Usage, add_usage

without_nan(shield.lesser)
write_room = inlined(shield.write_room, fast=True)
best_fit = inlined(shield.best_fit, fast=True)
least_margin = inlined(request_rule.least_margin, fast=True)
need_of = inlined(request_rule.need_of)
hot_probability = compiled(risk.hot_probability)
any_hot = compiled(risk.any_hot)


@inlined
def correlated_square(cores: float, squared: float, rho: float) -> float:
    """Return the factor on one VM's variance for VMs of one subscriber, which move together (§12.8).

    cores, squared: sums of the VMs' cores and of their squares.
    """
    return rho * cores * cores + (1.0 - rho) * squared


@compiled
def one(copies: Copies, i: int) -> State:
    """Return one copy of the cluster."""
    return State(
        copies.books[i : i + 1],
        copies.free_cores[i],
        copies.free_memory[i],
        copies.free_network[i],
        copies.vms[i],
        copies.loads[i],
        copies.machine[i],
        copies.rate[i],
        copies.alive[i],
        copies.place[i],
        copies.present[i],
        copies.vms_of[i],
        copies.chance[i],
        copies.usage[i],
        copies.hot[i],
        copies.day[i],
        copies.worst[i],
        copies.own[i],
        copies.residual[i],
        copies.seen[i],
    )


@compiled
def clear(state: State, cluster: Cluster, week: int, seed: np.uint64) -> None:
    """Empty a cluster for the episode of a week."""
    books = state.books[0]
    for k in range(books.opened):
        state.free_cores[k], state.free_memory[k], state.free_network[k] = (
            cluster.cores,
            cluster.memory,
            cluster.network,
        )
        state.vms[k] = 0
        state.chance[k], state.usage[k], state.hot[k] = 0.0, 0.0, False
        if len(state.day) > 0:
            state.day[k] = 0.0
    state.loads[:, :, : books.opened] = 0.0
    state.machine[:] = NOWHERE
    state.rate[:] = 0.0
    state.present[:] = 0.0
    state.vms_of[:] = 0.0
    state.residual[:] = 0.0
    state.seen[:] = 0
    books.seed, books.week, books.hour = seed, week, 0
    books.opened, books.used, books.peak, books.alive = 0, 0, 0, 0
    books.rejects, books.raised, books.unsafe, books.hot_hours = 0, 0, 0, 0
    books.requested, books.saved, books.expected_hot_hours = 0.0, 0.0, 0.0


@inlined
def _add_to_day(state: State, guard: Guard, tables: Tables, row: int, k: int, n: int, c: float, sign: float) -> None:
    """Add a VM's moments to those of its machine, or take them away; the mean has the guard's margin."""
    # No views of rows, whose owners would be counted; a loop for each moment, which takes several hours at once.
    if guard.posterior and sign < 0.0:
        for power in range(3):
            for hour in range(24):
                state.day[k, power, hour] -= state.own[row, power, hour]
        return
    first, second, third = sign * c * guard.factor, sign * c * c, sign * c * c * c
    for hour in range(24):
        state.day[k, 0, hour] += first * (tables.mean[n, hour] + guard.excess[n, hour])
    for hour in range(24):
        state.day[k, 1, hour] += second * tables.variance[n, hour]
    for hour in range(24):
        state.day[k, 2, hour] += third * tables.third[n, hour]


@compiled
def depart(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables) -> None:
    """Remove every VM that departs in the current hour."""
    books, w = state.books[0], state.books[0].week
    used, alive, observed, drawn = books.used, books.alive, len(state.present) > 0, len(state.alive) > 0
    subscriber, cores, memory, network = weeks.subscriber[w], weeks.cores[w], weeks.memory[w], weeks.network[w]
    loads, vms, machine, rate_of, present, vms_of = (
        state.loads,
        state.vms,
        state.machine,
        state.rate,
        state.present,
        state.vms_of,
    )
    free_cores, free_memory, free_network = state.free_cores, state.free_memory, state.free_network
    listed, place_of, leaving = state.alive, state.place, weeks.leaving[w]
    for i in range(weeks.leaving_first[w, books.hour], weeks.leaving_first[w, books.hour + 1]):
        row = leaving[i]
        k = machine[row]
        if k < 0:
            continue
        n, c, rate = subscriber[row], cores[row], rate_of[row]
        vms[k] -= 1
        if vms[k] > 0:
            free_cores[k] += rate * c
            free_memory[k] += memory[row]
            free_network[k] += network[row]
            loads[0, n, k] -= c
            loads[1, n, k] -= c * c
            loads[2, n, k] -= c * c * c
            if guard.watched:
                _add_to_day(state, guard, tables, row, k, n, c, -1.0)
        else:
            used -= 1
            # What rounding has left over goes with the last VM.
            free_cores[k], free_memory[k], free_network[k] = (
                cluster.cores,
                cluster.memory,
                cluster.network,
            )
            loads[:, :, k] = 0.0
            if guard.watched:
                state.day[k] = 0.0
        alive -= 1
        if drawn:
            last, at = listed[alive], place_of[row]
            listed[at], place_of[last] = last, at
        if observed:
            vms_of[n] -= 1.0
            if vms_of[n] == 0.0:
                present[n] = 0.0
            else:
                present[n, 0] -= rate * c
                present[n, 1] -= c
                present[n, 2] -= memory[row]
                present[n, 3] -= network[row]
    books.used, books.alive = used, alive


@compiled
def _within(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, k: int) -> bool:
    """Return whether a machine's expected hot hours of the next day keep the budget with the VM added."""
    w = state.books[0].week
    n, c = weeks.subscriber[w, row], weeks.cores[w, row]
    total, start = 0.0, state.worst[k]
    highest, worst = -1.0, start
    for i in range(24):
        hour = (start + i) % 24
        mean = state.day[k, 0, hour] + c * guard.factor * (tables.mean[n, hour] + guard.excess[n, hour])
        moved, spread = 0.0, 0.0
        for owner in range(guard.moved.shape[0]):
            cores = state.loads[0, owner, k] + (c if owner == n else 0.0)
            moved += cores * guard.moved[owner, hour]
            spread += (cores * guard.spread[owner, hour]) ** 2
        p = hot_probability(
            mean + max(moved + np.sqrt(spread), 0.0),
            state.day[k, 1, hour] + c * c * tables.variance[n, hour],
            state.day[k, 2, hour] + c * c * c * tables.third[n, hour],
            cluster.threshold,
        )
        if p > highest:
            highest, worst = p, hour
        total += p
        if total > guard.budget:
            break
    # The next look begins where a refusal is seen at once.
    state.worst[k] = worst
    return total <= guard.budget


@inlined
def _fits(state: State, weeks: Weeks, row: int, rate: float, room: Floats) -> int:
    """Return the machine best fit takes, -1 where none has room; the machines that can take the VM are in `room`."""
    w = state.books[0].week
    assigned, memory, network = rate * weeks.cores[w, row], weeks.memory[w, row], weeks.network[w, row]
    write_room(state.free_cores, state.free_memory, state.free_network, assigned, memory, network, room)
    return best_fit(room)


@inlined
def _ruled(
    state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, room: Floats, added: Floats
) -> tuple[int, float]:
    """Return machine and rate: the first level that the rule accepts on the machine best fit takes at it.

    added: room for the moments of the VM, (2, 24).
    """
    w = state.books[0].week
    n, c, weights = weeks.subscriber[w, row], weeks.cores[w, row], guard.rule.weights
    wanted = guard.rule.wanted[state.books[0].hour, n]
    for hour in range(24):
        added[0, hour] = c * guard.factor * (tables.mean[n, hour] + guard.excess[n, hour])
        added[1, hour] = c * c * tables.variance[n, hour]
    looked, need = -1, 0.0
    for level in guard.levels:
        k = _fits(state, weeks, row, level, room)
        if k < 0:
            # A higher level needs more room still.
            return k, 1.0
        # The machine of the level before asks for the same again.
        if k != looked:
            day = state.day[k]
            margin = least_margin(day[0], day[1], added[0], added[1], weights.spread, cluster.threshold)
            need = need_of(wanted, margin, state.free_cores[k] / cluster.cores, weights)
            looked = k
        if level >= need:
            return k, level
    return looked, 1.0


@compiled
def _escalate(
    state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, rate: float, room: Floats
) -> tuple[int, float]:
    """Return machine and rate: the first level from the rate upwards whose machine keeps the budget (§12.4)."""
    books = state.books[0]
    looked = _fits(state, weeks, row, rate, room)
    if looked >= 0 and _within(state, weeks, cluster, guard, tables, row, looked):
        return looked, rate
    books.raised += 1
    for level in guard.levels:
        if level <= rate + 1e-9:
            continue
        k = _fits(state, weeks, row, level, room)
        # The machine that was just refused is refused again.
        if k >= 0 and k != looked and _within(state, weeks, cluster, guard, tables, row, k):
            return k, level
        looked = k
    books.unsafe += 1
    return _fits(state, weeks, row, 1.0, room), 1.0


@compiled
def _filtered(
    state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, rate: float, room: Floats
) -> tuple[int, float]:
    """Return machine and rate: best fit among the machines that keep the budget with the VM added (§12.6).

    An unused machine counts as keeping it. Where none is left the VM goes to the best fit at rate 1.0.
    """
    k = _fits(state, weeks, row, rate, room)
    while k >= 0:
        if state.vms[k] == 0 or _within(state, weeks, cluster, guard, tables, row, k):
            return k, rate
        room[k] = shield.NO_ROOM
        k = best_fit(room)
    state.books[0].unsafe += 1
    return _fits(state, weeks, row, 1.0, room), 1.0


@compiled
def place_rows(
    state: State,
    weeks: Weeks,
    cluster: Cluster,
    guard: Guard,
    tables: Tables,
    kind: int,
    rows: tuple[int, int],
    rates: Floats,
) -> float:
    """Place the rows from, to at their subscribers' rates behind a guard of some kind; return the cores saved.

    A rule of the guard sets the rates of requests in their place; VMs that a warm start begins with have theirs.
    """
    books, w = state.books[0], state.books[0].week
    opened, used, peak, alive, rejects = books.opened, books.used, books.peak, books.alive, books.rejects
    observed, drawn, requested, saved = len(state.present) > 0, len(state.alive) > 0, books.requested, 0.0
    subscriber, cores, memory, network = weeks.subscriber[w], weeks.cores[w], weeks.memory[w], weeks.network[w]
    # Arrays are taken out of the tuples before the loop, where that would cost as much as the arithmetic.
    free_cores, free_memory, free_network = state.free_cores, state.free_memory, state.free_network
    loads, vms, machine, rate_of, present, vms_of = (
        state.loads,
        state.vms,
        state.machine,
        state.rate,
        state.present,
        state.vms_of,
    )
    listed, place_of = state.alive, state.place
    every = np.empty(cluster.machines)
    # Best fit looks at the machines opened and at the next; more unopened ones change nothing and keep loops whole.
    room = every[: 16 * (opened // 16 + 1)]
    by_rule, added = len(guard.rule.wanted) > 0 and rows[0] >= weeks.warm[w], np.empty((2, 24))
    for row in range(rows[0], rows[1]):
        n, c = subscriber[row], cores[row]
        k, rate = NOWHERE, rates[n]
        if by_rule:
            k, rate = _ruled(state, weeks, cluster, guard, tables, row, room, added)
        if kind == ESCALATE:
            k, rate = _escalate(state, weeks, cluster, guard, tables, row, rate, room)
        elif kind == FILTER:
            k, rate = _filtered(state, weeks, cluster, guard, tables, row, rate, room)
        elif not by_rule:
            write_room(free_cores, free_memory, free_network, rate * c, memory[row], network[row], room)
            k = best_fit(room)
        requested += c
        if k < 0:
            rejects += 1
            machine[row] = REJECTED
            continue
        saved += (1.0 - rate) * c
        machine[row], rate_of[row] = k, rate
        free_cores[k] -= rate * c
        free_memory[k] -= memory[row]
        free_network[k] -= network[row]
        if vms[k] == 0:
            used += 1
            peak = max(peak, used)
        vms[k] += 1
        if k >= opened:
            opened = k + 1
            room = every[: 16 * (opened // 16 + 1)]
        loads[0, n, k] += c
        loads[1, n, k] += c * c
        loads[2, n, k] += c * c * c
        if drawn:
            listed[alive], place_of[row] = row, alive
        alive += 1
        if observed:
            present[n, 0] += rate * c
            present[n, 1] += c
            present[n, 2] += memory[row]
            present[n, 3] += network[row]
            vms_of[n] += 1.0
        if guard.watched:
            if guard.posterior:
                for hour in range(24):
                    state.own[row, 0, hour] = c * guard.factor * (tables.mean[n, hour] + guard.excess[n, hour])
                    state.own[row, 1, hour] = c * c * tables.variance[n, hour]
                    state.own[row, 2, hour] = c * c * c * tables.third[n, hour]
            _add_to_day(state, guard, tables, row, k, n, c, 1.0)
    books.opened, books.used, books.peak, books.alive, books.rejects = opened, used, peak, alive, rejects
    books.requested = requested
    books.saved += saved
    return saved


@compiled
def prefill(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables) -> None:
    """Place the VMs that a warm start begins with, in order; requests come after them."""
    books, rates = state.books[0], np.full(tables.mean.shape[0], cluster.prefill_rate)
    place_rows(state, weeks, cluster, guard, tables, UNGUARDED, (0, weeks.warm[books.week]), rates)
    books.requested, books.saved = 0.0, 0.0


@compiled
def place(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, rates: Floats) -> float:
    """Place the current hour's requests at their subscribers' rates; return the cores saved."""
    hour, first = state.books[0].hour, weeks.first[state.books[0].week]
    return place_rows(state, weeks, cluster, guard, tables, guard.kind, (first[hour], first[hour + 1]), rates)


@inlined
def _weigh(total: Floats, loads: Floats, power: int, n: int, weight: float) -> None:
    for k in range(total.size):
        total[k] += loads[power, n, k] * weight


@compiled
def assess_hour(state: State, cluster: Cluster, tables: Tables) -> float:
    """Fill in each machine's chance to be hot this hour and return the cluster's (§12.1, §12.8)."""
    books, loads, vms, rho = state.books[0], state.loads, state.vms, tables.rho
    h, opened, chance, threshold = books.hour % 24, books.opened, state.chance[: books.opened], cluster.threshold
    means, variances, thirds = tables.mean, tables.variance, tables.third
    mean, variance, third = np.zeros(opened), np.zeros(opened), np.zeros(opened)
    for n in range(means.shape[0]):
        _weigh(mean, loads, 0, n, means[n, h])
        if rho > 0.0:
            for k in range(opened):
                variance[k] += correlated_square(loads[0, n, k], loads[1, n, k], rho) * variances[n, h]
        else:
            _weigh(variance, loads, 1, n, variances[n, h])
        _weigh(third, loads, 2, n, thirds[n, h])
    if rho > 0.0:
        third *= (1.0 - rho) ** 1.5
    for k in range(opened):
        chance[k] = hot_probability(mean[k], variance[k], third[k], threshold) if vms[k] > 0 else 0.0
    p = any_hot(chance)
    books.expected_hot_hours += p
    return p


@compiled
def use(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, usage: Usage, keys: Keys) -> bool:
    """Draw the usage of every VM alive, fill in machines' usage and hot flags; return whether any is hot."""
    books, rows = state.books[0], state.alive[: state.books[0].alive].astype(np.int64)
    w, t, n = books.week, books.hour, np.empty(rows.size, np.int64)
    for i in range(rows.size):
        n[i] = weeks.subscriber[w, rows[i]]
    hours, drawn = np.full(rows.size, t), np.zeros((rows.size, 1))
    stays = Stays(rows, n, np.ones(rows.size), hours, hours + 1, np.arange(rows.size))
    add_usage(usage, keys, stays, t, drawn)
    state.usage[: books.opened] = 0.0
    for i in range(rows.size):
        row, u = rows[i], drawn[i, 0]
        state.usage[state.machine[row]] += u * weeks.cores[w, row]
        if guard.posterior:
            state.residual[row] += (u - guard.mu[n[i], t % 24]) / guard.sd[n[i], t % 24]
            state.seen[row] += 1
    hot = False
    for k in range(books.opened):
        state.hot[k] = state.usage[k] >= cluster.threshold
        hot = hot or state.hot[k]
    books.hot_hours += hot
    return hot
