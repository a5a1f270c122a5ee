"""Which jobs start in a step: what a policy sees, orders and values of jobs, and the decoding of scores.

Deferral specification §1.4, §2, §7 and §10.1. A policy takes a `View` and returns positions in `View.cur`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, PolicyFailure
from domain.rules.deferral.jobs import W1, Ints
from domain.units import HOURS_PER_DAY

Floats = NDArray[np.float64]

ALPHA, BETA = 0.3, 0.0
"""Of the per-step knapsack (§10.1): what a start in the next step is worth, and the price of cores held longer."""
TETRIS_CORES, TETRIS_STEPS, TETRIS_WEIGHT = 8, 6, 0.1
"""Tetris scores c/8 - 0.1 d/6."""

Decoding = Literal["prefix", "skip", "knapsack"]
DECODINGS: tuple[Decoding, ...] = ("prefix", "skip", "knapsack")


class Group(NamedTuple):
    """Jobs in one state, in the order of their numbers: int64 [K] each."""

    job: Ints
    """Their numbers."""
    cores: Ints
    duration: Ints
    earliest: Ints
    latest: Ints
    submitted: Ints
    remaining: Ints
    """Steps that they still run, this one included: the duration of those that have not started."""

    @property
    def size(self) -> int:
        """Return K; len() is the number of columns."""
        return int(self.job.size)

    @property
    def revenue(self) -> Ints:
        """Return the core-steps of each, [K]."""
        return self.cores * self.duration

    def take(self, positions: Ints) -> Group:
        """Return the jobs at these positions, in their order."""
        return Group(*(column[positions] for column in self))


class History(NamedTuple):
    """The steps before this one, the oldest first: [t] each."""

    capacity: Ints
    free: Ints
    """Cores free before the step's starts; negative where running jobs exceed the capacity."""
    waiting: Ints
    """Jobs that could have started."""
    mean_cores: Floats
    mean_duration: Floats
    """Of the jobs that could have started, 0 where there were none."""
    cores_started: Ints
    jobs_started: Ints
    violation: Ints
    """Core-steps above the capacity."""

    def before(self, step: int) -> History:
        """Return the first `step` steps."""
        return History._make(column[:step] for column in self)


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees in a step (§1.4), before it chooses."""

    step: int
    hour: int
    """Of the day, 0 to 23."""
    weekday: int
    """0 is Monday."""
    capacity: int
    """Cores that on-demand work leaves in this step."""
    cur: Group
    """May start now."""
    fut: Group
    """Known, may start later."""
    his: Group
    """Running."""
    history: History

    @property
    def free(self) -> int:
        """Return the capacity less the cores of running jobs; negative when those exceed it."""
        return self.capacity - int(self.his.cores.sum())

    @property
    def hour_of_week(self) -> int:
        """Return 0 to 167."""
        return self.weekday * HOURS_PER_DAY + self.hour


Policy = Callable[[View], Ints]
"""Returns positions in `View.cur` of the jobs that start."""


class ScoresUnusable(PolicyFailure):
    """The scores of a policy are not one finite number for each job: decide by the fallback (§12)."""


# Orders: positions of the jobs, the first to start first (§7). Jobs that are equal keep their order, that of numbers.


def fifo(jobs: Group) -> Ints:
    """Order by submission, then earliest start."""
    return np.lexsort((jobs.job, jobs.earliest, jobs.submitted))


def sjf(jobs: Group) -> Ints:
    """Order by duration, then cores."""
    return np.lexsort((jobs.job, jobs.cores, jobs.duration))


def tetris_score(cores: Ints, duration: Ints) -> Floats:
    """Return c/8 - 0.1 d/6 of each job."""
    return np.asarray(cores / TETRIS_CORES - TETRIS_WEIGHT * duration / TETRIS_STEPS)


def tetris(jobs: Group) -> Ints:
    """Order by alignment with the free cores, with a mild preference for short jobs."""
    return np.lexsort((jobs.job, -tetris_score(jobs.cores, jobs.duration)))


def els(jobs: Group) -> Ints:
    """Order by latest start."""
    return np.lexsort((jobs.job, jobs.latest))


KEYS: Mapping[str, Callable[[Group], Ints]] = {"fifo": fifo, "sjf": sjf, "tetris": tetris, "els": els}
USUAL: Mapping[str, Decoding] = {"fifo": "prefix", "sjf": "prefix", "tetris": "skip", "els": "skip"}
"""How each order is decoded unless stated otherwise (§6, point 16)."""


def take_in_order(order: Ints, cores: Ints, free: int, kind: Decoding) -> Ints:
    """Return the positions that start, ascending.

    order: positions, the first to start first. kind: prefix stops at the first job that does not fit, skip passes it
    over. Never more than `free` cores.
    """
    wanted = cores[order]
    if kind == "prefix":
        fits = int(np.searchsorted(np.cumsum(wanted), free, side="right"))
        return np.sort(order[:fits])
    chosen, left = [], free
    # A job with more cores than are free cannot start at all, so that a queue of thousands stays cheap.
    for position, need in zip(order[wanted <= free].tolist(), wanted[wanted <= free].tolist(), strict=True):
        if need <= left:
            chosen.append(position)
            left -= need
            if left == 0:
                break
    return np.sort(np.array(chosen, dtype=np.int64))


def decode(
    scores: NDArray[np.floating],
    cores: Ints,
    free: int,
    kind: Decoding = "skip",
    *,
    ties: Ints | None = None,
    theta: float = -np.inf,
) -> Ints:
    """Return the positions of the jobs that start, ascending (§2, §10.5).

    scores: [K], one for each job that may start; the highest starts first, or the most valuable set where `kind` is
    knapsack. ties: [K], of equal scores the smaller goes first (the submission), then the position. theta: jobs that
    score less do not start. Raises ScoresUnusable for scores that are not finite, BadInput for an unknown kind.
    """
    if kind not in DECODINGS:
        raise BadInput("decoding", kind, f"choose from {', '.join(DECODINGS)}")
    if scores.shape != cores.shape:
        raise ScoresUnusable(f"{scores.size} scores for {cores.size} jobs")
    if not np.all(np.isfinite(scores)):
        raise ScoresUnusable(f"{int((~np.isfinite(scores)).sum())} of {scores.size} scores are not finite")
    eligible = np.flatnonzero(scores >= theta)
    if kind == "knapsack":
        return eligible[knapsack(scores[eligible].astype(np.float64), cores[eligible], free)]
    first = eligible if ties is None else ties[eligible]
    order = eligible[np.lexsort((eligible, first, -scores[eligible]))]
    return take_in_order(order, cores, free, kind)


def start_value(revenue: Any, delay: Any, waits: Any, held: Any, alpha: float, beta: float) -> Any:
    """Return what a start in this step is worth, of one job (numbers) or of each (arrays) (§10.1).

    revenue: core-steps. delay: steps since the earliest start. waits: whether it may start in the next step too, where
    it is worth `alpha` of what it is now, less a step's charge. held: core-steps beyond this step, each at `beta`.
    """
    now = revenue - W1 * delay
    return now - alpha * ((now - W1) * waits) - beta * held


def knapsack_values(view: View, alpha: float = ALPHA, beta: float = BETA) -> Floats:
    """Return what a start in this step is worth for each job of `view.cur`, [K]."""
    jobs = view.cur
    held = jobs.cores * (jobs.duration - 1)
    return np.asarray(
        start_value(jobs.revenue, view.step - jobs.earliest, jobs.latest > view.step, held, alpha, beta),
        dtype=np.float64,
    )


def knapsack(values: Floats, cores: Ints, free: int) -> Ints:
    """Return the positions of the most valuable set of jobs with at most `free` cores, ascending.

    Exact dynamic programme over cores; a job that is worth nothing stays out. Of sets with the same value it keeps the
    one whose last jobs, by position, stay out. Time and memory: jobs times free cores.
    """
    able = np.flatnonzero((values > 0.0) & (cores <= free))
    if able.size == 0 or int(cores[able].sum()) <= free:
        return able
    best = np.zeros(free + 1)
    taken = np.zeros((able.size, free + 1), dtype=np.bool_)
    for i, (need, value) in enumerate(zip(cores[able].tolist(), values[able].tolist(), strict=True)):
        with_it = best[: free + 1 - need] + value
        better = with_it > best[need:]
        taken[i, need:] = better
        best[need:] = np.where(better, with_it, best[need:])
    chosen, left = [], free
    for i in range(able.size - 1, -1, -1):
        if taken[i, left]:
            chosen.append(int(able[i]))
            left -= int(cores[able[i]])
    return np.array(chosen[::-1], dtype=np.int64)


def ordered(name: str, kind: Decoding | None = None) -> Policy:
    """Return the policy that starts jobs in the order of that name, decoded as usual for it or as `kind` says."""
    order, how = KEYS[name], USUAL[name] if kind is None else kind
    return lambda view: take_in_order(order(view.cur), view.cur.cores, view.free, how)


def packed(alpha: float = ALPHA, beta: float = BETA) -> Policy:
    """Return the per-step knapsack, the fallback of every other policy."""
    return lambda view: knapsack(knapsack_values(view, alpha, beta), view.cur.cores, view.free)
