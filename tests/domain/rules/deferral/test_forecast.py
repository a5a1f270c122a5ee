"""The forecast: a calendar, noise that fades, drops that recur, and quantiles that cover what they promise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.deferral.forecast import ASSUMED, CALIBRATION_H, LEVELS, Forecast, History, fit
from simulator.deferral.scenarios import SCENARIOS, TRAINING_SEED, Scenario, episode

H = 168


def _weeks(scenario: Scenario, number: int) -> list[History]:
    drawn = (episode(scenario, TRAINING_SEED + k) for k in range(number))
    return [History(one.start_h, one.capacity) for one in drawn]


@pytest.fixture(scope="module")
def valley() -> Forecast:
    return fit(_weeks(SCENARIOS["valley"], 20))


@pytest.fixture(scope="module")
def drops() -> Forecast:
    return fit(_weeks(SCENARIOS["sched_drop"], 20))


def test_calendar_and_noise_are_those_of_the_generator(valley: Forecast) -> None:
    """§7: 25.7 (1 + 0.25 cos(2 pi (hour - 3) / 24) + 0.08 at weekends), phi 0.5, sigma 1.9; the floor takes a half."""
    hour = np.arange(H)
    level = 25.7 * (1 + 0.25 * np.cos(2 * np.pi * (hour % 24 - 3) / 24) + 0.08 * (hour >= 120)) - 0.5
    assert np.abs(valley.level - level).mean() < 0.5
    assert valley.phi == pytest.approx(0.5, abs=0.05)
    assert valley.sigma == pytest.approx(1.9, abs=0.1)
    assert valley.enter.max() == 0.0


def test_the_margin_fades_in_with_the_steps_ahead_and_the_correction_out(valley: Forecast) -> None:
    spread = valley.spread(10, 24)
    assert spread[0] < spread[1] < spread[3]
    assert spread[12:].mean() == pytest.approx(valley.sigma / np.sqrt(1 - valley.phi**2), rel=0.1)
    usual = valley.level[10]
    above = valley.path(np.array([usual + 4.0]), 10, 24) - valley.path(np.array([usual]), 10, 24)
    np.testing.assert_allclose(above, 4.0 * valley.phi ** np.arange(1, 25), atol=1e-9)


def test_a_recurring_drop_is_found_with_its_hour_chance_depth_and_length(drops: Forecast) -> None:
    assert drops.enter[9] == pytest.approx(0.7, abs=0.08)
    assert np.delete(drops.enter, 9).max() < 0.02
    assert drops.stay[:3].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=0.03)
    assert drops.depth[9:12] == pytest.approx(np.full(3, 0.5), abs=0.03)


def test_the_path_has_the_full_depth_of_the_drop_and_noise_alone_elsewhere(drops: Forecast) -> None:
    """Seen from 7 in the morning of a Monday; a flat margin would take as much from every hour."""
    level = drops.level[7:13]
    path = drops.path(np.array([level[0]]), 7, 5, margin=0.5)
    assert path[1] == pytest.approx(drops.depth[9] * (level[2] - 0.5 * drops.spread(7, 5)[1]), rel=1e-6)
    assert path[0] == pytest.approx(level[1] - 0.5 * drops.spread(7, 5)[0])
    assert path[4] > 0.9 * level[5]
    assert drops.mean(np.array([level[0]]), 7, 5)[1] == pytest.approx(level[2] * (1 - 0.7 * 0.5), rel=0.05)
    assert drops.quantiles(np.array([level[0]]), 7, 5, [0.5])[0, 1] < 0.6 * level[2]
    assert drops.quantiles(np.array([level[0]]), 7, 5, [0.9])[0, 1] > 0.9 * level[2]


def test_a_drop_that_has_begun_goes_on_and_ends_in_time(drops: Forecast) -> None:
    """At 9 the capacity has halved: so it will at 10 and 11, and at 12 it is whole again."""
    known = np.array([drops.level[8], drops.level[9] * 0.5])
    assert drops.chances(known, 9, 3).tolist() == pytest.approx([1.0, 1.0, 0.0], abs=0.05)
    assert drops.chances(np.array([drops.level[8], drops.level[9]]), 9, 3).max() < 0.02


@pytest.mark.parametrize(
    ("hour", "frac", "length", "chance"),
    [(15, 0.5, 3, 0.7), (22, 0.35, 5, 0.7), (4, 0.75, 2, 0.9), (15, 0.35, 4, 0.5)],
)
def test_drops_of_other_hours_depths_and_lengths_are_found_too(
    hour: int, frac: float, length: int, chance: float
) -> None:
    """Parameter sets that are not those of the specification, in forty weeks; the last one is three spreads deep."""
    changes = {"drop_hour": hour, "drop_frac": frac, "drop_len": length, "drop_p": chance}
    found = fit(_weeks(SCENARIOS["sched_drop"].model_copy(update=changes), 40))
    assert int(found.enter.argmax()) == hour
    assert found.enter[hour] == pytest.approx(chance, abs=0.08)
    assert found.depth[hour] == pytest.approx(1 - frac, abs=0.06)
    assert (found.stay >= 0.5).sum() == length - 1


@pytest.mark.parametrize("name", ["valley", "sched_drop", "bursty_long"])
def test_quantiles_cover_what_they_promise_on_other_weeks(name: str) -> None:
    """Within four points, one, four and nine steps ahead; steps of one week are far from independent."""
    found = fit(_weeks(SCENARIOS[name], 30))
    levels, ahead = [0.1, 0.25, 0.75, 0.9], [0, 3, 8]
    below, seen = np.zeros((4, 3)), 0
    for seed in range(TRAINING_SEED + 100, TRAINING_SEED + 108):
        week = episode(name, seed)
        for t in range(0, 158, 2):
            quantiles = found.quantiles(week.capacity[max(0, t - 24) : t + 1], (week.start_h + t) % H, 9, levels)
            below += week.capacity[t + 1 : t + 10][ahead] <= quantiles[:, ahead]
            seen += 1
    assert np.abs(below / seen - np.array(levels)[:, None]).max() < 0.05


def test_four_weeks_of_one_pool_are_enough() -> None:
    """What an agent has: 28 days, some hours unknown, residuals of the newest 28 days alone."""
    long = episode(SCENARIOS["sched_drop"].model_copy(update={"steps": 1000}), TRAINING_SEED)
    values = long.capacity.astype(float)
    values[100:103] = np.nan
    found = fit([History(long.start_h, values[:CALIBRATION_H])], calibration_h=CALIBRATION_H)
    assert found.hours == CALIBRATION_H - 3
    assert int(found.enter.argmax()) == 9
    assert found.depth[9] == pytest.approx(0.5, abs=0.05)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.integers(0, H - 1))
@settings(max_examples=40, deadline=None)
def test_quantiles_are_ordered_finite_and_not_negative(values: list[float], hour: int) -> None:
    found = _DROPS.quantiles(np.array(values), hour, 12, LEVELS)
    assert np.isfinite(found).all()
    assert (found >= 0.0).all()
    assert (np.diff(found, axis=0) >= 0.0).all()


_DROPS = fit(_weeks(SCENARIOS["sched_drop"], 6))


def test_a_capacity_that_is_not_known_leaves_the_calendar(valley: Forecast) -> None:
    np.testing.assert_allclose(valley.path(np.array([np.nan]), 10, 3), valley.level[11:14])
    np.testing.assert_allclose(valley.path(np.array([]), 10, 3), valley.level[11:14])


def test_a_file_keeps_it(drops: Forecast) -> None:
    again = Forecast.parse(json.loads(json.dumps(drops.as_document())))
    known = np.array([60.0, 30.0])
    np.testing.assert_allclose(again.path(known, 9, 12), drops.path(known, 9, 12), atol=1e-3)
    np.testing.assert_allclose(again.quantiles(known, 9, 12, [0.1]), drops.quantiles(known, 9, 12, [0.1]), atol=1e-3)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("version", 2, "forecast.version"),
        ("phi", 1.0, "forecast.phi"),
        ("sigma", float("nan"), "forecast.sigma"),
        ("level", [1.0] * 167, "forecast.level"),
        ("enter", [1.5] * 24, "forecast.enter"),
        ("residuals", "none", "forecast.residuals"),
        ("stay", None, "forecast.stay"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_its_field(
    drops: Forecast, field: str, value: object, named: str
) -> None:
    with pytest.raises(BadInput) as refused:
        Forecast.parse(drops.as_document() | {field: value})
    assert refused.value.field == named


@pytest.mark.parametrize(
    ("begin", "values"), [(0, [3] * 47), (168, [3] * 90), (0, [-1] + [3] * 90), (0, [float("inf")] + [3] * 90)]
)
def test_a_record_without_use_is_refused(begin: int, values: list[float]) -> None:
    with pytest.raises(BadInput, match="history"):
        fit([History(begin, np.array(values))])


def test_a_constant_capacity_is_forecast_as_it_is() -> None:
    found = fit([History(0, np.full(24 * 28, 12))])
    np.testing.assert_allclose(found.path(np.array([12.0]), 0, 24, margin=0.5), 12.0, atol=0.05)
    assert found.chances(np.array([12.0]), 0, 24).max() < ASSUMED
    nothing = fit([History(0, np.zeros(24 * 28, dtype=np.int64))])
    assert nothing.path(np.array([0.0]), 0, 24).max() == 0.0
