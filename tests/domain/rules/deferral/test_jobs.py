"""Deferrable jobs: what is refused, what a schedule is worth, and the check of schedules (deferral §1, §12)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.deferral.jobs import (
    CLAMPED,
    FIELDS,
    MOST_STEPS,
    UNLIKELY,
    W1,
    W2,
    Ints,
    JobExpired,
    Jobs,
    check_job,
    jobs_of,
    objective,
    occupancy,
)
from tests.golden import figures
from trainer.deferral.exact import violations_of

GOOD = {"cores": 2, "duration": 3, "earliest": 5, "latest": 8, "submitted": 4}


def steps_of(*starts: int) -> Ints:
    return np.array(starts, dtype=np.int64)


@dataclass(frozen=True)
class Schedule:
    jobs: Jobs
    start: Ints
    capacity: Ints


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A schedule in which every start is inside its window, over capacity or not."""
    steps = draw(st.integers(1, 12))
    rows, starts = [], []
    for _ in range(draw(st.integers(0, 12))):
        submitted = draw(st.integers(0, steps - 1))
        earliest = draw(st.integers(submitted, steps - 1))
        latest = draw(st.integers(earliest, steps - 1))
        rows.append((draw(st.integers(1, 8)), draw(st.integers(1, 20)), earliest, latest, submitted))
        starts.append(draw(st.sampled_from([-1, *range(earliest, latest + 1)])))
    capacity = draw(st.lists(st.integers(0, 20), min_size=steps, max_size=steps))
    return Schedule(jobs_of(rows), steps_of(*starts), steps_of(*capacity))


def test_the_prices_are_those_of_the_specification() -> None:
    assert (W1, W2) == (2.0, 10.0)


def test_a_job_is_accepted_as_it_is() -> None:
    assert check_job(GOOD) == ((2, 3, 5, 8, 4), ())


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, "3", 2.5, math.nan, math.inf, -math.inf, True, [1]])
def test_what_is_no_whole_number_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadInput) as refused:
        check_job({**GOOD, field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("cores", 0), ("cores", -1), ("cores", 10**12), ("duration", 0), ("duration", MOST_STEPS + 1), ("earliest", -1),
     ("submitted", -1), ("latest", 4), ("latest", 10**12)],
)  # fmt: skip
def test_what_is_out_of_range_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(BadInput) as refused:
        check_job({**GOOD, field: value})
    assert refused.value.field == field


def test_a_whole_number_may_be_of_any_type() -> None:
    assert check_job({**GOOD, "cores": np.int32(2), "duration": 3.0})[0] == (2, 3, 5, 8, 4)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BadInput, match="latest"):
        check_job({name: value for name, value in GOOD.items() if name != "latest"})


def test_a_late_job_is_refused_or_flagged_and_counts_its_delay_from_what_was_requested() -> None:
    late = {**GOOD, "submitted": 7}
    with pytest.raises(BadInput, match="clamp_late"):
        check_job(late)
    job, flags = check_job(late, clamp_late=True)
    assert flags == (CLAMPED,)
    assert objective(jobs_of([job]), steps_of(7), steps_of(*[9] * 12)).delay == 2


@pytest.mark.parametrize("clamp_late", [False, True])
def test_a_job_whose_latest_start_has_passed_is_expired(clamp_late: bool) -> None:
    with pytest.raises(JobExpired, match="expired"):
        check_job({**GOOD, "submitted": 9}, clamp_late=clamp_late)


def test_a_job_larger_than_what_was_ever_free_is_flagged() -> None:
    assert check_job(GOOD, largest=1)[1] == (UNLIKELY,)
    assert check_job(GOOD, largest=2)[1] == ()


def test_two_jobs_by_hand() -> None:
    """4 cores in steps 1 to 3 and 3 from step 2 on, with 5 cores: two too many in steps 2 and 3."""
    jobs = jobs_of([(4, 3, 0, 2, 0), (3, 9, 2, 2, 1), (1, 1, 0, 0, 0)])
    start, capacity = steps_of(1, 2, -1), steps_of(5, 5, 5, 5, 5)
    assert occupancy(jobs, start, 5).tolist() == [0, 4, 7, 7, 3]
    score = objective(jobs, start, capacity)
    assert tuple(score) == (12 + 27, 1, 4, 39 - 2 - 40, 2, 1, 1)
    assert score.delay_charge == 2
    assert violations_of(jobs, start, capacity, score=score) == []


@given(schedules())
def test_the_objective_is_what_the_independent_check_counts(given: Schedule) -> None:
    score = objective(given.jobs, given.start, given.capacity)
    assert violations_of(given.jobs, given.start, given.capacity, score=score) == []
    assert violations_of(given.jobs, given.start, given.capacity, score=score._replace(total=score.total + 1e-6))
    assert score.started + score.expired == given.jobs.size
    assert score.utilisation + score.expired_core_steps == int(given.jobs.revenue.sum())


@given(schedules(), st.integers(0, 9))
def test_the_order_of_jobs_does_not_matter_to_the_objective(given: Schedule, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(given.jobs.size)
    shuffled = objective(given.jobs.take(order), given.start[order], given.capacity)
    assert shuffled == objective(given.jobs, given.start, given.capacity)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (steps_of(0, 2), "outside its window"),
        (steps_of(4, 2), "outside its window"),
        (steps_of(1, 1), "before it is submitted"),
        (steps_of(9, 2), r"not in 0..4"),
        (steps_of(1), "one whole number for each job"),
        (np.array([1.0, 2.0]), "one whole number for each job"),
    ],
)
def test_each_breach_is_stated(start: Ints, words: str) -> None:
    jobs = jobs_of([(4, 3, 1, 2, 0), (3, 2, 1, 3, 2)])
    found = violations_of(jobs, start, steps_of(9, 9, 9, 9, 9))
    assert any(words in text for text in found), found


def test_starts_beyond_what_is_free_are_a_breach_for_an_agent_only() -> None:
    jobs = jobs_of([(4, 3, 0, 2, 0), (3, 2, 1, 3, 0)])
    start = steps_of(0, 1)
    assert violations_of(jobs, start, steps_of(6, 6, 6, 6)) == []
    assert [*map(figures, violations_of(jobs, start, steps_of(6, 6, 6, 6), online=True))] == [[3, 1, 2]]
    # A capacity that falls under what runs is none: nothing starts in that step.
    assert violations_of(jobs, steps_of(0, -1), steps_of(6, 1, 1, 6), online=True) == []


def test_sums_of_a_million_large_jobs_stay_exact() -> None:
    count = 1_000
    jobs = Jobs(*(np.full(count, value, dtype=np.int64) for value in (10**6, 10**6, 0, 0, 0)))
    score = objective(jobs, np.zeros(count, dtype=np.int64), np.zeros(1, dtype=np.int64))
    assert score.utilisation == 10**15
    assert score.violation == 10**9
