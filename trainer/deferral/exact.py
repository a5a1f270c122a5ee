"""The best schedule of an episode with all jobs and capacities known (deferrable-job specification §1.2).

One mixed-integer program, in which equal jobs are one kind: a week of `valley` takes a tenth of a second. Each schedule
passes the independent check before it is returned.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.deferral.rolling import solve as solve_program
from domain.errors import TrimtabError
from domain.rules.deferral.choosing import View
from domain.rules.deferral.jobs import W1, W2, Ints, Jobs, Score, objective
from domain.rules.deferral.rolling import program
from simulator.deferral.scenarios import Episode

if TYPE_CHECKING:
    from scipy import sparse

Floats = NDArray[np.float64]

WHOLE = 0.99
"""Totals are whole numbers: a solution less than 1 below the bound is an optimum."""


class ScheduleWrong(TrimtabError):
    """A schedule breaks a rule or is worth something else than stated: a fault of the program, with its first ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """A checked schedule; start: [N] step of each job, -1 for never. bound: no schedule has a higher total."""

    start: Ints
    score: Score
    bound: float
    wall_s: float


def solve(jobs: Jobs, capacity: Ints, *, limit_s: float = 60.0) -> Optimum | None:
    """Return the best schedule of jobs in steps 0 to T - 1; None where the solver needed more than `limit_s`.

    capacity: int64 [T]. A job is known when it is submitted, and starts no earlier. Raises BadInput where HiGHS is
    missing, ScheduleWrong.
    """
    began = time.perf_counter()
    made = program(jobs, capacity)
    solved = solve_program(made, budget_s=limit_s, gap=WHOLE)
    if solved is None:
        return None
    values, bound = solved
    start = made.starts_of(values)
    score = objective(jobs, start, capacity)
    check(jobs, start, capacity, score, "the optimum")
    # The solver rounds its starts: their total must lie within the tolerance of its bound.
    if not bound - 1.0 < score.total <= bound + 1e-3:
        raise ScheduleWrong(f"the optimum: a total of {score.total}, but the bound is {bound:.3f}")
    return Optimum(start, score, bound, time.perf_counter() - began)


def check(jobs: Jobs, start: Ints, capacity: Ints, score: Score, name: str, *, online: bool = False) -> None:
    """Raise ScheduleWrong unless the independent check finds the schedule and its score right.

    online: starts must also fit the free cores of their step.
    """
    wrong = violations_of(jobs, start, capacity, score=score, online=online)
    if wrong:
        raise ScheduleWrong(f"{name}: {'; '.join(wrong[:3])}")


def violations_of(
    jobs: Jobs, start: Ints, capacity: Ints, *, score: Score | None = None, online: bool = False
) -> list[str]:
    """Return the faults of a schedule as sentences, empty for a valid one.

    Counted job by job and step by step, without the functions of `domain.rules.deferral`. start: [N]. score: the stated
    value of the schedule. online: no start may take more cores than are free in its step, as for an agent (§2).
    """
    steps = int(capacity.size)
    if start.shape != (jobs.size,) or not np.issubdtype(start.dtype, np.integer):
        return [f"start has shape {start.shape} and type {start.dtype}: give one whole number for each job"]
    wrong, load, begun = [], [0] * steps, [0] * steps
    utilisation = delay = started = 0
    rows = zip(*(column.tolist() for column in jobs), strict=True)
    for number, (step, (cores, duration, earliest, latest, submitted)) in enumerate(
        zip(start.tolist(), rows, strict=True)
    ):
        if step == -1:
            continue
        if not 0 <= step < steps:
            wrong.append(f"job {number} starts in step {step}, which is not in 0..{steps - 1}")
            continue
        if not earliest <= step <= latest:
            wrong.append(f"job {number} starts in step {step}, outside its window {earliest}..{latest}")
        if step < submitted:
            wrong.append(f"job {number} starts in step {step}, before it is submitted in {submitted}")
        begun[step] += cores
        for t in range(step, min(step + duration, steps)):
            load[t] += cores
        utilisation += cores * duration
        delay += step - earliest
        started += 1
    over = [max(0, used - room) for used, room in zip(load, capacity.tolist(), strict=True)]
    if online:
        wrong += [
            f"jobs with {new} cores start in step {t}, where {max(0, room - used + new)} are free"
            for t, (new, used, room) in enumerate(zip(begun, load, capacity.tolist(), strict=True))
            if new and used > room
        ]
    if score is not None:
        counted = (utilisation, delay, sum(over), started)
        stated = (score.utilisation, score.delay, score.violation, score.started)
        if counted != stated:
            wrong.append(f"utilisation, delay, violation and jobs started are {counted}, not {stated}")
        total = utilisation - W1 * delay - W2 * sum(over)
        if not math.isclose(total, score.total, rel_tol=0.0, abs_tol=1e-9):
            wrong.append(f"the total is {total}, not {score.total}")
    return wrong


# Prices of cores in each step of an episode with full knowledge.


class NoPrices(TrimtabError):
    """The linear programme of an episode was not solved."""


class Programme(NamedTuple):
    """The linear programme of an episode: matrices that do not depend on its capacity."""

    cost: Floats
    rows: sparse.csr_matrix
    jobs: Jobs
    steps: int


def programme(jobs: Jobs, steps: int) -> Programme:
    """Return the linear programme of §1.2 for jobs in steps 0 to `steps` - 1, with whole starts relaxed."""
    from scipy import sparse

    starts = jobs.latest - jobs.earliest + 1
    job = np.repeat(np.arange(jobs.size), starts)
    late = _counting(starts)
    start = jobs.earliest[job] + late
    length = np.minimum(start + jobs.duration[job], steps) - start
    column = np.repeat(np.arange(start.size), length)
    held = sparse.csr_matrix(
        (jobs.cores[job][column].astype(np.float64), (start[column] + _counting(length), column)),
        shape=(steps, start.size),
    )
    once = sparse.csr_matrix((np.ones(start.size), (job, np.arange(start.size))), shape=(jobs.size, start.size + steps))
    rows = sparse.vstack([sparse.hstack([held, -sparse.eye(steps)]), once]).tocsr()
    cost = np.concatenate([W1 * late - jobs.revenue[job], np.full(steps, W2)])
    return Programme(cost, rows, jobs, steps)


def prices(made: Programme, capacity: NDArray[np.floating]) -> Floats:
    """Return the price of a core in each step, [T] core-steps; NoPrices when the programme is not solved."""
    from scipy.optimize import linprog

    bounds = np.concatenate([np.maximum(capacity, 0.0), np.ones(made.jobs.size)])
    solved = linprog(made.cost, A_ub=made.rows, b_ub=bounds, bounds=(0, None), method="highs")
    if solved.status != 0:
        raise NoPrices(f"the prices of an episode were not found: {solved.message}")
    return np.asarray(-solved.ineqlin.marginals[: made.steps], dtype=np.float64)


class Outlook(NamedTuple):
    """The value of starts at prices of cores; [N, starts], a start at earliest + k in column k."""

    price: Floats
    """[T]"""
    net: Floats
    """Earnings of a start less the price of its cores; -inf outside the window."""
    later: Floats
    """The best net of the later starts, 0 where none earns anything."""

    def worths(self, jobs: Jobs) -> Floats:
        """Return the worth of starts without the price of their first step, [N, starts]."""
        start = np.minimum(jobs.earliest[:, None] + np.arange(self.net.shape[1]), self.price.size - 1)
        return np.asarray(self.net + jobs.cores[:, None] * self.price[start] - self.later, dtype=np.float64)

    def lost(self, view: View, picked: Ints) -> float:
        """Return the loss by these starts in a step, core-steps, 0 or more.

        The sum over an episode is the distance of the total from a bound that no policy changes: a step's rewards
        without the noise of the jobs and the capacity that happened to come.
        """
        jobs = view.cur
        net, later = (column[jobs.job, view.step - jobs.earliest] for column in (self.net, self.later))
        started = np.zeros(jobs.size, dtype=np.bool_)
        started[picked] = True
        spare = view.free - int(jobs.cores[picked].sum())
        price = float(self.price[view.step])
        idle = price * spare if spare >= 0 else (price - W2) * spare
        return float((np.maximum(net, later) - np.where(started, net, later)).sum() + idle)


def outlook(jobs: Jobs, price: Floats) -> Outlook:
    """Return the value of the starts of jobs at prices [T]."""
    steps, most = price.size, int((jobs.latest - jobs.earliest).max(initial=0)) + 1
    sums = np.concatenate([[0.0], np.cumsum(price)])
    late = np.arange(most)
    start = np.minimum(jobs.earliest[:, None] + late, steps - 1)
    end = np.minimum(start + jobs.duration[:, None], steps)
    net = jobs.revenue[:, None] - W1 * late - jobs.cores[:, None] * (sums[end] - sums[start])
    net = np.where(jobs.earliest[:, None] + late <= jobs.latest[:, None], net, -np.inf)
    later = np.zeros_like(net)
    for k in range(most - 2, -1, -1):
        later[:, k] = np.maximum(later[:, k + 1], net[:, k + 1])
    return Outlook(price, net, later)


def outlook_of(episode: Episode) -> Outlook:
    """Return the value of the starts of an episode at the prices of its optimum."""
    return outlook(episode.jobs, prices(programme(episode.jobs, episode.steps), episode.capacity.astype(float)))


def labels(episode: Episode, draws: int, noise: float, rng: np.random.Generator) -> Floats:
    """Return the mean worth of starts, [N, starts], over `draws` capacities with normal `noise` (cores) added."""
    made = programme(episode.jobs, episode.steps)
    shaken = [episode.capacity + np.round(rng.normal(0.0, noise, episode.steps)) for _ in range(draws)]
    found: Floats = np.mean(
        [outlook(episode.jobs, prices(made, capacity)).worths(episode.jobs) for capacity in shaken], axis=0
    )
    return found


def best_starts(episode: Episode) -> Ints:
    """Return the offline optimum's schedule, [N]."""
    found = solve(episode.jobs, episode.capacity)
    if found is None:
        raise NoPrices(f"the optimum of seed {episode.seed} was not found in time")
    return found.start


def _counting(lengths: Ints) -> Ints:
    """Return 0, 1, ... up to each length, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
