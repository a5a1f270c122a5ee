"""The compiled simulator of deferral: plays an episode under an order of jobs or the knapsack.

Deferral specification §7 and §10.1. It starts exactly the jobs that `simulator.deferral.world` starts under the same
policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.deferral import choosing
from domain.rules.deferral.choosing import ALPHA, BETA, KEYS, USUAL, Decoding, Group, Policy
from domain.rules.deferral.jobs import Ints
from simulator.compilation import compiled, inlined
from simulator.deferral.scenarios import Episode

VERSION = "1"
"""Of what the simulator computes; a policy file names the one that it was trained with."""

KNAPSACK = "knapsack"

start_value = inlined(choosing.start_value)


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy that the engine plays.

    name: an order of `choosing.KEYS`, or knapsack. kind: how the order is decoded, prefix or skip. alpha, beta: of the
    knapsack.
    """

    name: str
    kind: Decoding = "skip"
    alpha: float = ALPHA
    beta: float = BETA

    def policy(self) -> Policy:
        """Return the same policy for `World`."""
        if self.name == KNAPSACK:
            return choosing.packed(self.alpha, self.beta)
        return choosing.ordered(self.name, self.kind)


def rule_of(text: str) -> Rule:
    """Return the rule that a text names: `fifo`, `fifo:skip`, `els`, `knapsack`, `knapsack:alpha=0.2,beta=0.1`.

    Raises BadInput for others.
    """
    name, colon, rest = text.partition(":")
    if name in KEYS:
        if colon and rest not in ("prefix", "skip"):
            raise BadInput("policy", text, f"give {name}, {name}:prefix or {name}:skip")
        kind: Decoding = "prefix" if rest == "prefix" else "skip" if rest == "skip" else USUAL[name]
        return Rule(name, kind)
    if name != KNAPSACK:
        raise BadInput("policy", text, f"choose from {', '.join((*KEYS, KNAPSACK))}")
    values = {"alpha": ALPHA, "beta": BETA}
    for pair in rest.split(",") if colon else ():
        key, _, value = pair.partition("=")
        try:
            values[key.strip()] = float(value) if key.strip() in values else np.nan
        except ValueError:
            values[key.strip()] = np.nan
    if len(values) > 2 or not np.isfinite(list(values.values())).all():
        raise BadInput("policy", text, "give knapsack, or knapsack:alpha=NUMBER,beta=NUMBER")
    return Rule(KNAPSACK, alpha=values["alpha"], beta=values["beta"])


def play(episode: Episode, rule: Rule) -> Ints:
    """Return the schedule of an episode, [N]: the step of each start, -1 for none."""
    jobs, start = episode.jobs, np.full(episode.jobs.size, -1, dtype=np.int64)
    if rule.name == KNAPSACK:
        ready = np.maximum(jobs.submitted, jobs.earliest)
        numbers = np.argsort(ready, kind="stable")
        _play_knapsack(
            jobs.cores, jobs.duration, jobs.earliest, jobs.latest, ready[numbers], numbers,
            episode.capacity, rule.alpha, rule.beta, start,
        )  # fmt: skip
        return start
    order = KEYS[rule.name](Group(np.arange(jobs.size), *jobs, jobs.duration))
    first = jobs.take(order)
    ready = np.maximum(first.submitted, first.earliest)
    places = np.argsort(ready, kind="stable")
    placed = np.full(jobs.size, -1, dtype=np.int64)
    _play_in_order(
        first.cores,
        first.duration,
        first.latest,
        ready[places],
        places,
        episode.capacity,
        rule.kind == "prefix",
        placed,
    )
    start[order] = placed
    return start


@inlined
def _refill(cur: Ints, waiting: int, arrivals: Ints, ready: Ints, begin: int, t: int, latest: Ints, into: Ints) -> int:
    """Merge the jobs that wait with those that become ready in step t, both ascending, into `into`.

    Leaves out jobs whose window has closed; returns how many there are.
    """
    a, b, n = 0, begin, 0
    while True:
        fresh = b < ready.size and ready[b] == t
        if a < waiting and (not fresh or cur[a] < arrivals[b]):
            job, a = cur[a], a + 1
        elif fresh:
            job, b = arrivals[b], b + 1
        else:
            return n
        if latest[job] >= t:
            into[n] = job
            n += 1


@compiled
def _play_in_order(
    cores: Ints, duration: Ints, latest: Ints, ready: Ints, arrivals: Ints, capacity: Ints, prefix: bool, start: Ints
) -> None:
    """Play an order; jobs are in that order.

    arrivals: jobs by the step from which they may start, ready: those steps, ascending; both [N]. start: filled.
    """
    steps, load, begin, waiting = capacity.size, 0, 0, 0
    cur, other = np.empty(cores.size, dtype=np.int64), np.empty(cores.size, dtype=np.int64)
    ended = np.zeros(steps + 1, dtype=np.int64)
    for t in range(steps):
        load -= ended[t]
        waiting = _refill(cur, waiting, arrivals, ready, begin, t, latest, other)
        while begin < ready.size and ready[begin] == t:
            begin += 1
        cur, other = other, cur
        free, left, stopped = capacity[t] - load, 0, False
        for k in range(waiting):
            job = cur[k]
            if not stopped and cores[job] <= free:
                start[job] = t
                free -= cores[job]
                load += cores[job]
                ended[min(t + duration[job], steps)] += cores[job]
            else:
                stopped = stopped or prefix
                cur[left] = job
                left += 1
        waiting = left


@compiled
def _play_knapsack(
    cores: Ints, duration: Ints, earliest: Ints, latest: Ints, ready: Ints, arrivals: Ints, capacity: Ints,
    alpha: float, beta: float, start: Ints,
) -> None:  # fmt: skip
    """Play the per-step knapsack; arguments as `_play_in_order` takes them, jobs by number."""
    steps, load, begin, waiting = capacity.size, 0, 0, 0
    cur, other = np.empty(cores.size, dtype=np.int64), np.empty(cores.size, dtype=np.int64)
    able, values = np.empty(cores.size, dtype=np.int64), np.empty(cores.size, dtype=np.float64)
    ended = np.zeros(steps + 1, dtype=np.int64)
    best, taken = np.empty(1, dtype=np.float64), np.empty(1, dtype=np.bool_)
    for t in range(steps):
        load -= ended[t]
        waiting = _refill(cur, waiting, arrivals, ready, begin, t, latest, other)
        while begin < ready.size and ready[begin] == t:
            begin += 1
        cur, other = other, cur
        free, n, wanted = capacity[t] - load, 0, 0
        for k in range(waiting):
            job = cur[k]
            value = start_value(
                cores[job] * duration[job], t - earliest[job], latest[job] > t, cores[job] * (duration[job] - 1),
                alpha, beta,
            )  # fmt: skip
            if value > 0.0 and cores[job] <= free:
                able[n], values[n] = job, value
                wanted += cores[job]
                n += 1
        if n and wanted > free:
            if best.size < free + 1:
                best = np.empty(free + 1, dtype=np.float64)
            if taken.size < n * (free + 1):
                taken = np.empty(n * (free + 1), dtype=np.bool_)
            n = _knapsack(able, values, cores, n, free, best, taken)
        for k in range(n):
            job = able[k]
            start[job] = t
            load += cores[job]
            ended[min(t + duration[job], steps)] += cores[job]
        left = 0
        for k in range(waiting):
            if start[cur[k]] < 0:
                cur[left] = cur[k]
                left += 1
        waiting = left


@inlined
def _knapsack(
    able: Ints, values: NDArray[np.float64], cores: Ints, n: int, free: int, best: NDArray[np.float64],
    taken: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Keep the most valuable of the first n jobs of `able`, as `choosing.knapsack` does; return how many they are."""
    width = free + 1
    best[:width] = 0.0
    for i in range(n):
        need, value = cores[able[i]], values[i]
        for room in range(free, -1, -1):
            better = room >= need and best[room - need] + value > best[room]
            taken[i * width + room] = better
            if better:
                best[room] = best[room - need] + value
    left, kept = free, n
    # From the last on, and moved to the end: what is kept lies behind what is still to be looked at.
    for i in range(n - 1, -1, -1):
        if taken[i * width + left]:
            left -= cores[able[i]]
            kept -= 1
            able[kept] = able[i]
    for i in range(n - kept):
        able[i] = able[kept + i]
    return n - kept
