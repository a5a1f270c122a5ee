"""Jobs of recorded minutes: when they came, and lengths that keep the recorded total and quantiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.minutes import JobLengths
from trainer.learning.jobs import TOGETHER, arrivals_in, lengths_about, lengths_at

QUANTILES = st.lists(st.floats(1.0, 1e4), min_size=4, max_size=4).map(sorted)
LENGTHS = st.builds(lambda mean, points: JobLengths(mean, *points), st.floats(1.0, 1e4), QUANTILES)
KNOWN = LENGTHS | st.builds(JobLengths, st.floats(1.0, 1e4)) | st.none()
MINUTES = st.lists(st.tuples(st.floats(1.0, 1e4), KNOWN, st.integers(0, 60)), min_size=1, max_size=30)


def test_jobs_are_spread_evenly_over_their_span() -> None:
    arrivals, of = arrivals_in(np.array([0.0, 60.0, 60.0]), np.array([0.0, 60.0, 180.0]), np.array([2, 0, 3]))
    assert arrivals.tolist() == [0.0, 0.0, 80.0, 120.0, 160.0]
    assert of.tolist() == [0, 0, 2, 2, 2]


@given(MINUTES)
def test_the_total_is_that_of_the_means_and_no_length_is_none(minutes: list[tuple[float, JobLengths, int]]) -> None:
    means, known, counts = zip(*minutes, strict=True)
    numbers = np.array(counts, dtype=np.int64)
    found = lengths_about(np.array(means), known, numbers)
    assert found.size == numbers.sum()
    assert np.all(np.isfinite(found) & (found > 0.0))
    assert found.sum() == pytest.approx(float(np.dot(means, numbers)))


@given(LENGTHS, st.floats(1.0, 1e4), st.integers(TOGETHER, 200))
def test_a_batch_keeps_its_own_total_whatever_came_before_it(known: JobLengths, mean: float, jobs: int) -> None:
    found = lengths_about(np.array([1.0, mean]), [known, known], np.array([3, jobs]))
    assert found[:3].sum() == pytest.approx(3.0)
    assert found[3:].sum() == pytest.approx(mean * jobs)


def test_the_mean_of_a_distribution_is_that_of_its_lengths() -> None:
    known = JobLengths(1.0, 20.0, 80.0, 200.0, 400.0)
    place = (np.arange(20_000) + 0.5) / 20_000
    mean = lengths_at([known], np.zeros(place.size, dtype=np.int64), place).mean()
    found = lengths_about(np.array([mean]), [known], np.array([2000]))
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx([20.0, 80.0, 200.0], rel=0.02)


def test_where_no_quantiles_are_known_each_job_has_the_mean_of_its_minute() -> None:
    found = lengths_about(np.array([60.0, 90.0]), [None, JobLengths(500.0)], np.array([2, 1]))
    assert found.tolist() == [60.0, 60.0, 90.0]


def test_a_few_jobs_share_their_total_with_those_after_them() -> None:
    """One job a minute: each alone would have the mean, and no quantile would be kept."""
    known = JobLengths(100.0, 20.0, 80.0, 200.0, 400.0)
    count = 20 * TOGETHER
    found = lengths_about(np.full(count, 100.0), [known] * count, np.ones(count, dtype=np.int64))
    assert found.reshape(-1, TOGETHER).sum(axis=1) == pytest.approx(100.0 * TOGETHER)
    shape = np.quantile(found, [0.1, 0.9]) / np.median(found)
    assert shape == pytest.approx([0.25, 2.5], rel=0.1)
