"""The risk filter before one request: another machine instead of a larger rate, for allocators that follow (§12.6)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from agent.oversubscription.arrays import hot_probabilities
from agent.oversubscription.loads import Loads
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import LevelTried, RateRequest
from agent.oversubscription.rules import PoolRules
from agent.oversubscription.shield import Answer, machines_among, open_machines
from domain.rules.oversubscription.placement import TOLERANCE

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
        machines, demand = machines_among(loads, profiles, request, some, rules)
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
