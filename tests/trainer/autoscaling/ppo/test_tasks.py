"""Training tasks: known worlds, seeds kept apart, and mixtures that hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from domain.errors import BadInput
from simulator.autoscaling.configuration import CooldownScope
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.autoscaling.runs import marks_of, reported
from trainer.autoscaling.tasks import TASKS, task_of, with_burst, with_idle_tail


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


@pytest.mark.parametrize("name", ["train-rand", "coevolution", "live-like", "curriculum"])
def test_no_random_trace_is_trained_on_judged_on_and_reported(name: str) -> None:
    task = task_of(name)
    trained = {trace.digest for stage in task.stages for trace in stage.traces}
    judged = {trace.digest for trace in task.selection}
    reported = {train_rand(seed).digest for seed in range(100)}
    assert not trained & judged
    assert not (trained | judged) & reported


def test_the_live_like_task_cools_down_per_direction_and_has_idle_tails_and_bursts() -> None:
    task = task_of("live-like")
    assert task.world.cooldown_scope is CooldownScope.PER_DIRECTION
    names = [trace.name for trace in task.stages[0].traces]
    assert sum(name.endswith("-idle") for name in names) == sum(name.endswith("-burst") for name in names) == 64


def test_an_idle_tail_ends_with_one_short_job_hours_later() -> None:
    trace = train_rand(3)
    tailed = with_idle_tail(trace, 7200.0)
    assert tailed.jobs == trace.jobs + 1
    assert tailed.arrival_s[-1] == trace.arrival_s[-1] + 7200.0
    assert tailed.service_s[-1] == 60.0


def test_a_burst_is_ten_mean_batches_at_once_within_the_trace() -> None:
    trace = train_rand(3)
    batches = np.unique(trace.arrival_s).size
    burst = with_burst(trace, 7)
    moments, sizes = np.unique(burst.arrival_s, return_counts=True)
    assert burst.jobs - trace.jobs == 10 * trace.jobs // batches == sizes.max()
    assert 0.1 <= moments[sizes.argmax()] / trace.arrival_s.max() <= 0.9


def test_a_curriculum_goes_from_fixed_to_random_and_ends_with_a_cool_down() -> None:
    task = task_of("curriculum")
    assert [task.stage_at(share) for share in (0.0, 0.2, 0.5, 0.7, 1.0)] == [0, 1, 2, 3, 3]
    assert task.world == preset("train-rand", cooldown_s=300.0)


def test_rent_against_run_time_is_learnt_without_waiting_costs_and_reported_with_them() -> None:
    task, reports = task_of("coevolution-rent"), reported("coevolution-rent", 2)
    assert task.world == preset("paper-live", waiting_price_per_hour=0.0)
    assert reports.world == preset("paper-live")
    assert [trace.digest for trace in reports.traces] == [coevolution(seed).digest for seed in (0, 1)]
    assert marks_of("coevolution-rent", {"queue rule": 9.0}) == {}


def test_an_unknown_task_lists_what_there_is() -> None:
    with pytest.raises(BadInput, match="live-like"):
        task_of("live")
