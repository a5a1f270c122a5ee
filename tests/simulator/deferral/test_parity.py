"""The compiled engine starts what its plain twin starts, on any episode."""

from __future__ import annotations

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.deferral.jobs import Jobs, objective
from simulator.deferral import engine, world
from simulator.deferral.engine import Rule, rule_of
from simulator.deferral.scenarios import SCENARIOS, Episode, episode
from trainer.deferral.exact import violations_of

RULES = ("fifo", "fifo:skip", "sjf", "sjf:skip", "tetris", "tetris:prefix", "els", "els:prefix", "knapsack",
         "knapsack:alpha=0.17,beta=0.31", "knapsack:alpha=0")  # fmt: skip


def random_episode(seed: int) -> Episode:
    """Jobs in no order, some late, longer than the episode or larger than its capacity."""
    draws = np.random.default_rng(seed)
    steps, count = int(draws.integers(1, 40)), int(draws.integers(0, 120))
    earliest = draws.integers(0, steps + 3, count)
    jobs = Jobs(
        draws.choice([1, 2, 3, 8, 40], count),
        draws.choice([1, 2, 3, 6, 90], count),
        earliest,
        earliest + draws.integers(0, 8, count),
        np.maximum(0, earliest - draws.integers(-3, 7, count)),
    )
    return Episode(jobs, draws.integers(0, 30, steps) * (draws.random(steps) > 0.2), int(draws.integers(168)))


def assert_parity(played: Episode, rule: Rule) -> None:
    start = engine.play(played, rule)
    np.testing.assert_array_equal(start, world.play(played, rule.policy()))
    score = objective(played.jobs, start, played.capacity)
    assert violations_of(played.jobs, start, played.capacity, score=score, online=True) == []


@pytest.mark.parametrize("text", RULES)
def test_engine_and_world_agree_on_random_episodes(text: str) -> None:
    for seed in range(40):
        assert_parity(random_episode(seed), rule_of(text))


@pytest.mark.parametrize("name", SCENARIOS)
def test_engine_and_world_agree_on_every_scenario(name: str) -> None:
    for text in ("fifo", "tetris", "knapsack"):
        assert_parity(episode(name, 1_000_007), rule_of(text))


def test_a_rule_is_decoded_as_is_usual_for_it() -> None:
    kinds = {name: rule_of(name).kind for name in ("fifo", "sjf", "tetris", "els")}
    assert kinds == {"fifo": "prefix", "sjf": "prefix", "tetris": "skip", "els": "skip"}
    assert rule_of("knapsack: alpha=0.2").alpha == 0.2


@pytest.mark.parametrize("text", ["", "lifo", "fifo:", "fifo:knapsack", "knapsack:", "knapsack:gamma=1",
                                  "knapsack:alpha=much", "knapsack:alpha=nan"])  # fmt: skip
def test_a_rule_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="policy"):
        rule_of(text)
