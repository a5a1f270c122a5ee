"""The search for the rule of a request: its steps, score, choice, release, file and command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.oversubscription.rule_model import read_rule
from domain.errors import BadInput
from domain.rules.oversubscription.request_rule import NEUTRAL, RequestRule
from simulator.oversubscription.layout import unguarded
from simulator.oversubscription.scenario import scenario_of
from tests.trainer.oversubscription.test_commands import call
from trainer.commands.oversubscription import SimulateOversubscription
from trainer.kit.checkpoint import Checkpoints
from trainer.kit.progress import Progress
from trainer.oversubscription import rule_runs
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.evolution import LARGEST_STEP, Evolution
from trainer.oversubscription.policies import FORMS, SHIPPED, Task, policy_of, scenario_sha256
from trainer.oversubscription.rule_runs import OFFSETS, choose, released, through_changes
from trainer.oversubscription.rule_training import (
    Change,
    Config,
    Played,
    Stage,
    change_of,
    decoded,
    first_point,
    raised,
    score_of,
    start_rates,
    train,
)

INTERNAL = scenario_of("internal_like")
TINY = Config(weeks=("s0",), redrawn=0, drawn=1, population=4, generations=(2, 2), validation=0, released=1)


def steady(rate: float) -> RequestRule:
    return RequestRule(np.full(INTERNAL.subscribers, rate), np.zeros(0), np.zeros(4), NEUTRAL)


def test_the_search_finds_the_top_of_a_stretched_hill() -> None:
    top, scale = np.linspace(-1.0, 1.0, 6), np.logspace(0.0, 1.0, 6)
    search = Evolution(np.zeros(6), 0.1, 12, (3,))
    for _ in range(250):
        points = search.ask()
        search.tell(points, -(((points - top) * scale) ** 2).sum(axis=1))
    assert search.centre == pytest.approx(top, abs=1e-3)


def test_points_come_in_mirrored_pairs_and_the_step_has_a_cap() -> None:
    search = Evolution(np.ones(5), 0.1, 8, (0,))
    steps = []
    for _ in range(40):
        points = search.ask()
        assert points.mean(axis=0) == pytest.approx(search.centre)
        search.tell(points, points.sum(axis=1))
        steps.append(search.step)
    assert max(steps) == LARGEST_STEP


def test_a_point_is_decoded_as_the_recipe_has_it() -> None:
    rule = decoded(first_point(np.array([0.4, 0.6]), weekly=True), 2)
    assert rule.base.tolist() == [0.4, 0.6]
    assert (rule.week.size, rule.day.size) == (7, 4)
    assert rule.weights == pytest.approx((3.0, 0.5, 0.2, 1.0, 0.05, -0.05))
    assert decoded(first_point(np.array([0.4, 0.6]), weekly=False), 2).week.size == 0


def test_the_hour_of_the_week_is_interpolated_and_the_day_has_two_waves() -> None:
    week, day = np.array([0.0, 0.24, 0.0, 0.0, 0.0, 0.0, 0.5]), np.array([1.0, 0.0, 0.0, 2.0])
    rule = RequestRule(np.array([0.1]), week, day, NEUTRAL)
    wanted = rule.wanted([0, 6, 12, 119])[:, 0]
    angle = 2.0 * np.pi * 23 / 24
    late = 0.1 + 0.5 + np.cos(angle) + 2.0 * np.sin(2.0 * angle)
    assert wanted == pytest.approx([1.1, 0.1 + 0.06, 0.1 + 0.12 - 1.0, late])


def test_the_score_charges_mean_and_worst_risk_above_their_limits() -> None:
    nothing = np.zeros(2)
    saved = (np.array([0.5, 0.6]), np.array([0.4, 0.4]), nothing, nothing, np.array([0.1, 0.3]))
    played = Played(*saved, np.array([0.01, 0.06]))
    over, same = 3.0 * 0.02 + 0.02 + 0.3 * 0.035, np.full(2, np.nan)
    assert score_of(played, Config(), same) == pytest.approx(100.0 * (0.55 - over))
    assert score_of(played, Config(objective="core-hours"), same) == pytest.approx(100.0 * (0.40 - over))
    assert score_of(played, Config(objective="machines"), same) == pytest.approx(100.0 * (0.20 - over))
    # The second week's usage changes: 30 % of the risk of the rates is free, and it is not the worst week.
    changed = np.array([np.nan, 0.1])
    assert score_of(played, Config(), changed) == pytest.approx(100.0 * (0.55 - 8.0 * 0.03 / 2 - 0.3 * 0.035))


def test_a_known_drift_moves_what_the_policy_sees_and_an_unknown_one_only_the_risk() -> None:
    week, rate = INTERNAL.week("s0"), steady(0.5)
    after = replace(INTERNAL, mu=np.minimum(1.5 * INTERNAL.mu, 1.0), _weeks={})
    changes = [None, Change(after, unknown=True), Change(after, unknown=False)]
    same, unknown, known = (Stage(INTERNAL, [week], "cold", [one]) for one in changes)
    for one in (same, unknown, known):
        one.play(rate)
    # Until the middle of the week nothing has changed.
    by_hour = [one.assessors[0].assess(np.ones(INTERNAL.subscribers)).by_hour for one in (same, unknown, known)]
    half = INTERNAL.hours // 2
    assert np.array_equal(by_hour[0][:half], by_hour[1][:half])
    assert (by_hour[1][half:] > by_hour[0][half:]).any()
    assert (by_hour[2][:half] > by_hour[0][:half]).any()
    watchful = replace(rate, weights=NEUTRAL._replace(margin=2.0))
    cores = [float(one.play(watchful).cores[0]) for one in (same, unknown, known)]
    assert cores[0] == cores[1] > cores[2]


def test_half_of_the_redrawn_weeks_of_a_training_with_drifts_have_one() -> None:
    kinds = [change_of(INTERNAL, number) for number in range(4)]
    assert [one and one.unknown for one in kinds] == [None, None, True, False]
    drawn = replace(TINY, redrawn=4, drawn=5)
    assert train(replace(drawn, drifts=True)).point.tolist() != train(drawn).point.tolist()


def test_through_changes_a_rule_may_not_be_worse_than_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    config, rates = replace(TINY, released=2), start_rates(INTERNAL, TINY)
    facts = through_changes(INTERNAL, config, steady(1.0), rates)
    assert (facts["weeks"], facts["released"]) == (2, True)
    assert facts["mean"] <= facts["rates_mean"]
    # Without a shield in between a rate of 0.2 for all is hot, and the full reservation is not.
    monkeypatch.setattr(rule_runs, "usual_shield", unguarded)
    facts = through_changes(INTERNAL, config, steady(0.2), replace(rates, rates=(1.0,) * INTERNAL.subscribers))
    assert (facts["mean"] > 0.99, facts["rates_mean"] < 0.01, facts["released"]) == (True, True, False)
    # As bad as its rates is enough.
    facts = through_changes(INTERNAL, config, steady(0.2), replace(rates, rates=(0.2,) * INTERNAL.subscribers))
    assert (facts["rates_mean"], facts["released"]) == (facts["mean"], True)


def test_a_training_that_was_stopped_ends_with_the_same_rule(tmp_path: Path) -> None:
    whole = train(TINY)

    def stop(progress: Progress) -> None:
        if progress.update == stopped:
            raise KeyboardInterrupt

    for stopped in (1, 2, 3):
        checkpoints = Checkpoints(tmp_path / str(stopped))
        with pytest.raises(KeyboardInterrupt):
            train(TINY, checkpoints=checkpoints, on_progress=stop)
        assert train(TINY, checkpoints=checkpoints).point.tolist() == whole.point.tolist()


def test_a_week_with_a_rejected_request_counts_as_broken() -> None:
    few = replace(INTERNAL, machines=40)
    played = Stage(few, [few.week("s0")], "cold").play(steady(1.0))
    assert played.risk.tolist() == [1.0]


def test_the_choice_raises_each_seed_until_it_is_safe_and_takes_the_largest_saving() -> None:
    safe, safer, daring = steady(0.6), steady(1.0), steady(0.3)
    place, facts = choose(INTERNAL, TINY, [safer, safe])
    assert (place, facts["offset"], facts["passed"]) == (1, 0.0, True)
    # From above 0.5 on the next level is 0.6, which is safe; 0.5 is hot in 10 % of the weeks.
    place, facts = choose(INTERNAL, TINY, [safer, daring])
    assert (place, facts["offset"], facts["passed"]) == (1, 0.21, True)
    assert [one["offset"] for one in facts["by_seed"]] == [0.0, 0.21]
    before = OFFSETS[OFFSETS.index(facts["offset"]) - 1]
    assert Stage(INTERNAL, [INTERNAL.week("s0")], "cold").play(raised(daring, before)).risk[0] > 0.045


def test_a_rule_is_released_only_where_every_week_keeps_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_runs, "RELEASE_EPISODES", 60)
    assert [week["released"] for week in released(INTERNAL, TINY, steady(0.6))] == [True, True]
    assert [week["released"] for week in released(INTERNAL, TINY, steady(0.3))] == [False, False]


def test_the_command_writes_a_rule_that_the_simulator_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_runs, "RELEASE_EPISODES", 60)
    given = {"redrawn": 0, "drawn": 1, "population": 4, "generations": "1+1", "validation": 0, "released": 1}
    settings = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    words = ("train", "oversubscription", "--preset", "machine", "--weeks", "s0", "--objective", "core-hours")
    found = call(*words, *settings, "--out", str(tmp_path))
    assert found["config"]["objective"] == "core-hours"
    path = tmp_path / found["rule"]
    known = found["release"][-1]
    played = call("simulate", "oversubscription", "--policy", str(path), "--episodes", "20")
    same = ("s_cores", "s_core_hours", "c_hot_r_analytic", "peak_machines")
    assert {name: played[name] for name in same} == {name: known[name] for name in same}
    # Means of levels that the rule took, by subscriber.
    assert all(0.2 <= rate <= 1.0 for rate in played["mean_rates"])
    assert 1.0 - known["s_cores"] == pytest.approx(np.mean(played["mean_rates"]), abs=0.1)
    behind = judge(policy_of(f"shield:base={path},b=1e-6"), Task(INTERNAL, INTERNAL.week("s0")), episodes=1)
    assert behind.placement.raised > 0
    assert behind.chance is not None
    assert behind.chance < played["c_hot_r_analytic"]


def rule_data() -> dict[str, Any]:
    rates = [0.5] * 12
    return {
        "kind": "oversubscription-rule",
        "version": 1,
        "objective": "cores",
        "weekly": False,
        "alpha": 0.95,
        "subscribers": [str(n) for n in range(12)],
        "actions": list(INTERNAL.actions),
        "base": rates,
        "week": [],
        "day": [0.0] * 4,
        "weights": NEUTRAL._asdict(),
        "rates": rates,
        "guard": None,
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version"),
        ({"base": [0.5] * 11}, "a base and a rate"),
        ({"base": [float("nan")] * 12}, "finite"),
        ({"weights": {"spread": 1.0}}, "train it again"),
        ({"subscribers": ["a"] * 12}, "each subscriber once"),
        ({"rates": [1.5] * 12}, "up to 1"),
        ({"actions": [0.5, 0.4, 1.0]}, "rising"),
        ({"week": [0.0] * 3}, "0 or 7"),
        ({"objective": "money"}, "core-hours"),
        ({"alpha": 95}, "alpha between"),
    ],
)
def test_a_damaged_rule_file_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(rule_data() | change))
    with pytest.raises(BadInput, match=named):
        read_rule(path)


def test_a_rule_of_another_scenario_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(rule_data()))
    azure = scenario_of("azure_like")
    assert policy_of(str(path)).plan(Task(INTERNAL, INTERNAL.week("s0"))).guard is not None
    with pytest.raises(BadInput, match="12 subscribers"):
        policy_of(str(path)).plan(Task(azure, azure.week("s0")))


@pytest.mark.parametrize(
    "change",
    [{"population": 5}, {"generations": (3,)}, {"objective": "money"}, {"aim": 1.0}, {"times": 0}, {"released": 0}],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(change)) if "times" not in change else "redrawn"):
        replace(TINY, **change)


RULES = sorted((SHIPPED / "rules").glob("*.json"))


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_a_bundled_rule_was_released_and_places_a_week_as_it_did_then(path: Path) -> None:
    held = json.loads(path.read_text())
    scenario = scenario_of(held["scenario"])
    assert held["scenario_sha256"] == scenario_sha256(scenario)
    assert path.stem == f"{held['scenario']}-{held['start']}-{held['objective']}"
    config = held["training"]["config"]
    assert (config["objective"], config["weekly"]) == (held["objective"], bool(held["week"]))
    # A pool has no end of the week: it takes rules for core-hours and machines.
    assert held["weekly"] == (held["objective"] == "cores")
    assert len(held["release"]) >= 20
    assert all(max(week["c_hot_r"], week["c_hot_r_analytic"]) <= 0.05 for week in held["release"])
    (known,) = [week for week in held["release"] if week["week"] == "s0"]
    task = Task(scenario, scenario.week("s0"), held["start"])
    played = judge(policy_of(f"machine:{held['objective']}"), task, episodes=1)
    assert played.s_cores == pytest.approx(known["s_cores"], abs=1e-9)
    assert played.chance == pytest.approx(known["c_hot_r_analytic"], abs=1e-9)


@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize("name", ["internal_like", "azure_like"])
def test_every_rule_that_help_names_is_bundled(name: str, start: str) -> None:
    named = set(re.findall(r"machine:[a-z-]+", " ".join([*FORMS, SimulateOversubscription.EPILOG])))
    assert named
    scenario = scenario_of(name)
    for text in named:
        policy_of(text).plan(Task(scenario, scenario.week("s0"), start))


def test_an_objective_without_a_bundled_rule_is_refused() -> None:
    task = Task(replace(INTERNAL, name="mine"), INTERNAL.week("s0"))
    with pytest.raises(BadInput, match="there are"):
        policy_of("machine:cores").plan(task)
