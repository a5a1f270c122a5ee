"""What a vector is worth: hosts that it opens over orders of requests that every vector meets alike (§3).

Shuffles up to 9,999 are left to tests: samples begin at FIRST.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from simulator.placement import engine
from simulator.placement.choosing import Arrays
from simulator.placement.instances import shuffle_order, shuffled, taken_over
from trainer.placement.search import SELECTION, Floats

Ints = NDArray[np.int64]

FIRST = 10_000
"""Shuffle of the first sample of draw 0."""
FIRST_SELECTION = 1_010_000
SELECTED_ON = 96
"""Shuffles of the last choice, from FIRST_SELECTION on."""
PRICE_OF_REJECTION = 1_000.0
"""Hosts that a rejected container counts as."""
FILLED = (0.5, 0.9)
"""Share of the requests that best fit places before a vector takes over, drawn uniformly."""
SHUFFLED, NOMINAL = "shuffled", "nominal"


@dataclass(frozen=True, slots=True)
class Samples:
    """Which sequences a vector is valued on.

    sequences: of each instance and draw. rho: weight of the range over them. orders: shuffled, or nominal for the given
    order alone, which then is the one sequence there is. filled: share of the sequences that begin with a cluster that
    best fit has filled (FILLED), so that a vector meets states that it did not make.
    """

    sequences: int = 24
    rho: float = 0.3
    orders: str = SHUFFLED
    filled: float = 0.0

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise BadInput("sequences", self.sequences, "give 1 or more; 24 see the rare bad orders, 10 do not")
        if not 0.0 <= self.rho <= 10.0:
            raise BadInput("rho", self.rho, "give a weight from 0 to 10")
        if self.orders not in (SHUFFLED, NOMINAL):
            raise BadInput("orders", self.orders, f"choose {SHUFFLED} or {NOMINAL}")
        if not 0.0 <= self.filled <= 1.0:
            raise BadInput("filled", self.filled, "give a share from 0 to 1")

    def shuffles(self, draw: int) -> list[int]:
        """Return the shuffles of a draw, or those of the last choice for SELECTION."""
        if draw == SELECTION:
            return list(range(FIRST_SELECTION, FIRST_SELECTION + SELECTED_ON))
        return list(range(FIRST + draw * self.sequences, FIRST + (draw + 1) * self.sequences))

    def seen(self, iterations: int, refresh: int) -> list[int]:
        """Return every shuffle that a search of so many iterations was valued on."""
        if self.orders == NOMINAL:
            return []
        draws = range(1 + (iterations - 1) // refresh)
        return [k for draw in (*draws, SELECTION) for k in self.shuffles(draw)]


def value_of(cost: Floats, rho: float) -> float:
    """Return the mean of the costs of sequences plus `rho` times their range (§3)."""
    return float(cost.mean() + rho * np.ptp(cost))


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Orders of one instance, and its arrays; with a snapshot the first requests are placed."""

    instance: Instance
    orders: Ints
    arrays: Arrays


class Valuation:
    """An objective of the search: the mean value over instances of the points of a family, on so many threads.

    The compiled simulator runs without the interpreter's lock, and no value depends on the others: the same points have
    the same values on any number of threads. played: sequences so far.
    """

    def __init__(self, instances: Sequence[Instance], family: str, samples: Samples, workers: int = 1) -> None:
        for instance in instances:
            if instance.releases:
                raise BadInput(
                    "instance", instance.name, "it has releases, and a shuffle would end containers that have not begun"
                )
            if not instance.requests:
                raise BadInput("instance", instance.name, "it has no requests: there is nothing to learn from")
        self.played = 0
        self._family, self._samples, self._workers = family, samples, workers
        self._base = [(instance, engine.arrays_of(instance)) for instance in instances]
        self._drawn: tuple[int, list[list[_Sequences]]] = (SELECTION - 1, [])

    def __call__(self, points: Floats, draw: int) -> Floats:
        """Return the value of each point, (n,)."""
        sequences = self._of_draw(draw)
        self.played += len(points) * sum(len(part.orders) for parts in sequences for part in parts)

        def value(point: Floats) -> float:
            policy = Policy("point", self._family, tuple(point.tolist()))
            costs = [self._costs(parts, policy) for parts in sequences]
            return float(np.mean([value_of(cost, self._samples.rho) for cost in costs]))

        if self._workers == 1:
            return np.array([value(point) for point in points])
        with ThreadPoolExecutor(self._workers) as pool:
            return np.array(list(pool.map(value, points)))

    def costs(self, theta: Floats, draw: int) -> list[Floats]:
        """Return what a vector costs in each sequence of a draw, by instance."""
        policy = Policy("point", self._family, tuple(theta.tolist()))
        return [self._costs(parts, policy) for parts in self._of_draw(draw)]

    def _costs(self, parts: Sequence[_Sequences], policy: Policy) -> Floats:
        found = [engine.play_orders(part.instance, policy, part.orders, part.arrays) for part in parts]
        hosts, rejected = np.concatenate(found).astype(np.float64).T
        cost: Floats = hosts + PRICE_OF_REJECTION * rejected
        return cost

    def _of_draw(self, draw: int) -> list[list[_Sequences]]:
        """Return the sequences of a draw by instance; those of the newest draw are kept."""
        if self._drawn[0] != draw:
            self._drawn = draw, [self._sequences(instance, arrays, draw) for instance, arrays in self._base]
        return self._drawn[1]

    def _sequences(self, instance: Instance, arrays: Arrays, draw: int) -> list[_Sequences]:
        requests = len(instance.requests)
        if self._samples.orders == NOMINAL:
            return [_Sequences(instance, np.arange(requests)[None, :], arrays)]
        shuffles = self._samples.shuffles(draw)
        filled = shuffles[: round(self._samples.filled * len(shuffles))]
        whole = [shuffle_order(requests, k) for k in shuffles[len(filled) :]]
        found = [_Sequences(instance, np.array(whole), arrays)] if whole else []
        for k in filled:
            share = float(np.random.default_rng((k, 1)).uniform(*FILLED))
            begun = taken_over(shuffled(instance, k), share)
            found.append(_Sequences(begun, np.arange(len(begun.requests))[None, :], engine.arrays_of(begun)))
        return found
