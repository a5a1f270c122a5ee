"""The rule for each request in the round of a pool: resumed, reserved in full, and judged as the agent runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.oversubscription.rule_model import read_rule
from domain.errors import BadInput
from domain.rules.oversubscription.rates import Margin
from simulator.oversubscription.scenario import scenario_of
from tests.agent.oversubscription.test_request_rule import rule_file
from tests.simulator.oversubscription.cases import write_folder
from trainer.learning.pool_rule import SEEDS, TrainedRule, choice_s, config_of, train_rule
from trainer.learning.round import Budget, BudgetUsed
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import RatesFile, Task, policy_of, scenario_sha256
from trainer.oversubscription.rule_runs import OFFSETS
from trainer.promotion.oversubscription import cost_of, guarded

ROWS = [f"{n},{n % 2},{1 + n % 3},1,0.1,{n % 6},{n % 6 + 3},0" for n in range(24)]
GENERATIONS = 4
SMALL: dict[str, Any] = {"redrawn": 2, "times": 1, "drawn": 2, "population": 4, "validation": 2, "released": 2}


def trained(
    folder: Path, place: str, check: Callable[[], None], opted_out: frozenset[str] = frozenset()
) -> TrainedRule:
    scenario = scenario_of(str(folder / "small.json"))
    known = (scenario.name, scenario_sha256(scenario), "warm", 0.95, scenario.actions, ("a", "b"), (0.6, 0.6))
    config = config_of(str(folder / "small.json"), "warm", 0.95, "cores", SMALL)
    state = folder / place
    return train_rule(
        scenario, config, GENERATIONS, RatesFile("given", *known), opted_out, state, folder / f"{place}.json", check
    )


def test_a_round_that_is_stopped_in_the_search_has_the_same_rule_as_one_that_is_not(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ROWS)
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    def stop() -> None:
        count()
        if calls == GENERATIONS:
            raise BudgetUsed("stopped")

    whole = trained(folder, "whole", count)
    facts = json.loads((tmp_path / "whole.json").read_text())
    # The choice stops between two offsets, the release and its part with drifts between two weeks.
    after = sum(OFFSETS.index(one["offset"]) + 1 for one in facts["choice"]["by_seed"]) + len(facts["release"])
    after += facts["changes"]["weeks"]
    assert calls == GENERATIONS * len(SEEDS) + after
    calls = 0
    with pytest.raises(BudgetUsed):
        trained(folder, "parts", stop)
    assert not (tmp_path / "parts.json").exists()
    calls = 0
    assert trained(folder, "parts", count) == whole
    # The first seed is found in its checkpoint.
    assert calls == GENERATIONS * (len(SEEDS) - 1) + after
    assert read_rule(tmp_path / "parts.json").as_data() == read_rule(tmp_path / "whole.json").as_data()


def test_a_subscriber_that_opted_out_is_reserved_in_full_in_each_week(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ROWS)
    trained(folder, "rule", lambda: None, frozenset({"b"}))
    scenario = scenario_of(str(folder / "small.json"))
    task = Task(scenario, scenario.week("s0"))
    placed = judge(policy_of(str(tmp_path / "rule.json")), task, episodes=1, seed=0).placement
    assert set(placed.rate[placed.week.subscriber == 1].tolist()) == {1.0}


def test_a_rule_is_judged_behind_the_shield_that_the_agent_has_after_it(tmp_path: Path) -> None:
    path = str(rule_file(tmp_path))
    assert guarded(path, 0.003, Margin(spread=2.5)) == f"shield:base=({path}),b=0.003,spread=2.5"
    assert guarded(path, 0.01) == f"shield:base=({path}),b=0.01"
    assert policy_of(guarded(path, 0.003, Margin(spread=2.5))).name.startswith("shield:")
    # That of its file, which there is no usual room for drifts beside.
    fitted = str(rule_file(tmp_path, guard={"kind": "shield", "budget": 0.02}))
    assert guarded(fitted, 0.003, Margin(spread=2.5)) == f"shield:base=({fitted}),b=0.003,spread=2.5"
    assert guarded(fitted, 0.003) == f"shield:base=({fitted}),b=0.02"
    with pytest.raises(BadInput):
        guarded(str(tmp_path / "none.json"), 0.003)


def test_costs_are_shares_of_cores_of_core_hours_and_of_machines(tmp_path: Path) -> None:
    rows = ["0,0,5,1,0.1,0,6,0", "1,0,5,1,0.1,0,6,0", "2,0,10,1,0.1,3,4,0"]
    scenario = scenario_of(str(write_folder(tmp_path, rows)))
    judged = judge(policy_of("rates:0.5,1"), Task(scenario, scenario.week("s0")), episodes=1, seed=0)
    assert cost_of(judged, "cores") == cost_of(judged, "core-hours") == pytest.approx(0.5)
    # One machine of four in use, in each hour and at most.
    assert cost_of(judged, "machines") == pytest.approx(0.25)
    full = judge(policy_of("none"), Task(scenario, scenario.week("s0")), episodes=1, seed=0)
    assert cost_of(full, "machines") == pytest.approx((2 + (6 + 1) / 6) / 8)


def test_a_tight_budget_is_spent_on_the_search_after_choice_and_release_have_their_part() -> None:
    budget, config = Budget(100.0), config_of("internal_like", "warm", 0.95, "cores", {})
    each_s, reserved_s = 2.0, choice_s(0.001, config, 4)
    # 16 redrawn weeks and 4 known ones with a thousand episodes each are most of it.
    assert 20.0 < reserved_s < 30.0
    assert budget.affordable(each_s, (6, 58)) - budget.affordable(each_s, (6, 58), reserved_s) in range(10, 16)
    assert budget.affordable(each_s, (6, 58), 100.0) == 6
