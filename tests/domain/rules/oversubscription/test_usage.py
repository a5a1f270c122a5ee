"""How a VM uses its cores: moments after clipping, profiles with gaps, samples that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import SampleRejected
from domain.rules.oversubscription.rates import LEVEL_SPREAD, TURN_H
from domain.rules.oversubscription.usage import (
    clean_sample,
    clipped_moments,
    drifted_means,
    fill_profile,
    moments_of,
    turned_excess,
)
from simulator.oversubscription.scenario import hold_gaps

NODES = np.linspace(-8.0, 8.0, 400_001)
WEIGHTS = np.exp(-0.5 * NODES**2)
WEIGHTS /= WEIGHTS.sum()


def by_quadrature(mu: float, sd: float) -> tuple[float, float, float]:
    values = np.clip(mu + sd * NODES, 0.0, 1.0)
    mean = float(WEIGHTS @ values)
    return mean, float(WEIGHTS @ (values - mean) ** 2), float(WEIGHTS @ (values - mean) ** 3)


@pytest.mark.parametrize(("mu", "sd"), [(0.2, 0.15), (0.95, 0.3), (0.0, 0.1), (0.45, 0.4)])
def test_the_closed_form_is_the_integral(mu: float, sd: float) -> None:
    assert clipped_moments(mu, sd) == pytest.approx(by_quadrature(mu, sd), abs=2e-9)


@given(st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_moments_are_those_of_a_share(mu: float, sd: float) -> None:
    mean, variance, third = clipped_moments(mu, sd)
    assert -1e-12 <= mean <= 1.0 + 1e-12
    assert 0.0 <= variance <= mean * (1.0 - mean) + 1e-12
    assert abs(third) <= variance + 1e-12


@given(st.lists(st.floats(0.0, 1.0), min_size=48, max_size=48), st.integers(0, 12))
def test_no_turn_within_reach_exceeds_the_mean_and_its_excess(means: list[float], turn_h: int) -> None:
    mean = np.array(means).reshape(2, 24)
    risen = mean + turned_excess(mean, turn_h)
    turned = [np.roll(mean, step, axis=1) for step in range(-turn_h, turn_h + 1)]
    assert all((risen >= day - 1e-12).all() for day in turned)
    # And one of them reaches it: there is no more room than is needed.
    assert np.abs(np.min([risen - day for day in turned], axis=0)).max() < 1e-12


@given(st.lists(st.floats(0.0, 1.0), min_size=24, max_size=24))
def test_the_means_over_usual_drifts_are_those_of_drifts_weighed_one_by_one(means: list[float]) -> None:
    mean = np.array([means])
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    days = [np.exp(LEVEL_SPREAD * x) * np.roll(mean, step) for x in nodes for step in range(-TURN_H, TURN_H + 1)]
    share = np.repeat(weights / weights.sum(), 2 * TURN_H + 1) / (2 * TURN_H + 1)
    expected = np.tensordot(share, np.array(days), 1)
    moved, spread = drifted_means(mean)
    np.testing.assert_allclose(mean + moved, expected, atol=1e-9)
    np.testing.assert_allclose(spread**2, np.tensordot(share, (np.array(days) - expected) ** 2, 1), atol=1e-9)


def test_a_peak_is_reached_from_as_many_hours_on_either_side() -> None:
    mean = np.full((1, 24), 0.2)
    mean[0, 0] = 0.5
    excess = turned_excess(mean, 2)
    assert np.flatnonzero(excess[0]).tolist() == [1, 2, 22, 23]
    assert excess[0, 1] == pytest.approx(0.3)
    assert not turned_excess(mean, 0).any()


def test_without_spread_the_usage_is_its_mean() -> None:
    assert clipped_moments(0.3, 0.0) == pytest.approx((0.3, 1e-12, 0.0), abs=1e-15)


def test_a_table_of_moments_keeps_the_profiles_shape() -> None:
    mu, sd = np.full((2, 24), 0.2), np.full((2, 24), 0.15)
    mu[1] = 0.95
    table = moments_of(mu, sd)
    assert table.mean.shape == (2, 24)
    assert table.third[1, 5] == clipped_moments(0.95, 0.15)[2]


def test_missing_hours_are_pooled_from_their_neighbours_then_from_the_day() -> None:
    values = np.full((3, 24), np.nan)
    values[0] = 0.2
    values[0, 3:6] = (0.4, np.nan, 0.6)
    values[1, 12] = 0.5
    filled = fill_profile(values)
    assert filled[0, 4] == pytest.approx((0.2 + 0.4 + 0.6 + 0.2) / 4.0)
    assert filled[1].tolist() == [0.5] * 24
    assert np.isnan(filled[2]).all()


def test_midnight_has_neighbours_on_both_sides() -> None:
    values = np.full((1, 24), 0.1)
    values[0, 0] = np.nan
    values[0, 23] = 0.5
    assert fill_profile(values)[0, 0] == pytest.approx((0.1 + 0.5 + 0.1 + 0.1) / 4.0)


@pytest.mark.parametrize(("usage", "kept"), [(0.0, 0.0), (0.4, 0.4), (1.0, 1.0), (1.03, 1.0), (1.05, 1.0)])
def test_a_little_above_one_is_clipped(usage: float, kept: float) -> None:
    assert clean_sample(usage) == kept


@pytest.mark.parametrize("usage", [1.051, -0.01, math.nan, math.inf])
def test_more_than_that_is_no_usage(usage: float) -> None:
    with pytest.raises(SampleRejected):
        clean_sample(usage)


def test_gaps_of_three_hours_have_the_value_before_and_longer_ones_stay_open() -> None:
    nan = math.nan
    filled = hold_gaps(np.array([nan, 0.2, nan, nan, nan, 0.5, nan, nan, nan, nan, 0.1]))
    assert filled[1:9].tolist() == [0.2, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5, 0.5]
    assert np.isnan(filled).nonzero()[0].tolist() == [0, 9]
