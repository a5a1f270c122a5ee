"""The bootstrap interval of any figure over runs: exact ends, and what stands in where it is not defined."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from domain.errors import BadInput
from trainer.kit.intervals import Kind, bca_ends, bootstrap


def mean_of(means: NDArray[np.float64]) -> NDArray[np.float64]:
    return means[:, 0]


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("shape", [0.3, 2.0])
def test_the_ends_are_those_of_scipy_on_the_same_resamples(level: float, shape: float) -> None:
    sample = np.random.default_rng(3).gamma(shape, size=40)
    peer = stats.bootstrap(
        (sample,), np.mean, method="BCa", confidence_level=level, n_resamples=4000, rng=np.random.default_rng(4)
    )
    jackknife = (sample.sum() - sample) / (len(sample) - 1)
    tails = ((1 - level) / 2, 1 - (1 - level) / 2)
    ours = bca_ends(float(sample.mean()), peer.bootstrap_distribution, jackknife, tails)
    assert ours == pytest.approx(tuple(peer.confidence_interval), rel=1e-10)


def test_own_resamples_agree_with_scipy_within_their_noise() -> None:
    sample = np.random.default_rng(5).gamma(0.5, size=60)
    peer = stats.bootstrap((sample,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(6))
    ours = bootstrap(sample[:, None], mean_of)
    assert ours.kind is Kind.BCA
    assert ours.value == pytest.approx(sample.mean())
    width = peer.confidence_interval.high - peer.confidence_interval.low
    assert ours.low == pytest.approx(peer.confidence_interval.low, abs=0.1 * width)
    assert ours.high == pytest.approx(peer.confidence_interval.high, abs=0.1 * width)


def test_a_ratio_of_sums_keeps_numerator_and_denominator_of_a_run_together() -> None:
    below = np.random.default_rng(7).uniform(1.0, 100.0, 50)
    rows = np.column_stack([0.25 * below, below])
    found = bootstrap(rows, lambda means: means[:, 0] / means[:, 1])
    assert (found.low, found.value, found.high) == pytest.approx((0.25, 0.25, 0.25))


def test_runs_that_are_all_alike_have_no_width() -> None:
    found = bootstrap(np.full((9, 2), 3.0), mean_of)
    assert (found.low, found.value, found.high, found.kind) == (3.0, 3.0, 3.0, Kind.DEGENERATE)


def test_resamples_all_above_the_estimate_give_a_finite_end() -> None:
    resampled = np.linspace(1.0, 2.0, 1000)
    low, high = bca_ends(0.5, resampled, np.array([0.4, 0.5, 0.6]), (0.025, 0.975))
    assert low == 1.0
    assert 1.0 <= high < 1.5


def test_a_figure_without_value_on_some_resamples_gets_percentiles_and_says_how_often() -> None:
    rows = np.array([[0.0], [0.0], [1.0], [2.0], [3.0]])
    found = bootstrap(rows, lambda means: np.where(means[:, 0] > 0.5, means[:, 0], np.nan))
    assert found.kind is Kind.PERCENTILE
    resampled = np.random.default_rng(0).multinomial(5, np.full(5, 0.2), size=10_000) / 5 @ rows
    assert found.undefined == pytest.approx((resampled <= 0.5).mean())
    assert found.low > 0.5


def test_a_figure_without_value_is_said_to_have_none() -> None:
    found = bootstrap(np.array([[0.0], [1.0]]), lambda means: np.full(len(means), np.nan))
    assert found.kind is Kind.UNDEFINED
    assert np.isnan(found.low)


def test_nothing_and_what_is_not_finite_are_refused() -> None:
    for rows in (np.zeros((0, 1)), np.array([[np.nan]])):
        with pytest.raises(BadInput, match="rows"):
            bootstrap(rows, mean_of)
