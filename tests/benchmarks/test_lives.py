"""A life of `benchmarks.lives` has the cost of the agent's own decision, and the record of a ledger."""

from dataclasses import replace

import numpy as np
import pytest

from agent.rehearsal.virtual_time import START
from benchmarks.lives import Life, apart, simulate
from benchmarks.self_tuning import interval
from domain.rules.queue_rule import RuleSetting
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from tests.trainer.learning.recording import loop_of
from trainer.autoscaling.lessons import fleet_of
from trainer.learning.minutes import span_of
from trainer.learning.replay import Loop
from trainer.learning.self_tuning import simulate as by_the_agent
from trainer.learning.self_tuning import under
from trainer.learning.subject import Learner

MINUTES = 200
BOOTS_LATE = 40.0


def case(seed: int) -> tuple[Loop, SimulationConfig, Trace]:
    """A drawn fleet with the first minutes of its load, under limits that bind."""
    fleet = fleet_of(seed, (3, 5), (2, 15))
    loop = loop_of(fleet.config)
    limits = replace(loop.limits, max_reversals=1, in_periods=2, cooldown_in_s=120.0, boot_deadline_s=BOOTS_LATE)
    config = replace(fleet.config, initial=fleet.config.minimum)
    trace = fleet.trace(0)
    kept = trace.arrival_s < 150 * 60.0
    return (
        replace(loop, limits=limits),
        config,
        make_trace("part", trace.arrival_s[kept][:600], trace.service_s[kept][:600]),
    )


@pytest.mark.parametrize("seed", [0, 4, 5, 7])
@pytest.mark.parametrize("setting", [RuleSetting(60.0, 0.0), RuleSetting(600.0, 180.0)])
def test_a_life_costs_what_the_agents_own_decision_costs(seed: int, setting: RuleSetting) -> None:
    assert apart(*case(seed), MINUTES, setting, 3) < 1e-9


def test_a_replay_of_a_recorded_life_is_that_of_the_tuner() -> None:
    loop, config, trace = case(7)
    life = Life(loop, config, trace, MINUTES, 5, START)
    life.live(MINUTES, RuleSetting(150.0, 60.0))
    recorded = life.recorded()
    learner = Learner(recorded, config, "drawn", 0.0, replace(loop, idle_s=60.0))
    span = span_of("all", recorded.minutes, 300.0)
    for setting in (RuleSetting(150.0, 60.0), RuleSetting(400.0, 0.0)):
        own, played = under(learner, span, setting)
        assert simulate(own, config, played, 9) == pytest.approx(by_the_agent(own, config, played, 9))
    assert sum(one.load.ended or 0 for one in recorded.minutes) == recorded.minutes[-1].load.finished
    assert span.cost == pytest.approx(sum(life.costs[1:]), rel=0.02)


def test_an_interval_is_that_of_clusters_and_not_of_cases() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(1.0, 0.1, 10)
    ratios = np.repeat(centres, 20).tolist()
    mean, low, high = interval(ratios, [f"s{k}" for k in range(10) for _ in range(20)])
    assert mean == pytest.approx(centres.mean())
    assert 0.05 < high - low < 0.25
    _, low_of_cases, high_of_cases = interval(ratios, [str(k) for k in range(200)])
    assert high_of_cases - low_of_cases < 0.5 * (high - low)
