"""The margins of the benchmark of pools: an alarm reserves everything from its hour on, and chances are those drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.learning_pools import (
    ALPHA,
    ANSWERED_H,
    EVALUATION,
    FIRST_DRIFT,
    SEED,
    Answered,
    Met,
    behind,
    chances,
    full_pool,
    met,
    tail,
)
from domain.rules.oversubscription.rates import USUAL_SPREAD, Margin
from domain.rules.oversubscription.usage import moments_of
from simulator.oversubscription.scenario import scenario_of
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task, policy_of
from trainer.oversubscription.unseen import arrivals_of, shifted, unseen_week

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
@pytest.mark.parametrize("margin", [Margin(), Margin(0.0, 2), Margin(0.15, 2), Margin(0.0, 0, USUAL_SPREAD)])
def test_the_assessed_chance_is_the_share_of_the_weeks_that_are_drawn(margin: Margin) -> None:
    scenario = full_pool(INTERNAL)
    week = unseen_week(replace(arrivals_of(INTERNAL), scenario=scenario), 2005, EVALUATION)
    seeds, policy = np.arange(SEED, SEED + 60), behind("ma", margin)
    (assessed,) = met(policy, scenario, [(2005, week)], answered_h=ANSWERED_H).hot
    (drawn,) = met(policy, scenario, [(2005, week)], answered_h=ANSWERED_H, seeds=seeds).hot
    assert drawn == pytest.approx(assessed, abs=0.15)
    # The worst of the known drifts breaks the promise unless there is room for it.
    assert (assessed > 1.0 - ALPHA) is (margin in (Margin(), Margin(0.0, 2)))


@pytest.mark.exhaustive
def test_the_tail_ends_with_the_first_drift_that_breaks_the_promise() -> None:
    scenario = full_pool(INTERNAL)
    week = unseen_week(replace(arrivals_of(INTERNAL), scenario=scenario), 40_000, EVALUATION)
    loose, kept = (tail(policy_of(text), scenario, [(0, week)], 4) for text in ("grid:0.2", "none"))
    assert (loose.complete, loose.broken) == (False, 1)
    assert (kept.complete, kept.drifts, kept.stuck, kept.broken) == (True, 4, 0, 0)
    # Many drifts of one placement are those of one after the other.
    change_h = scenario.hours * 3 // 4
    placed = judge(policy_of("grid:0.4"), Task(scenario, week), episodes=1).placement
    changed = [shifted(scenario, FIRST_DRIFT + n) for n in range(3)]
    known = [moments_of(one.mu, one.sd) for one in changed]
    together = list(chances(placed, scenario, known, change_h))
    np.testing.assert_array_equal(together, [next(chances(placed, scenario, [one], change_h)) for one in known])
