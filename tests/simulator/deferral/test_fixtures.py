"""Figures that the specification of deferral states as integers (deferral §7), and its means (§9)."""

from __future__ import annotations

import numpy as np
import pytest

from domain.rules.deferral.choosing import ordered, packed
from domain.rules.deferral.jobs import Score, objective
from simulator.deferral.scenarios import episode
from simulator.deferral.world import play
from trainer.deferral.exact import violations_of

POLICIES = {
    "fifo": ordered("fifo"),
    "sjf": ordered("sjf"),
    "tetris": ordered("tetris"),
    "fifo:skip": ordered("fifo", "skip"),
    "sjf:skip": ordered("sjf", "skip"),
    "els:skip": ordered("els"),
    "knapsack": packed(),
}


def score_of(scenario: str, seed: int, policy: str) -> Score:
    played = episode(scenario, seed)
    start = play(played, POLICIES[policy])
    score = objective(played.jobs, start, played.capacity)
    assert violations_of(played.jobs, start, played.capacity, score=score, online=True) == []
    return score


@pytest.mark.parametrize(
    ("seed", "start_h", "jobs", "offered", "capacity"),
    [(0, 142, 1455, 4345, 4352), (1, 79, 1448, 4384, 4277), (2, 140, 1431, 4333, 4334)],
)
def test_valley_draws_the_stated_episodes(seed: int, start_h: int, jobs: int, offered: int, capacity: int) -> None:
    drawn = episode("valley", seed)
    found = (drawn.start_h, drawn.jobs.size, int(drawn.jobs.revenue.sum()), int(drawn.capacity.sum()))
    assert found == (start_h, jobs, offered, capacity)


def test_the_first_capacities_of_seed_0() -> None:
    assert episode("valley", 0).capacity[:6].tolist() == [30, 31, 31, 33, 36, 37]


@pytest.mark.parametrize(
    ("seed", "policy", "utilisation", "delay", "total"),
    [
        (0, "fifo", 3624, 98, 3428),
        (0, "sjf", 3486, 54, 3378),
        (0, "tetris", 3700, 137, 3426),
        (1, "fifo", 3542, 125, 3292),
        (1, "sjf", 3429, 68, 3293),
        (1, "tetris", 3625, 143, 3339),
        (2, "fifo", 3609, 104, 3401),
        (2, "sjf", 3466, 71, 3324),
        (2, "tetris", 3674, 139, 3396),
    ],
)
def test_orders_reach_the_stated_figures(seed: int, policy: str, utilisation: int, delay: int, total: int) -> None:
    score = score_of("valley", seed, policy)
    assert (score.utilisation, score.delay, score.total) == (utilisation, delay, total)


@pytest.mark.parametrize(("seed", "total"), [(0, 3527), (1, 3405), (2, 3499)])
def test_fifo_that_passes_misfits_over_reaches_the_stated_totals(seed: int, total: int) -> None:
    assert score_of("valley", seed, "fifo:skip").total == total


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("policy", "figures"),
    [
        ("fifo", (3583.8, 208.9, 0.05, 3374.4)),
        ("sjf", (3464.3, 125.2, 0.01, 3339.1)),
        ("tetris", (3648.2, 245.5, 0.11, 3401.7)),
        ("fifo:skip", (3648.3, 174.1, 0.06, 3473.6)),
        ("sjf:skip", (3535.7, 100.0, 0.01, 3435.6)),
        ("els:skip", (3844.3, 735.7, 0.04, 3108.2)),
        ("knapsack", (3713.2, 40.4, 0.28, 3670.0)),
    ],
)
def test_means_of_a_hundred_seeds_are_the_stated_ones(policy: str, figures: tuple[float, ...]) -> None:
    scores = [score_of("valley", seed, policy) for seed in range(100)]
    means = [np.mean([getattr(s, name) for s in scores]) for name in ("utilisation", "delay_charge", "violation")]
    np.testing.assert_allclose([*means, np.mean([s.total for s in scores])], figures, atol=0.1)
