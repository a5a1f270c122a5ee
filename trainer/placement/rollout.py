"""Rollout: for each request the base policy that ends best on sampled futures (placement specification §9.2).

What is known of the future: which applications have not come yet, and how large requests are. A future is these
applications in a random order, with counts drawn from those of other instances. Every base policy places the request
that has come on a copy of the cluster, and every base policy completes each of the futures; the pair with the fewest
hosts on average decides who places the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from simulator.compilation import compiled
from simulator.placement import engine
from simulator.placement.engine import FULL, OPEN, PLACE, REJECTIONS, Arrays, Ints, Rules, State

SAMPLES = 64
"""Futures for each request."""
MOVES = 400
"""Tries to bring the cores of a future to those of an instance."""
PRICE_OF_REJECTION = 1_000
"""Hosts that a rejected container counts as."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Requests as they were seen elsewhere; `fitted` makes one.

    counts: of requests, by the limit of the application. cores: of all containers of each instance.
    """

    counts: Mapping[int, Ints]
    cores: Ints

    def draw(self, apps: Ints, arrays: Arrays, seen_cores: int, draws: np.random.Generator) -> Ints:
        """Return counts for applications that are to come, int64 [S, F] as `apps`.

        Each row is drawn count by count, then moved one container at a time until its cores and those seen so far are
        those of an instance drawn for it, as far as counts between 1 and the largest of the limit allow.
        """
        everything = np.concatenate([*self.counts.values()])
        limits = arrays.limit[apps]
        found, most = np.ones_like(apps), np.ones_like(apps)
        for limit in np.unique(limits).tolist():
            mine, known = limits == limit, self.counts.get(limit, everything)
            found[mine] = draws.choice(known, int(mine.sum()))
            most[mine] = known.max()
        target = draws.choice(self.cores, len(apps)) - seen_cores
        moves = draws.integers(0, max(1, apps.shape[1]), (len(apps), MOVES))
        _adjust(found, most, arrays.demand[:, 0][apps], target, moves)
        return found


@compiled
def _adjust(counts: Ints, most: Ints, cores: Ints, target: Ints, moves: Ints) -> None:
    for s in range(len(counts)):
        missing = target[s] - np.sum(counts[s] * cores[s])
        for k in moves[s]:
            if missing == 0 or counts.shape[1] == 0:
                break
            step = 1 if missing > 0 else -1
            if abs(missing) >= cores[s, k] and 1 <= counts[s, k] + step <= most[s, k]:
                counts[s, k] += step
                missing -= step * cores[s, k]


def fitted(instances: Sequence[Instance]) -> Prior:
    """Return the counts of all requests of some instances; BadInput where there are none."""
    seen: dict[int, list[int]] = {}
    totals = []
    for instance in instances:
        apps = {app.name: app for app in instance.applications}
        for request in instance.requests:
            seen.setdefault(apps[request.application].limit, []).append(request.count)
        totals.append(sum(apps[request.application].demand[0] * request.count for request in instance.requests))
    if not seen:
        raise BadInput("instances", len(instances), "give instances with requests")
    counts = {limit: np.array(found, dtype=np.int64) for limit, found in seen.items()}
    return Prior(counts, np.array(totals, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a rollout made of a sequence: open hosts, rejected containers, their hosts, and the base of each request."""

    hosts: int
    rejected: int
    host: NDArray[np.int32]
    chosen: tuple[int, ...]


def rollout(
    instance: Instance,
    bases: Sequence[Policy],
    prior: Prior,
    *,
    order: Ints | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Rolled:
    """Return what becomes of an instance without releases when the best base policy places each request.

    order: of the requests, as positions. Raises BadInput.
    """
    if instance.releases:
        raise BadInput("instance", instance.name, "give one without releases: the futures have none")
    if samples < 1 or not bases:
        raise BadInput("samples", samples, "give 1 future or more, and a base policy")
    places = np.arange(len(instance.requests)) if order is None else order
    draws = np.random.default_rng(seed)
    names = [app.name for app in instance.applications]
    arrays = engine.arrays_of(instance, _enough(instance, prior))
    rules = tuple(engine.rules_of(policy) for policy in bases)
    state, first, second = (_state(arrays, prior) for _ in range(3))
    engine.clear(arrays, state, rules[0])
    waiting, chosen, seen_cores = set(names), [], 0
    prices = np.zeros((2, 4))
    for place in places.tolist():
        app = names[int(arrays.apps[place])]
        waiting.discard(app)
        left = [k for k, name in enumerate(names) if name in waiting]
        futures = draws.permuted(np.tile(np.array(left, dtype=np.int64), (samples, 1)), axis=1)
        seen_cores += int(arrays.demand[arrays.apps[place], 0] * arrays.counts[place])
        counts = prior.draw(futures, arrays, seen_cores, draws)
        values = _values(arrays, state, first, second, rules, place, futures, counts, prices)
        # Of equal bases the first decides: rows are bases for this request, columns those that complete.
        best = int(np.argmin(values.min(axis=1)))
        chosen.append(best)
        engine.turn(arrays, state, rules[best], PLACE, place, prices)
    totals = state.totals
    return Rolled(int(totals[OPEN]), int(totals[REJECTIONS]), state.where[: instance.containers], tuple(chosen))


def _enough(instance: Instance, prior: Prior) -> int:
    """Return hosts that no future runs out of, where a type is without bound."""
    largest = max(int(counts.max()) for counts in prior.counts.values())
    most = sum(max(request.count, largest) for request in instance.requests)
    return min(most, 4 * engine.arrays_of(instance).kind.size)


def _state(arrays: Arrays, prior: Prior) -> State:
    """Return room for a cluster whose futures may have larger requests than the instance."""
    largest = max(int(counts.max()) for counts in prior.counts.values())
    state = engine.new_state(arrays)
    return state._replace(where=np.zeros(max(len(state.where), largest), dtype=np.int32))


@compiled
def _copy(source: State, target: State) -> None:
    target.room[:] = source.room
    target.free[:] = source.free
    target.bars[:] = source.bars
    target.instances[:] = source.instances
    target.containers[:] = source.containers
    target.distinct[:] = source.distinct
    target.barred[:] = source.barred
    target.closed[:] = source.closed
    target.totals[:] = source.totals


@compiled
def _values(
    arrays: Arrays,
    state: State,
    first: State,
    second: State,
    rules: tuple[Rules, ...],
    request: int,
    futures: Ints,
    counts: Ints,
    prices: NDArray[np.float64],
) -> Any:
    """Return the mean cost, float64 [B, B]: base of the request by base that completes; futures, counts: [S, F]."""
    found = np.zeros((len(rules), len(rules)))
    for b in range(len(rules)):
        _copy(state, first)
        engine.turn(arrays, first, rules[b], PLACE, request, prices)
        for c in range(len(rules)):
            for s in range(len(futures)):
                _copy(first, second)
                for k in range(futures.shape[1]):
                    engine.place(arrays, second, rules[c], futures[s, k], counts[s, k], 0, prices)
                cost = second.totals[OPEN] + PRICE_OF_REJECTION * (second.totals[REJECTIONS] + second.totals[FULL])
                found[b, c] += cost / len(futures)
    return found
