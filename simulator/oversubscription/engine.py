"""One cluster hour by hour: VMs leave, requests are placed by best fit, usage is drawn (specification §2)."""

from __future__ import annotations

import numpy as np

from domain.rules.oversubscription import risk, shield
from simulator.compilation import compiled, inlined
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
from simulator.oversubscription.usage import Keys, Usage, add_usage, offset_of

best_fit = inlined(shield.best_fit)
hot_probability = compiled(risk.hot_probability)
any_hot = compiled(risk.any_hot)


@compiled
def correlated_variance(by_owner: Floats, squared: Floats, variance: Floats, rho: float) -> float:
    """Return a machine's variance when the VMs of one owner move together (§12.8).

    by_owner, squared: sums of the VMs' cores and of their squares per owner, (N,); variance: of one VM's usage, (N,).
    rho (sum c sd)^2 + (1 - rho) sum c^2 sd^2, summed over owners.
    """
    total = 0.0
    for n in range(variance.size):
        total += (rho * by_owner[n] * by_owner[n] + (1.0 - rho) * squared[n]) * variance[n]
    return total


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
        copies.held[i],
        copies.vms_of[i],
        copies.chance[i],
        copies.usage[i],
        copies.hot[i],
        copies.day[i],
        copies.worst[i],
        copies.own[i],
        copies.residual[i],
        copies.seen[i],
        copies.refused[i],
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
        state.loads[k] = 0.0
        state.chance[k], state.usage[k], state.hot[k] = 0.0, 0.0, False
        if len(state.day) > 0:
            state.day[k] = 0.0
    state.machine[:] = NOWHERE
    state.rate[:] = 0.0
    state.held[:] = 0.0
    state.vms_of[:] = 0.0
    state.residual[:] = 0.0
    state.seen[:] = 0
    state.refused[:] = -1
    books.seed, books.week, books.hour = seed, week, 0
    books.opened, books.used, books.peak, books.alive = 0, 0, 0, 0
    books.rejects, books.raised, books.unsafe, books.hot_hours = 0, 0, 0, 0
    books.requested, books.saved, books.expected_hot_hours = 0.0, 0.0, 0.0


@compiled
def _share(state: State, guard: Guard, tables: Tables, row: int, n: int, c: float, hour: int, power: int) -> float:
    """Return what a VM adds to a moment of its machine's usage in an hour of the day: mean, variance, third.

    The mean has the guard's margin.
    """
    if guard.posterior and state.machine[row] >= 0:
        return float(state.own[row, hour, power])
    if power == 0:
        return float(c * guard.factor * (tables.mean[n, hour] + guard.excess[n, hour]))
    if power == 1:
        return float(c * c * tables.variance[n, hour])
    return float(c * c * c * tables.third[n, hour])


@compiled
def _add_to_day(state: State, guard: Guard, tables: Tables, row: int, k: int, n: int, c: float, sign: float) -> None:
    for hour in range(24):
        for power in range(3):
            state.day[k, hour, power] += sign * _share(state, guard, tables, row, n, c, hour, power)


@inlined
def put(
    state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, k: int, rate: float
) -> None:
    """Place a VM on a machine."""
    books, w = state.books[0], state.books[0].week
    n, c = weeks.subscriber[w, row], weeks.cores[w, row]
    state.machine[row], state.rate[row] = k, rate
    state.free_cores[k] -= rate * c
    state.free_memory[k] -= weeks.memory[w, row]
    state.free_network[k] -= weeks.network[w, row]
    if state.vms[k] == 0:
        books.used += 1
        books.peak = max(books.peak, books.used)
    state.vms[k] += 1
    books.opened = max(books.opened, k + 1)
    state.loads[k, n, 0] += c
    state.loads[k, n, 1] += c * c
    state.loads[k, n, 2] += c * c * c
    state.alive[books.alive], state.place[row] = row, books.alive
    books.alive += 1
    state.held[n, 0] += rate * c
    state.held[n, 1] += c
    state.held[n, 2] += weeks.memory[w, row]
    state.held[n, 3] += weeks.network[w, row]
    state.vms_of[n] += 1.0
    if guard.kind != UNGUARDED:
        if guard.posterior:
            for hour in range(24):
                state.own[row, hour, 0] = c * guard.factor * (tables.mean[n, hour] + guard.excess[n, hour])
                state.own[row, hour, 1] = c * c * tables.variance[n, hour]
                state.own[row, hour, 2] = c * c * c * tables.third[n, hour]
        _add_to_day(state, guard, tables, row, k, n, c, 1.0)


@inlined
def _take_out(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int) -> None:
    """Let a VM leave its machine."""
    books, w, k = state.books[0], state.books[0].week, state.machine[row]
    n, c, rate = weeks.subscriber[w, row], weeks.cores[w, row], state.rate[row]
    state.free_cores[k] += rate * c
    state.free_memory[k] += weeks.memory[w, row]
    state.free_network[k] += weeks.network[w, row]
    state.vms[k] -= 1
    state.loads[k, n, 0] -= c
    state.loads[k, n, 1] -= c * c
    state.loads[k, n, 2] -= c * c * c
    if guard.kind != UNGUARDED:
        _add_to_day(state, guard, tables, row, k, n, c, -1.0)
    if state.vms[k] == 0:
        books.used -= 1
        # What rounding has left over goes with the last VM.
        state.free_cores[k], state.free_memory[k], state.free_network[k] = (
            cluster.cores,
            cluster.memory,
            cluster.network,
        )
        state.loads[k] = 0.0
        if guard.kind != UNGUARDED:
            state.day[k] = 0.0
    books.alive -= 1
    last, at = state.alive[books.alive], state.place[row]
    state.alive[at], state.place[last] = last, at
    state.vms_of[n] -= 1.0
    if state.vms_of[n] == 0.0:
        state.held[n] = 0.0
    else:
        state.held[n, 0] -= rate * c
        state.held[n, 1] -= c
        state.held[n, 2] -= weeks.memory[w, row]
        state.held[n, 3] -= weeks.network[w, row]


@compiled
def depart(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables) -> None:
    """Remove every VM that departs in the current hour."""
    books = state.books[0]
    for i in range(weeks.leaving_first[books.week, books.hour], weeks.leaving_first[books.week, books.hour + 1]):
        row = weeks.leaving[books.week, i]
        if state.machine[row] >= 0:
            _take_out(state, weeks, cluster, guard, tables, row)


@inlined
def _fits(state: State, weeks: Weeks, cluster: Cluster, row: int, rate: float) -> int:
    """Return the machine best fit takes, the next unopened one included; -1 where none has room."""
    books = state.books[0]
    w, count = books.week, min(books.opened + 1, cluster.machines)
    return best_fit(
        state.free_cores,
        state.free_memory,
        state.free_network,
        count,
        rate * weeks.cores[w, row],
        weeks.memory[w, row],
        weeks.network[w, row],
    )


@compiled
def _within(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, k: int) -> bool:
    """Return whether a machine's expected hot hours of the next day keep the budget with the VM added."""
    w = state.books[0].week
    n, c = weeks.subscriber[w, row], weeks.cores[w, row]
    total, start = 0.0, state.worst[k]
    highest, worst = -1.0, start
    for i in range(24):
        hour = (start + i) % 24
        mean = state.day[k, hour, 0] + c * guard.factor * (tables.mean[n, hour] + guard.excess[n, hour])
        moved, spread = 0.0, 0.0
        for owner in range(guard.moved.shape[0]):
            cores = state.loads[k, owner, 0] + (c if owner == n else 0.0)
            moved += cores * guard.moved[owner, hour]
            spread += (cores * guard.spread[owner, hour]) ** 2
        p = hot_probability(
            mean + max(moved + np.sqrt(spread), 0.0),
            state.day[k, hour, 1] + c * c * tables.variance[n, hour],
            state.day[k, hour, 2] + c * c * c * tables.third[n, hour],
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


@compiled
def _escalate(
    state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, rate: float
) -> tuple[int, float]:
    """Return machine and rate: the first level from the rate upwards whose machine keeps the budget (§12.4)."""
    books, looked = state.books[0], -1
    k = _fits(state, weeks, cluster, row, rate)
    if k >= 0 and _within(state, weeks, cluster, guard, tables, row, k):
        return k, rate
    looked = k
    books.raised += 1
    for level in guard.levels:
        if level <= rate + 1e-9:
            continue
        k = _fits(state, weeks, cluster, row, level)
        # The machine that was just refused is refused again.
        if k >= 0 and k != looked and _within(state, weeks, cluster, guard, tables, row, k):
            return k, level
        looked = k
    books.unsafe += 1
    return _fits(state, weeks, cluster, row, 1.0), 1.0


@compiled
def _filtered(
    state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, row: int, rate: float
) -> tuple[int, float]:
    """Return machine and rate: best fit among the machines that keep the budget with the VM added (§12.6).

    An unused machine counts as keeping it. Where none is left the VM goes to the best fit at rate 1.0.
    """
    books = state.books[0]
    w = books.week
    c, memory, network = weeks.cores[w, row], weeks.memory[w, row], weeks.network[w, row]
    while True:
        best, least = -1, np.inf
        for k in range(min(books.opened + 1, cluster.machines)):
            free = state.free_cores[k]
            if (
                free < least - shield.TOLERANCE
                and state.refused[k] != row
                and free >= rate * c - shield.TOLERANCE
                and state.free_memory[k] >= memory
                and state.free_network[k] >= network
            ):
                best, least = k, free
        if best < 0:
            books.unsafe += 1
            return _fits(state, weeks, cluster, row, 1.0), 1.0
        if state.vms[best] == 0 or _within(state, weeks, cluster, guard, tables, row, best):
            return best, rate
        state.refused[best] = row


@compiled
def prefill(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables) -> None:
    """Place the VMs that a warm start begins with, in order."""
    for row in range(weeks.warm[state.books[0].week]):
        k = _fits(state, weeks, cluster, row, cluster.prefill_rate)
        if k < 0:
            state.books[0].rejects += 1
            state.machine[row] = REJECTED
        else:
            put(state, weeks, cluster, guard, tables, row, k, cluster.prefill_rate)


@compiled
def place(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, tables: Tables, rates: Floats) -> float:
    """Place the current hour's requests at their subscribers' rates; return the cores saved."""
    books = state.books[0]
    w, saved = books.week, 0.0
    for row in range(weeks.first[w, books.hour], weeks.first[w, books.hour + 1]):
        rate, c = rates[weeks.subscriber[w, row]], weeks.cores[w, row]
        if guard.kind == ESCALATE:
            k, rate = _escalate(state, weeks, cluster, guard, tables, row, rate)
        elif guard.kind == FILTER:
            k, rate = _filtered(state, weeks, cluster, guard, tables, row, rate)
        else:
            k = _fits(state, weeks, cluster, row, rate)
        books.requested += c
        if k < 0:
            books.rejects += 1
            state.machine[row] = REJECTED
            continue
        put(state, weeks, cluster, guard, tables, row, k, rate)
        saved += (1.0 - rate) * c
    books.saved += saved
    return saved


@compiled
def assess_hour(state: State, cluster: Cluster, tables: Tables) -> float:
    """Fill in each machine's chance to be hot this hour and return the cluster's (§12.1, §12.8)."""
    books = state.books[0]
    h, subscribers = books.hour % 24, tables.mean.shape[0]
    # Arrays are taken out of the tuples before the loops, where that would cost more than the arithmetic.
    loads, vms, chance, rho, threshold = state.loads, state.vms, state.chance, tables.rho, cluster.threshold
    means, variances, thirds = tables.mean[:, h].copy(), tables.variance[:, h].copy(), tables.third[:, h].copy()
    for k in range(books.opened):
        chance[k] = 0.0
        if vms[k] == 0:
            continue
        mean, variance, third = 0.0, 0.0, 0.0
        for n in range(subscribers):
            mean += loads[k, n, 0] * means[n]
            variance += loads[k, n, 1] * variances[n]
            third += loads[k, n, 2] * thirds[n]
        if rho > 0.0:
            variance = correlated_variance(loads[k, :, 0].copy(), loads[k, :, 1].copy(), variances, rho)
            third *= (1.0 - rho) ** 1.5
        chance[k] = hot_probability(mean, variance, third, threshold)
    p = any_hot(chance[: books.opened])
    books.expected_hot_hours += p
    return p


@compiled
def use(state: State, weeks: Weeks, cluster: Cluster, guard: Guard, usage: Usage, keys: Keys) -> bool:
    """Draw the usage of every VM alive, fill in machines' usage and hot flags; return whether any is hot."""
    books = state.books[0]
    w, t = books.week, books.hour
    state.usage[: books.opened] = 0.0
    drawn = np.zeros(t + 1)
    for i in range(books.alive):
        row = state.alive[i]
        n = weeks.subscriber[w, row]
        drawn[t] = 0.0
        add_usage(usage, keys, row, n, (t, t + 1), offset_of(usage, keys, row), 1.0, drawn)
        u = drawn[t]
        state.usage[state.machine[row]] += u * weeks.cores[w, row]
        if guard.posterior:
            state.residual[row] += (u - guard.mu[n, t % 24]) / guard.sd[n, t % 24]
            state.seen[row] += 1
    hot = False
    for k in range(books.opened):
        state.hot[k] = state.usage[k] >= cluster.threshold
        hot = hot or state.hot[k]
    books.hot_hours += hot
    return hot
