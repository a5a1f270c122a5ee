"""The simulator's forecasts: the domain's, compiled, by every method; fewer points where the belief has settled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.admission.ab import ab_moments
from domain.rules.admission.belief import REFERENCE_DROP, REFERENCE_FLOOR, exact_belief, mu_nodes
from domain.rules.admission.moments import moments_of
from domain.rules.admission.policies import log_grid
from domain.rules.admission.population import POPULATIONS, Statistics
from simulator.admission.moments import (
    AB_FAST,
    METHODS,
    PAPER,
    RULES,
    DeploymentStatistics,
    Prior,
    Sums,
    believed,
    forecast,
    prior_of,
    room_for,
)

PRIORS = {name: prior_of(law) for name, law in POPULATIONS.items()}
CASES = {
    "F1": DeploymentStatistics(1, 0, 0.0, 0, 0.0, 0.0, 0, 1),
    "F20": DeploymentStatistics(20, 0, 0.0, 0, 0.0, 0.0, 19, 1),
    "A": DeploymentStatistics(4, 5, 60.0, 3, 20.0, 0.0, 7, 4),
    "B": DeploymentStatistics(30, 40, 9000.0, 20, 500.0, 0.0, 33, 21),
    "C": DeploymentStatistics(3, 2, 8000.0, 0, 2000.0, 0.0, 4, 1),
    "P50": DeploymentStatistics(8, 50, 40000.0, 50, 0.0, 20000.0, 260, 51),
    "Idle": DeploymentStatistics(1, 0, 700.0, 0, 700.0, 0.0, 0, 1),
    "Big": DeploymentStatistics(900, 300, 2e6, 60, 2400.0, 0.0, 1080, 61),
}


def fast(
    prior: Prior, seen: DeploymentStatistics, horizons: np.ndarray, method: int = AB_FAST
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    count = len(horizons)
    curves = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    forecast(method, method == PAPER, prior, seen, horizons, room_for(count, count, count), Sums(*curves))
    return curves


def plain(prior: Prior, seen: DeploymentStatistics, horizons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, variance, nodes = np.zeros(len(horizons)), np.zeros(len(horizons)), 120
    belief = exact_belief(
        *prior,
        *(seen.deaths, seen.core_hours, seen.requests, seen.hours, seen.gap_hours, seen.extra, seen.sizes),
    )
    ab_moments(
        *(float(seen.size), *belief, prior.power, prior.lifetimes, horizons, REFERENCE_DROP, REFERENCE_FLOOR, 1, 1),
        *(np.zeros(nodes), np.zeros(nodes), mean, variance, np.zeros(0), np.zeros(0)),
    )
    return mean, variance


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("preset", "TH")
def test_it_is_the_plain_definition_within_a_few_percent(preset: str, case: str) -> None:
    horizons = log_grid()
    mean, variance, *_ = fast(PRIORS[preset], CASES[case], horizons)
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
    seen = DeploymentStatistics(size, deaths, core_hours, requests, hours, gap_hours, extra, requests + 1)
    mean, variance, *_ = fast(PRIORS["H"], seen, log_grid())
    assert np.all(np.isfinite(mean))
    assert np.all(mean >= 0.0)
    assert np.all(np.isfinite(variance))
    assert np.all(variance >= 0.0)
    belief = believed(PRIORS["H"], seen, False)
    points = RULES.node_count(belief[0])
    shape = 0.36 + deaths + 0.7 * requests
    assert points == (6 if shape > 40.0 else 7 if shape > 10.0 else 16)
    mu, weights = np.zeros(points), np.zeros(points)
    RULES.mu_nodes(*belief[:5], 0.7, 9.0, -18.5, mu, weights)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights[-1] < 2e-3 * weights.max()
    assert np.all(np.diff(mu) > 0.0)


def test_a_finer_grid_changes_little() -> None:
    coarse = log_grid()
    fine = np.unique(np.concatenate([coarse, log_grid(1501)]))
    at = np.searchsorted(fine, coarse)
    for seen in CASES.values():
        means, finer = fast(PRIORS["T"], seen, coarse)[0], fast(PRIORS["T"], seen, fine)[0]
        counts = finer[at] > 0.05
        assert np.allclose(means[counts], finer[at][counts], rtol=0.02, atol=0.0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("preset", "THK")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_what_the_command_line_and_the_agent_compute(method: str, preset: str, case: str) -> None:
    horizons, seen = log_grid(), CASES[case]
    mean, variance, third, _ = fast(PRIORS[preset], seen, horizons, METHODS.index(method))
    statistics = Statistics(
        *(seen.size, seen.deaths, seen.core_hours, seen.requests, seen.hours, seen.gap_hours, seen.extra, seen.sizes)
    )
    expected = moments_of(POPULATIONS[preset], statistics, horizons, method)
    # Seven points of mu instead of sixteen, and points of time of one's own.
    loose = 0.025 if method != "paper" else 1e-9
    counts = expected.mean > 0.2
    assert counts.sum() >= 15
    assert mean[counts] == pytest.approx(expected.mean[counts], rel=loose)
    assert np.sqrt(variance[counts]) == pytest.approx(np.sqrt(expected.variance[counts]), rel=2.0 * loose, abs=0.01)
    if expected.third is None:
        assert not third.any()
    else:
        # Where the skew changes sign, or events are hardly possible yet, shares of the third moment have no meaning.
        counts &= expected.variance > 0.05
        off = np.abs(third - expected.third) - 0.1 * np.abs(expected.third)
        assert np.all(off[counts] < 0.02 * expected.variance[counts] ** 1.5 + 1e-2)


def test_requests_are_expected_at_the_rate_of_those_alive() -> None:
    horizons = np.array([1e-6, 24.0, 26_280.0])
    for name, seen in (("T", CASES["B"]), ("K", CASES["Big"])):
        prior = PRIORS[name]
        requests = fast(prior, seen, horizons)[3]
        belief = believed(prior, seen, False)
        mu, weight = np.zeros(500), np.zeros(500)
        mu_nodes(*belief[:5], prior.power, REFERENCE_DROP, REFERENCE_FLOOR, mu, weight)
        theta = belief[2] / (belief[3] + belief[4] * mu**prior.power) * mu**prior.power
        assert requests[0] == pytest.approx(float(weight @ theta), rel=1e-3)
        assert requests[0] > requests[1] > requests[2] > 0.0
