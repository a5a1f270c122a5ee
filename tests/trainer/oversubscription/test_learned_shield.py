"""The shield that a learned policy is to stand behind: as loose as the worst known week allows (§12.4, §12.5)."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.oversubscription.layout import guard_of
from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.weekly import Assessor
from tests.trainer.oversubscription.small import staggered_pair
from trainer.oversubscription.calibration import BUDGETS, REDRAWN, fit_learned_shield, fitting_weeks
from trainer.oversubscription.policies import policy_of
from trainer.oversubscription.unseen import EVALUATION, TRAINING, VALIDATION, arrivals_of, unseen_week

INTERNAL = scenario_of("internal_like")


@pytest.mark.exhaustive
def test_it_is_the_loosest_that_leaves_the_worst_week_three_in_a_hundred() -> None:
    weeks, rates = fitting_weeks(INTERNAL)[:3], np.full(INTERNAL.subscribers, 0.4)
    found = fit_learned_shield(policy_of("grid:0.4"), INTERNAL, weeks, start="cold", alpha=0.95)
    assert found is not None

    def worst(budget: float) -> float:
        guard = guard_of(INTERNAL, "shield", budget)
        return max(Assessor(INTERNAL, week, guard=guard).c_hot_r(rates) for week in weeks)

    assert found.worst == pytest.approx(worst(found.policy.budget), abs=1e-12)
    assert found.worst <= 0.03
    looser = [budget for budget in BUDGETS if budget > found.policy.budget]
    assert looser
    assert all(worst(budget) > 0.03 for budget in looser)
    assert found.as_data()["weeks"] == [week.name for week in weeks]
    assert 0.4 < found.s_cores < 0.6


def test_a_stricter_promise_asks_for_no_looser_a_shield() -> None:
    weeks = fitting_weeks(INTERNAL)[:1]
    budgets = []
    for alpha in (0.75, 0.95):
        found = fit_learned_shield(policy_of("grid:0.4"), INTERNAL, weeks, start="cold", alpha=alpha)
        assert found is not None
        budgets.append(found.policy.budget)
    assert budgets[1] < budgets[0]


def test_where_machines_run_hot_without_overselling_there_is_none() -> None:
    scenario = staggered_pair(sd=0.9)
    found = fit_learned_shield(policy_of("none"), scenario, [scenario.week("s0")], start="cold", alpha=0.95)
    assert found is None


def test_its_weeks_are_the_scenarios_own_and_some_that_nothing_else_looks_at() -> None:
    weeks, arrivals = fitting_weeks(INTERNAL), arrivals_of(INTERNAL)
    assert [week.name for week in weeks[: len(INTERNAL.weeks)]] == list(INTERNAL.weeks)
    fresh = {week.cores.tobytes() for week in weeks[len(INTERNAL.weeks) :]}
    assert len(fresh) == REDRAWN
    for stream in (EVALUATION, TRAINING, VALIDATION):
        assert not fresh & {unseen_week(arrivals, i, stream).cores.tobytes() for i in range(REDRAWN)}
