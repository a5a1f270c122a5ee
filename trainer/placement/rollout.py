"""Rollout: for each request the base policy that ends best on sampled futures (placement specification §9.2).

Every base policy places the request that has come on a copy of the cluster, and every base policy completes each of
the futures. The base that completes best on average is kept; the one that leads to the fewest hosts with it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from simulator.placement import engine
from simulator.placement.choosing import OPEN, REJECTIONS, Ints
from simulator.placement.futures import Prior, bases_of, costs, place_by

SAMPLES = 64
"""Futures for each request."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a rollout made of a sequence: open hosts, rejected containers, their hosts, and the base of each request."""

    hosts: int
    rejected: int
    host: NDArray[np.int32]
    chosen: tuple[int, ...]


def rollout(
    instance: Instance,
    policies: Sequence[Policy],
    prior: Prior,
    *,
    order: Ints | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Rolled:
    """Return what becomes of an instance without releases when the best base policy places each request.

    order: of the requests, as positions. Applications that have come are not in the futures. Raises BadInput.
    """
    if instance.releases:
        raise BadInput("instance", instance.name, "give one without releases: the futures have none")
    if samples < 1:
        raise BadInput("samples", samples, "give 1 future or more")
    bases, draws = bases_of(policies), np.random.default_rng(seed)
    # Futures may have larger requests than the instance: hosts and numbers of containers leave room for them.
    arrays = engine.arrays_of(instance, 4 * len(engine.arrays_of(instance).kind))
    longest = max(instance.containers, prior.largest)
    state, first, second = (
        engine.new_state(arrays)._replace(where=np.zeros(longest, dtype=np.int32)) for _ in range(3)
    )
    engine.clear(arrays, state, engine.rules_of(policies[0]))
    waiting, chosen, seen_cores = np.ones(len(arrays.limit), dtype=np.bool_), [], 0
    for place in range(len(instance.requests)) if order is None else order.tolist():
        app = int(arrays.apps[place])
        waiting[app] = False
        seen_cores += int(arrays.demand[app, 0] * arrays.counts[place])
        futures = draws.permuted(np.tile(np.flatnonzero(waiting), (samples, 1)), axis=1)
        counts = prior.draw(futures, arrays, seen_cores, draws)
        found = costs(arrays, state, first, second, bases, place, futures, counts)
        # The lowest pair of all would more often be lucky than good. Of equal bases that which completes decides.
        completing = int(np.argmin(found.mean(axis=0)))
        row = found[:, completing]
        best = completing if row[completing] == row.min() else int(np.argmin(row))
        chosen.append(best)
        place_by(arrays, state, bases, best, place)
    totals = state.totals
    return Rolled(int(totals[OPEN]), int(totals[REJECTIONS]), state.where[: instance.containers], tuple(chosen))
