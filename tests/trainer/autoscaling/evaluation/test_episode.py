"""One episode watched step by step: how long the fleet stays up when nothing is left to do."""

import math

import pytest

from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import StepInfo
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation.results import run_episode
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policy_names import policy_of

CONFIG = preset("train-text", boot_low_s=60.0, boot_high_s=60.0)


def case_of(trace: Trace, config: SimulationConfig = CONFIG, seed: int = 0) -> Case:
    return Case("a case", "T1", "training", config, trace, seed)


def two_jobs(second_s: float) -> Trace:
    return make_trace("two jobs", [0.0, second_s], [30.0, 30.0])


def test_a_fleet_that_never_shrinks_is_charged_the_whole_idle_stretch() -> None:
    run = run_episode(policy_of("nothing"), case_of(two_jobs(7200.0)))
    assert run.idle.stretches == 1
    assert not run.idle.released
    # The first job ends within step 1; the second arrives with the end of step 120.
    assert run.idle.worst_min == 119.0
    assert run.measures.steps == 121


def test_a_fleet_at_its_minimum_is_released_at_once() -> None:
    run = run_episode(policy_of("constant:1,0,0"), case_of(two_jobs(7200.0)))
    assert (run.idle.stretches, run.idle.worst_min, run.idle.released) == (1, 0.0, True)


@pytest.mark.parametrize(("idle_s", "minutes"), [(120.0, 2.0), (600.0, 10.0)])
def test_the_queue_rule_gives_its_vms_back_after_its_idle_time(idle_s: float, minutes: float) -> None:
    run = run_episode(policy_of(f"queue-rule:idle_s={idle_s:g},horizon_s=600"), case_of(two_jobs(7200.0)))
    assert run.idle.released
    assert run.idle.worst_min is not None
    assert minutes - 1.0 <= run.idle.worst_min <= minutes + 1.0


def test_a_short_pause_between_jobs_is_no_idle_stretch() -> None:
    run = run_episode(policy_of("nothing"), case_of(two_jobs(1500.0)))
    assert (run.idle.stretches, run.idle.worst_min, run.idle.released) == (0, None, True)


def test_a_job_that_comes_and_goes_within_a_step_ends_the_stretch() -> None:
    trace = make_trace("three jobs", [0.0, 3610.0, 7200.0], [30.0, 10.0, 30.0])
    run = run_episode(policy_of("nothing"), case_of(trace))
    assert run.idle.stretches == 2
    assert run.idle.worst_min == 60.0


def test_truncation_is_reported() -> None:
    config = preset("train-text", max_steps=3)
    assert run_episode(policy_of("nothing"), case_of(two_jobs(7200.0), config)).truncated


def test_there_is_one_entry_per_step() -> None:
    steps: list[StepInfo] = []
    run = run_episode(policy_of("nothing"), case_of(two_jobs(600.0)), steps)
    assert len(steps) == run.measures.steps == 11
    assert [step.ready for step in steps] == [(1, 1, 1)] * 11
    assert [step.cores_ready for step in steps] == [14] * 11
    assert [step.cores_busy for step in steps] == [0] * 9 + [1, 0]
    assert math.isclose(steps[-1].now_s, 660.0)
