"""The rolling plan: it packs like the exact program, waits where that is worth it, and gives up after its budget."""

from __future__ import annotations

import importlib.util
import sys
import time

import numpy as np
import pytest

from agent.deferral.rolling import LARGEST_PLAN, RollingPlan, check_available, solve
from domain.errors import BadInput
from domain.rules.deferral.choosing import Policy, View
from domain.rules.deferral.forecast import History, fit
from domain.rules.deferral.jobs import jobs_of, objective
from domain.rules.deferral.rolling import program
from simulator.deferral.scenarios import SCENARIOS, TRAINING_SEED, Episode, episode
from simulator.deferral.world import World, play
from trainer.deferral.exact import violations_of
from trainer.deferral.policies import forecast_paths, persistence


def _first(jobs: list[tuple[int, int, int, int, int]], capacity: list[int]) -> View:
    return World(Episode(jobs_of(jobs), np.array(capacity, dtype=np.int64), 0)).view()


def _certain(plan: RollingPlan) -> Policy:
    def policy(view: View) -> np.ndarray:
        chosen = plan(view)
        assert chosen is not None
        return chosen

    return policy


def test_it_waits_for_a_better_job_that_is_known() -> None:
    """One core, twelve steps: the job of now would hold it while one that earns four times as much has to start."""
    view = _first([(1, 3, 0, 0, 0), (1, 12, 1, 1, 0)], [1] * 13)
    chosen = RollingPlan(persistence)(view)
    assert chosen is not None
    assert chosen.size == 0
    alone = RollingPlan(persistence, steps=1)(view)
    assert alone is not None
    assert alone.tolist() == [0]


def test_a_job_does_not_start_into_a_fall_of_capacity() -> None:
    """The charge for two core-steps, 20, is more than the 6 it earns; what ends before starts."""
    view = _first([(1, 1, 0, 0, 0), (2, 3, 0, 0, 0)], [3, 3, 3])
    plan = RollingPlan(lambda _, steps: np.zeros(steps), steps=3)(view)
    assert plan is not None
    assert plan.tolist() == [0]


def test_the_plan_says_when_each_known_job_is_expected_to_start() -> None:
    view = _first([(1, 2, 0, 3, 0), (1, 5, 0, 0, 0), (1, 1, 6, 6, 0)], [1] * 8)
    plan = RollingPlan(persistence, steps=8).plan(view)
    assert plan is not None
    assert dict(zip(plan.known.tolist(), plan.start.tolist(), strict=True)) == {0: -1, 1: 0, 2: 6}
    assert plan.chosen.tolist() == [1]


def test_without_time_there_is_no_answer() -> None:
    week = episode("dur1", 0)
    assert solve(program(week.jobs, week.capacity), budget_s=1e-4) is None
    draw = np.random.default_rng(0)
    crowd = [(int(draw.integers(3, 98)), int(draw.integers(1, 7)), 0, 6, 0) for _ in range(300)]
    assert RollingPlan(persistence, budget_s=1e-4)(_first(crowd, [211] * 10)) is None


def test_more_jobs_than_the_solver_can_stop_in_time_are_not_planned() -> None:
    crowd = [(1, 1, 0, 6, 0)] * (LARGEST_PLAN + 1)
    began = time.thread_time()
    assert RollingPlan(persistence, budget_s=5.0)(_first(crowd, [2000] * 10)) is None
    assert time.thread_time() - began < 1.0
    assert RollingPlan(persistence, budget_s=60.0)(_first(crowd[1:], [2000] * 10)) is not None


def test_waiting_does_not_count_against_the_budget() -> None:
    def awaited(view: View, steps: int) -> np.ndarray:
        time.sleep(0.3)
        return persistence(view, steps)

    chosen = RollingPlan(awaited, budget_s=0.2)(_first([(1, 1, 0, 0, 0)], [1, 1]))
    assert chosen is not None
    assert chosen.tolist() == [0]


def test_without_room_nothing_is_planned() -> None:
    view = _first([(2, 1, 0, 3, 0)], [1, 9, 9, 9])
    chosen = RollingPlan(persistence, budget_s=1e-9)(view)
    assert chosen is not None
    assert chosen.size == 0


def test_a_whole_day_breaks_no_rule_and_beats_persistence_before_a_drop() -> None:
    """A day and more of `sched_drop`, with a forecast of other weeks: less is above the capacity, more is earned."""
    drops = SCENARIOS["sched_drop"].model_copy(update={"steps": 30, "drop_p": 1.0})
    weeks = [episode("sched_drop", TRAINING_SEED + k) for k in range(8)]
    known = fit([History(week.start_h, week.capacity) for week in weeks])
    found = {}
    for name, paths in (("forecast", forecast_paths(known)), ("persistence", persistence)):
        scores = []
        for seed in (1_000_040,):
            day = episode(drops, seed)
            start = play(day, _certain(RollingPlan(paths, budget_s=10.0)))
            assert violations_of(day.jobs, start, day.capacity, online=True) == []
            scores.append(objective(day.jobs, start, day.capacity))
        found[name] = scores
    assert sum(one.total for one in found["forecast"]) > sum(one.total for one in found["persistence"])
    assert sum(one.violation for one in found["forecast"]) < sum(one.violation for one in found["persistence"])


def test_where_highs_is_missing_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "highspy", raising=False)
    monkeypatch.setattr("agent.deferral.rolling.find_spec", lambda name: None if name == "highspy" else found(name))
    with pytest.raises(BadInput, match=r"pip install '\.\[deferral\]'"):
        check_available()


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"factor": 0.0}, {"factor": 1.5}, {"budget_s": 0.0}])
def test_a_plan_that_cannot_be_made_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="give steps of at least 1"):
        RollingPlan(persistence, **wrong)  # type: ignore[arg-type]
