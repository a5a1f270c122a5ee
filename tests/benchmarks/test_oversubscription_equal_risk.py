"""Machines at equal risk: interpolation over a sweep, its ends, and the settings that are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.oversubscription_equal_risk import Played, at_risk, ratio_at, selected


def played(name: str, hot: float, machines: float, *, hot_weeks: float = 0.0, weeks: int = 4) -> Played:
    """Return a setting that is alike in each week: hot machine-hours of 10,000."""
    same = np.ones(weeks)
    return Played(name, hot * same, 1e4 * same, hot_weeks * same, 10, machines * same, 0 * same, 0 * same, 0.0)


def columns(*settings: Played) -> np.ndarray:
    return np.array([one.columns("hours").mean(axis=0) for one in settings])


def test_machines_are_interpolated_over_the_logarithm_of_the_risk() -> None:
    sweep = columns(played("safe", 1.0, 60.0), played("bold", 100.0, 40.0))
    assert at_risk(sweep, 1e-3, 4) == pytest.approx(50.0)
    assert at_risk(sweep, 1e-4, 4) == pytest.approx(60.0)
    assert np.isnan(at_risk(sweep, 1e-5, 4))
    assert np.isnan(at_risk(sweep, 0.1, 4))


def test_a_sweep_without_a_hot_hour_counts_half_a_one() -> None:
    sweep = columns(played("cool", 0.0, 60.0), played("bold", 12.5, 50.0))
    # Half an hour in the 40,000 of four weeks is a risk of 1.25e-5, a hundredth of the other's.
    assert at_risk(sweep, 1.25e-4, 4) == pytest.approx(55.0)


def test_a_riskier_setting_with_more_machines_does_not_count() -> None:
    sweep = columns(played("a", 1.0, 50.0), played("worse", 10.0, 70.0), played("b", 100.0, 40.0))
    assert at_risk(sweep, 1e-3, 4) == pytest.approx(50.0)


def test_a_ratio_has_its_interval_and_none_beyond_a_sweep() -> None:
    policy = [played("a", 1.0, 30.0), played("b", 100.0, 20.0)]
    reference = [played("c", 1.0, 60.0), played("d", 100.0, 40.0)]
    found = ratio_at(policy, reference, "hours", 1e-3)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert np.isnan(ratio_at(policy, reference[:1], "hours", 1e-3).value)


def test_hot_weeks_are_a_share_of_the_episodes() -> None:
    policy = [played("a", 0.0, 30.0, hot_weeks=0.1), played("b", 0.0, 20.0, hot_weeks=1.0)]
    assert ratio_at(policy, policy, "weeks", 0.05).value == pytest.approx(1.0)
    assert np.isnan(ratio_at(policy, policy, "weeks", 0.5).value)


def test_the_setting_with_the_fewest_machines_without_a_hot_week_is_chosen() -> None:
    tried = [
        played("large", 0.0, 80.0),
        played("small", 2.0, 60.0),
        played("dominated", 3.0, 70.0),
        played("hot", 50.0, 40.0, hot_weeks=1.0),
    ]
    chosen, frontier = selected(tried)
    assert chosen == "small"
    assert frontier == ["large", "small", "hot"]
    assert selected(tried[3:])[0] == "hot"
