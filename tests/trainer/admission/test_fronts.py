"""Failure rates, fronts of thresholds, and what one rule gains over another on the same runs."""

import numpy as np
import pytest

from domain.errors import BadInput
from tests.golden import check_wording
from tests.trainer.admission.made_runs import made
from trainer.admission.fronts import (
    Front,
    Metric,
    failure_ratio,
    failures,
    failures_at,
    front_of,
    gain,
    nearest_place,
    reach,
    result_of,
    rows_of,
    share_of_bound,
    utilisation,
    utilisation_at,
)
from trainer.admission.report import gain_text
from trainer.admission.table import Cell, Runs
from trainer.kit.intervals import Kind

STRICT, MIDDLE, LOOSE = (Cell("K", f"zeroth:{cores}") for cores in (10_000, 12_000, 14_000))


def random_front(seed: int, lift: float = 0.0, runs: int = 40) -> Front:
    generator = np.random.default_rng(seed)
    bad = generator.gamma(0.7, size=runs)
    cells = {}
    for cell, taken, share in ((STRICT, 0.6, 0.1), (MIDDLE, 0.7, 1.0), (LOOSE, 0.8, 10.0)):
        failed = generator.poisson(np.outer(bad, np.ones(4)) * share)
        cells[cell] = made(taken + lift + 0.02 * generator.normal(size=runs), failed.tolist())
    return front_of((STRICT, MIDDLE, LOOSE), cells)


def test_the_primary_metric_weighs_months_alike_the_pooled_one_requests() -> None:
    runs = made([0.5, 0.5], [[10, 0], [0, 0]])
    quiet = Runs.from_data({**runs.as_data(), "requests": np.array([[100, 1000], [1000, 0]])})
    means = rows_of(quiet).mean(axis=0)
    assert failures(means, Metric.PRIMARY) == pytest.approx((10 / 100) / 3)
    assert failures(means, Metric.POOLED) == pytest.approx(10 / 2100)
    assert utilisation(means) == pytest.approx(0.5)


def test_runs_without_requests_fail_in_nothing() -> None:
    found = result_of(STRICT, made([0.0, 0.1], [[0], [0]], requests=0))
    assert (found.primary.value, found.pooled.value, found.failing_runs) == (0.0, 0.0, 0)
    assert np.isnan(found.largest_share)


def test_a_standing_tells_how_few_runs_carry_the_failures() -> None:
    found = result_of(STRICT, made([0.5] * 4, [[0], [0], [10], [30]], first=7))
    assert (found.failing_runs, found.largest_share, found.runs) == (2, 0.75, 4)
    assert (found.first_seed, found.last_seed) == (7, 10)
    assert found.primary.value == pytest.approx(0.01)
    assert found.primary.low < 0.01 < found.primary.high


def test_a_front_is_read_in_the_logarithm_between_two_thresholds() -> None:
    taken, failed = np.array([[0.6, 0.7, 0.8]]), np.array([[1e-5, 1e-4, 1e-2]])
    assert utilisation_at(taken, failed, 1e-3)[0] == pytest.approx(0.75)
    assert utilisation_at(taken, failed, 1e-4)[0] == pytest.approx(0.70)
    assert failures_at(taken, failed, np.array([0.75]))[0] == pytest.approx(1e-3)


def test_outside_of_the_thresholds_tried_a_front_says_nothing() -> None:
    taken, failed = np.array([[0.6, 0.7, 0.8]]), np.array([[1e-5, 1e-4, 1e-2]])
    assert np.isnan(utilisation_at(taken, failed, 0.5)[0])
    assert np.isnan(utilisation_at(taken, failed, 1e-6)[0])
    assert np.isnan(failures_at(taken, failed, np.array([0.5]))[0])
    assert np.isnan(failures_at(taken, failed, np.array([0.9]))[0])


def test_a_rate_that_falls_with_permissiveness_counts_as_the_highest_so_far() -> None:
    taken, failed = np.array([[0.6, 0.7, 0.8, 0.9]]), np.array([[1e-5, 1e-3, 1e-4, 1e-2]])
    assert utilisation_at(taken, failed, 5e-4)[0] < 0.7


def test_a_rule_gains_nothing_over_itself() -> None:
    front = random_front(1)
    found = gain(front, front, Metric.PRIMARY, 1e-3)
    assert (found.difference.value, found.difference.low, found.difference.high) == (0.0, 0.0, 0.0)
    assert found.resolved


def test_a_gain_on_the_same_runs_is_found_however_different_the_runs_are() -> None:
    base = random_front(1)
    rows = base.rows.copy()
    rows[:, :, 0] += 0.05
    found = gain(Front(base.cells, base.seeds, rows), base, Metric.PRIMARY, 1e-3)
    assert found.difference.value == pytest.approx(0.05)
    assert found.difference.low == pytest.approx(0.05)
    assert found.challenger - found.base == pytest.approx(0.05)


def test_the_interval_of_a_gain_between_unrelated_runs_holds_nothing_gained() -> None:
    found = gain(random_front(1), random_front(2), Metric.PRIMARY, 1e-3)
    assert found.difference.low < 0.0 < found.difference.high
    assert found.difference.kind is Kind.BCA


def test_failures_are_compared_at_the_utilisation_of_the_challenger() -> None:
    base = random_front(1)
    lifted = base.rows.copy()
    lifted[:, :, 0] += 0.05
    place = 1
    found = failure_ratio(Front(base.cells, base.seeds, lifted), place, base, Metric.PRIMARY)
    taken, failed = base.points(Metric.PRIMARY)
    at = failures_at(taken[None], failed[None], np.array([taken[1] + 0.05]))[0]
    assert found.ratio.value == pytest.approx(failed[1] / at)
    assert found.ratio.high < 1.0
    assert found.failing_runs == base.failing(1)


def test_a_share_of_the_bound_divides_by_what_promises_nothing() -> None:
    front = random_front(1)
    bound = Front(front.cells[-1:], front.seeds, front.rows[:, -1:])
    at = reach(front, Metric.PRIMARY, 1e-3).value
    top = float(front.points(Metric.PRIMARY)[0][-1])
    assert share_of_bound(front, bound, Metric.PRIMARY, 1e-3).value == pytest.approx(at / top)


def test_with_fewer_than_ten_failing_runs_nothing_is_resolved() -> None:
    runs = {
        cell: made([taken] * 30, [[count]] * 9 + [[0]] * 21)
        for cell, taken, count in ((STRICT, 0.6, 0), (MIDDLE, 0.7, 20), (LOOSE, 0.8, 200))
    }
    front = front_of((STRICT, MIDDLE, LOOSE), runs)
    found = gain(front, front, Metric.PRIMARY, 1e-3)
    assert (found.failing_runs, found.resolved) == (9, False)


def test_the_threshold_nearest_to_a_promise_keeps_it() -> None:
    front = random_front(1)
    _, failed = front.points(Metric.PRIMARY)
    assert nearest_place(front, Metric.PRIMARY, float(failed[1]) * 1.01) == 1
    assert nearest_place(front, Metric.PRIMARY, 1.0) == 2


def test_other_seeds_are_never_compared() -> None:
    runs = {STRICT: made([0.5, 0.5], [[0], [0]]), LOOSE: made([0.5, 0.5], [[0], [0]], first=1)}
    with pytest.raises(BadInput, match="same seeds"):
        front_of((STRICT, LOOSE), runs)
    ours, theirs = (front_of((cell,), runs) for cell in (STRICT, LOOSE))
    with pytest.raises(BadInput, match="same seeds"):
        gain(ours, theirs, Metric.PRIMARY, 1e-3)


def test_a_gain_is_reported_with_the_runs_that_fail_where_they_are_few() -> None:
    cells = {
        cell: made([taken] * 30, [[count]] * 9 + [[0]] * 21)
        for cell, taken, count in ((STRICT, 0.6, 0), (MIDDLE, 0.7, 1), (LOOSE, 0.8, 200))
    }
    front = front_of((STRICT, MIDDLE, LOOSE), cells)
    texts = {f"{sla:g}": gain_text(gain(front, front, Metric.PRIMARY, sla)) for sla in (1e-3, 1e-4, 0.5)}
    assert ["9 runs fail" in text for text in texts.values()] == [True, True, False]
    check_wording("admission-gain", texts)
    many = random_front(1)
    assert gain_text(gain(many, many, Metric.PRIMARY, 1e-3)) == "+0.0 [+0.0, +0.0]"
