"""What is believed of a deployment, and the points to integrate over it (admission specification §3)."""

import math
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.admission.belief import (
    REFERENCE_DROP,
    REFERENCE_FLOOR,
    REFERENCE_NODES,
    gamma_nodes,
    log_density,
    mu_bracket,
    mu_nodes,
)
from domain.rules.admission.moments import belief_of, moments_of
from domain.rules.admission.population import POPULATIONS, Statistics, fresh
from tests.domain.rules.admission.cases import SEEN

SHAPES = st.floats(math.log(0.05), math.log(1e6)).map(math.exp)
SCALES = st.floats(math.log(1e-2), math.log(1e7)).map(math.exp)


def points(
    belief: tuple[float, ...], power: float, count: int = 16, drop: float = 9.0, floor: float = -18.5
) -> tuple[np.ndarray, np.ndarray]:
    mu, weight = np.empty(count), np.empty(count)
    a, b, lam_shape, lam_rate, exposure = belief[:5]
    mu_nodes(a, b, lam_shape, lam_rate, exposure, power, drop, floor, mu, weight)
    return mu, weight


@pytest.mark.parametrize("case", ["F1", "A", "C", "P5", "Idle"])
def test_the_exact_belief_is_that_of_a_brute_force_grid(case: str) -> None:
    population, seen = POPULATIONS["T"], SEEN[case]
    a_mu, b_mu, a_lam, b_lam, _, _, r, s = astuple(population)
    u = np.linspace(math.log(1e-30), math.log(60.0), 2500)[:, None]
    v = np.linspace(math.log(1e-9), math.log(60.0), 900)[None, :]
    mu, lam = np.exp(u), np.exp(v)
    theta = lam * mu**r
    log_likelihood = (
        seen.deaths * np.log(mu)
        - mu * seen.core_hours
        - mu * seen.hours / s
        + seen.scale_outs * np.log(theta)
        - theta * (seen.hours + seen.gap_hours)
    )
    log_prior = a_mu * u - b_mu * mu + a_lam * v - b_lam * lam
    mass = np.exp(log_likelihood + log_prior - (log_likelihood + log_prior).max())
    mass /= mass.sum()
    belief = belief_of(population, seen)
    nodes, weight = points(belief, r, REFERENCE_NODES, REFERENCE_DROP, REFERENCE_FLOOR)
    found_lam = belief[2] / (belief[3] + nodes**r * belief[4])
    assert weight @ nodes == pytest.approx((mass * mu).sum(), rel=1e-5)
    assert weight @ found_lam == pytest.approx((mass * lam).sum(), rel=1e-5)
    assert weight @ (found_lam * nodes**r) == pytest.approx((mass * theta).sum(), rel=1e-5)


def test_sizes_seen_count_by_their_draws() -> None:
    belief = belief_of(POPULATIONS["T"], SEEN["A"])
    assert belief[5:] == pytest.approx((0.88 + 7, 0.165 + 4))


@given(shape=SHAPES, rate=SCALES, lam_shape=SHAPES, exposure=st.one_of(st.just(0.0), SCALES), power=st.floats(0.0, 1.5))
@example(shape=1.0, rate=1.0, lam_shape=1.0, exposure=math.exp(13.0), power=1.25)
@example(shape=math.exp(-2.75), rate=1.0, lam_shape=math.exp(11.0), exposure=1.0, power=1.0)
@settings(max_examples=300, deadline=None)
def test_the_bracket_holds_for_every_shape(
    shape: float, rate: float, lam_shape: float, exposure: float, power: float
) -> None:
    belief = (shape, rate, lam_shape, 0.5, exposure)
    mode, left, right = mu_bracket(*belief, power, 9.0, -600.0)
    assert left < mode < right
    top = log_density(mode, *belief, power)
    # A fixed number of Newton's steps comes from the outside, so that a little more is covered than asked for.
    assert 8.99 < top - log_density(right, *belief, power) < 10.0
    if left > -600.0:
        assert 8.99 < top - log_density(left, *belief, power) < 10.0


@given(shape=SHAPES, rate=SCALES)
@settings(max_examples=200, deadline=None)
def test_without_exposure_the_points_give_the_mean_of_the_gamma(shape: float, rate: float) -> None:
    mu, weight = points((shape, rate, 1.0, 1.0, 0.0), 0.9, 16, 9.0, math.log(1e-7 / rate))
    assert weight.sum() == pytest.approx(1.0, rel=1e-12)
    assert weight @ mu == pytest.approx(shape / rate, rel=0.05)


@given(shape=SHAPES, count=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_gauss_points_have_the_moments_of_the_gamma(shape: float, count: int) -> None:
    node, weight = np.empty(count), np.empty(count)
    gamma_nodes(shape, count, node, weight, np.empty(5))
    if shape > 1e4:
        return
    moment = 1.0
    for power in range(2 * count):
        assert weight @ node**power == pytest.approx(moment, rel=1e-6)
        moment *= shape + power


def test_the_evidence_of_a_gamma_is_its_normaliser() -> None:
    mu, weight = np.empty(REFERENCE_NODES), np.empty(REFERENCE_NODES)
    found = mu_nodes(2.5, 40.0, 1.0, 1.0, 0.0, 0.9, REFERENCE_DROP, REFERENCE_FLOOR, mu, weight)
    assert found == pytest.approx(math.lgamma(2.5) - 2.5 * math.log(40.0), abs=1e-9)


@pytest.mark.parametrize("moments", ["ab", "ab_fast", "na", "paper"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_history_gives_finite_curves(moments: str, data: st.DataObject) -> None:
    draw = data.draw
    amount = st.one_of(st.just(0.0), st.floats(-3.0, 6.0).map(lambda e: 10.0**e))
    population = replace(
        POPULATIONS[draw(st.sampled_from("THK"))],
        mu_shape=draw(st.floats(0.05, 5.0)),
        lam_shape=draw(st.floats(0.05, 5.0)),
        power=draw(st.floats(0.0, 1.5)),
    )
    statistics = Statistics(
        draw(st.integers(1, 20_000)),
        round(draw(amount)),
        draw(amount),
        round(draw(amount)),
        draw(amount),
        draw(amount),
        round(draw(amount)),
        draw(st.integers(1, 1000)),
    )
    curve = moments_of(population, statistics, np.geomspace(0.04, 26_280.0, 12), moments)
    assert np.all(np.isfinite(curve.mean))
    assert np.all(np.isfinite(curve.variance))
    assert np.all(curve.mean >= 0.0)
    assert np.all(curve.variance >= 0.0)


@given(size=st.integers(1, 400), preset=st.sampled_from("THK"), moments=st.sampled_from(["ab", "ab_fast", "na"]))
@settings(max_examples=60, deadline=None)
def test_a_greater_deployment_stays_greater(size: int, preset: str, moments: str) -> None:
    population, horizons = POPULATIONS[preset], np.geomspace(0.04, 26_280.0, 12)
    seen = Statistics(size, 5, 60, 3, 20, 0, 7, 4)
    less = moments_of(population, seen, horizons, moments)
    more = moments_of(population, replace(seen, size=size + 1), horizons, moments)
    assert np.all(more.mean >= less.mean)


@given(size=st.integers(1, 60), preset=st.sampled_from("THK"))
@settings(max_examples=40, deadline=None)
def test_ignoring_death_at_zero_is_never_too_low(size: int, preset: str) -> None:
    horizons = np.geomspace(0.04, 26_280.0, 16)
    population = POPULATIONS[preset]
    exact = moments_of(population, fresh(size), horizons, "ab")
    assert np.all(exact.mean <= moments_of(population, fresh(size), horizons, "na").mean * (1.0 + 1e-6))


def test_an_instant_from_now_the_size_is_what_it_is() -> None:
    curve = moments_of(POPULATIONS["T"], SEEN["B"], np.array([1e-7]), "ab")
    assert curve.mean[0] == pytest.approx(30.0, rel=1e-6)
    assert curve.variance[0] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(
    ("field", "value"), [("size", 0), ("size", math.nan), ("size", 1.5), ("deaths", -1.0), ("hours", math.inf)]
)
def test_wrong_statistics_name_their_field(field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(BadInput, match=field):
        replace(Statistics(3), **wrong)


@pytest.mark.parametrize("horizons", [[], [2.0, 1.0], [0.0, 1.0], [1.0, math.inf], [1.0, 1.0]])
def test_horizons_must_ascend_from_above_zero(horizons: list[float]) -> None:
    with pytest.raises(BadInput, match="horizons_h"):
        moments_of(POPULATIONS["T"], fresh(1), np.array(horizons))


def test_unknown_moments_name_those_there_are() -> None:
    with pytest.raises(BadInput, match="ab_fast"):
        moments_of(POPULATIONS["T"], fresh(1), np.array([1.0]), "ba")
