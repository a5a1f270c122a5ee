"""The watch over losses: hours of a policy against the replayed rule of day 0."""

import numpy as np
import pytest

from domain.errors import BadInput
from trainer.learning.loss_watch import (
    CORRELATION,
    LEAST_TOLERANCE,
    WEEK_HOURS,
    LossVerdict,
    loss_watch,
    spread_of_sums,
)

DAY = np.tile([0.5, 1.0, 2.0, 0.5], 6)
"""Dollars of a day's hours, 1 in the mean."""


def found_after(factor: float, calibrated_hours: int = 0, days: int = 28) -> int | None:
    """The hours until a policy that costs a constant factor is a loss, None where it never is."""
    rule = np.tile(DAY, days)
    known = np.tile(DAY, 7)[:calibrated_hours]
    hours = range(1, rule.size + 1)
    results = (loss_watch(factor * rule[:n], rule[:n], (known, known), week_cost=WEEK_HOURS) for n in hours)
    return next((result.hours for result in results if result.is_loss), None)


def test_a_policy_twice_as_dear_is_found_within_three_hours() -> None:
    result = loss_watch([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert result.is_loss
    assert result.excess == pytest.approx(1.0)
    assert result.lost == pytest.approx(3.0)
    assert result.budget == pytest.approx(1.68)
    assert "+100.0%" in result.reason


def test_the_dearer_the_sooner() -> None:
    found = [found_after(factor, 24) for factor in (3.0, 2.0, 1.3, 1.1)]
    assert None not in found
    assert sorted(found, key=lambda hours: hours or 0) == found


def test_one_hour_alone_takes_no_policy_back() -> None:
    rule = np.ones(48)
    outage = rule.copy()
    outage[-1] = 50.0
    assert loss_watch(outage, rule).verdict is LossVerdict.CONTINUE


def test_without_hours_of_the_rule_the_bias_that_the_check_allows_is_no_loss() -> None:
    rule = np.tile(DAY, 28)
    assert loss_watch(1.05 * rule, rule).verdict is LossVerdict.CONTINUE
    assert loss_watch(1.15 * rule, rule).is_loss


def test_hours_of_the_rule_itself_show_the_bias() -> None:
    rule, week = np.tile(DAY, 21), np.tile(DAY, 7)
    usual = loss_watch(1.04 * rule, rule, (1.04 * week, week))
    assert usual.verdict is LossVerdict.CONTINUE
    assert usual.bias == pytest.approx(1.04)
    assert usual.lost == pytest.approx(0.0, abs=1e-9)
    assert usual.tolerance == LEAST_TOLERANCE
    assert loss_watch(1.04 * rule, rule, (week, week)).is_loss
    assert loss_watch(1.10 * rule, rule, (1.5 * week, week)).bias == pytest.approx(1.05)


def test_few_hours_of_the_rule_leave_a_greater_tolerance() -> None:
    rule = np.ones(48)
    tolerances = [loss_watch(rule, rule, (rule[:n], rule[:n])).tolerance for n in (0, 2, 48)]
    assert tolerances[0] == tolerances[1] > tolerances[2] > LEAST_TOLERANCE


def test_a_policy_that_becomes_dear_after_good_weeks_is_found_by_its_last_hours() -> None:
    rule = np.ones(500)
    changed = 0.9 * rule
    changed[-5:] = 2.0
    result = loss_watch(changed, rule, (rule, rule))
    assert result.is_loss
    assert result.span_hours == 5
    assert result.lost < 0.0


def test_noisy_hours_ask_for_more_evidence() -> None:
    rule = np.ones(12)
    noisy = np.where(np.arange(12) % 2, 3.0, 0.2)
    quiet = np.full(12, noisy.mean())
    assert loss_watch(quiet, rule).deviations > loss_watch(noisy, rule).deviations
    assert loss_watch(quiet, rule).is_loss
    assert not loss_watch(noisy, rule).is_loss


def test_nothing_to_compare_gives_no_verdict() -> None:
    assert loss_watch([], []).verdict is LossVerdict.UNKNOWN
    assert loss_watch([1.0, 1.0], [0.0, 0.0]).verdict is LossVerdict.UNKNOWN
    assert loss_watch([9.0] * 3, [0.0] * 3, week_cost=168.0).is_loss


@pytest.mark.parametrize("lived", [[1.0], [1.0, np.nan], [1.0, -1.0], [[1.0, 1.0]]])
def test_other_figures_are_refused(lived: object) -> None:
    with pytest.raises(BadInput):
        loss_watch(lived, [1.0, 1.0])  # type: ignore[arg-type]


def test_the_deviation_of_a_sum_counts_correlated_errors() -> None:
    each = np.random.default_rng(0).uniform(0.5, 2.0, 9)
    apart = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    covariance = np.outer(each, each) * CORRELATION**apart
    exact = [np.sqrt(covariance[:n, :n].sum()) for n in range(1, 10)]
    assert spread_of_sums(each) == pytest.approx(exact)


def test_erratic_losses_are_no_noise() -> None:
    """Three and a half times as dear in all, most of it in every third hour."""
    rule = np.ones(24)
    lived = np.where(np.arange(15) % 3 == 2, 9.0, 0.8)
    found = loss_watch(lived, rule[:15], (rule * 1.02, rule))
    assert found.is_loss
    assert found.noise < 1.5 * loss_watch(rule[:15], rule[:15], (rule * 1.02, rule)).noise + 0.05
