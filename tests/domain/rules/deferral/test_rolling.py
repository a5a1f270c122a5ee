"""The program of starts: its worth is that of the schedule, and its rows are the occupancy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.deferral.choosing import Group, History, View
from domain.rules.deferral.jobs import W2, Jobs, jobs_of, objective, occupancy
from domain.rules.deferral.rolling import Program, program, rolling

T = 6
JOBS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, T - 1), st.integers(0, 3)), min_size=1, max_size=8
).map(lambda rows: jobs_of((c, d, e, min(T - 1, e + w), max(0, e - 1)) for c, d, e, w in rows))


def _dense(made: Program) -> np.ndarray:
    matrix = np.zeros((made.limit.size, made.worth.size))
    for column in range(made.worth.size):
        span = slice(made.begins[column], made.begins[column + 1])
        matrix[made.rows[span], column] = made.factors[span]
    return matrix


def _values(made: Program, jobs: Jobs, start: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Return the columns that say so: starts by kind and step, and the charge of each step."""
    values = np.zeros(made.worth.size)
    for number, step in enumerate(start.tolist()):
        if step >= 0:
            values[np.flatnonzero((made.kind == made.members[number]) & (made.step == step))[0]] += 1
    values[made.starts :] = over
    return values


@given(jobs=JOBS, draw=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_schedule_is_worth_in_the_program_what_it_is_worth(jobs: Jobs, draw: int) -> None:
    rng = np.random.default_rng(draw)
    spans = zip(jobs.earliest.tolist(), jobs.latest.tolist(), strict=True)
    start = np.array([rng.choice([-1, *range(first, last + 1)]) for first, last in spans])
    capacity = rng.integers(0, 8, T)
    made = program(jobs, capacity)
    over = np.maximum(occupancy(jobs, start, T) - capacity, 0)
    values = _values(made, jobs, start, over)
    assert float(made.worth @ values) == pytest.approx(objective(jobs, start, capacity).total)
    assert (_dense(made) @ values <= made.limit + 1e-9).all()
    assert (values <= made.upper).all()
    # Less of a charge is not feasible: the charge is what is above the capacity.
    for step in np.flatnonzero(over):
        values[made.starts + step] -= 1
        assert (_dense(made) @ values > made.limit + 1e-9).any()
        values[made.starts + step] += 1
    found = made.starts_of(values)
    # Equal jobs are exchanged at will; what runs when, and how many start, is the same.
    np.testing.assert_array_equal(occupancy(jobs, found, T), occupancy(jobs, start, T))
    assert (found >= 0).sum() == (start >= 0).sum()


@given(jobs=JOBS, draw=st.integers(0, 2**32 - 1), levels=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_with_levels_of_capacity_a_schedule_is_worth_the_mean_of_what_it_is_worth_at_each(
    jobs: Jobs, draw: int, levels: int
) -> None:
    rng = np.random.default_rng(draw)
    spans = zip(jobs.earliest.tolist(), jobs.latest.tolist(), strict=True)
    start = np.array([rng.choice([-1, *range(first, last + 1)]) for first, last in spans])
    capacity = np.sort(rng.integers(0, 8, (levels, T)), axis=0)
    made = program(jobs, capacity)
    # What runs above the lowest level fills the cheapest columns of its step first.
    values, matrix = _values(made, jobs, start, np.zeros(made.worth.size - made.starts)), _dense(made)
    for step, over in enumerate(np.maximum(occupancy(jobs, start, T) - capacity[0], 0).tolist()):
        charges = made.starts + np.flatnonzero(matrix[step, made.starts :])
        for column in charges[np.argsort(-made.worth[charges])]:
            values[column] = min(over, made.upper[column])
            over -= values[column]
    assert (matrix @ values <= made.limit + 1e-9).all()
    wanted = np.mean([objective(jobs, start, one).total for one in capacity])
    assert float(made.worth @ values) == pytest.approx(wanted)


def test_a_kind_cannot_start_more_often_than_it_has_jobs() -> None:
    made = program(jobs_of([(1, 1, 0, 1, 0)] * 2 + [(2, 1, 0, 0, 0)]), np.array([9, 9]))
    assert made.starts == 3
    assert made.upper[:3].tolist() == [2.0, 2.0, 1.0]
    np.testing.assert_array_equal(_dense(made)[2], [1, 1, 0, 0, 0])
    assert made.limit.tolist() == [9.0, 9.0, 2.0]


def test_a_late_job_starts_when_it_is_known_and_its_delay_counts_from_before() -> None:
    made = program(Jobs(*(np.array([v]) for v in (1, 3, 0, 4, 2))), np.full(6, 5))
    assert made.step.tolist() == [2, 3, 4]
    assert made.worth[:3].tolist() == [3 - 4, 3 - 6, 3 - 8]


def _view(step: int, capacity: int, cur: list, fut: list, his: list) -> View:
    def group(rows: list, first: int) -> Group:
        columns = np.array(rows, dtype=np.int64).reshape(-1, 6).T
        return Group(np.arange(first, first + len(rows)), *columns)

    none = np.zeros(0, dtype=np.int64)
    history = History(*(none,) * 8)
    return View(step, 0, 0, capacity, group(cur, 0), group(fut, 10), group(his, 20), history)


def test_the_first_step_has_the_cores_that_are_free_and_the_others_the_forecast() -> None:
    """Three cores run two steps more, with this one: the forecast of the next step has three less, then all."""
    view = _view(5, 7, [[2, 3, 5, 7, 4, 3]], [[1, 1, 6, 6, 5, 1], [1, 1, 9, 9, 5, 1]], [[3, 4, 3, 3, 3, 2]])
    own = rolling(view, np.array([6.0, 5.5]), factor=0.8)
    assert own.program.limit[:3].tolist() == [4.0, 3.0, 5.5]
    assert own.known.tolist() == [0, 10]
    assert own.ready == 1
    assert own.program.worth[: own.program.starts].tolist() == pytest.approx([0.8 * 1, 6, 0.8 * 4, 0.8 * 2])
    assert own.program.worth[own.program.starts :].tolist() == [-W2, -W2]


def test_running_jobs_hold_cores_at_every_level_and_this_step_has_but_one() -> None:
    view = _view(5, 7, [[2, 3, 5, 7, 4, 3]], [], [[3, 4, 3, 3, 3, 2]])
    own = rolling(view, np.array([[6.0, 5.0], [9.0, 5.0]])).program
    assert own.limit[:3].tolist() == [4.0, 3.0, 5.0]
    assert own.worth[own.starts :].tolist() == [-W2 / 2, -W2, -W2]
    assert own.upper[own.starts :].tolist() == [3.0, np.inf, np.inf]


def test_a_job_that_does_not_fit_now_may_be_planned_for_later() -> None:
    view = _view(0, 1, [[2, 1, 0, 2, 0, 1]], [], [])
    assert rolling(view, np.array([2.0, 2.0])).program.step.tolist() == [1, 2]


def test_of_equal_jobs_the_first_submitted_starts() -> None:
    view = _view(3, 1, [[1, 1, 3, 3, 2, 1], [1, 1, 3, 3, 1, 1]], [], [])
    own = rolling(view, np.array([]))
    found = own.program.starts_of(np.array([1.0]))
    assert own.known[found >= 0].tolist() == [1]
