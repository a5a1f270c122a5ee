"""Paired comparison: intervals that cover the truth as often as they say, and pairing that takes out what is shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from trainer.kit.intervals import compare, mean_interval

COSTS = st.lists(st.floats(1.0, 100.0), min_size=2, max_size=20)


@pytest.mark.parametrize("draw", ["normal", "lognormal"])
def test_the_interval_of_a_mean_covers_the_truth_about_as_often_as_it_says(draw: str) -> None:
    rng = np.random.default_rng(11)
    trials, truth = 400, 1.0
    covered = 0
    for trial in range(trials):
        values = rng.normal(1.0, 0.3, 40) if draw == "normal" else rng.lognormal(-0.125, 0.5, 40)
        interval = mean_interval(values, resamples=500, seed=trial)
        covered += interval.low <= truth <= interval.high
    assert 0.90 <= covered / trials <= 0.98


def test_the_paired_interval_covers_the_true_difference_and_is_far_narrower_than_the_spread_of_the_cases() -> None:
    rng = np.random.default_rng(5)
    covered, widths = 0, []
    for _ in range(300):
        load = rng.lognormal(3.0, 0.8, 30)
        reference, policy = load + rng.normal(0, 0.5, 30), load - 1.0 + rng.normal(0, 0.5, 30)
        difference = compare(policy, reference).difference
        covered += difference.low <= -1.0 <= difference.high
        widths.append(difference.high - difference.low)
    assert 0.90 <= covered / 300 <= 0.98
    assert max(widths) < 1.0


def test_pairing_matters() -> None:
    rng = np.random.default_rng(0)
    load = rng.lognormal(3.0, 0.8, 30)
    paired = compare(load - 0.5, load)
    shuffled = compare(rng.permutation(load - 0.5), load)
    assert paired.probability_lower == 1.0
    assert shuffled.probability_lower < 0.95
    assert paired.difference.mean == pytest.approx(shuffled.difference.mean)


def test_under_no_difference_the_probability_of_lower_is_spread_evenly() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(300):
        load = rng.lognormal(3.0, 0.8, 30)
        found.append(compare(load + rng.normal(0, 1, 30), load + rng.normal(0, 1, 30)).probability_lower)
    assert 0.02 <= np.mean(np.array(found) >= 0.95) <= 0.09
    assert 0.43 <= np.mean(found) <= 0.57


def test_families_count_alike_however_many_cases_they_have() -> None:
    many_worse, few_better = np.full(90, 1.1), np.full(10, 0.8)
    result = compare(np.r_[many_worse, few_better], np.ones(100), ["many"] * 90 + ["few"] * 10)
    assert result.relative.mean == pytest.approx(-0.05)
    assert result.difference.mean == pytest.approx(0.07)


@pytest.mark.parametrize("windows", [4, 6, 11])
def test_with_few_windows_the_level_holds_and_boot_seeds_of_a_window_are_no_further_evidence(windows: int) -> None:
    rng = np.random.default_rng(windows)
    names = [f"{window}" for window in range(windows) for _ in range(3)]
    by_window, by_boot, covered = [], [], 0
    for _ in range(600):
        load = np.repeat(rng.lognormal(0.0, 0.5, windows), 3)
        effect = np.repeat(rng.normal(0.0, 0.075, windows), 3) + rng.normal(0.0, 0.03, 3 * windows)
        found = compare(load * (1.0 + effect), load, clusters=names)
        by_window.append(found.probability_lower)
        by_boot.append(compare(load * (1.0 + effect), load).probability_lower)
        covered += found.relative.low <= 0.0 <= found.relative.high
    assert np.mean(np.array(by_window) >= 0.95) <= 0.065
    assert np.mean(np.array(by_boot) >= 0.95) >= 0.12
    assert 0.92 <= covered / 600 <= 0.98


def test_a_case_alone_has_the_variance_of_the_other_families_and_by_itself_no_confidence() -> None:
    alone = compare([5.0], [10.0])
    assert (alone.probability_lower, alone.relative.low, alone.relative.high) == (0.5, -0.5, -0.5)
    steady = compare([9.0, 9.1, 9.2, 9.0], [10.0, 10.1, 10.1, 10.0], ["a", "a", "a", "b"])
    noisy = compare([7.0, 9.1, 11.2, 9.0], [10.0, 10.1, 10.1, 10.0], ["a", "a", "a", "b"])
    assert steady.probability_lower > 0.99 > 0.9 > noisy.probability_lower


def test_the_same_windows_in_two_families_are_no_further_evidence() -> None:
    ours, theirs, windows = [9.0, 9.8, 9.1, 10.1], [10.0, 10.1, 10.2, 10.0], ["1", "2", "3", "4"]
    once = compare(ours, theirs, clusters=windows)
    families = ["as recorded"] * 4 + ["reordered"] * 4
    twice = compare(ours * 2, theirs * 2, families, clusters=windows * 2)
    apart = compare(ours * 2, theirs * 2, families)
    assert twice.probability_lower == pytest.approx(once.probability_lower)
    assert (twice.relative.low, twice.relative.high) == pytest.approx((once.relative.low, once.relative.high))
    assert apart.probability_lower > once.probability_lower + 0.01


@given(COSTS)
def test_a_policy_against_itself_is_not_cheaper(costs: list[float]) -> None:
    same = compare(costs, costs)
    assert same.probability_lower == 0.0
    assert (same.relative.low, same.relative.mean, same.relative.high) == (0.0, 0.0, 0.0)


@settings(max_examples=30)
@given(COSTS, st.floats(0.5, 2.0))
def test_scaling_both_costs_changes_no_ratio(costs: list[float], factor: float) -> None:
    reference = np.array(costs)
    policy = reference[::-1] * 0.9
    first, scaled = compare(policy, reference), compare(policy * factor, reference * factor)
    assert scaled.relative.mean == pytest.approx(first.relative.mean, abs=1e-12)
    assert scaled.difference.mean == pytest.approx(first.difference.mean * factor, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("policy", "reference", "field"),
    [([1.0], [1.0, 2.0], "cases"), ([], [], "policy"), ([1.0, np.nan], [1.0, 1.0], "policy"), ([1.0], [0.0], "ref")],
)
def test_figures_that_cannot_be_compared_are_refused(policy: list[float], reference: list[float], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        compare(policy, reference)
    assert refused.value.field.startswith(field)
