"""The shield before one request: the smallest rate that leaves its machine cool enough, with every level looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.loads import Loads, added_variance
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import LevelTried, RateDecision, RateRequest
from agent.oversubscription.rules import PoolRules
from domain.rules.oversubscription.risk import hot_probability
from domain.rules.oversubscription.shield import Demand, Machines, Shielded, expected_hot_hours, shield


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

    Closed machines take nothing that is oversold. The choice is `shield.shield`'s, on those machines only that best fit
    would take at some level: the others cannot be chosen.
    """
    everywhere, open_ones = np.ones(len(loads.names), dtype=np.bool_), open_machines(loads, closed)
    levels = [rate, *(level for level in rules.actions if level > rate + 1e-9)]
    sizes = (request.memory_gb, request.network_gbit)
    fits = [loads.best_fit(x * request.cores, *sizes, everywhere if x >= 1.0 else open_ones) for x in levels]
    candidates = sorted({k for k in fits if k >= 0})
    if not candidates:
        return Answer(1.0, -1, None, False, tuple(LevelTried(level, "", None) for level in levels))
    machines, demand = machines_among(loads, profiles, request, candidates, rules)
    risks = {k: expected_hot_hours(machines, place, demand) for place, k in enumerate(candidates)}
    found = _chosen(machines, demand, candidates, fits, levels, rules, budget)
    tried: list[LevelTried] = []
    told: set[int] = set()
    for level, k in zip(levels, fits, strict=True):
        tried.append(_tried(level, k, loads, machines, demand, candidates, risks, told))
        if found.safe and level >= found.rate - 1e-9:
            break
    k = candidates[found.machine] if found.machine >= 0 else -1
    return Answer(found.rate, k, risks.get(k), found.safe, tuple(tried))


def open_machines(loads: Loads, closed: Collection[str]) -> NDArray[np.bool_]:
    """Return which machines may take what is oversold."""
    found = np.ones(len(loads.names), dtype=np.bool_)
    for name in closed:
        if (k := loads.index(name)) >= 0:
            found[k] = False
    return found


def machines_among(
    loads: Loads, profiles: Profiles, request: RateRequest, candidates: list[int], rules: PoolRules
) -> tuple[Machines, Demand]:
    """Return these machines, and the request's VM on any of them."""
    owner = profiles.index(request.subscriber)
    cores, variance = request.cores, profiles.variance[owner]
    present = loads.by_owner[candidates, owner]
    # What the VM shares with its owner's others on a machine belongs to that machine.
    rho = float(profiles.rho[owner])
    shared = np.array([added_variance(float(c), cores, variance, rho) for c in present]) - cores**2 * variance
    machines = Machines(
        free_cores=loads.free_cores[candidates],
        free_memory=loads.free_memory[candidates],
        free_network=loads.free_network[candidates],
        mean=loads.mean[candidates],
        variance=loads.variance[candidates] + shared,
        third=loads.third[candidates],
        threshold=rules.threshold_cores,
    )
    demand = Demand(
        cores=cores,
        memory=request.memory_gb,
        network=request.network_gbit,
        mean=cores * profiles.mean[owner],
        variance=cores**2 * variance,
        third=cores**3 * profiles.third[owner],
    )
    return machines, demand


def _chosen(
    machines: Machines,
    demand: Demand,
    candidates: list[int],
    fits: list[int],
    levels: list[float],
    rules: PoolRules,
    budget: float,
) -> Shielded:
    """Ask the shield; a machine that is closed to what is oversold is a candidate of the last level alone."""
    last = {fits[-1]} - set(fits[:-1]) if levels[-1] >= 1.0 else set()
    if not last:
        return shield(machines, demand, levels[0], rules.actions, budget)
    hidden = np.array([np.nan if k in last else 0.0 for k in candidates])
    oversold = Machines(
        free_cores=np.where(np.isnan(hidden), -1.0, machines.free_cores),
        free_memory=machines.free_memory,
        free_network=machines.free_network,
        mean=machines.mean,
        variance=machines.variance,
        third=machines.third,
        threshold=machines.threshold,
    )
    below = [level for level in rules.actions if level < 1.0]
    if levels[0] < 1.0:
        found = shield(oversold, demand, levels[0], below, budget)
        if found.safe:
            return found
    return shield(machines, demand, 1.0, rules.actions, budget)


def _tried(
    level: float,
    k: int,
    loads: Loads,
    machines: Machines,
    demand: Demand,
    candidates: list[int],
    risks: dict[int, float],
    told: set[int],
) -> LevelTried:
    if k < 0:
        return LevelTried(level, "", None)
    if k in told:
        return LevelTried(level, loads.names[k], risks[k])
    told.add(k)
    place = candidates.index(k)
    return LevelTried(
        level,
        loads.names[k],
        risks[k],
        tuple((machines.mean[place] + demand.mean).tolist()),
        tuple((machines.variance[place] + demand.variance).tolist()),
        tuple((machines.third[place] + demand.third).tolist()),
    )


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
