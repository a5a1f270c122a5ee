"""The best schedule of an episode with all jobs and capacities known (deferrable-job specification §1.2).

One mixed-integer program, in which equal jobs are one kind: a week of `valley` takes a tenth of a second. Each schedule
passes the independent check before it is returned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agent.deferral.rolling import solve as solve_program
from domain.errors import TrimtabError
from domain.rules.deferral.jobs import Ints, Jobs, Score, objective, violations_of
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
