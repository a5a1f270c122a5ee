"""Sampled futures of a cluster, and what base policies make of them (placement specification §9.2).

What is known of the future: which applications have not come yet, how large requests are, and what an instance adds up
to. A future is these applications in a random order, with counts drawn from those of other instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from simulator.compilation import compiled
from simulator.placement import engine
from simulator.placement.choosing import FULL, OPEN, REJECTIONS, Arrays, Floats, Ints, Rules, State
from simulator.placement.engine import PLACE

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

    @property
    def largest(self) -> int:
        """The largest count of a request."""
        return max(int(known.max()) for known in self.counts.values())

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


def fitted(instances: Sequence[Instance]) -> Prior:
    """Return the counts of all requests of some instances, and the cores of each; BadInput where there are none."""
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


class Bases(NamedTuple):
    """B policies as arrays: `simulator.placement.engine.Rules` in rows, parameters padded."""

    codes: Ints
    theta: Floats
    more: Floats
    open_first: Ints
    scale: Floats
    tiers: Ints


def bases_of(policies: Sequence[Policy]) -> Bases:
    """Return policies as arrays; BadInput where there are none."""
    if not policies:
        raise BadInput("bases", 0, "give a base policy")
    rules = [engine.rules_of(policy) for policy in policies]
    theta, more = np.zeros((len(rules), 17)), np.zeros((len(rules), 17))
    for k, one in enumerate(rules):
        theta[k, : len(one.theta)], more[k, : len(one.more)] = one.theta, one.more
    return Bases(
        np.array([(one.first, one.second) for one in rules], dtype=np.int64),
        theta,
        more,
        np.array([one.open_first for one in rules], dtype=np.int64),
        np.array([one.scale for one in rules]),
        np.array([one.tiers for one in rules]),
    )


@compiled
def rules_in(bases: Bases, b: int) -> Rules:
    """Return one policy of many."""
    return Rules(
        bases.codes[b, 0],
        bases.codes[b, 1],
        bases.theta[b],
        bases.more[b],
        bases.open_first[b] != 0,
        bases.scale[b],
        bases.tiers[b],
    )


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
    target.filled[:] = source.filled
    target.members[:] = source.members
    engine.forget_scores(target)


@compiled
def place_by(arrays: Arrays, state: State, bases: Bases, b: int, request: int) -> None:
    """Place a request by one of the base policies."""
    engine.forget_scores(state)
    engine.turn(arrays, state, rules_in(bases, b), PLACE, request, np.zeros((2, 4)))


@compiled
def costs(
    arrays: Arrays, state: State, first: State, second: State, bases: Bases, request: int, futures: Ints, counts: Ints
) -> Floats:
    """Return mean hosts at the end, float64 [B, B]: by the base that places the request, and the one that completes.

    first, second: room for copies of `state`, which stays. futures, counts: applications and containers, [S, F]. A
    rejected container counts as PRICE_OF_REJECTION hosts.
    """
    many, prices = len(bases.scale), np.zeros((2, 4))
    found = np.zeros((many, many))
    for b in range(many):
        _copy(state, first)
        place_by(arrays, first, bases, b, request)
        for c in range(many):
            rules = rules_in(bases, c)
            for s in range(len(futures)):
                _copy(first, second)
                for k in range(futures.shape[1]):
                    engine.place(arrays, second, rules, futures[s, k], counts[s, k], 0, prices)
                totals = second.totals
                found[b, c] += totals[OPEN] + PRICE_OF_REJECTION * (totals[REJECTIONS] + totals[FULL])
    return found / max(1, len(futures))
