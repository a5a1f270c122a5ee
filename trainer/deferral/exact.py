"""The best schedule of an episode with all jobs and capacities known (deferrable-job specification §1.2).

One mixed-integer program, in which equal jobs are one kind: a week of `valley` takes a tenth of a second. Each schedule
passes the independent check before it is returned.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from agent.deferral.rolling import solve as solve_program
from domain.errors import TrimtabError
from domain.rules.deferral.jobs import W1, W2, Ints, Jobs, Score, objective
from domain.rules.deferral.rolling import program

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
    # The solver rounds its starts: what they are worth must be what it said, or less than the bound allows.
    if not bound - 1.0 < score.total <= bound + 1e-3:
        raise ScheduleWrong(f"the optimum: a total of {score.total}, but the bound is {bound:.3f}")
    return Optimum(start, score, bound, time.perf_counter() - began)


def check(jobs: Jobs, start: Ints, capacity: Ints, score: Score, name: str, *, online: bool = False) -> None:
    """Raise ScheduleWrong unless the independent check finds the schedule and its score right.

    online: starts must also fit what is free in their step.
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
