"""The margins of the benchmark of pools: an alarm reserves everything from its hour on, and chances are those drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.learning_pools import ALPHA, EVALUATION, SEED, Answered, Met, behind, full_pool, met
from domain.rules.oversubscription.rates import Margin
from simulator.oversubscription.scenario import scenario_of
from trainer.oversubscription.policies import Task, policy_of
from trainer.oversubscription.unseen import arrivals_of, unseen_week

INTERNAL = scenario_of("internal_like")


def test_an_alarm_reserves_everything_from_its_hour_on_and_nothing_before() -> None:
    plan = Answered(policy_of("grid:0.4"), 66).plan(Task(INTERNAL, INTERNAL.week("s0")))
    assert plan.schedule is not None
    assert set(plan.schedule[:66].ravel()) == {0.4}
    assert set(plan.schedule[66:].ravel()) == {1.0}


def test_weeks_that_nothing_helps_are_left_out_of_the_count() -> None:
    found = Met([0.0, 0.04, 0.06, 1.0], [])
    assert found.broken([False] * 4) == 2
    assert found.broken([False] * 4, 0.6) == 3
    assert found.broken([False, False, False, True]) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("margin", [Margin(), Margin(0.0, 2), Margin(0.15, 2)])
def test_the_assessed_chance_is_the_share_of_the_weeks_that_are_drawn(margin: Margin) -> None:
    scenario = full_pool(INTERNAL)
    week = unseen_week(replace(arrivals_of(INTERNAL), scenario=scenario), 2005, EVALUATION)
    seeds, policy = np.arange(SEED, SEED + 60), behind("ma", margin)
    (assessed,) = met(policy, scenario, [(2005, week)], answered_h=12).hot
    (drawn,) = met(policy, scenario, [(2005, week)], answered_h=12, seeds=seeds).hot
    assert drawn == pytest.approx(assessed, abs=0.15)
    # The worst of the known drifts breaks the promise unless there is room for it.
    assert (assessed > 1.0 - ALPHA) is (margin.level == 0.0)
