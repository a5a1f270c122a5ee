"""Which policy is kept: judged on all weeks at once, safe in each of them, played where it is riskiest (§4)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.oversubscription import weekly
from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.usage import UsageModel
from simulator.oversubscription.weekly import Assessor, EpisodeResults, Placement
from trainer.oversubscription.c2marl import Candidate, Config, Policy, candidate_of
from trainer.oversubscription.search import hourly

AZURE = scenario_of("azure_like")
WEEKS = [AZURE.week(name) for name in AZURE.weeks]
CONFIG = Config(scenario="azure_like", evaluation_episodes=20)


def always(rate: float) -> Policy:
    def rates(local: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.full(local.shape[:2], rate)

    return rates


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_policy_is_as_risky_as_its_riskiest_week(start: str) -> None:
    config = Config(scenario="azure_like", start=start, evaluation_episodes=5)
    found = candidate_of(always(0.95), AZURE, config, WEEKS, None, 1)
    rates = hourly(np.full(AZURE.subscribers, 0.95), AZURE.hours, AZURE.subscribers)
    each = [Assessor(AZURE, week, start).c_hot_r(rates) for week in WEEKS]
    assert found.assessed == pytest.approx(max(each), abs=1e-12)
    assert found.reserved == pytest.approx(0.95)


def test_one_that_is_unsafe_by_assessment_is_not_played() -> None:
    found = candidate_of(always(0.4), AZURE, CONFIG, WEEKS, None, 1)
    assert (found.sampled, found.feasible) == (found.assessed, False)
    assert found.assessed > 0.99


def test_one_that_saves_less_than_the_best_is_not_played() -> None:
    best = Candidate(0.5, 0.0, 0.0, True)
    found = candidate_of(always(1.0), AZURE, CONFIG, WEEKS, best, 1)
    assert found.sampled == found.assessed
    assert not found.beats(best)


def test_of_many_weeks_the_riskiest_are_played_until_one_is_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def sample(placed: Placement, model: UsageModel, seeds: NDArray[np.int64]) -> EpisodeResults:
        played.append(placed.week.name)
        return weekly.sample(placed, model, seeds)

    monkeypatch.setattr("trainer.oversubscription.c2marl.sample", sample)
    monkeypatch.setattr("trainer.oversubscription.c2marl.SAMPLED_WEEKS", 2)
    each = {week.name: Assessor(AZURE, week).c_hot_r(np.ones(AZURE.subscribers)) for week in WEEKS}
    found = candidate_of(always(1.0), AZURE, CONFIG, WEEKS, None, 1)
    assert played == sorted(each, key=lambda name: -each[name])[:2]
    assert found.feasible
