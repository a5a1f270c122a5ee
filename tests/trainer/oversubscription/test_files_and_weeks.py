"""Files of rates and models, weeks that are drawn anew, and rates that are calibrated on several weeks (§12.5, §14)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from domain.errors import BadInput
from simulator.oversubscription.layout import guard_of
from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.weekly import Assessor
from tests.trainer.oversubscription.small import staggered_pair
from trainer.oversubscription import episodes
from trainer.oversubscription.c2marl import Config, Learner, network_of
from trainer.oversubscription.calibration import BUDGETS, calibrate
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.model_file import export
from trainer.oversubscription.policies import (
    SHIPPED,
    RatesFile,
    Task,
    policy_of,
    read_model,
    read_rates,
    shipped_rates,
    write_rates,
)
from trainer.oversubscription.unseen import CALIBRATION, EVALUATION, arrivals_of, shifted, unseen_week, week_named

RATES = RatesFile("-", "staggered", "0" * 64, "cold", 0.95, (0.2, 0.4, 1.0), ("0", "1"), (0.4, 1.0))


def test_a_file_of_rates_is_read_as_it_was_written_and_plays(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    write_rates(RATES, path)
    assert read_rates(path) == replace(RATES, name=str(path))
    scenario = staggered_pair()
    judged = judge(policy_of(str(path)), Task(scenario, scenario.week("s0")), episodes=2)
    assert judged.s_cores == pytest.approx(0.3)


@pytest.mark.parametrize(
    "change", [{"kind": "else"}, {"rates": [0.4, 1.5]}, {"subscribers": ["0", "0"]}, {"guard": {"kind": "shield"}}]
)
def test_a_wrong_file_of_rates_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(RATES.as_data() | change))
    with pytest.raises(BadInput):
        read_rates(path)


def test_rates_for_other_subscribers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    write_rates(RATES, path)
    scenario = scenario_of("internal_like")
    with pytest.raises(BadInput, match="2 subscribers"):
        policy_of(str(path)).plan(Task(scenario, scenario.week("s0")))


def test_a_model_file_plays_as_the_network_does(tmp_path: Path) -> None:
    scenario, config = staggered_pair(), Config(hidden=(8,), seed=5)
    network = network_of(config, scenario)
    path = export(network, config, scenario, tmp_path, training={}, evaluation={})
    judged = judge(policy_of(str(path)), Task(scenario, scenario.week("s0")), episodes=1)
    learner = Learner(config, scenario)
    learner.batch.reset(np.array([0]))
    for hour in range(scenario.hours):
        wanted = learner.greedy_rates(learner.batch.local)
        assert judged.rates[hour].tolist() == wanted[0].tolist()
        learner.batch.step_rates(wanted)


@pytest.mark.parametrize("text", ["grid:0.3", "shield:base=grid:0.3,posterior=yes", "peak:n=0"])
def test_episodes_are_the_same_in_blocks_and_one_by_one(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(staggered_pair(48, sd=0.3), violation_hours=1)
    policy, task = policy_of(text), Task(scenario, scenario.week("s0"))
    for size in ("SAMPLED", "PLAYED"):
        monkeypatch.setattr(episodes, size, 3)
    whole = judge(policy, task, episodes=7, seed=5)
    each = [judge(policy, task, episodes=1, seed=5 + e) for e in range(7)]
    for column in ("hot_hours", "hot_machine_hours", "excess"):
        found = getattr(whole.sampled, column).tolist()
        assert found == [value for one in each for value in getattr(one.sampled, column).tolist()]
        assert any(found)
    violations = np.zeros(scenario.machines)
    for one in each:
        violations[: len(one.sampled.machine_violations)] += one.sampled.machine_violations
    assert whole.sampled.pm_hot_r == violations.max() / 7 > 0.0
    assert whole.peak_machines == np.mean([one.peak_machines for one in each])
    assert whole.s_cores == pytest.approx(np.mean([one.s_cores for one in each]), rel=1e-12)
    assert (whole.rates == each[0].rates).all()
    assert (whole.placement.machine == each[0].placement.machine).all()


@pytest.mark.parametrize("text", ["shield:base={},b=0.001", "shield:b=0.001,base={}", "shield:base=({}),b=0.001"])
def test_a_model_file_stands_behind_a_shield(tmp_path: Path, text: str) -> None:
    scenario, config = staggered_pair(sd=0.3), Config(hidden=(8,), seed=1)
    path = export(network_of(config, scenario), config, scenario, tmp_path, training={}, evaluation={})
    task = Task(scenario, scenario.week("s0"))
    bare, behind = judge(policy_of(str(path)), task), judge(policy_of(text.format(path)), task)
    assert behind.placement.raised > 0
    assert behind.sampled.hot_hours.mean() < 0.5 * bare.sampled.hot_hours.mean()
    assert behind.rates[0].tolist() == bare.rates[0].tolist()


def test_a_changed_or_foreign_model_file_is_refused(tmp_path: Path) -> None:
    scenario, config = staggered_pair(), Config(hidden=(8,))
    path = export(network_of(config, scenario), config, scenario, tmp_path, training={}, evaluation={})
    other, model = scenario_of("internal_like"), read_model(path)
    task = Task(other, other.week("s0"))
    with pytest.raises(BadInput, match="subscribers and levels"):
        model.plan(task)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BadInput, match="damaged"):
        read_model(path)


@pytest.mark.parametrize("name", ["internal_like-cold", "internal_like-warm", "azure_like-cold", "azure_like-warm"])
def test_shipped_rates_are_those_of_the_packaged_scenario_and_keep_its_weeks(name: str) -> None:
    scenario_name, start = name.split("-")
    scenario = scenario_of(scenario_name)
    found = shipped_rates(scenario, start)
    assert found is not None
    assert found == replace(read_rates(SHIPPED / f"{name}.json"))
    guard = found.plan(Task(scenario, scenario.week("s0"), start)).guard
    for week in scenario.weeks:
        risk = Assessor(scenario, scenario.week(week), start, guard=guard).c_hot_r(np.array(found.rates))
        assert risk <= 0.05
        assert risk == pytest.approx(found.calibration["c_hot_r_assessed"][week], abs=1e-9)
    assert shipped_rates(replace(scenario, beta=0.5), start) is None


def test_a_redrawn_week_has_the_requests_of_the_known_ones_and_is_another_one() -> None:
    scenario = scenario_of("internal_like")
    arrivals = arrivals_of(scenario)
    weeks = [unseen_week(arrivals, seed) for seed in range(6)]
    known = [scenario.week(name).requested_cores for name in scenario.weeks]
    assert np.mean([week.requested_cores for week in weeks]) == pytest.approx(np.mean(known), rel=0.05)
    assert len({week.requested_cores for week in weeks}) == 6
    for week in weeks:
        assert np.all(week.departure > week.arrival)
        assert np.all((week.arrival[week.warm :] >= 0) & (week.arrival[week.warm :] < 120))
        assert week.warm in [scenario.week(name).warm for name in scenario.weeks]


def test_a_seed_gives_one_week_and_streams_do_not_meet() -> None:
    arrivals = arrivals_of(scenario_of("azure_like"))
    once, again = unseen_week(arrivals, 3), unseen_week(arrivals, 3)
    assert np.array_equal(once.cores, again.cores)
    other = unseen_week(arrivals, 3, CALIBRATION)
    assert CALIBRATION != EVALUATION
    assert once.requests != other.requests or not np.array_equal(once.cores, other.cores)


def test_redrawn_counts_scatter_as_negative_binomial_ones_of_shape_three() -> None:
    arrivals = arrivals_of(scenario_of("internal_like"))
    counts = []
    for seed in range(30):
        week = unseen_week(arrivals, seed)
        table = np.zeros((120, 12))
        np.add.at(table, (week.arrival[week.warm :], week.subscriber[week.warm :]), 1)
        counts.append(table)
    days = np.array(counts).reshape(150, 24, 12)
    mean, variance = days.mean(axis=0), days.var(axis=0, ddof=1)
    assert (mean**2).sum() / (variance - mean).sum() == pytest.approx(3.0, rel=0.15)


def test_a_shifted_profile_is_another_one_of_the_same_cluster() -> None:
    scenario = scenario_of("internal_like")
    moved = shifted(scenario, 0)
    assert moved.week("s0").requests == scenario.week("s0").requests
    assert not np.allclose(moved.mu, scenario.mu)
    assert np.array_equal(shifted(scenario, 0).mu, moved.mu)
    assert np.allclose(moved.sd / moved.mu, [np.roll(row, 0) for row in moved.sd / moved.mu])


@pytest.mark.exhaustive
def test_calibrated_rates_keep_every_known_week_with_room_to_spare() -> None:
    scenario = scenario_of("azure_like")
    found = calibrate(scenario, start="cold", alpha=0.95, weeks=("s0", "s21"), evaluations=60)
    assert max(found.facts["c_hot_r_assessed"].values()) <= 0.03 + 1e-12
    assert found.facts["held_out"]["passed"] == (found.facts["held_out"]["c_hot_r_upper_95"] <= 0.05)
    assert found.feasible


@pytest.mark.exhaustive
def test_rates_that_redrawn_weeks_refuse_are_raised() -> None:
    scenario = scenario_of("azure_like")
    loose = calibrate(scenario, start="cold", alpha=0.95, weeks=("s0",), evaluations=150, cap=0.9)
    assert loose.facts["raised"] >= 1
    assert loose.facts["held_out"]["c_hot_r_upper_95"] <= 0.05


@pytest.mark.exhaustive
def test_a_shield_is_fitted_with_its_base_and_holds_what_the_base_alone_would_break() -> None:
    scenario = scenario_of("internal_like")
    weeks = ("s0", "s21")
    options: dict[str, Any] = {"start": "warm", "alpha": 0.95, "weeks": weeks, "evaluations": 90}
    found = calibrate(scenario, shield="auto", **options)
    assert found.budget in BUDGETS
    assert found.feasible
    guard = guard_of(scenario, "shield", found.budget)
    risks = [Assessor(scenario, scenario.week(name), "warm", guard=guard).c_hot_r(found.rates) for name in weeks]
    assert risks == pytest.approx([found.facts["c_hot_r_assessed"][name] for name in weeks])
    assert max(risks) <= 0.03
    bare = [Assessor(scenario, scenario.week(name), "warm").c_hot_r(found.rates) for name in weeks]
    assert max(bare) > max(risks)


def test_weeks_drawn_anew_have_names_of_their_own() -> None:
    scenario = scenario_of("azure_like")
    drawn, known = week_named(scenario, "unseen3"), week_named(scenario, "s21")
    assert drawn.name == "unseen3"
    assert drawn.cores.tolist() == unseen_week(arrivals_of(scenario), 3).cores.tolist()
    assert known is scenario.week("s21")
    for wrong in ("unseen", "unseen-1", "s9", "3"):
        with pytest.raises(BadInput, match="choose one of"):
            week_named(scenario, wrong)


def test_networks_begin_as_their_seed_says() -> None:
    scenario = staggered_pair()
    first, again = (network_of(Config(seed=9), scenario).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
