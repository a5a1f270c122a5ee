"""Jobs rebuilt from what is recorded of minutes: counts, and the work of the jobs that finished."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.learning import jobs as jobs_module
from trainer.learning.jobs import LEFT_AFTER, Jobs, arrivals_in, rebuilt

START = 6_000.0
"""Epoch seconds of the end of the first minute."""
SUBMISSIONS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.floats(1.0, 5e3)), min_size=1, max_size=12
).map(sorted)


def jobs_of(submissions: list[tuple[int, int, float]]) -> list[tuple[float, float]]:
    """Arrivals and lengths of (minute, jobs, seconds): alike jobs that come evenly within their minute."""
    return [(60.0 * (minute + (k + 0.5) / jobs), length) for minute, jobs, length in submissions for k in range(jobs)]


def recorded(jobs: list[tuple[float, float]], cores: int, minutes: int, *, known: bool = True) -> Jobs:
    """The jobs rebuilt from a record of a queue, first come, first served, on some cores, empty at first."""
    free, spans = [0.0] * cores, []
    for arrival, length in sorted(jobs):
        begun = max(arrival, heapq.heappop(free))
        heapq.heappush(free, begun + length)
        spans.append((arrival, begun, begun + length, length))
    ends = 60.0 * np.arange(minutes + 1)

    def within(times: list[float]) -> np.ndarray:
        return np.array([0, *np.histogram(times, ends)[0]])

    waiting = np.array([sum(arrival <= at < begun for arrival, begun, *_ in spans) for at in ends])
    finished = within([end for _, _, end, _ in spans])
    work = np.array([0.0, *np.histogram([s[2] for s in spans], ends, weights=[s[3] for s in spans])[0]])
    submitted = within([arrival for arrival, *_ in spans])
    running = np.array([sum(begun <= at < end for _, begun, end, _ in spans) for at in ends])
    nothing = np.full(minutes + 1, math.nan)
    return rebuilt(
        START + ends, submitted, waiting, running, finished, work if known else nothing, np.full(minutes + 1, 120.0)
    )


def test_jobs_are_spread_evenly_over_their_span() -> None:
    arrivals, of = arrivals_in(np.array([0.0, 60.0, 60.0]), np.array([0.0, 60.0, 180.0]), np.array([2, 0, 3]))
    assert arrivals.tolist() == [0.0, 0.0, 80.0, 120.0, 160.0]
    assert of.tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("submissions", "cores"),
    [
        pytest.param([(1, 4, 600.0), (2, 3, 1500.0), (5, 10, 95.0)], 40, id="each ends alone"),
        pytest.param([(1, 5, 1210.0), (11, 3, 610.0)], 40, id="two end in one minute"),
        pytest.param([(1, 28, 5000.0), (2, 6, 12.0)], 30, id="short ones behind a long submission"),
        pytest.param([(0, 6, 125.0), (1, 5, 2000.0), (2, 1, 300.0)], 6, id="one that began with others"),
        pytest.param([(1, 30, 900.0)], 10, id="a submission that waits for cores"),
        pytest.param([(1, 3, 400.0), (2, 1, 3000.0), (20, 8, 240.0), (21, 8, 1700.0)], 40, id="one among many"),
    ],
)
def test_alike_jobs_of_a_submission_get_their_length_back(
    submissions: list[tuple[int, int, float]], cores: int
) -> None:
    found = recorded(jobs_of(submissions), cores, 120)
    lengths = [length for _, jobs, length in submissions for _ in range(jobs)]
    # Ages are known to a minute where two lengths share the work of one.
    assert found.core_s == pytest.approx(lengths, abs=75.0)
    assert found.core_s.sum() == pytest.approx(sum(lengths))


def test_of_one_submission_lengths_are_exact() -> None:
    assert recorded(jobs_of([(3, 7, 333.0)]), 20, 30).core_s == pytest.approx(333.0)


@given(SUBMISSIONS, st.integers(1, 40), st.integers(5, 120))
def test_the_work_is_that_of_the_finished_jobs_and_each_job_has_a_length(
    submissions: list[tuple[int, int, float]], cores: int, minutes: int
) -> None:
    jobs = [job for job in jobs_of(submissions) if job[0] < 60.0 * minutes]
    found = recorded(jobs, cores, minutes)
    assert found.core_s.size == len(jobs)
    assert np.all(np.isfinite(found.core_s) & (found.core_s > 0.0))
    assert np.all(found.started_s[np.isfinite(found.ended_s)] <= found.ended_s[np.isfinite(found.ended_s)])
    # A job that still runs is longer than it has run.
    runs = np.isfinite(found.started_s) & ~np.isfinite(found.ended_s)
    assert np.all(found.started_s[runs] + found.core_s[runs] > START + 60.0 * minutes)


def test_without_the_work_a_job_ends_in_the_order_of_its_begin() -> None:
    found = recorded(jobs_of([(1, 2, 300.0), (3, 2, 300.0)]), 10, 30, known=False)
    assert found.core_s == pytest.approx([300.0] * 4, abs=60.0)


def test_jobs_whose_end_is_not_recorded_have_the_length_of_their_submission_or_the_mean_reported() -> None:
    found = recorded(jobs_of([(1, 6, 240.0), (9, 2, 900.0)]), 4, 10)
    assert found.core_s[:6] == pytest.approx([240.0] * 6, abs=1.0)
    assert found.core_s[6:].tolist() == [120.0, 120.0]


def test_jobs_that_leave_without_being_counted_as_finished_end_when_fewer_run() -> None:
    ends = START + 60.0 * np.arange(40)
    submitted = np.array([0, 8, *[0] * 38])
    running = np.array([0, *[8] * 9, *[3] * 10, *[0] * 20])
    finished, work = np.zeros(40, dtype=np.int64), np.zeros(40)
    finished[20], work[20] = 3, 3 * 1140.0
    found = rebuilt(ends, submitted, np.zeros(40, dtype=np.int64), running, finished, work, np.full(40, 120.0))
    assert np.all(np.isfinite(found.ended_s))
    assert found.core_s[:5] == pytest.approx([540.0] * 5, abs=60.0 * LEFT_AFTER + 60.0)
    assert found.core_s[5:] == pytest.approx([1140.0] * 3, abs=60.0)


def test_a_counter_that_claims_a_million_ends_costs_neither_memory_nor_other_jobs() -> None:
    ends = START + 60.0 * np.arange(10)
    submitted = np.array([0, 5, *[0] * 8])
    running = np.array([0, 5, 5, 5, 5, 0, 0, 0, 0, 0])
    finished, work = np.zeros(10, dtype=np.int64), np.zeros(10)
    finished[5], work[5] = 1_000_000, 1e6 * 240.0
    found = rebuilt(ends, submitted, np.zeros(10, dtype=np.int64), running, finished, work, np.full(10, 120.0))
    assert found.core_s == pytest.approx([240.0] * 5, abs=1.0)


def test_jobs_that_ran_at_the_begin_have_the_time_until_their_end_and_those_that_waited_their_length() -> None:
    ends = START + 60.0 * np.arange(12)
    finished, work = np.zeros(12, dtype=np.int64), np.zeros(12)
    finished[5], work[5] = 2, 2000.0
    finished[9], work[9] = 1, 240.0
    waiting = np.where(np.arange(12) < 5, 1, 0)
    running = np.array([2, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0])
    found = rebuilt(ends, np.array([3, *[0] * 11]), waiting, running, finished, work, np.full(12, 120.0))
    assert found.core_s == pytest.approx([270.0, 270.0, 240.0], abs=1.0)


def test_a_part_begins_with_the_jobs_that_wait_and_with_the_rest_of_those_that_run() -> None:
    jobs = Jobs(
        submitted_s=np.array([0.0, 10.0, 70.0, 130.0]),
        core_s=np.array([50.0, 300.0, 40.0, 20.0]),
        started_s=np.array([0.0, 20.0, 150.0, 160.0]),
        ended_s=np.array([50.0, 320.0, 190.0, 180.0]),
    )
    arrivals, lengths = jobs.between(100.0, 200.0)
    assert arrivals.tolist() == [0.0, 0.0, 30.0]
    assert lengths.tolist() == [220.0, 40.0, 20.0]


def test_of_many_submissions_only_those_that_fit_best_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    ages = {came: np.array([600.0]) for came in range(18)} | {18: np.array([10.0]), 19: np.array([990.0])}
    assert {came for came, *_ in jobs_module._explained(ages, 2, 1000.0)} == {18, 19}
    monkeypatch.setattr(jobs_module, "MOST_TOTALS", 10)
    assert jobs_module._explained(ages, 2, 1000.0) == []
