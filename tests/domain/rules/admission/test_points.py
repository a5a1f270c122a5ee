"""Many deployments at once in numpy come to what the formulas for one give, point by point and altogether."""

from dataclasses import astuple
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.admission import moments
from domain.rules.admission.ab import ab_moments, conditional_ab
from domain.rules.admission.ab_points import Path, Points, lefts, moment_weights, starts_h
from domain.rules.admission.belief import exact_belief, lam_count, size_count
from domain.rules.admission.moments import Beliefs, ab_batch, belief_of
from domain.rules.admission.population import POPULATIONS
from tests.domain.rules.admission.cases import SEEN
from trainer.admission.volterra import survival

HORIZONS = np.geomspace(0.04, 26_280.0, 12)


@settings(max_examples=200, deadline=None)
@given(
    size=st.floats(1.0, 500.0),
    x=st.floats(1e-6, 30.0),
    paths=st.tuples(*[st.floats(0.0, 1.0)] * 3),
    rho=st.tuples(st.floats(0.0, 20.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0)),
    sig=st.tuples(st.floats(0.0, 40.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0)),
)
def test_weights_say_the_same_as_the_moments_given_everything(
    size: float,
    x: float,
    paths: tuple[float, float, float],
    rho: tuple[float, float, float],
    sig: tuple[float, float, float],
) -> None:
    rhos = (rho[0], rho[0] ** 2 * rho[1], rho[0] ** 3 * rho[1] * rho[2])
    sigs = (sig[0], sig[0] ** 2 * sig[1], sig[0] ** 3 * sig[1] * sig[2])
    left = np.exp(-x)
    expected = conditional_ab(size, left, 1.0, *paths, *rhos, *sigs)
    weights = moment_weights(*(np.array(part) for part in (size, *rhos, *sigs)))
    of_initial = (weights.initial1, weights.initial2, weights.initial3)
    of_alive = (weights.alive1, weights.alive2, weights.alive3)
    for order, parts in enumerate(lefts(np.array(left), np.array(-np.expm1(-x)))):
        found = sum(weight * part for weight, part in zip(of_initial[order], parts, strict=True))
        found += sum(weight * part for weight, part in zip(of_alive[order], paths, strict=False))
        assert float(found) == pytest.approx(float(expected[order]), rel=1e-9)


@pytest.mark.parametrize("size", [1.0, 2.0, 30.0])
@pytest.mark.parametrize(("rho", "sig"), [(0.05, 40.0), (1.0, 3.0), (5.0, 0.2), (0.0, 0.0)])
def test_the_path_worked_on_in_place_is_that_of_the_formulas(size: float, rho: float, sig: float) -> None:
    mu = np.array([10.0, 0.3, 1e-3, 1e-6])
    ones = np.ones((1, 1, mu.size))
    points = Points(
        np.zeros(mu.size, dtype=np.int64),
        np.full(mu.size, size),
        mu,
        starts_h(np.full(mu.size, size), mu),
        ones,
        (rho * ones, ones, ones),
        (sig * ones, ones, ones),
    )
    times = np.geomspace(1e-4, 2e4, 120)
    expected = np.empty((4, times.size, mu.size))
    survival(np.full(mu.size, size), mu, np.full(mu.size, rho), np.full(mu.size, sig), times, *expected)
    path = Path(points, 0.0)
    for i, hours in enumerate(times):
        path.advance(float(hours))
        for found, wanted in zip((path.s, *path.orders), expected[:, i], strict=True):
            assert found[0, 0] == pytest.approx(wanted, rel=1e-6, abs=1e-13)


def test_how_many_are_worked_on_together_is_of_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    population, seen = POPULATIONS["H"], list(SEEN.values()) * 3
    columns = np.array([astuple(s) for s in seen], dtype=np.float64).T
    parts = exact_belief(*astuple(population), *columns[1:])
    belief = cast("Beliefs", tuple(np.broadcast_to(part, len(seen)) for part in parts))
    arguments = (columns[0], belief, population.power, population.lifetimes, HORIZONS)
    together = ab_batch(*arguments)
    monkeypatch.setattr(moments, "POINTS_AT_ONCE", 64)
    for many, few in zip(together, ab_batch(*arguments), strict=True):
        # Points of time before the first horizon are those of the fastest in each part.
        assert few == pytest.approx(many, rel=2e-3, abs=1e-4)


def test_none_at_all_are_no_curves() -> None:
    empty = np.zeros(0)
    belief: Beliefs = (empty, empty, empty, empty, empty, empty, empty)
    assert [part.shape for part in ab_batch(empty, belief, 0.6, 25.6, HORIZONS)] == [(0, 12)] * 4


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("preset", ["T", "H", "K"])
def test_all_moments_are_those_of_one_alone(preset: str, fast: bool) -> None:
    population, seen = POPULATIONS[preset], list(SEEN.values())
    columns = np.array([astuple(s) for s in seen], dtype=np.float64).T
    parts = exact_belief(*astuple(population), *columns[1:])
    belief = cast("Beliefs", tuple(np.broadcast_to(part, len(seen)) for part in parts))
    found = ab_batch(columns[0], belief, population.power, population.lifetimes, HORIZONS, fast=fast)
    for i, one in enumerate(seen):
        alone = belief_of(population, one)
        counts = (1, 1) if fast else (lam_count(alone[2]), size_count(alone[5]))
        law = (population.power, population.lifetimes)
        mean, variance, third, requests = np.empty((4, HORIZONS.size))
        points = (np.empty(16), np.empty(16))
        ab_moments(
            float(one.size), *alone, *law, HORIZONS, 9.0, -18.5, *counts, *points, mean, variance, third, requests
        )
        for order, expected in enumerate((mean, variance, third)):
            assert found[order][i] == pytest.approx(expected, rel=5e-3, abs=1e-6), (order, one)
        assert found[3][i] == pytest.approx(requests, rel=2e-3, abs=1e-12)
        # Who asks for neither third moments nor requests gives no room for them.
        less, none = np.empty((2, HORIZONS.size)), np.empty(0)
        ab_moments(float(one.size), *alone, *law, HORIZONS, 9.0, -18.5, *counts, *points, *less, none, none)
        assert np.array_equal(less, np.array([mean, variance]))
