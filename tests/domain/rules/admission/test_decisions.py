"""Who may come in, and how sure that is (admission specification §5)."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.admission.policies import (
    banded_kappa,
    first_refusal,
    log_grid,
    paper_grid,
    second_refusal,
    sgamma_refusal,
    zeroth_admits,
)
from domain.rules.admission.tails import cantelli, gamma_tail, gamma_upper, kappa_of, normal_upper, p_of, sgamma_tail

CURVES = st.lists(st.tuples(st.floats(0.0, 120.0), st.floats(0.0, 500.0)), min_size=4, max_size=4)


def test_the_published_grid_has_five_bands_of_600_steps() -> None:
    grid = paper_grid()
    assert grid[0] == pytest.approx(0.04)
    assert grid[-1] == 26_280.0
    # 24 h, a week, a month, a year and three years share some of their steps.
    assert 2_400 < grid.size <= 3_000
    assert np.all(np.diff(grid) > 0.0)


def test_the_log_grid_goes_from_minutes_to_three_years() -> None:
    grid = log_grid()
    assert (grid.size, grid[0], grid[-1]) == (32, pytest.approx(0.04), pytest.approx(26_280.0))
    assert np.all(np.diff(grid) > 0.0)
    with pytest.raises(BadInput, match="count"):
        log_grid(1)


@pytest.mark.parametrize("count", [2, 5, 6, 24, 32, 48])
def test_most_horizons_of_the_log_grid_lie_beyond_a_day(count: int) -> None:
    grid = log_grid(count)
    assert (grid.size, grid[0], grid[-1]) == (count, pytest.approx(0.04), pytest.approx(26_280.0))
    assert np.all(np.diff(grid) > 0.0)
    assert np.count_nonzero(grid < 24.0) <= max(1, count * 7 // 16)


def test_bands_beyond_a_month_take_kappa_times_the_factor() -> None:
    kappa = banded_kappa(np.array([1.0, 730.0, 731.0, 8_760.0, 9_000.0]), 2.0, 0.5)
    assert kappa.tolist() == [2.0, 2.0, 1.0, 1.0, 0.5]


# A risk of 1 bounds nothing, and its kappa of 0 still asks that the mean fit: the two are alike where means do.
@example(curves=[(0.0, 0.0)] * 3 + [(101.0, 0.0)], p=1.0)
@given(curves=CURVES, p=st.floats(1e-4, 1.0))
def test_a_risk_and_its_kappa_decide_alike(curves: list[tuple[float, float]], p: float) -> None:
    mean, variance = (np.array(column) for column in zip(*curves, strict=True))
    zero, kappa = np.zeros(4), kappa_of(p)
    refused = second_refusal(mean, variance, zero, zero, np.full(4, kappa), 100.0, 0.0, 0) >= 0
    worst = max(cantelli(e, v, 100.0) for e, v in curves)
    margin = min(abs(e + kappa * math.sqrt(v) - 100.0) for e, v in curves)
    if margin > 1e-6:
        assert refused == (worst > p or mean.max() > 100.0)
    assert p_of(kappa) == pytest.approx(p)


@given(curves=CURVES, first=st.integers(0, 3))
def test_kappa_zero_is_the_first_policy_at_the_capacity(curves: list[tuple[float, float]], first: int) -> None:
    mean, variance = (np.array(column) for column in zip(*curves, strict=True))
    zero = np.zeros(4)
    if np.any(mean == 100.0):
        return
    second = second_refusal(mean, variance, zero, zero, zero, 100.0, 0.0, first)
    assert second == first_refusal(mean, zero, 100.0, 0.0, first)


def test_the_horizon_that_forbade_last_is_asked_first() -> None:
    mean, zero = np.array([200.0, 10.0, 300.0]), np.zeros(3)
    assert first_refusal(mean, zero, 100.0, 0.0, 2) == 2
    assert first_refusal(mean, zero, 100.0, 0.0, 1) == 0


def test_horizons_at_which_the_newcomer_is_marginal_do_not_count() -> None:
    mean, variance, new = np.full(2, 99.0), np.full(2, 25.0), np.array([0.5, 0.9])
    kappa = np.full(2, 2.0)
    assert second_refusal(mean, variance, new, new, kappa, 100.0, 1.0, 0) == -1
    assert second_refusal(mean, variance, new, new, kappa, 100.0, 0.6, 0) == 1
    assert sgamma_refusal(mean, variance, variance, new, new, new, 1e-3, 100.0, 1.0, 0) == -1
    assert sgamma_refusal(mean, variance, variance, new, new, new, 1e-3, 100.0, 0.0, 0) == 0


def test_zeroth_above_the_capacity_admits_what_fits_and_at_zero_nothing() -> None:
    assert zeroth_admits(96.0, 4.0, 100.0, 101.0)
    assert not zeroth_admits(97.0, 4.0, 100.0, 101.0)
    assert not zeroth_admits(0.0, 1.0, 100.0, 0.0)


def test_zeroth_stays_below_the_threshold_and_within_the_capacity_each_for_itself() -> None:
    # The threshold alone: not even reached.
    assert zeroth_admits(89.0, 10.0, 200.0, 100.0)
    assert not zeroth_admits(90.0, 10.0, 200.0, 100.0)
    # The capacity alone: filled, but not beyond.
    assert zeroth_admits(90.0, 10.0, 100.0, 200.0)
    assert not zeroth_admits(90.0, 11.0, 100.0, 200.0)


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 12.5, 400.0, 1e4, 1e6])
@pytest.mark.parametrize("z", [-3.0, -0.5, 0.0, 1.0, 4.0])
def test_the_gamma_tail_is_that_of_scipy(shape: float, z: float) -> None:
    from scipy.special import gammaincc

    x = shape + z * math.sqrt(shape)
    assert gamma_upper(shape, x) == pytest.approx(float(gammaincc(shape, max(x, 0.0))), rel=1e-7, abs=1e-12)


def test_without_skew_the_shifted_gamma_is_normal_and_with_the_gammas_skew_it_is_the_gamma() -> None:
    assert sgamma_tail(80.0, 100.0, 0.0, 100.0) == normal_upper(2.0)
    assert sgamma_tail(80.0, 100.0, 2e-3 * 1000.0, 100.0) == pytest.approx(normal_upper(2.0), rel=2e-2)
    third = 2.0 * 100.0**2 / 80.0
    assert sgamma_tail(80.0, 100.0, third, 100.0) == pytest.approx(gamma_tail(80.0, 100.0, 100.0), rel=1e-9)


def test_skew_makes_the_far_tail_heavier() -> None:
    tails = [sgamma_tail(80.0, 100.0, skew * 1000.0, 120.0) for skew in (0.0, 0.5, 1.0, 2.0)]
    assert tails == sorted(tails)


def test_a_certain_size_exceeds_or_does_not() -> None:
    assert (cantelli(5.0, 0.0, 5.0), cantelli(6.0, 0.0, 5.0)) == (0.0, 1.0)
    assert (sgamma_tail(5.0, 0.0, 0.0, 5.0), gamma_tail(6.0, 0.0, 5.0)) == (0.0, 1.0)


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, math.nan])
def test_a_risk_must_be_a_chance(p: float) -> None:
    with pytest.raises(BadInput, match="p is"):
        kappa_of(p)
