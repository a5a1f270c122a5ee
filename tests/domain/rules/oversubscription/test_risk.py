"""How likely machines run hot: the corrected tail, the cluster's hour, the count over a week."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.oversubscription.risk import (
    any_hot,
    clopper_pearson_lower,
    clopper_pearson_upper,
    count_at_least,
    hot_probability,
    satisfied,
)
from domain.rules.oversubscription.usage import clipped_moments
from simulator.oversubscription.engine import correlated_square

SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9)


def test_without_skewness_the_tail_is_the_normal_one() -> None:
    assert hot_probability(50.0, 16.0, 0.0, 58.0) == pytest.approx(0.5 * math.erfc(2.0 / math.sqrt(2.0)), rel=1e-14)


def test_skewness_adds_its_edgeworth_term() -> None:
    density = math.exp(-2.0) / math.sqrt(2.0 * math.pi)
    plain = hot_probability(50.0, 16.0, 0.0, 58.0)
    assert hot_probability(50.0, 16.0, 32.0, 58.0) == pytest.approx(plain + 0.5 / 6.0 * 3.0 * density, rel=1e-14)


def test_the_corrected_tail_of_eight_vms_is_that_of_a_million_samples() -> None:
    cores = np.array([2.0, 2.0, 4.0, 4.0, 8.0, 2.0, 4.0, 8.0])
    mu = np.array([0.15, 0.2, 0.25, 0.2, 0.15, 0.3, 0.2, 0.2])
    draws = np.random.default_rng(5)
    total = np.zeros(1_000_000)
    for c, m in zip(cores, mu, strict=True):
        total += c * np.clip(m + 0.75 * m * draws.standard_normal(total.size), 0.0, 1.0)
    moments = [clipped_moments(m, 0.75 * m) for m in mu.tolist()]
    sums = [
        sum(c ** (power + 1) * moment[power] for c, moment in zip(cores, moments, strict=True)) for power in (0, 1, 2)
    ]
    for threshold in (9.0, 10.0, 11.0):
        share = float((total >= threshold).mean())
        corrected, plain = hot_probability(*sums, threshold), hot_probability(sums[0], sums[1], 0.0, threshold)
        assert corrected == pytest.approx(share, abs=0.003)
        assert abs(corrected - share) < abs(plain - share)


@given(st.floats(0.0, 100.0), st.floats(0.0, 50.0), st.floats(-500.0, 500.0), st.floats(0.1, 100.0))
def test_the_tail_is_a_probability(mean: float, variance: float, third: float, threshold: float) -> None:
    assert 0.0 <= hot_probability(mean, variance, third, threshold) <= 1.0


def test_a_machine_without_spread_is_hot_from_the_threshold_on() -> None:
    assert [hot_probability(mean, 0.0, 0.0, 57.6) for mean in (57.5, 57.6, 60.0)] == [0.0, 1.0, 1.0]


@given(SHARES)
def test_any_hot_is_one_minus_the_product(shares: list[float]) -> None:
    assert any_hot(np.array(shares)) == pytest.approx(1.0 - math.prod(1.0 - p for p in shares), abs=1e-12)


@pytest.mark.parametrize(("hours", "limit", "allowed"), [(120, 3, 0.05), (24, 2, 0.05), (120, 3, 0.25), (168, 5, 0.01)])
def test_hours_that_are_hot_as_often_as_promised_break_it_as_often_as_allowed(
    hours: int, limit: int, allowed: float
) -> None:
    share = clopper_pearson_lower(limit, hours, 1.0 - allowed)
    assert count_at_least(np.full(hours, share), limit) == pytest.approx(allowed, abs=1e-9)
    assert clopper_pearson_lower(limit - 1, hours, 1.0 - allowed) < share


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_interval_holds_the_share_that_was_seen(bad: int, more: int) -> None:
    low, high = clopper_pearson_lower(bad, bad + more), clopper_pearson_upper(bad, bad + more)
    assert 0.0 <= low <= bad / (bad + more) <= high <= 1.0
    assert (low == 0.0) == (bad == 0)


def test_very_small_chances_are_not_lost() -> None:
    assert any_hot(np.full(10, 1e-18)) == pytest.approx(1e-17, rel=1e-9)


@given(SHARES, st.integers(0, 4))
def test_the_count_is_that_of_all_outcomes(shares: list[float], hours: int) -> None:
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=len(shares)):
        if sum(outcome) >= hours:
            total += math.prod(p if hot else 1.0 - p for hot, p in zip(outcome, shares, strict=True))
    assert count_at_least(np.array(shares), hours) == pytest.approx(total, abs=1e-12)


def test_owners_that_move_together_add_up_before_they_are_squared() -> None:
    for rho, expected in ((0.0, 0.2 + 0.64), (1.0, 1.0 + 0.64), (0.25, 0.25 * 1.64 + 0.75 * 0.84)):
        variance = 0.01 * correlated_square(10.0, 20.0, rho) + 0.04 * correlated_square(4.0, 16.0, rho)
        assert variance == pytest.approx(expected)


def test_no_bad_episode_in_300_allows_one_percent() -> None:
    assert clopper_pearson_upper(0, 300) == pytest.approx(1.0 - 0.05 ** (1.0 / 300.0), abs=1e-9)


def test_the_bound_leaves_five_percent_below() -> None:
    bound = clopper_pearson_upper(7, 100)
    below = sum(math.comb(100, k) * bound**k * (1.0 - bound) ** (100 - k) for k in range(8))
    assert below == pytest.approx(0.05, abs=1e-9)


def test_all_bad_is_bounded_by_one_and_impossible_counts_are_refused() -> None:
    assert clopper_pearson_upper(5, 5) == 1.0
    for bad, episodes in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(BadInput):
            clopper_pearson_upper(bad, episodes)


def test_the_verdict_holds_at_the_limit() -> None:
    assert satisfied(0.15) == {0.75: True, 0.85: True, 0.95: False}
