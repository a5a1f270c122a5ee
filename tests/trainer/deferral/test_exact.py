"""The offline optimum: the totals of the specification, small instances by enumeration, and the check of schedules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.deferral.jobs import Jobs, jobs_of, objective
from simulator.deferral.scenarios import episode
from trainer.deferral.exact import ScheduleWrong, check, solve


@pytest.mark.parametrize(("seed", "total"), [(0, 3721), (1, 3670), (2, 3731)])
def test_the_totals_of_the_specification_are_found(seed: int, total: int) -> None:
    """§7, the fixtures of `valley`; the check of windows, starts and occupancy is part of `solve` (A2)."""
    week = episode("valley", seed)
    best = solve(week.jobs, week.capacity)
    assert best is not None
    assert best.score.total == pytest.approx(total, abs=0.01)
    assert best.score.violation == 0


def _enumerated(jobs: Jobs, capacity: np.ndarray) -> float:
    """Return the best total of all schedules."""
    choices = [
        [-1, *range(max(int(jobs.earliest[k]), int(jobs.submitted[k])), int(jobs.latest[k]) + 1)]
        for k in range(jobs.cores.size)
    ]
    return max(
        objective(jobs, np.array(starts, dtype=np.int64), capacity).total for starts in itertools.product(*choices)
    )


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)),
        min_size=1,
        max_size=5,
    ),
    capacity=st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_no_schedule_of_a_small_instance_is_better(
    rows: list[tuple[int, int, int, int, int]], capacity: list[int]
) -> None:
    """Jobs that are equal, that run beyond the end, and that came after their earliest start are among them."""
    jobs = jobs_of((c, d, e, min(3, e + w), min(e + late, 3, e + w)) for c, d, e, w, late in rows)
    room = np.array(capacity, dtype=np.int64)
    best = solve(jobs, room)
    assert best is not None
    assert best.score.total == pytest.approx(_enumerated(jobs, room))


def test_a_violation_is_bought_where_it_is_worth_it() -> None:
    """A job of 4 cores and 6 steps earns 24; one step with a core less than it needs costs 10."""
    jobs = jobs_of([(4, 6, 0, 0, 0)])
    best = solve(jobs, np.array([4, 4, 3, 4, 4, 4], dtype=np.int64))
    assert best is not None
    assert (best.score.total, best.score.violation) == (14.0, 1)


def test_an_episode_without_jobs_is_worth_nothing() -> None:
    best = solve(jobs_of([]), np.array([3, 2], dtype=np.int64))
    assert best is not None
    assert (best.score.total, best.start.size) == (0.0, 0)


def test_without_time_there_is_no_optimum() -> None:
    week = episode("sched_drop", 0)
    assert solve(week.jobs, week.capacity, limit_s=1e-3) is None


def test_a_schedule_that_breaks_a_rule_is_refused() -> None:
    jobs = jobs_of([(1, 1, 1, 2, 0)])
    capacity = np.array([1, 1, 1], dtype=np.int64)
    start = np.array([0], dtype=np.int64)
    with pytest.raises(ScheduleWrong, match=r"window 1\.\.2"):
        check(jobs, start, capacity, objective(jobs, start, capacity), "mine")
