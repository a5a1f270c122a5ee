"""Betters a list of actions by trying changes of it in the simulator: annealing of many lists at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.reference import MULTI_CHANGES, SimulationConfig

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

REACH = 10
"""How many steps away an action may be moved."""
RENEW_EVERY = 40
"""After so many rounds the worse half of the lists is replaced by copies of the better half."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Effort of a search.

    chains: lists bettered side by side. rounds: changes tried of each, at most. time_limit_s: seconds, at most. warm,
    cold: dollars by which a change may be worse and still have a fair chance, at the first and the last round. seed: of
    the changes. The result is a function of these only when the rounds end before the time does.
    """

    chains: int = 32
    rounds: int = 100_000
    time_limit_s: float = 60.0
    warm: float = 0.01
    cold: float = 0.0002
    seed: int = 0


class Replay:
    """Costs of action lists, each the mean over the same seeds of boot times."""

    def __init__(self, config: SimulationConfig, trace: Trace, chains: int, seeds: Sequence[int], multi: bool) -> None:
        self.chains, self.copies = chains, len(seeds)
        self.idle = MULTI_CHANGES.index(0) if multi else 0
        self._batch = AutoscalingBatch(config, [trace], chains * len(seeds), actions="act-multi" if multi else "act-7")
        self._seeds = np.tile(np.array(seeds, dtype=np.int64), chains)

    def costs(self, lists: Ints) -> Floats:
        """Return dollars per list, shape (chains,), for lists of shape (chains, steps) or (chains, steps, N)."""
        batch = self._batch
        batch.reset(self._seeds)
        in_order = np.ascontiguousarray(np.repeat(lists, self.copies, axis=0).swapaxes(0, 1))
        nothing = np.full_like(in_order[0], self.idle)
        for step in range(batch.config.max_steps):
            _, _, over, cut = batch.step(in_order[step] if step < len(in_order) else nothing)
            if (over | cut).all():
                break
        total = batch.rent + batch.penalty
        # A list that leaves jobs undone is no plan.
        total[cut] = np.inf
        return np.asarray(total.reshape(self.chains, self.copies).mean(axis=1))


def better(
    config: SimulationConfig,
    trace: Trace,
    first: Sequence[Ints],
    seeds: Sequence[int],
    settings: SearchSettings | None = None,
    on_round: Callable[[int, float], None] | None = None,
) -> tuple[Ints, float]:
    """Return the best list found and its mean cost in dollars over `seeds`, starting from the lists `first`.

    first: act-7 indices of shape (steps,), or indices into MULTI_CHANGES of shape (steps, N), all of one shape.
    on_round: told the rounds done and the least cost so far.
    """
    settings = settings or SearchSettings()
    multi = first[0].ndim == 2
    rng = np.random.default_rng(settings.seed)
    replay = Replay(config, trace, settings.chains, seeds, multi)
    current = np.stack([first[i % len(first)] for i in range(settings.chains)])
    costs = replay.costs(current)
    best, least = current[costs.argmin()].copy(), float(costs.min())
    begun = time.monotonic()
    for done in range(settings.rounds):
        elapsed = max(done / settings.rounds, (time.monotonic() - begun) / settings.time_limit_s)
        if elapsed >= 1.0:
            break
        heat = settings.warm * (settings.cold / settings.warm) ** elapsed
        tried = current.copy()
        for row in tried:
            for _ in range(int(rng.integers(1, 4))):
                (_change_multi if multi else _change_single)(row, rng, len(config.types))
        found = replay.costs(tried)
        with np.errstate(over="ignore", invalid="ignore"):
            taken = rng.random(settings.chains) < np.exp(np.minimum((costs - found) / heat, 0.0))
        current[taken], costs[taken] = tried[taken], found[taken]
        if found.min() < least:
            best, least = tried[found.argmin()].copy(), float(found.min())
        if done % RENEW_EVERY == RENEW_EVERY - 1:
            order = costs.argsort()
            half = settings.chains // 2
            current[order[half:]] = current[order[: settings.chains - half]]
            costs[order[half:]] = costs[order[: settings.chains - half]]
        if on_round is not None:
            on_round(done + 1, least)
    return best, least


def _near(rng: np.random.Generator, step: int, steps: int) -> int:
    return int(np.clip(step + rng.integers(-REACH, REACH + 1), 0, steps - 1))


def _change_single(row: Ints, rng: np.random.Generator, kinds: int) -> None:
    """Change one thing in a list of act-7 indices, in place."""
    kind_of_change = rng.integers(5)
    steps = row.size
    at = int(rng.integers(steps))
    if kind_of_change > 0 and row[at] == 0:
        # Most steps do nothing: look at one that does something.
        acting = np.flatnonzero(row)
        at = int(rng.choice(acting)) if acting.size else at
    other = _near(rng, at, steps)
    if kind_of_change == 0:
        row[at] = rng.integers(1 + 2 * kinds)
    elif kind_of_change == 1:
        row[at], row[other] = row[other], row[at]
    elif kind_of_change == 2:
        moved = row[at]
        row[:] = np.insert(np.delete(row, at), other, moved)
    elif kind_of_change == 3:
        row[at] = 0
    else:
        kind = int(rng.integers(kinds))
        row[other] = 2 * kind + 1
        row[min(other + int(rng.integers(1, 3 * REACH)), steps - 1)] = 2 * kind + 2


def _change_multi(row: Ints, rng: np.random.Generator, kinds: int) -> None:
    """Change one thing in a list of indices into MULTI_CHANGES, in place."""
    kind_of_change = rng.integers(5)
    steps, levels, idle = len(row), len(MULTI_CHANGES), MULTI_CHANGES.index(0)
    kind, other_kind = int(rng.integers(kinds)), int(rng.integers(kinds))
    at = int(rng.integers(steps))
    if kind_of_change > 0 and row[at, kind] == idle:
        acting = np.flatnonzero(row[:, kind] != idle)
        at = int(rng.choice(acting)) if acting.size else at
    other = _near(rng, at, steps)
    if kind_of_change == 0:
        row[at, kind] = rng.integers(levels)
    elif kind_of_change == 1:
        row[at, kind], row[other, kind] = row[other, kind], row[at, kind]
    elif kind_of_change == 2:
        row[at, kind], row[at, other_kind] = row[at, other_kind], row[at, kind]
    else:
        up = 1 if rng.random() < 0.5 else -1
        later = min(at + int(rng.integers(1, 3 * REACH)), steps - 1)
        row[at, kind] = np.clip(row[at, kind] + up, 0, levels - 1)
        if kind_of_change == 3:
            row[later, kind] = np.clip(row[later, kind] - up, 0, levels - 1)
