"""Policies and the command: texts, baselines on the reference weeks, the search, guards, output (B1)."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from domain.errors import BadInput
from domain.rules.oversubscription.usage import drifted_means
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import DAY_BEFORE_H, peak_log
from simulator.oversubscription.weekly import Assessor, Placement
from tests.simulator.oversubscription.cases import invented, small, write_folder
from trainer.oversubscription.episodes import Performance, judge
from trainer.oversubscription.policies import Task, as_rates, policy_of
from trainer.oversubscription.search import Rule, optimise

INTERNAL, AZURE = scenario_of("internal_like"), scenario_of("azure_like")


def judged(
    text: str, scenario: str = "internal_like", start: str = "cold", episodes: int = 40, usage: str = "gauss"
) -> Performance:
    cluster = scenario_of(scenario)
    return judge(policy_of(text), Task(cluster, cluster.week("s0"), start), usage=usage, episodes=episodes)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "internal", "azure"),
    [("ma", (0.469, 64, 0.0), (0.097, 56, 0.008)), ("sl", (0.460, 64, 0.0), (0.097, 56, 0.009))],
)
def test_peak_baselines_save_what_was_measured_independently(
    text: str, internal: tuple[float, int, float], azure: tuple[float, int, float]
) -> None:
    for name, (saved, machines, risk) in (("internal_like", internal), ("azure_like", azure)):
        answer = judged(text, name)
        assert answer.s_cores == pytest.approx(saved, abs=0.01)
        assert answer.peak_machines == pytest.approx(machines, abs=1)
        assert answer.as_data()["c_hot_r_analytic"] == pytest.approx(risk, abs=0.005)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "scenario", "start", "safe_at"),
    [
        *(("grid:0.2", "internal_like", "cold", 0.0), ("grid:0.4", "internal_like", "cold", 0.0)),
        *(("grid:0.6", "internal_like", start, 0.95) for start in ("cold", "warm")),
        *((text, "internal_like", "warm", 0.95) for text in ("ma", "sl")),
        *((f"grid:{rate}", "azure_like", "cold", 0.0) for rate in (0.2, 0.4, 0.6)),
        *((text, "azure_like", start, 0.95) for text in ("none", "ma", "sl") for start in ("cold", "warm")),
    ],
)
def test_the_same_baselines_are_safe_as_published(text: str, scenario: str, start: str, safe_at: float) -> None:
    figures = judged(text, scenario, start).as_data()
    if safe_at:
        assert figures["c_hot_r"] <= 1.0 - safe_at
        assert figures["c_hot_r_analytic"] <= 1.0 - safe_at
    else:
        assert figures["c_hot_r"] >= 0.99


def test_the_log_has_the_day_before_and_peaks_only_where_there_are_vms(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,2,8,0.25,2,4,0", "2,1,2,8,0.25,-3,1,1"])
    log = peak_log(scenario, week)
    known = ~np.isnan(log)
    assert log.shape == (2, DAY_BEFORE_H + 6)
    assert known[0].nonzero()[0].tolist() == [26, 27]
    assert known[1].nonzero()[0].tolist() == [21, 22, 23, 24]
    assert log[known].min() >= 0.0
    assert log[known].max() <= 1.0
    assert np.array_equal(log, peak_log(scenario, week), equal_nan=True)
    assert np.isnan(peak_log(scenario, week, 5)).tolist() == (~known).tolist()


def test_subscribers_without_a_log_are_not_oversold(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,2,8,0.25,2,4,0"])
    rates = policy_of("ma").plan(Task(scenario, week)).schedule
    assert rates is not None
    assert (rates[:, 1] == 1.0).all()
    assert (rates[:3, 0] == 1.0).all()
    assert (rates[3:, 0] < 1.0).all()


def test_the_search_finds_what_trying_everything_finds() -> None:
    for seed in range(4):
        scenario, week = invented(seed, requests=160, machines=12)
        assessor = Assessor(scenario, week)
        asked = week.cores[week.warm :]
        share = np.array([asked[week.subscriber[week.warm :] == n].sum() for n in range(3)]) / asked.sum()
        best = 0.0
        for levels in itertools.product(scenario.actions, repeat=3):
            if assessor.c_hot_r(np.array(levels)) <= 0.25 and assessor.rejects() == 0:
                best = max(best, float(1.0 - share @ levels))
        found = optimise([assessor], 0.75)
        assert found.s_cores == pytest.approx(best, abs=1e-12)
        assert found.evaluations <= 27
        assert not found.feasible or found.risk <= 0.25


def test_of_several_weeks_the_worst_has_to_be_safe() -> None:
    assessors = [Assessor(AZURE, AZURE.week(name)) for name in ("s0", "s21")]
    found = optimise(assessors, 0.95, cap=0.03, evaluations=150)
    assert found.feasible
    assert found.risk == max(assessor.c_hot_r(found.rates) for assessor in assessors)
    assert found.risk <= 0.03
    assert found.s_cores > 0.08


@pytest.mark.exhaustive
def test_markovs_bound_is_too_strict_inside_and_cannot_be_kept_by_the_other_cluster() -> None:
    """Reference: 48.4 % against 53.5 % internally, infeasible in the azure-like week (specification §8)."""
    inside, outside = (Assessor(scenario, scenario.week("s0")) for scenario in (INTERNAL, AZURE))
    strict = optimise([inside], 0.95, evaluations=400, rule=Rule(bound="markov"))
    usual = optimise([inside], 0.95, evaluations=400)
    assert strict.risk == pytest.approx(inside.assess(strict.rates).expected_hot_hours / 3.0)
    assert strict.risk <= 0.05
    assert inside.c_hot_r(strict.rates) < 0.01
    assert strict.s_cores == pytest.approx(0.484, abs=0.02)
    assert usual.s_cores > strict.s_cores + 0.02
    assert optimise([outside], 0.95, evaluations=50, rule=Rule(bound="markov")).feasible is False


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", [Rule(step=0.05), Rule(block_h=6)])
def test_finer_rates_save_no_less_than_those_they_begin_from(rule: Rule) -> None:
    assessor = Assessor(AZURE, AZURE.week("s0"))
    coarse, fine = optimise([assessor], 0.95, evaluations=75), optimise([assessor], 0.95, evaluations=150, rule=rule)
    assert fine.s_cores >= coarse.s_cores - 1e-12
    assert fine.risk <= 0.05
    assert np.allclose(fine.rates / 0.05, np.round(fine.rates / 0.05))
    task = Task(AZURE, AZURE.week("s0"))
    schedule = policy_of(as_rates(fine.rates)).plan(task).schedule
    assert schedule is not None
    placed = assessor.assess(schedule)
    assert placed.c_hot_r == pytest.approx(fine.risk, abs=1e-12)
    assert placed.placement.s_cores == pytest.approx(fine.s_cores, abs=1e-12)


def test_rates_by_block_of_the_day_hold_from_midnight_on() -> None:
    schedule = policy_of("rates:0.2;0.4;0.6;1").plan(Task(AZURE, AZURE.week("s0"))).schedule
    assert schedule is not None
    assert schedule[[0, 5, 6, 12, 18, 23, 24, 119], 3].tolist() == [0.2, 0.2, 0.4, 0.6, 1.0, 1.0, 0.2, 1.0]


def test_without_safe_rates_nothing_is_oversold(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,1,10,8,1,0,6,0"], delta_count=1, profile=["0,0,0.2,0.1", "1,0,0.9,0.1"])
    found = optimise([Assessor(scenario, week)], 0.95)
    assert (found.feasible, found.rates.tolist()) == (False, [1.0, 1.0])


def test_a_shield_makes_a_loose_base_safer_and_counts_its_interventions() -> None:
    bare, shielded = judged("grid:0.4"), judged("shield:base=grid:0.4,b=0.001")
    assert shielded.placement.raised > 0
    assert bare.s_cores is not None
    assert shielded.s_cores is not None
    assert shielded.s_cores < bare.s_cores
    assert shielded.sampled.hot_hours.mean() < 0.1 * bare.sampled.hot_hours.mean()


@pytest.mark.parametrize(("level", "turn_h"), [(0.25, 0), (0.0, 2), (0.25, 2)])
def test_a_margin_places_as_if_usage_had_risen_and_turned_already(level: float, turn_h: int) -> None:
    # With little spread, far from 0 and 1, the moments of a risen profile are those of the profile with a risen mean.
    day = 0.3 + 0.1 * np.sin((np.arange(24) + 4.0 * np.arange(12)[:, None]) * np.pi / 12.0)
    calm = replace(INTERNAL, mu=day, sd=np.full_like(day, 0.03), _weeks={})
    reached = np.max([np.roll(day, step, axis=1) for step in range(-turn_h, turn_h + 1)], axis=0)
    risen = replace(calm, mu=(1.0 + level) * reached, _weeks={})
    week = INTERNAL.week("s0")
    margin = policy_of(f"shield:base=grid:0.4,b=0.003,level={level},turn_h={turn_h}")
    found = judge(margin, Task(calm, week), episodes=1).placement
    known = judge(policy_of("shield:base=grid:0.4,b=0.003"), Task(risen, week), episodes=1).placement
    np.testing.assert_array_equal(found.rate, known.rate)
    assert (
        found.raised > judge(policy_of("shield:base=grid:0.4,b=0.003"), Task(calm, week), episodes=1).placement.raised
    )


def test_a_margin_for_usual_drifts_is_that_of_the_subscriber_on_a_machine_of_one_and_less_on_a_mixed_one() -> None:
    day = np.tile(0.3 + 0.1 * np.sin(np.arange(24) * np.pi / 12.0), (12, 1))
    calm = replace(INTERNAL, mu=day, sd=np.full_like(day, 0.03), _weeks={})
    moved, spread = drifted_means(day)
    risen = replace(calm, mu=day + moved + 2.0 * spread, _weeks={})

    def raised(scenario: Scenario, week: Week, margin: str) -> Placement:
        return judge(policy_of(f"shield:base=grid:0.4,b=0.003{margin}"), Task(scenario, week), episodes=1).placement

    mixed = INTERNAL.week("s0")
    alone = replace(mixed, subscriber=np.zeros_like(mixed.subscriber))
    found, known = raised(calm, alone, ",spread=2"), raised(risen, alone, "")
    np.testing.assert_array_equal(found.rate, known.rate)
    assert raised(calm, mixed, "").raised < raised(calm, mixed, ",spread=2").raised < raised(risen, mixed, "").raised


def test_a_filter_saves_by_construction_and_uses_fewer_machines_than_reservation() -> None:
    answer = judged("filter:rate=0.2,b=0.003")
    assert answer.s_cores == pytest.approx(0.8, abs=1e-6)
    assert answer.peak_machines < judged("none").peak_machines
    assert answer.as_data()["c_hot_r_analytic"] <= 0.1


@pytest.mark.exhaustive
def test_knowing_each_vms_own_level_saves_machines_at_low_risk() -> None:
    prior = judged("filter:rate=0.2,b=0.003", usage="persistent", episodes=12)
    known = judged("filter:rate=0.2,b=0.003,posterior=true", usage="persistent", episodes=12)
    assert known.peak_machines < prior.peak_machines - 3
    assert known.sampled.violations <= 1
    assert known.as_data()["c_hot_r_analytic"] is None


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "grid",
            "grid:0",
            "grid:1.2",
            "grid:0.2,0.3",
            "rates:0.2,x",
            "rates:0.2;0.2,1",
            "ma:1",
            "none:2",
            "greedy",
            "model.onnx",
        ),
        *("rates:1;1;1;1;1", "static:bound=hope", "static:step=0.3", "static:block_h=5"),
        *("static:alpha=2", "static:cap=0", "static:evaluations=0.5", "static:speed=1", "shield:base=none,b=-1"),
        *("shield:level=-1", "shield:level=2.1", "shield:turn_h=13", "shield:turn_h=0.5", "shield:spread=7"),
        *("filter:base=none", "filter:posterior=perhaps", "filter:psi=1,posterior=true", "shield:base=nobody"),
    ],
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        policy_of(text).plan(Task(INTERNAL, INTERNAL.week("s0")))


def test_rates_must_be_one_for_each_subscriber() -> None:
    with pytest.raises(BadInput, match="12 subscribers"):
        judged("rates:0.4,0.5")
    twelve = ",".join(["0.5", "0.7"] * 6)
    plan = policy_of(f"shield:base=(rates:{twelve}),b=0.01").plan(Task(INTERNAL, INTERNAL.week("s0")))
    assert plan.schedule is not None
    assert plan.schedule[0].tolist() == [0.5, 0.7] * 6


def run(*arguments: str) -> str:
    answer = CliRunner().invoke(app, ["simulate", "oversubscription", *arguments])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_the_command_prints_the_figures_as_json() -> None:
    arguments = ("--policy", "grid:0.5", "--episodes", "50", "--json")
    figures = json.loads(run(*arguments))
    assert figures["s_cores"] == pytest.approx(0.5, abs=1e-12)
    assert (figures["peak_machines"], figures["rejects"], figures["episodes"]) == (59, 0, 50)
    assert 0.0 <= figures["pm_hot_r"] <= figures["c_hot_r"] <= figures["c_hot_r_upper_95"] <= 1.0
    assert figures["s_core_hours"] == pytest.approx(0.5)
    assert figures["c_hot_r_analytic"] == pytest.approx(0.0996, abs=5e-4)
    assert json.loads(run(*arguments)) == figures


def test_the_command_plays_a_folder_and_writes_hours_and_a_picture(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ["1,0,4,8,1,0,3,0", "2,1,6,8,1,2,5,0"])
    hours, picture = tmp_path / "hours.csv", tmp_path / "week.svg"
    words = run("--scenario", str(folder), "--policy", "rates:0.5,1", "--steps", str(hours), "--plot", str(picture))
    assert "20.0% of 10" in words
    rows = list(csv.DictReader(hours.read_text().splitlines()))
    assert [row["machines_used"] for row in rows] == ["1", "1", "1", "1", "1", "0"]
    assert [float(row["cores_reserved"]) for row in rows] == [2.0, 2.0, 8.0, 6.0, 6.0, 0.0]
    assert picture.read_text().startswith("<?xml")


def test_a_folder_without_requests_saves_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, [])
    figures = json.loads(run("--scenario", str(folder), "--policy", "none", "--json"))
    assert (figures["s_cores"], figures["s_core_hours"], figures["c_hot_r"]) == (None, None, 0.0)
    assert "nothing was requested" in run("--scenario", str(folder), "--policy", "none")


@pytest.mark.parametrize(
    "arguments", [("--alpha", "1"), ("--start", "hot"), ("--week", "s1"), ("--plot", "x.gif"), ("--usage", "none")]
)
def test_the_command_refuses_what_makes_no_sense(arguments: tuple[str, str]) -> None:
    answer = CliRunner().invoke(app, ["simulate", "oversubscription", *arguments])
    assert answer.exit_code != 0
