"""Which jobs start: orders, the decoding of scores, the knapsack (deferral §2, §7, §10.1, §12)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.deferral.choosing import (
    DECODINGS,
    KEYS,
    Decoding,
    Floats,
    Group,
    History,
    ScoresUnusable,
    View,
    decode,
    knapsack,
    knapsack_values,
    ordered,
    packed,
    take_in_order,
)
from domain.rules.deferral.jobs import Ints, jobs_of


def whole(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def group(rows: Sequence[tuple[int, int, int, int, int]]) -> Group:
    """Jobs as (cores, duration, earliest, latest, submitted)."""
    jobs = jobs_of(rows)
    return Group(np.arange(len(rows)), *jobs, jobs.duration)


def view_of(rows: Sequence[tuple[int, int, int, int, int]], step: int, capacity: int) -> View:
    nothing, none, no_means = group([]), whole([]), np.empty(0)
    history = History(none, none, none, no_means, no_means, none, none, none)
    return View(step, 0, 0, capacity, group(rows), nothing, nothing, history)


QUEUE = [(2, 1, 3, 9, 1), (4, 3, 2, 9, 1), (1, 2, 2, 5, 0), (1, 1, 2, 7, 0)]


@pytest.mark.parametrize(
    ("name", "order"), [("fifo", [2, 3, 1, 0]), ("sjf", [3, 0, 2, 1]), ("tetris", [1, 0, 3, 2]), ("els", [2, 3, 0, 1])]
)
def test_each_order_has_its_key(name: str, order: list[int]) -> None:
    assert KEYS[name](group(QUEUE)).tolist() == order


def test_prefix_stops_at_the_first_job_that_does_not_fit_and_skip_passes_it_over() -> None:
    order, cores = whole([1, 2, 0, 3]), whole([2, 1, 4, 1])
    assert take_in_order(order, cores, 4, "prefix").tolist() == [1]
    assert take_in_order(order, cores, 4, "skip").tolist() == [0, 1, 3]


@pytest.mark.parametrize("kind", DECODINGS)
@pytest.mark.parametrize("free", [0, -5])
def test_nothing_starts_without_free_cores(kind: Decoding, free: int) -> None:
    assert decode(np.ones(4), whole([1, 1, 1, 1]), free, kind).size == 0


@pytest.mark.parametrize("kind", DECODINGS)
def test_nothing_starts_without_jobs(kind: Decoding) -> None:
    assert decode(np.empty(0), whole([]), 5, kind).size == 0


def test_of_equal_scores_the_earlier_submission_starts_first_then_the_smaller_number() -> None:
    cores = whole([3, 3, 3])
    assert decode(np.zeros(3), cores, 3, "prefix", ties=whole([7, 2, 2])).tolist() == [1]
    assert decode(np.zeros(3), cores, 3, "skip").tolist() == [0]


def test_jobs_below_the_threshold_wait() -> None:
    scores, cores = np.array([0.9, -0.2, 0.4]), whole([1, 1, 1])
    assert decode(scores, cores, 9, "skip", theta=0.4).tolist() == [0, 2]
    assert decode(scores, cores, 9, "knapsack", theta=0.5).tolist() == [0]


@pytest.mark.parametrize("kind", DECODINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_score_that_is_not_finite_spoils_the_decision(kind: Decoding, bad: float) -> None:
    with pytest.raises(ScoresUnusable, match="1 of 3"):
        decode(np.array([1.0, bad, 0.0]), whole([1, 1, 1]), 9, kind)


def test_a_score_too_few_spoils_the_decision() -> None:
    with pytest.raises(ScoresUnusable):
        decode(np.ones(2), whole([1, 1, 1]), 9)


def test_an_unknown_decoding_is_refused() -> None:
    with pytest.raises(BadInput, match="prefix, skip, knapsack"):
        decode(np.ones(1), whole([1]), 1, "greedy")  # type: ignore[arg-type]


scored = st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), max_size=9)


@given(scored, st.integers(-3, 30), st.sampled_from(DECODINGS))
def test_no_decoding_starts_more_than_is_free(jobs: list[tuple[float, int]], free: int, kind: Decoding) -> None:
    scores, cores = np.array([score for score, _ in jobs]), whole([need for _, need in jobs])
    chosen = decode(scores, cores, free, kind)
    assert cores[chosen].sum() <= max(0, free)
    assert np.unique(chosen).size == chosen.size


@given(scored, st.integers(0, 30), st.sampled_from(["prefix", "skip"]))
def test_the_order_of_jobs_does_not_matter(jobs: list[tuple[float, int]], free: int, kind: Decoding) -> None:
    jobs = list({score: (score, need) for score, need in jobs}.values())
    scores, cores = np.array([score for score, _ in jobs]), whole([need for _, need in jobs])
    order = np.random.default_rng(len(jobs) + free).permutation(len(jobs))
    chosen = decode(scores[order], cores[order], free, kind)
    assert sorted(order[chosen].tolist()) == decode(scores, cores, free, kind).tolist()


@given(scored, st.integers(-1, 30))
def test_the_knapsack_is_as_good_as_the_best_of_all_sets(jobs: list[tuple[float, int]], free: int) -> None:
    values, cores = np.array([value for value, _ in jobs]), whole([need for _, need in jobs])
    best = max(
        values[list(some)].sum()
        for n in range(len(jobs) + 1)
        for some in itertools.combinations(range(len(jobs)), n)
        if cores[list(some)].sum() <= max(0, free)
    )
    chosen = knapsack(values, cores, free)
    assert cores[chosen].sum() <= max(0, free)
    assert values[chosen].sum() == pytest.approx(best, abs=1e-9)
    assert chosen.tolist() == sorted(chosen.tolist())


def test_what_a_start_is_worth_by_hand() -> None:
    """Revenue 12, two steps late: 8 now; 6 in the next step, of which 0.3 is kept back."""
    rows = [(4, 3, 3, 6, 0), (4, 3, 3, 5, 0)]
    values: Floats = knapsack_values(view_of(rows, 5, 9), alpha=0.3, beta=0.5)
    np.testing.assert_allclose(values, [8 - 0.3 * 6 - 0.5 * 8, 8 - 0.5 * 8])


def test_the_knapsack_takes_two_small_jobs_for_a_large_one() -> None:
    rows = [(5, 2, 0, 0, 0), (3, 2, 0, 0, 0), (3, 2, 0, 0, 0)]
    view = view_of(rows, 0, 6)
    assert packed()(view).tolist() == [1, 2]
    assert ordered("tetris")(view).tolist() == [0]


def test_thousands_of_jobs_in_one_step_are_decided_upon() -> None:
    draws = np.random.default_rng(5)
    cores, scores = draws.integers(1, 9, 5_000), draws.normal(size=5_000)
    for kind in DECODINGS:
        assert cores[decode(scores, cores, 60, kind)].sum() <= 60
    assert cores[decode(np.abs(scores), cores, 60, "knapsack")].sum() == 60
