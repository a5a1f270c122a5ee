"""A deployment of one of two kinds: how likely each is, and that not knowing never makes the future surer (§8)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.admission.belief import (
    REFERENCE_DROP,
    REFERENCE_FLOOR,
    REFERENCE_NODES,
    log_evidence,
    mix,
    odds_share,
)
from domain.rules.admission.moments import belief_of
from domain.rules.admission.policies import horizon_hours, log_grid, unused_budget
from domain.rules.admission.population import Population, Statistics

AMOUNT = st.floats(0.0, 100.0)


@given(share=st.floats(0.0, 1.0), one=st.tuples(AMOUNT, AMOUNT), two=st.tuples(AMOUNT, AMOUNT))
def test_the_variance_of_a_mixture_is_never_below_the_mean_of_the_variances(
    share: float, one: tuple[float, float], two: tuple[float, float]
) -> None:
    curves = [np.array([value]) for value in (one[0], one[1], 0.0, two[0], two[1], 0.0)]
    mix(share, *curves)
    within = share * one[1] + (1.0 - share) * two[1]
    between = share * (1.0 - share) * (one[0] - two[0]) ** 2
    assert curves[0][0] == pytest.approx(share * one[0] + (1.0 - share) * two[0])
    assert curves[1][0] == pytest.approx(within + between, abs=1e-9)


def test_two_points_have_the_moments_of_a_coin() -> None:
    mean, variance, third = np.array([0.0]), np.array([0.0]), np.array([0.0])
    mix(0.25, mean, variance, third, np.array([8.0]), np.array([0.0]), np.array([0.0]))
    assert (mean[0], variance[0], third[0]) == (6.0, 12.0, 0.25 * -216.0 + 0.75 * 8.0)


def test_odds_are_shares_without_overflow() -> None:
    assert (odds_share(0.0), odds_share(-2000.0), odds_share(2000.0)) == (0.5, 0.0, 1.0)
    assert odds_share(math.log(3.0)) == pytest.approx(0.75)


def test_the_evidence_of_sizes_and_deaths_is_that_of_the_closed_form() -> None:
    # Without scale-outs seen, deaths and sizes are the only evidence, and each has a closed form.
    population = Population(2.0, 3.0, 1.0, 1.0, 0.8, 0.4, 1.0, 1e12)

    def evidence(seen: Statistics) -> float:
        mu, weight = np.empty(REFERENCE_NODES), np.empty(REFERENCE_NODES)
        belief = belief_of(population, seen)
        return log_evidence(*belief, population.power, REFERENCE_DROP, REFERENCE_FLOOR, mu, weight)

    deaths = evidence(Statistics(1, 4.0, 10.0)) - evidence(Statistics(1))
    assert deaths == pytest.approx(math.lgamma(6.0) - 6.0 * math.log(13.0) - math.lgamma(2.0) + 2.0 * math.log(3.0))
    sizes = evidence(Statistics(1, extra_cores=9.0, size_draws=3.0)) - evidence(Statistics(1))
    expected = math.lgamma(9.8) - 9.8 * math.log(3.4) - math.lgamma(0.8) + 0.8 * math.log(1.4)
    assert sizes == pytest.approx(expected)


def test_horizons_stand_for_all_the_hours_there_are() -> None:
    hours = horizon_hours(log_grid())
    assert np.all(hours > 0.0)
    assert hours.sum() == pytest.approx(26_280.0)


def test_a_budget_is_used_up_by_what_was_promised() -> None:
    assert [unused_budget(0.01, failures, 1000.0) for failures in (0.0, 5.0, 10.0, 50.0)] == [1.0, 0.5, 0.0, 0.0]
    assert unused_budget(0.01, 0.0, 0.0) == 1.0
