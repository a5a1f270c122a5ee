"""Who may come in, and how sure that is (admission specification §5)."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.admission.policies import (
    budget_refusal,
    cantelli,
    checked_grid,
    cores_per_variance,
    first_refusal,
    gamma_refusal,
    gamma_tail,
    gamma_upper,
    log_grid,
    normal_upper,
    paper_grid,
    second_refusal,
    sgamma_refusal,
    sgamma_tail,
    staleness,
    zeroth_admits,
)
from domain.rules.admission.rule import kappa_of

CURVES = st.lists(st.tuples(st.floats(0.0, 120.0), st.floats(0.0, 500.0)), min_size=4, max_size=4)


def test_the_published_grid_has_five_bands_of_600_steps() -> None:
    grid = paper_grid()
    assert grid[0] == pytest.approx(0.04)
    assert grid[-1] == 26_280.0
    # 24 h, a week, a month, a year and three years share some of their steps.
    assert 2_400 < grid.size <= 3_000
    assert np.all(np.diff(grid) > 0.0)


@pytest.mark.parametrize("count", [2, 5, 6, 24, 32, 48])
def test_most_horizons_of_the_log_grid_lie_beyond_a_day(count: int) -> None:
    grid = log_grid(count)
    assert (grid.size, grid[0], grid[-1]) == (count, pytest.approx(0.04), pytest.approx(26_280.0))
    assert np.all(np.diff(grid) > 0.0)
    assert np.count_nonzero(grid < 24.0) <= max(1, count * 7 // 16)


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
    assert 1.0 / (1.0 + kappa * kappa) == pytest.approx(p)


@given(curves=CURVES, first=st.integers(0, 3))
def test_kappa_zero_is_the_first_policy_at_the_capacity(curves: list[tuple[float, float]], first: int) -> None:
    mean, variance = (np.array(column) for column in zip(*curves, strict=True))
    zero = np.zeros(4)
    if np.any(mean == 100.0):
        return
    second = second_refusal(mean, variance, zero, zero, zero, 100.0, 0.0, first)
    assert second == first_refusal(mean, zero, 100.0, 0.0, first)


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
    # Its powers are 0, as numbers.
    assert (sgamma_tail(5.0, 1e-220, 1e-300, 5.5), gamma_tail(1e-196, 1e-300, 1e-200)) == (0.0, 1.0)


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, math.nan])
def test_a_risk_must_be_a_chance(p: float) -> None:
    with pytest.raises(BadInput, match="p is"):
        kappa_of(p)


def budget(share: float, *, marginal: float = 0.0, capacity: float = 100.0, third: float = 40.0) -> int:
    """Judge a newcomer of 10 cores at four horizons, in a cluster that fills up to the third and then empties."""
    mean, variance, requests = np.array([60.0, 80.0, 92.0, 30.0]), np.full(4, 30.0), np.array([2.0, 2.0, 1.0, 1.0])
    new, new_requests = np.array([10.0, 10.0, 10.0, 0.5]), np.array([0.0, 0.0, 1.0, 0.0])
    thirds, hours = np.full(4, third), np.array([1.0, 5.0, 10.0, 10.0])
    small = np.full(4, 6.0)
    return budget_refusal(
        mean, variance, thirds, requests, new, small, 0.5 * thirds, new_requests, hours, share, capacity, marginal
    )


def failing(third: float = 60.0) -> tuple[float, float]:
    """Return the failures and the requests to come at those horizons, newcomer included."""
    rates, hours, sums = [2.0, 2.0, 2.0, 1.0], [1.0, 5.0, 10.0, 10.0], [70.0, 90.0, 102.0, 30.5]
    asked = [rate * hour for rate, hour in zip(rates, hours, strict=True)]
    failures = sum(one * sgamma_tail(expected, 36.0, third, 100.0) for one, expected in zip(asked, sums, strict=True))
    return failures, sum(asked)


def test_a_budget_refuses_at_the_worst_horizon_once_more_than_its_share_is_to_fail() -> None:
    failures, asked = failing()
    share = failures / asked
    assert 0.2 < share < 0.5
    assert budget(share * 1.000001) == -1
    assert budget(share * 0.999999) == 2


def test_a_budget_leaves_out_horizons_at_which_the_newcomer_is_marginal() -> None:
    failures, asked = failing()
    # Without the last horizon, at which nothing fails, the same failures are a larger share.
    between = 0.5 * (failures / asked + failures / (asked - 10.0))
    assert (budget(between), budget(between, marginal=0.6)) == (-1, 2)
    assert budget(0.0, marginal=10.5) == -1


def test_a_budget_with_room_for_all_refuses_nobody() -> None:
    assert budget(1e-3, capacity=10_000.0) == -1


SUMS = st.lists(
    st.tuples(st.floats(0.1, 120.0), st.floats(0.01, 400.0), st.floats(0.0, 30.0), st.floats(0.0, 100.0)),
    min_size=1,
    max_size=5,
)


@given(sums=SUMS, marginal=st.sampled_from([0.0, 5.0]), p=st.sampled_from([1e-3, 0.1, 0.5]), data=st.data())
def test_each_rule_refuses_at_the_horizon_asked_first_else_at_the_earliest_that_forbids(
    sums: list[tuple[float, float, float, float]], marginal: float, p: float, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(sums) - 1))
    mean, variance, new, new_variance = (np.array(column) for column in zip(*sums, strict=True))
    third, kappa = 0.5 * variance, np.linspace(0.5, 3.0, len(sums))
    total, both, thirds = mean + new, variance + new_variance, third + 0.5 * new_variance
    forbidden = {
        first_refusal(mean, new, 100.0, marginal, first): total >= 100.0,
        second_refusal(mean, variance, new, new_variance, kappa, 100.0, marginal, first): (
            total + kappa * np.sqrt(both) > 100.0
        ),
        sgamma_refusal(
            mean, variance, third, new, new_variance, 0.5 * new_variance, p, 100.0, marginal, first
        ): np.array([sgamma_tail(*each, 100.0) > p for each in zip(total, both, thirds, strict=True)]),
        gamma_refusal(mean, variance, new, new_variance, p, 100.0, marginal, first): np.array(
            [gamma_tail(*each, 100.0) > p for each in zip(total, both, strict=True)]
        ),
    }
    for found, forbids in forbidden.items():
        counts = np.flatnonzero(forbids & (new >= marginal))
        assert found == (first if first in counts else int(counts[0]) if counts.size else -1)


def test_a_limit_that_is_reached_exactly_forbids_first_and_not_the_others() -> None:
    full, zero = np.array([90.0]), np.zeros(1)
    new = np.array([10.0])
    assert first_refusal(full, new, 100.0, 0.0, 0) == 0
    assert second_refusal(full, zero, new, zero, zero, 100.0, 0.0, 0) == -1
    assert gamma_refusal(full, zero, new, zero, 0.0, 100.0, 0.0, 0) == -1
    # A newcomer of just the marginal size counts.
    assert first_refusal(full, new, 100.0, 10.0, 0) == 0
    assert second_refusal(full, zero, new, zero, zero, 99.0, 10.0, 0) == 0


def test_a_risk_of_one_asks_for_no_standard_deviations() -> None:
    assert kappa_of(1.0) == 0.0
    assert kappa_of(0.5) == 1.0
    assert kappa_of(0.1) == pytest.approx(3.0)


@given(st.floats(0.1, 200.0), st.floats(0.01, 400.0), st.floats(-500.0, 500.0), st.floats(1.0, 200.0))
def test_a_tail_is_a_chance_and_cantellis_bound_holds_for_it(
    mean: float, variance: float, third: float, capacity: float
) -> None:
    for tail in (sgamma_tail(mean, variance, third, capacity), gamma_tail(mean, variance, capacity)):
        assert 0.0 <= tail <= 1.0
    assert sgamma_tail(mean, variance, third, capacity) <= cantelli(mean, variance, capacity) + 1e-9


@pytest.mark.parametrize(
    "horizons", [[], [[1.0]], [0.0, 1.0], [-1.0], [1.0, 1.0], [2.0, 1.0], [1.0, math.inf], [math.nan]]
)
def test_horizons_ascend_from_above_zero(horizons: list[float]) -> None:
    with pytest.raises(BadInput, match="horizons_h"):
        checked_grid(np.array(horizons))


def test_horizons_that_do_come_back_as_numbers() -> None:
    assert checked_grid(np.array([1, 2])).tolist() == [1.0, 2.0]
    assert checked_grid(np.array([0.5])).tolist() == [0.5]


def test_a_forecast_is_out_of_date_by_the_cores_that_moved_and_the_life_that_passed() -> None:
    assert staleness(np.array([10.0]), np.array([10.0]), np.array([0.0]), np.array([5.0])).tolist() == [0.0]
    moved = staleness(np.array([13.0, 7.0]), np.array([10.0, 10.0]), np.array([1.0, 1.0]), np.array([1.9, 3.9]))
    assert moved.tolist() == pytest.approx([0.3 + 0.5, 0.3 + 0.25])


def test_a_unit_of_variance_moves_demand_by_half_of_kappa_per_spread_or_of_the_room() -> None:
    assert cores_per_variance(10.0, 25.0, 3.0) == pytest.approx(0.5 * 3.0 / 5.0)
    assert cores_per_variance(20.0, 25.0, 3.0) == pytest.approx(0.5 * 4.0 / 5.0)
    # Beyond ten standard deviations nothing is added, and without spread nothing is divided by zero.
    assert cores_per_variance(500.0, 25.0, 3.0) == pytest.approx(0.5 * 10.0 / 5.0)
    assert cores_per_variance(1.0, 0.0, 0.0) == pytest.approx(0.5 * 10.0 / math.sqrt(1e-9))
    assert cores_per_variance(-50.0, 25.0, 2.0) == pytest.approx(0.5 * 2.0 / 5.0)
