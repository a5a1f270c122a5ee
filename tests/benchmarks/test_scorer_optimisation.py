"""Policy optimisation starts from what the scorer plays, and follows what paid."""

import numpy as np
import pytest
import torch

from benchmarks.scorer_optimisation import GAE_LAMBDA, GAMMA, TEMPERATURE, Voters, advantages, played
from domain.observations.autoscaling_scorer import CANDIDATES, STATES
from simulator.autoscaling.branching import RuleSetting, score
from simulator.autoscaling.reference import preset
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.scorer import Lesson, Recipe, Samples, Trained

LIVE = preset("live-like")


def drawn(networks: int = 3, units: int = 8) -> Trained:
    rng = np.random.default_rng(1)
    shapes = ((networks, STATES + CANDIDATES, units), (networks, units), (networks, units, units), (networks, units))
    weights = tuple(rng.normal(0.0, 0.4, size=shape).astype(np.float32) for shape in (*shapes, (networks, units)))
    none = np.zeros(STATES, dtype=np.float32)
    return Trained(weights, weights, 0.5, 8.0, none, none, none, none, Recipe(), 0, {})


def test_the_policy_is_the_softmax_of_what_the_scorer_plays_by() -> None:
    trained, samples = drawn(), Samples()
    one = played(Lesson(LIVE, train_rand(700_100), RuleSetting(), 1), trained, 3, samples)
    assert one is not None
    table = samples.joined()
    chances = Voters(trained, trained.margin)(*map(torch.from_numpy, table[:3])).detach().numpy()
    for row in range(0, len(table.states), 9):
        count = int(table.there[row].sum())
        scores = np.zeros(count)
        score(table.states[row].astype(float), table.candidates[row].astype(float), count, trained.weights, scores)
        scores[1:] -= trained.margin
        expected = scores / TEMPERATURE - np.log(np.exp(scores / TEMPERATURE).sum())
        np.testing.assert_allclose(chances[row, :count], expected, atol=2e-3)
        assert (chances[row, count:] < -1e6).all()


def test_rewards_are_what_follows_a_decision() -> None:
    samples = Samples()
    one = played(Lesson(LIVE, train_rand(700_100), RuleSetting(), 1), drawn(), 3, samples)
    assert one is not None
    assert len(one.taken) == len(one.rewards) == len(one.futures) == samples.minutes
    assert (one.rewards <= 0.0).all()


def test_advantages_are_returns_less_values_where_nothing_is_discounted(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards, values = np.array([-1.0, -2.0, -4.0], np.float32), np.array([-6.0, -6.0, -5.0], np.float32)
    found = advantages(rewards, values)
    last = -4.0 + 5.0
    middle = -2.0 + GAMMA * -5.0 + 6.0 + GAMMA * GAE_LAMBDA * last
    np.testing.assert_allclose(found[1:], [middle, last], atol=1e-5)
    for name in ("GAMMA", "GAE_LAMBDA"):
        monkeypatch.setattr(f"benchmarks.scorer_optimisation.{name}", 1.0)
    np.testing.assert_allclose(advantages(rewards, values), [-7.0 + 6.0, -6.0 + 6.0, -4.0 + 5.0], rtol=1e-6)
