"""Rates at their ends, given exactly: no scale-outs, sizes of one core, lives without end, and lives long over.

Both ways of computing are asked: point by point, as it is compiled, and many at once, as the agent does it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from domain.rules.admission.ab import (
    GONE,
    add_point,
    fill_path,
    hazard,
    quiet_until,
    steps_room,
    time_grid,
    times_needed,
)
from domain.rules.admission.ab_points import Points, raw_curves, starts_h
from domain.rules.admission.belief import Floats

HORIZONS = np.geomspace(0.04, 26_280.0, 32)
Way = Callable[[float, float, float, float, float], Floats]


def one_by_one(size: float, mu: float, rho: float, sig: float, lifetimes: float) -> Floats:
    """Return mean, second and third moments and requests per hour, (4, H)."""
    found, path = np.zeros((4, HORIZONS.size)), np.empty((4, HORIZONS.size))
    at, room = np.empty(HORIZONS.size, dtype=np.int64), np.empty((7, steps_room(HORIZONS.size, lifetimes)))
    fill_path(size, quiet_until(size), mu, rho, sig, lifetimes, HORIZONS, at, room, path)
    add_point(1.0, size, mu, rho, rho**2, rho**3, sig, sig**2, sig**3, lifetimes, HORIZONS, path, *found)
    return found


def many_at_once(size: float, mu: float, rho: float, sig: float, lifetimes: float) -> Floats:
    """Return the same by arrays of one point."""
    sizes, rates = np.full(1, size), np.full(1, mu)
    rhos, sigs = ((np.full((1, 1, 1), x), np.full((1, 1, 1), x**2), np.full((1, 1, 1), x**3)) for x in (rho, sig))
    start_h = starts_h(sizes, rates)
    points = Points(np.zeros(1, dtype=np.int64), sizes, rates, start_h, np.ones((1, 1, 1)), rhos, sigs)
    times, at = np.empty(times_needed(HORIZONS, 0)), np.empty(HORIZONS.size, dtype=np.int64)
    time_grid(HORIZONS, 0, times, at)
    return raw_curves(points, 1, lifetimes, HORIZONS, times, at)[:, 0]


both_ways = pytest.mark.parametrize("way", [one_by_one, many_at_once])


@both_ways
@pytest.mark.parametrize("size", [1.0, 5.0, 200.0])
def test_what_never_scales_out_only_loses_its_cores(way: Way, size: float) -> None:
    mu, lifetimes = 0.01, 20.0
    mean, second, _, requests = way(size, mu, 0.0, 3.0, lifetimes)
    x = mu * HORIZONS
    alive, left = np.exp(-x / lifetimes), np.exp(-x)
    # What is alive with a chance below exp(-GONE) is left out.
    rest = 2.0 * np.exp(-GONE) * size
    assert mean == pytest.approx(alive * size * left, rel=1e-9, abs=rest)
    square = size * left * -np.expm1(-x) + (size * left) ** 2
    assert second == pytest.approx(alive * square, rel=1e-9, abs=rest * size)
    assert np.all(requests == 0.0)


@both_ways
def test_requests_of_one_core_each_grow_by_ones(way: Way) -> None:
    # Of 400 cores that stay for long none dies out: the law without absorption is exact.
    size, mu, rho = 400.0, 1e-4, 3.0
    mean, second, _, _ = way(size, mu, rho, 0.0, 1e9)
    x = mu * HORIZONS
    expected = size * np.exp(-x) - rho * np.expm1(-x)
    variance = -np.expm1(-x) * (size * np.exp(-x) + rho)
    assert mean == pytest.approx(expected, rel=1e-6)
    assert (second - mean**2)[8:] == pytest.approx(variance[8:], rel=1e-5)


@both_ways
def test_cores_that_never_end_only_grow(way: Way) -> None:
    size, mu, theta, sig = 7.0, 1e-15, 0.02, 4.0
    mean, _, _, requests = way(size, mu, theta / mu, sig, 25.0)
    assert mean == pytest.approx(size + theta * (1.0 + sig) * HORIZONS, rel=1e-6)
    assert requests == pytest.approx(np.full(HORIZONS.size, theta), rel=1e-6)


@both_ways
@pytest.mark.parametrize("size", [1.0, 3000.0])
@pytest.mark.parametrize("mu", [0.05, 1.0, 1900.0])
def test_long_after_its_life_nothing_is_left_and_nothing_is_nan(way: Way, mu: float, size: float) -> None:
    curves = way(size, mu, 0.5, 2.0, 25.6)
    assert np.all(np.isfinite(curves))
    over = mu * HORIZONS > 800.0 * 25.6
    assert np.all(curves[:, over] < 1e-300)
    assert over.sum() >= (mu > 0.9)


def test_a_single_core_may_die_at_once_and_two_may_not() -> None:
    tiny = 1e-9
    for size, rate in ((1.0, 1.0), (2.0, 0.0), (9.0, 0.0)):
        found = hazard(size, tiny, 0.3, 2.0, np.log(2.0), np.exp(-2.0), 1.3192630)
        assert found == pytest.approx(rate, abs=1e-6)


@both_ways
def test_a_single_core_that_never_scales_lives_as_long_as_a_core(way: Way) -> None:
    # Its requests per hour would be rho mu S: so S is seen through a rate too small to matter.
    mu, rho = 0.01, 1e-9
    requests = way(1.0, mu, rho, 1.0, 1e12)[3]
    near = mu * HORIZONS < 5.0
    assert (requests / (rho * mu))[near] == pytest.approx(np.exp(-mu * HORIZONS)[near], rel=1e-4)
