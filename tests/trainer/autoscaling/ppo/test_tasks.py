"""Training tasks: known worlds, seeds kept apart, and mixtures that hold what they promise."""

from __future__ import annotations

import pytest

from domain.errors import BadInput
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.autoscaling.ppo_runs import marks_of, reported
from trainer.autoscaling.tasks import TASKS, task_of


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_worlds_traces_and_held_out_traces(name: str) -> None:
    task = task_of(name)
    assert task.name == name
    for stage in task.stages:
        assert stage.probabilities.sum() == pytest.approx(1.0)
        assert len(stage.jobs) == len(stage.traces) == stage.probabilities.size
    assert [stage.until for stage in task.stages] == sorted(stage.until for stage in task.stages)
    assert task.stages[-1].until == 1.0


@pytest.mark.parametrize("name", ["train-rand", "coevolution-rent"])
def test_no_random_trace_is_trained_on_judged_on_and_reported(name: str) -> None:
    task = task_of(name)
    trained = {trace.digest for stage in task.stages for trace in stage.traces}
    judged = {trace.digest for trace in task.selection}
    reported = {train_rand(seed).digest for seed in range(100)}
    assert not trained & judged
    assert not (trained | judged) & reported


def test_rent_against_run_time_is_learnt_without_waiting_costs_and_reported_with_them() -> None:
    task, reports = task_of("coevolution-rent"), reported("coevolution-rent", 2)
    assert task.world == preset("paper-live", waiting_price_per_hour=0.0)
    assert reports.world == preset("paper-live")
    assert [trace.digest for trace in reports.traces] == [coevolution(seed).digest for seed in (0, 1)]
    assert marks_of("coevolution-rent", {"queue rule": 9.0}) == {}


def test_an_unknown_task_lists_what_there_is() -> None:
    with pytest.raises(BadInput, match="train-fit"):
        task_of("live")
