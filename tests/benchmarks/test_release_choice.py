"""Which policy ships: the rule, and the loads that it is applied to."""

from __future__ import annotations

import pytest

from benchmarks.release_choice import FIRST_SEED, WORLDS, Found, chosen, look_at, validation_cases
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.evaluation.suite import suite
from trainer.autoscaling.tasks import RELEASE_PAR, SELECTION_SEED, TRAINING_SEED, task_of

BEST_IN_ONE = Found({"random": 0.9, "logs": 1.2}, 5.0)
EVEN = Found({"random": 1.1, "logs": 1.1}, 15.0)
IDLING = Found({"random": 0.9, "logs": 0.9}, 16.0)
NEVER_GIVES_BACK = Found({"random": 0.9, "logs": 0.9}, 10.0, released=False)


def test_the_least_ratio_of_the_dearest_family_is_chosen_among_those_that_give_idle_fleets_back() -> None:
    assert chosen([BEST_IN_ONE, EVEN, IDLING, NEVER_GIVES_BACK]) == 1
    assert chosen([EVEN, BEST_IN_ONE, EVEN]) == 0
    assert chosen([IDLING, NEVER_GIVES_BACK]) is None


@pytest.mark.parametrize("name", list(WORLDS))
def test_the_loads_are_neither_trained_on_nor_reported_nor_what_checkpoints_are_chosen_on(name: str) -> None:
    cases = validation_cases(WORLDS[name])
    assert {case.family for case in cases} == {
        *("random", "logs", "boot x2", "price x1.5", "jobs x2", "idle day", "burst x10")
    }
    seeds = {case.seed for case in cases}
    assert min(seeds) == FIRST_SEED >= SELECTION_SEED + 100
    assert max(seeds) < SELECTION_SEED + 1000 <= TRAINING_SEED
    digests = {case.trace.digest for case in cases}
    assert digests.isdisjoint(case.trace.digest for case in suite(("T3", "T6"), seeds=10))
    assert digests.isdisjoint({train_rand(seed).digest for seed in range(20)})


@pytest.mark.slow
def test_the_loads_are_other_ones_than_checkpoints_are_chosen_on() -> None:
    task = task_of("release-small")
    digests = {case.trace.digest for case in validation_cases(task.world)}
    assert digests.isdisjoint(trace.digest for trace in (*task.selection, *task.stages[0].traces))


def test_the_queue_rule_costs_what_it_costs() -> None:
    cases = validation_cases(WORLDS["release-small"], 0.05)
    par = look_at(RELEASE_PAR, cases, {}).ratios
    assert set(look_at(RELEASE_PAR, cases, par).ratios.values()) == {1.0}
    assert look_at("constant:3,3,3", cases, par).worst > 2.0
    assert not look_at("constant:3,3,3", cases, par).kept
