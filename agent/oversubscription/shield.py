"""Before one request: the shield raises its rate until its machine stays cool, the risk filter moves it (§12.4, §12.6).

Both look at the machines as they are expected to be; what they tried stands in the record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.arrays import hot_probabilities
from agent.oversubscription.loads import Loads, added_variance
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import LevelTried, RateDecision, RateRequest
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.rates import Margin
from domain.rules.oversubscription.risk import hot_probability
from domain.rules.oversubscription.shield import TOLERANCE, Demand, Machines, expected_hot_hours


@dataclass(frozen=True, slots=True)
class Answer:
    """What the shield found: the rate, the place of the machine (-1: none has room), its risk, and the levels tried."""

    rate: float
    machine: int
    hot_hours: float | None
    safe: bool
    tried: tuple[LevelTried, ...]


def ask_shield(
    loads: Loads,
    profiles: Profiles,
    request: RateRequest,
    rate: float,
    rules: PoolRules,
    budget: float,
    closed: Collection[str],
) -> Answer:
    """Return the answer for a request at the subscriber's rate and, where needed, each larger level (§12.4).

    Closed machines take nothing that is oversold. A level for which no machine has room counts as refused, as a larger
    one needs more room still. Where no level passes, the rate is 1.0 and the answer is not safe.
    """
    levels = [rate, *(level for level in rules.actions if level > rate + 1e-9)]
    fits, candidates = fitting(loads, request, levels, closed)
    if not candidates:
        return Answer(1.0, -1, None, False, tuple(LevelTried(level, "", None) for level in levels))
    machines, demand = machines_among(loads, profiles, request, candidates, rules.threshold_cores, rules.margin)
    risks = {k: expected_hot_hours(machines, place, demand) for place, k in enumerate(candidates)}
    tried: list[LevelTried] = []
    for number, (level, k) in enumerate(zip(levels, fits, strict=True)):
        if k < 0:
            tried.append(LevelTried(level, "", None))
            continue
        # The moments of a machine stand with the first level that was tried on it.
        moments = () if k in fits[:number] else _moments(machines, candidates.index(k), demand)
        tried.append(LevelTried(level, loads.names[k], risks[k], *moments))
        if risks[k] <= budget:
            return Answer(level, k, risks[k], True, tuple(tried))
    return Answer(1.0, fits[-1], risks.get(fits[-1]), False, tuple(tried))


def _moments(machines: Machines, k: int, demand: Demand) -> tuple[tuple[float, ...], ...]:
    added = (machines.mean[k] + demand.mean, machines.variance[k] + demand.variance, machines.third[k] + demand.third)
    return tuple(tuple(values.tolist()) for values in added)


def fitting(
    loads: Loads, request: RateRequest, levels: Sequence[float], closed: Collection[str]
) -> tuple[list[int], list[int]]:
    """Return the machine that best fit takes at each level, -1 where none has room, and all of them, each once.

    Closed machines take nothing that is oversold.
    """
    everywhere, open_ones = np.ones(len(loads.names), dtype=np.bool_), open_machines(loads, closed)
    sizes = (request.memory_gb, request.network_gbit)
    fits = [loads.best_fit(x * request.cores, *sizes, everywhere if x >= 1.0 else open_ones) for x in levels]
    return fits, sorted({k for k in fits if k >= 0})


def open_machines(loads: Loads, closed: Collection[str]) -> NDArray[np.bool_]:
    """Return which machines may take what is oversold."""
    found = np.ones(len(loads.names), dtype=np.bool_)
    for name in closed:
        if (k := loads.index(name)) >= 0:
            found[k] = False
    return found


def machines_among(
    loads: Loads, profiles: Profiles, request: RateRequest, candidates: list[int], threshold: float, margin: Margin
) -> tuple[Machines, Demand]:
    """Return these machines, and the request's VM on any of them; the means leave room for the drift of the margin.

    The shift of days is that of the profiles.
    """
    owner = profiles.index(request.subscriber)
    cores, variance = request.cores, profiles.variance[owner]
    present, factor, excess = loads.by_owner[candidates, owner], margin.factor, profiles.excess
    # What the VM shares with its owner's others on a machine belongs to that machine.
    rho = float(profiles.rho[owner])
    shared = np.array([added_variance(float(c), cores, variance, rho) for c in present]) - cores**2 * variance
    # So does what the VM's owner adds to the room for drifts: of several owners it is less than the sum.
    owned = loads.by_owner[candidates].copy()
    owned[:, owner] += cores
    drift = owned @ profiles.moved + margin.spread * np.sqrt((owned * owned) @ (profiles.spread * profiles.spread))
    room = np.maximum(drift, 0.0) if margin.spread else 0.0
    machines = Machines(
        free_cores=loads.free_cores[candidates],
        free_memory=loads.free_memory[candidates],
        free_network=loads.free_network[candidates],
        mean=factor * (loads.mean[candidates] + loads.by_owner[candidates] @ excess) + room,
        variance=loads.variance[candidates] + shared,
        third=loads.third[candidates],
        threshold=threshold,
    )
    demand = Demand(
        cores=cores,
        memory=request.memory_gb,
        network=request.network_gbit,
        mean=cores * factor * (profiles.mean[owner] + excess[owner]),
        variance=cores**2 * variance,
        third=cores**3 * profiles.third[owner],
    )
    return machines, demand


def replayed(decision: RateDecision) -> tuple[float, bool]:
    """Return rate and safety that the recorded moments give again; a decision without a shield stands as it is."""
    if not decision.tried:
        return decision.rate, decision.safe
    risks: dict[str, float] = {}
    for level in decision.tried:
        if level.mean:
            moments = zip(level.mean, level.variance, level.third, strict=True)
            risks[level.machine] = sum(hot_probability(m, v, t, decision.threshold_cores) for m, v, t in moments)
        if level.machine and risks[level.machine] <= decision.budget:
            return level.rate, True
    return 1.0, False


AT_ONCE: Final = 64
"""Machines judged together; mostly one of the first is taken."""


def ask_filter(
    loads: Loads,
    profiles: Profiles,
    request: RateRequest,
    rate: float,
    rules: PoolRules,
    budget: float,
    closed: Collection[str],
) -> Answer:
    """Return the best fit among the machines that keep the budget with the VM on them, at the subscriber's rate.

    Closed machines take nothing that is oversold. Where none is left: the best fit at rate 1.0, not safe.
    """
    room = (
        (open_machines(loads, closed) if rate < 1.0 else np.ones(len(loads.names), dtype=np.bool_))
        & (loads.free_cores >= rate * request.cores - TOLERANCE)
        & (loads.free_memory >= request.memory_gb)
        & (loads.free_network >= request.network_gbit)
    )
    places = np.flatnonzero(room)
    # Nearly equal ones count as equal, and the lowest index is taken first.
    order = places[np.lexsort((places, np.round(loads.free_cores[places] / TOLERANCE)))].tolist()
    first: LevelTried | None = None
    for start in range(0, len(order), AT_ONCE):
        some = order[start : start + AT_ONCE]
        machines, demand = machines_among(loads, profiles, request, some, rules.threshold_cores, rules.margin)
        mean = machines.mean + demand.mean
        variance, third = machines.variance + demand.variance, machines.third + demand.third
        hours = hot_probabilities(mean, variance, third, rules.threshold_cores).sum(axis=1)
        cool = np.flatnonzero(hours <= budget)
        place = int(cool[0]) if cool.size else 0
        moments = [tuple(values[place].tolist()) for values in (mean, variance, third)]
        tried = LevelTried(rate, loads.names[some[place]], float(hours[place]), *moments)
        if cool.size:
            return Answer(rate, some[place], float(hours[place]), True, (tried,))
        first = first or tried
    everywhere = np.ones(len(loads.names), dtype=np.bool_)
    k = loads.best_fit(request.cores, request.memory_gb, request.network_gbit, everywhere)
    return Answer(1.0, k, first.hot_hours if first is not None else None, False, () if first is None else (first,))
