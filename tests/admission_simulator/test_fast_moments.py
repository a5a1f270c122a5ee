"""The simulator's fast moments: held to the plain definition of `ab_fast`, to its limits, and to published cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.admission.ab import ab_moments
from domain.rules.admission.belief import REFERENCE_DROP, REFERENCE_FLOOR, exact_belief
from domain.rules.admission.policies import log_grid
from domain.rules.admission.population import POPULATIONS
from simulator.admission.moments import NODES, Prior, Seen, ab_fast, ein, posterior_nodes

PRIORS = {
    name: Prior(
        *(law.mu_shape, law.mu_rate, law.lam_shape, law.lam_rate, law.sig_shape, law.sig_rate, law.power),
        law.lifetimes,
    )
    for name, law in POPULATIONS.items()
}
CASES = {
    "F1": Seen(1, 0, 0.0, 0, 0.0, 0.0, 0, 1),
    "F20": Seen(20, 0, 0.0, 0, 0.0, 0.0, 19, 1),
    "A": Seen(4, 5, 60.0, 3, 20.0, 0.0, 7, 4),
    "B": Seen(30, 40, 9000.0, 20, 500.0, 0.0, 33, 21),
    "C": Seen(3, 2, 8000.0, 0, 2000.0, 0.0, 4, 1),
    "P50": Seen(8, 50, 40000.0, 50, 0.0, 20000.0, 260, 51),
    "Idle": Seen(1, 0, 700.0, 0, 700.0, 0.0, 0, 1),
    "Big": Seen(900, 300, 2e6, 60, 2400.0, 0.0, 1080, 61),
}


def fast(prior: Prior, seen: Seen, horizons: np.ndarray, nodes: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = np.zeros(len(horizons)), np.zeros(len(horizons))
    ab_fast(prior, seen, horizons, np.zeros(nodes), np.zeros(nodes), mean, variance)
    return mean, variance


def plain(prior: Prior, seen: Seen, horizons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, variance, nodes = np.zeros(len(horizons)), np.zeros(len(horizons)), 120
    belief = exact_belief(
        *prior,
        *(seen.deaths, seen.core_hours, seen.requests, seen.hours, seen.gap_hours, seen.extra, seen.sizes),
    )
    ab_moments(
        *(float(seen.size), *belief, prior.power, prior.lifetimes, horizons, REFERENCE_DROP, REFERENCE_FLOOR, 1, 1),
        *(np.zeros(nodes), np.zeros(nodes), mean, variance, np.zeros(0)),
    )
    return mean, variance


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("preset", "TH")
def test_it_is_the_plain_definition_within_a_few_percent(preset: str, case: str) -> None:
    horizons = log_grid()
    mean, variance = fast(PRIORS[preset], CASES[case], horizons)
    expected, expected_variance = plain(PRIORS[preset], CASES[case], horizons)
    counts = expected > 0.2
    assert counts.sum() >= 15
    assert np.allclose(mean[counts], expected[counts], rtol=0.05, atol=0.0)
    assert np.allclose(np.sqrt(variance[counts]), np.sqrt(expected_variance[counts]), rtol=0.06, atol=0.02)


@given(seen=st.sampled_from(sorted(CASES)), preset=st.sampled_from("THK"), more=st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_more_cores_now_are_more_cores_later(seen: str, preset: str, more: int) -> None:
    horizons = log_grid()
    few = fast(PRIORS[preset], CASES[seen], horizons)
    many = fast(PRIORS[preset], CASES[seen]._replace(size=CASES[seen].size + more), horizons)
    assert np.all(many[0] >= few[0])
    assert np.all(few[1] >= 0.0)


@given(
    deaths=st.integers(0, 10**6),
    core_hours=st.floats(0.0, 1e7),
    requests=st.integers(0, 10**5),
    hours=st.floats(0.0, 3e4),
    gap_hours=st.floats(0.0, 5e7),
    extra=st.integers(0, 10**6),
    size=st.integers(1, 20_000),
)
@settings(max_examples=150, deadline=None)
def test_any_history_gives_finite_moments_and_weights_that_sum_to_one(
    deaths: int, core_hours: float, requests: int, hours: float, gap_hours: float, extra: int, size: int
) -> None:
    seen = Seen(size, deaths, core_hours, requests, hours, gap_hours, extra, requests + 1)
    mean, variance = fast(PRIORS["H"], seen, log_grid())
    assert np.all(np.isfinite(mean))
    assert np.all(mean >= 0.0)
    assert np.all(np.isfinite(variance))
    assert np.all(variance >= 0.0)
    nodes, weights = np.zeros(NODES), np.zeros(NODES)
    posterior_nodes(PRIORS["H"], seen, nodes, weights)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights[0] < 2e-3 * weights.max()
    assert weights[-1] < 2e-3 * weights.max()
    assert np.all(np.diff(nodes) > 0.0)


def test_a_finer_grid_changes_little() -> None:
    coarse = log_grid()
    fine = np.unique(np.concatenate([coarse, log_grid(1501)]))
    at = np.searchsorted(fine, coarse)
    for seen in CASES.values():
        means, finer = fast(PRIORS["T"], seen, coarse, 61)[0], fast(PRIORS["T"], seen, fine, 61)[0]
        counts = finer[at] > 0.05
        assert np.allclose(means[counts], finer[at][counts], rtol=0.02, atol=0.0)


@pytest.mark.parametrize("z", [0.0, 1e-9, 0.3, 1.0, 5.0, 40.0, 9e3, 2e4])
def test_the_integral_is_that_of_its_series(z: float) -> None:
    # Ein by Gauss-Legendre on pieces of the unit interval in ln, far finer than needed.
    w, weight = np.polynomial.legendre.leggauss(60)
    edges = np.concatenate([[0.0], np.geomspace(min(z, 1e-3), z, 40)]) if z > 0 else np.zeros(2)
    total = 0.0
    for a, b in itertools.pairwise(edges):
        x = 0.5 * (b - a) * w + 0.5 * (a + b)
        total += float(np.sum(weight * np.where(x > 0, -np.expm1(-x) / np.maximum(x, 1e-300), 1.0))) * 0.5 * (b - a)
    assert ein(z) == pytest.approx(total, rel=1e-6, abs=1e-12)
