"""The rules, compiled, give what they give plain; and what numpy does for many is what they do for one."""

from dataclasses import astuple
from typing import cast

import numba
import numpy as np
import pytest

from domain.rules.admission.ab import ab_moments
from domain.rules.admission.belief import exact_belief, lam_count, size_count
from domain.rules.admission.compiled import compile_all
from domain.rules.admission.moments import Beliefs, ab_batch, belief_of, moments_of, na_batch
from domain.rules.admission.population import POPULATIONS
from tests.domain.rules.admission.cases import SEEN

pytestmark = pytest.mark.exhaustive

# Not cached: the cache would keep the old code of a rule that another one calls.
RULES = compile_all(numba.njit(nogil=True, error_model="numpy"))
HORIZONS = np.geomspace(0.04, 26_280.0, 9)


def alone(function: object, case: str, preset: str, fast: bool) -> np.ndarray:
    population, seen = POPULATIONS[preset], SEEN[case]
    belief = belief_of(population, seen)
    counts = (1, 1) if fast else (lam_count(belief[2]), size_count(belief[5]))
    out = np.empty((3, HORIZONS.size))
    mu, weight = np.empty(16), np.empty(16)
    assert callable(function)
    function(
        float(seen.size),
        *belief,
        population.power,
        population.lifetimes,
        HORIZONS,
        9.0,
        -18.5,
        *counts,
        mu,
        weight,
        out[0],
        out[1],
        out[2],
        np.empty(0),
    )
    return out


@pytest.mark.parametrize("case", ["F1", "A", "B", "P50"])
def test_ab_fast_is_the_same_plain_and_compiled(case: str) -> None:
    plain, compiled = alone(ab_moments, case, "H", True), alone(RULES.ab_moments, case, "H", True)
    assert compiled == pytest.approx(plain, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("preset", ["T", "H", "K"])
def test_many_at_once_are_each_as_alone(preset: str, fast: bool) -> None:
    population = POPULATIONS[preset]
    seen = list(SEEN.values())
    columns = np.array([astuple(s) for s in seen], dtype=np.float64).T
    # With an exact belief the parts are arrays where the statistics are.
    parts = exact_belief(*astuple(population), *columns[1:])
    belief = cast("Beliefs", tuple(np.broadcast_to(part, len(seen)) for part in parts))
    found = np.array(ab_batch(columns[0], belief, population.power, population.lifetimes, HORIZONS, fast=fast))
    for i, case in enumerate(SEEN):
        expected = alone(RULES.ab_moments, case, preset, fast)
        # The points of time before the first horizon follow the fastest of those worked on together; alone, each point
        # of mu has its own.
        assert found[:2, i] == pytest.approx(expected[:2], rel=1.2e-3, abs=1e-9)
        assert found[2, i] == pytest.approx(expected[2], rel=2e-2, abs=1e-9)


@pytest.mark.parametrize("case", ["F4", "A", "Big"])
def test_na_and_paper_are_the_same_compiled(case: str) -> None:
    population, seen = POPULATIONS["K"], SEEN[case]
    mean, variance = np.empty(9), np.empty(9)
    mu, weight = np.empty(16), np.empty(16)
    RULES.na_moments(
        float(seen.size),
        *belief_of(population, seen),
        population.power,
        population.lifetimes,
        HORIZONS,
        9.0,
        -18.5,
        mu,
        weight,
        mean,
        variance,
    )
    plain = na_batch(
        np.array([float(seen.size)]),
        cast("Beliefs", tuple(np.array([part]) for part in belief_of(population, seen))),
        population.power,
        population.lifetimes,
        HORIZONS,
    )
    assert mean == pytest.approx(plain[0][0], rel=1e-9)
    assert variance == pytest.approx(plain[1][0], rel=1e-7)
    belief = RULES.conjugate_belief(*astuple(population), *(float(x) for x in astuple(seen)[1:]))
    RULES.paper_moments(float(seen.size), *belief, population.power, population.lifetimes, HORIZONS, mean, variance)
    paper = moments_of(population, seen, HORIZONS, "paper")
    assert mean == pytest.approx(paper.mean, rel=1e-9)
    assert variance == pytest.approx(paper.variance, rel=1e-7)


def test_the_decisions_compile() -> None:
    zero, one = np.zeros(3), np.ones(3)
    assert RULES.second_refusal(9 * one, zero, one, one, 2 * one, 12.0, 0.0, 1) == -1
    assert RULES.second_refusal(9 * one, zero, one, one, 2 * one, 11.9, 0.0, 1) == 1
    assert RULES.first_refusal(9 * one, one, 10.0, 0.0, 2) == 2
    assert RULES.sgamma_refusal(9 * one, zero, zero, one, one, 2 * one, 0.02, 15.0, 0.0, 0) == -1
    assert RULES.zeroth_admits(3.0, 2.0, 10.0, 6.0)
