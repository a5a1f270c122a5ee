"""Means of what joins, over a gamma law of the rate of leaving: the closed forms are the integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from domain.rules.admission.na import joined_means, log_died, near_pole, power_mean

LOGS = np.linspace(-160.0, 12.0, 400_001)


def mean_over_gamma(shape: float, rate: float, log_of: np.ndarray) -> float:
    """Return the mean of exp(log_of) of exp(LOGS) under Gamma(shape, rate), by the trapezoid over the log."""
    density = shape * (LOGS + math.log(rate)) - rate * np.exp(LOGS) - math.lgamma(shape)
    return float(np.trapezoid(np.exp(density + log_of), LOGS))


def by_quadrature(shape: float, rate: float, power: float, t: float) -> tuple[float, float, float]:
    mu = np.exp(LOGS)
    gone, twice = np.log(-np.expm1(-mu * t)), np.log(-np.expm1(-2.0 * mu * t))
    scale = (power - 1.0) * LOGS
    return (
        mean_over_gamma(shape, rate, scale + gone),
        mean_over_gamma(shape, rate, scale + twice),
        mean_over_gamma(shape, rate, 2.0 * (scale + gone)),
    )


@pytest.mark.parametrize("power", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("shape", [0.5, 1.3, 4.0])
@pytest.mark.parametrize(("rate", "t"), [(2.0, 0.5), (2.0, 30.0), (300.0, 1.0), (0.4, 1e-3), (1e-3, 1e-4)])
def test_the_closed_forms_are_the_integrals(shape: float, power: float, rate: float, t: float) -> None:
    if near_pole(shape + power - 1.0) or near_pole(shape + 2.0 * power - 2.0):
        pytest.fail("that is the other test's")
    assert joined_means(shape, rate, power, t) == pytest.approx(by_quadrature(shape, rate, power, t), rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "power"), [(0.4, 0.6), (0.4002, 0.6), (0.8, 0.6), (0.8003, 0.6), (0.7, 0.3), (1.4, 0.3), (0.4, 0.3)]
)
@pytest.mark.parametrize(("rate", "t"), [(2.0, 0.5), (300.0, 1.0), (2.0, 30.0)])
def test_near_a_pole_the_points_are_the_integrals_too(shape: float, power: float, rate: float, t: float) -> None:
    assert joined_means(shape, rate, power, t) == pytest.approx(by_quadrature(shape, rate, power, t), rel=2e-3)


@pytest.mark.parametrize(
    ("shape", "near"),
    [
        (0.0, True),
        (9e-4, True),
        (1.1e-3, False),
        (-1.0, True),
        (-0.9985, False),
        (1.0, False),
        (0.5, False),
        (-0.5, False),
    ],
)
def test_poles_are_at_zero_and_the_negative_whole_numbers(shape: float, near: bool) -> None:
    assert near_pole(shape) is near


@pytest.mark.parametrize("rate", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("share", [1e-13, 1e-9, 1e-8])
def test_right_away_the_pairs_grow_with_the_square_of_the_time(rate: float, share: float) -> None:
    shape, power, t = 3.0, 0.6, share * rate
    d1, d2, dd = joined_means(shape, rate, power, t)
    joined = power_mean(shape, rate, power)
    assert (d1, d2) == pytest.approx((joined * t, 2.0 * joined * t), rel=1e-6)
    assert dd == pytest.approx(power_mean(shape, rate, 2.0 * power) * t * t, rel=1e-6)


@pytest.mark.parametrize(("shape", "power"), [(0.7, -0.2), (3.0, 1.5), (1.0, 0.0), (2.0, -1.9)])
def test_the_mean_of_a_power_is_its_integral(shape: float, power: float) -> None:
    assert power_mean(shape, 2.5, power) == pytest.approx(mean_over_gamma(shape, 2.5, power * LOGS), rel=1e-5)


@pytest.mark.parametrize(("shape", "power"), [(0.7, -1.2), (0.3, -0.9), (1.5, -3.1)])
def test_where_the_mean_of_a_power_is_infinite_it_is_continued_by_its_recurrence(shape: float, power: float) -> None:
    # Gamma(s + p + 1) = (s + p) Gamma(s + p).
    above = power_mean(shape, 2.5, power + 1.0)
    assert power_mean(shape, 2.5, power) * (shape + power) == pytest.approx(above * 2.5)


@pytest.mark.parametrize("y", [1e-6, 0.1, 5.0, 1e6])
def test_the_log_of_the_chance_to_have_ended_is_that_of_the_law(y: float) -> None:
    assert log_died(y, 1.7, 2.0) == pytest.approx(math.log(1.0 - (1.0 + y / 2.0) ** -1.7), rel=1e-6)
    assert log_died(0.0, 1.7, 2.0) == pytest.approx(math.log(1e-300))
