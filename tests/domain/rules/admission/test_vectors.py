"""The moments give the specification's numbers (admission specification §4.4, §4.5)."""

import math
from dataclasses import astuple

import numpy as np
import pytest

from domain.rules.admission.belief import REFERENCE_DROP, REFERENCE_FLOOR, REFERENCE_NODES
from domain.rules.admission.moments import belief_of, moments_of
from domain.rules.admission.na import na_moments
from domain.rules.admission.population import POPULATIONS
from tests.domain.rules.admission.cases import SEEN, VECTORS
from trainer.admission.volterra import reference_moments

NAMES = [f"{preset}-{case}-{hours:.0f}h" for preset, case, hours, *_ in VECTORS]

# Cores so few that the specification's own figure is no more than a hundredth of a core's chance.
FAR_TAIL = {("T", "D", 24.0), ("T", "P5", 26280.0), ("H", "P5", 26280.0)}


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_the_three_moments_are_those_of_the_specification(vector: tuple[str, str, float, *tuple[float, ...]]) -> None:
    preset, case, hours, mean, variance, mean_paper, variance_paper, mean_ab, deviation_ab = vector
    population, seen, at = POPULATIONS[preset], SEEN[case], np.array([hours])
    points, found = np.empty((2, REFERENCE_NODES)), np.empty((2, 1))
    law = (population.power, population.lifetimes)
    belief = belief_of(population, seen)
    na_moments(float(seen.size), *belief, *law, at, REFERENCE_DROP, REFERENCE_FLOOR, *points, *found)
    assert found[:, 0] == pytest.approx((mean, variance), rel=1e-7)
    paper = moments_of(population, seen, at, "paper")
    assert (paper.mean[0], paper.variance[0]) == pytest.approx((mean_paper, variance_paper), rel=1e-5)
    ab = moments_of(population, seen, at, "ab")
    if (preset, case, hours) in FAR_TAIL:
        assert ab.mean[0] == pytest.approx(mean_ab, abs=1.5e-3)
    else:
        assert (ab.mean[0], ab.variance[0] ** 0.5) == pytest.approx((mean_ab, deviation_ab), rel=0.05)


@pytest.mark.exhaustive
@pytest.mark.parametrize("preset", ["T", "H"])
@pytest.mark.parametrize("case", ["F1", "F4", "F20", "A"])
def test_more_points_of_lam_and_size_bring_the_closure_to_its_converged_value(preset: str, case: str) -> None:
    population, seen = POPULATIONS[preset], SEEN[case]
    expected = np.array([(hours, mean, sd) for p, c, hours, *_, mean, sd in VECTORS if (p, c) == (preset, case)])
    mean, variance, _ = reference_moments(
        float(seen.size),
        belief_of(population, seen),
        population.power,
        population.lifetimes,
        expected[:, 0],
        lam_points=8,
        size_points=8,
        closure=True,
    )
    # Under H the specification's figures for fresh deployments are themselves 1 to 2 % from where these converge.
    limits = np.where(expected[:, 1] < 0.5, 0.03, 0.01 if preset == "T" else 0.025)
    assert np.all(np.abs(mean / expected[:, 1] - 1.0) < limits)
    assert np.all(np.abs(np.sqrt(variance) / expected[:, 2] - 1.0) < limits)


@pytest.mark.parametrize("preset", ["T", "H", "K"])
@pytest.mark.parametrize("size", [1, 4, 20])
def test_the_closed_form_of_a_fresh_deployment_equals_the_quadrature(preset: str, size: int) -> None:
    population = POPULATIONS[preset]
    a, b, a_lam, b_lam, _, _, r, s = astuple(population)
    horizons = np.array([0.04, 1.0, 24.0, 720.0, 26_280.0])
    mu, weight = np.empty(REFERENCE_NODES), np.empty(REFERENCE_NODES)
    mean, variance = np.empty(5), np.empty(5)
    belief = belief_of(population, SEEN["F1"])
    na_moments(
        float(size),
        *belief,
        r,
        s,
        horizons,
        REFERENCE_DROP,
        REFERENCE_FLOOR,
        mu,
        weight,
        mean,
        variance,
    )

    def average(power: float, y: float) -> float:
        return float(math.gamma(a + power) / math.gamma(a) * b**a / (b + y) ** (a + power))

    shape, rate = belief[5:]
    lam1, lam2 = a_lam / b_lam, a_lam * (a_lam + 1) / b_lam**2
    sig1, sig2 = shape / rate, shape * (shape + 1) / rate**2
    m1, m2, g = 1 + sig1, 1 + 2 * sig1 + sig2, 2 * sig1 + sig2
    for k, t in enumerate(horizons):
        y0, y1, y2 = t / s, t / s + t, t / s + 2 * t
        p, q = r - 1, 2 * r - 2
        d1 = average(p, y0) - average(p, y1)
        expected = size * average(0, y1) + lam1 * m1 * d1
        second = (
            size * (average(0, y1) - average(0, y2))
            + lam1 * (m1 * d1 + 0.5 * g * (average(p, y0) - average(p, y2)))
            + size**2 * average(0, y2)
            + 2 * size * lam1 * m1 * (average(p, y1) - average(p, y2))
            + lam2 * m2 * (average(q, y0) - 2 * average(q, y1) + average(q, y2))
        )
        assert mean[k] == pytest.approx(expected, rel=1e-8)
        assert variance[k] == pytest.approx(second - expected**2, rel=1e-7)
