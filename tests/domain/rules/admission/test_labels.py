"""What is gathered of a name: no history is the population, order does not matter, and what was gathered fades."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.admission import labels, names
from domain.rules.admission.labels import History, faded, joined, law_of, tally_of
from domain.rules.admission.names import Tally, beyond
from domain.rules.admission.population import POPULATIONS, Population

K = POPULATIONS["K"]
DAY_S = 86_400.0
HALF_LIFE_S = 90 * DAY_S
SLOW = History(40.0, 40_000.0, 8.0, 4_000.0, 40.0, 9.0, 0.0)
"""Cores that last a thousand hours."""
QUIET = History(0.0, 5_000.0, 0.0, 5_000.0, 0.0, 1.0, 0.0)

amounts = st.floats(0.0, 1e4)
histories = st.builds(
    History,
    *(st.integers(0, 500).map(float), amounts, st.integers(0, 200).map(float), amounts),
    *(st.integers(0, 500).map(float), st.integers(1, 200).map(float), st.sampled_from([0.0, 1.0])),
)


def numbers(law: Population) -> tuple[float, ...]:
    """Mean and variance of the logarithms of the three rates, which are near for laws that are near."""
    return tuple(part for pair in labels.log_moments(law) for part in pair)


def test_a_name_without_history_has_the_law_above_it_number_for_number() -> None:
    owner, nothing = tally_of(K, [SLOW], 0.0), tally_of(K, [], 0.0)
    assert law_of(K, None, None) == law_of(K, nothing, nothing) == law_of(K, None, nothing) == K
    assert law_of(K, owner, nothing) == law_of(K, owner, None) != K


def test_a_deployment_of_which_nothing_was_seen_counts_nothing() -> None:
    unseen = tally_of(K, [History(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)] * 50, 0.0)
    assert numbers(law_of(K, None, unseen)) == pytest.approx(numbers(K), rel=1e-6)


def test_a_deployment_that_is_quiet_for_long_counts() -> None:
    idle = tally_of(K, [QUIET._replace(hours=0.0)], 0.0)
    assert idle.sums[0] > 0.9
    law = law_of(K, None, tally_of(K, [QUIET] * 20, 0.0))
    (before, _), *_ = labels.log_moments(K)
    (after, _), *_ = labels.log_moments(law)
    assert after < before - 3.0


def test_a_shutdown_counts_as_the_end_of_a_core_more() -> None:
    ended, lives = SLOW._replace(shut_down=1.0), SLOW._replace(deaths=SLOW.deaths + 1.0)
    assert tally_of(K, [ended], 0.0) == tally_of(K, [lives], 0.0) != tally_of(K, [SLOW], 0.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(histories, st.floats(0.0, HALF_LIFE_S)), min_size=2, max_size=6), st.randoms())
def test_the_order_of_ends_within_a_half_life_does_not_matter(ends: list[tuple[History, float]], dice: object) -> None:
    parts = [tally_of(K, [history], at) for history, at in ends]
    shuffled = list(parts)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    for order in (parts, shuffled):
        total = order[0]
        for part in order[1:]:
            total = joined(total, part, HALF_LIFE_S)
        if order is parts:
            first = total
    assert total.at == first.at
    assert total.deployments == pytest.approx(first.deployments)
    assert total.sums == pytest.approx(first.sums, rel=1e-9, abs=1e-9)
    assert numbers(law_of(K, None, total)) == pytest.approx(numbers(law_of(K, None, first)), rel=1e-6, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(histories, max_size=8), st.lists(histories, max_size=8))
def test_a_law_can_be_used_whatever_was_seen(of_owner: list[History], of_label: list[History]) -> None:
    label = tally_of(K, of_label, 0.0)
    law = law_of(K, joined(tally_of(K, of_owner, 0.0), label, HALF_LIFE_S), label)
    assert all(math.isfinite(number) and number > 0.0 for number in astuple(law))
    assert (law.power, law.lifetimes) == (K.power, K.lifetimes)


def test_after_a_half_life_half_is_left() -> None:
    tally = tally_of(K, [SLOW] * 4, 0.0)
    left = faded(tally, HALF_LIFE_S, HALF_LIFE_S)
    assert left.deployments == 2.0
    assert left.sums == pytest.approx([part / 2 for part in tally.sums])


def test_an_end_that_comes_to_be_known_late_counts_as_old_as_it_is() -> None:
    early, late = tally_of(K, [SLOW], 0.0), tally_of(K, [QUIET], HALF_LIFE_S)
    both = [0.5 * a + b for a, b in zip(early.sums, late.sums, strict=True)]
    for total in (joined(early, late, HALF_LIFE_S), joined(late, early, HALF_LIFE_S)):
        assert (total.at, total.deployments) == (HALF_LIFE_S, 1.5)
        assert total.sums == pytest.approx(both)


def test_what_faded_long_ago_is_the_population() -> None:
    tally = tally_of(K, [SLOW] * 100, 0.0)
    laws = [law_of(K, None, faded(tally, n * HALF_LIFE_S, HALF_LIFE_S)) for n in (0, 5, 10, 20, 40)]
    off = [abs(numbers(law)[0] - numbers(K)[0]) for law in laws]
    assert off == sorted(off, reverse=True)
    assert numbers(laws[-1]) == pytest.approx(numbers(K), rel=1e-6)


def test_a_clock_that_was_set_back_brings_nothing_back() -> None:
    tally = tally_of(K, [SLOW], 1_000.0)
    assert faded(tally, 0.0, HALF_LIFE_S) == tally


def test_the_law_of_many_alike_is_theirs() -> None:
    """5,000 deployments of known rates, the hours that their cores ran drawn."""
    dice = np.random.Generator(np.random.PCG64(3))
    mu, count = dice.gamma(4.0, 1.0 / 400.0, 5000), 5000
    deaths = np.full(count, 30.0)
    core_hours = dice.gamma(30.0, 1.0 / mu)
    rows = np.array([deaths, core_hours, *np.zeros((2, count)), 6.0 + np.zeros(count), np.full(count, 2.0)])
    seen = [History(*row) for row in np.vstack([rows, np.zeros(count)]).T]
    law = law_of(K, None, tally_of(K, seen, 0.0))
    assert law.mu_shape == pytest.approx(4.0, rel=0.15)
    assert law.mu_rate == pytest.approx(400.0, rel=0.15)


def test_a_label_is_learnt_within_its_owner() -> None:
    owner = tally_of(K, [SLOW] * 30, 0.0)
    label = tally_of(K, [SLOW._replace(core_hours=40.0, hours=4.0)], 0.0)
    whole = joined(owner, label, HALF_LIFE_S)
    alone, within = law_of(K, None, label), law_of(K, whole, label)
    assert numbers(law_of(K, whole, None))[0] < numbers(within)[0] < numbers(alone)[0]


def test_a_label_does_not_count_twice_through_its_owner() -> None:
    label = tally_of(K, [SLOW] * 5, 0.0)
    assert law_of(K, label, label) == law_of(K, None, label)


def test_a_tally_of_another_power_does_not_count() -> None:
    tally = tally_of(K, [SLOW] * 5, 0.0)
    other = replace(K, power=0.9)
    assert law_of(other, tally, tally) == other
    assert joined(tally, tally_of(other, [SLOW], 1.0), HALF_LIFE_S) == tally_of(other, [SLOW], 1.0)


def test_names_beyond_the_bound_fall_away_by_their_last_end() -> None:
    tallies = {("ada", f"job-{n}"): tally_of(K, [], float(n)) for n in range(5)} | {("ada", ""): tally_of(K, [], 1.0)}
    assert beyond(tallies, 6) == ()
    assert beyond(tallies, 3) == (("ada", "job-0"), ("ada", "job-1"), ("ada", ""))


@pytest.mark.parametrize("wrong", ["-x", "a b", "a\n", "x" * 65, "ä", 7, None])
def test_a_name_that_cannot_be(wrong: object) -> None:
    with pytest.raises(BadInput, match="label"):
        names.check_name("label", wrong)


@pytest.mark.parametrize("right", ["", "a", "x" * 64, "team/web:2.1+b@c_d-e"])
def test_a_name_that_can_be(right: str) -> None:
    names.check_name("label", right)


def test_a_tally_is_of_nine_finite_numbers() -> None:
    for wrong in ((0.0,) * 8, (math.nan,) * 9):
        with pytest.raises(BadInput, match="sums"):
            Tally(0.0, 0.0, wrong, 0.6)


def test_the_derivatives_of_the_gamma_function_are_known_where_they_are_known() -> None:
    assert labels.digamma(1.0) == pytest.approx(-0.5772156649015329, abs=1e-12)
    assert labels.trigamma(1.0) == pytest.approx(math.pi**2 / 6, rel=1e-12)
    assert labels.trigamma(0.5) == pytest.approx(math.pi**2 / 2, rel=1e-12)
    for x in (1e-3, 0.36, 5.0, 1e5):
        assert labels.inverse_trigamma(float(labels.trigamma(x))) == pytest.approx(x, rel=1e-10)
