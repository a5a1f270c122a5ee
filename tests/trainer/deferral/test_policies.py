"""Policies by name: what a text means, which texts are refused, and that each schedule keeps the rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.deferral.forecast import Forecast, History, fit
from domain.rules.deferral.jobs import objective
from simulator.deferral.scenarios import SCENARIOS, TRAINING_SEED, Episode, episode
from trainer.deferral.exact import violations_of
from trainer.deferral.policies import calendar_paths, policy_of, real_paths


@pytest.fixture(scope="module")
def day() -> Episode:
    return episode(SCENARIOS["sched_drop"].model_copy(update={"steps": 14}), TRAINING_SEED + 41)


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    weeks = [episode("sched_drop", TRAINING_SEED + k) for k in range(6)]
    return fit([History(week.start_h, week.capacity) for week in weeks])


@pytest.mark.parametrize(
    "text",
    [
        *("fifo", "sjf:skip", "tetris", "els:skip", "knapsack:alpha=0.2", "rolling", "rolling:forecast=true"),
        *("rolling:steps=4,quantile=0.2,factor=1", "rolling:forecast=persistence", "rolling:forecast=calendar"),
        "rolling:levels=10",
    ],
)
def test_what_a_policy_starts_fits_when_it_starts(text: str, day: Episode, forecast: Forecast) -> None:
    start, fallbacks = policy_of(text).schedule(day, forecast)
    assert violations_of(day.jobs, start, day.capacity, online=True) == []
    assert (start >= 0).any()
    assert fallbacks == 0


def test_no_policy_is_above_the_optimum(day: Episode, forecast: Forecast) -> None:
    best = objective(day.jobs, policy_of("optimum").schedule(day, None)[0], day.capacity).total
    for text in ("fifo:skip", "knapsack", "rolling", "rolling:forecast=true"):
        assert objective(day.jobs, policy_of(text).schedule(day, forecast)[0], day.capacity).total <= best


def test_a_plan_with_the_real_capacity_never_exceeds_it(day: Episode) -> None:
    start, _ = policy_of("rolling:forecast=true,steps=10").schedule(day, None)
    assert objective(day.jobs, start, day.capacity).violation == 0


def test_the_calendar_counts_a_drop_with_its_chance(day: Episode, forecast: Forecast) -> None:
    """Without what is known of now: seven in ten drops of a half leave 65 % in the mean."""
    from simulator.deferral.world import World

    view = World(day).view()
    hours = (view.hour_of_week + np.arange(1, 25)) % 168
    path = calendar_paths(forecast)(view, 24)
    chance = float(forecast.enter[9])
    at_nine = int(np.flatnonzero(hours % 24 == 9)[0])
    expected = forecast.level[hours[at_nine]] * (1 - chance * (1 - forecast.depth[9]))
    assert path[at_nine] == pytest.approx(expected, rel=0.02)
    np.testing.assert_array_equal(real_paths(day)(view, 3), day.capacity[1:4])
    assert real_paths(day)(view, 99)[-1] == day.capacity[-1]


def test_a_forecast_comes_from_a_file(tmp_path: Path, day: Episode, forecast: Forecast) -> None:
    file = tmp_path / "forecast.json"
    file.write_text(json.dumps(forecast.as_document()), "utf-8")
    mine, _ = policy_of(f"rolling:forecast={file},steps=5").schedule(day, None)
    own, _ = policy_of("rolling:steps=5").schedule(day, forecast)
    np.testing.assert_array_equal(mine, own)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("lifo", "choose from fifo"),
        ("fifo:knapsack", "give fifo, fifo:prefix or fifo:skip"),
        ("knapsack:gamma=1", "give knapsack"),
        ("rolling:steps=0", "steps from 1 to 1000"),
        ("rolling:steps=2.5", "steps from 1 to 1000"),
        ("rolling:factor=0", "a factor above 0 to 1"),
        ("rolling:quantile=1", "a quantile within 0 to 1"),
        ("rolling:margin=nan", "give rolling"),
        ("rolling:levels=2.5", "levels to 100"),
        ("rolling:depth=3", "give rolling"),
        ("rolling:forecast=none.json", "name a forecast's file"),
        ("none.onnx", "there is no such file"),
        ("none.onnx:best", "prefix, skip, knapsack"),
    ],
)
def test_a_text_that_names_no_policy_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(BadInput, match=remedy):
        policy_of(text)


def test_without_training_seeds_the_plan_needs_a_file(day: Episode) -> None:
    with pytest.raises(BadInput, match=r"give forecast=FILE\.json"):
        policy_of("rolling").schedule(day, None)
