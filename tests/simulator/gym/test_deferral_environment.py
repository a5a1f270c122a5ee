"""The Gymnasium environment of deferral plays the episodes of the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from domain.errors import BadInput
from domain.rules.deferral.choosing import Decoding, packed
from domain.rules.deferral.jobs import objective
from simulator.deferral.scenarios import Scenario, episode
from simulator.deferral.world import play
from simulator.gym.deferral import ROWS, DeferralEnv

SHORT = Scenario(steps=12)


@pytest.mark.parametrize("decoding", ["prefix", "skip", "knapsack"])
def test_rewards_sum_to_the_objective(decoding: Decoding) -> None:
    env, draws = DeferralEnv(SHORT, decoding=decoding), np.random.default_rng(1)
    seen, info = env.reset(seed=5)
    total, over = 0.0, False
    while not over:
        assert seen in env.observation_space
        assert info["cores"].shape == (ROWS,)
        np.testing.assert_array_equal(info["cores"] > 0, info["job"] >= 0)
        seen, reward, over, cut, info = env.step(draws.normal(size=ROWS).astype(np.float32))
        total += reward
        assert not cut
        assert not info["fallback"]
    assert env.world is not None
    score = objective(env.world.episode.jobs, env.world.start, env.world.episode.capacity)
    assert total == pytest.approx(score.total, abs=1e-9)
    assert info["score"] == score._asdict()


def test_the_highest_score_starts_first_and_other_rows_count_for_nothing() -> None:
    env = DeferralEnv(Scenario(cap_mean=3.0, ar_sigma=0.0, cap_amp=0.0, weekend=0.0), decoding="prefix")
    _, info = env.reset(seed=2)
    while not ((info["cores"] > 0).sum() >= 3 and info["free"] >= 1 and (info["cores"] == 1).any()):
        _, _, _, _, info = env.step(np.zeros(ROWS))
    wanted = int(info["job"][info["cores"] == 1].max())
    scores = np.where(info["job"] == wanted, 1.0, np.where(info["job"] < 0, 9.0, -1.0))
    assert env.world is not None
    job = int(env.world.view().cur.job[wanted])
    step = info["step"]
    env.step(scores)
    assert env.world.start[job] == step


def test_scores_that_are_not_finite_leave_the_decision_to_the_knapsack() -> None:
    env = DeferralEnv(SHORT)
    env.reset(seed=3)
    over = False
    while not over:
        _, _, over, _, info = env.step(np.full(ROWS, np.nan))
    one = episode(SHORT, 3)
    assert env.world is not None
    np.testing.assert_array_equal(env.world.start, play(one, packed()))
    assert info["score"]["total"] == objective(one.jobs, env.world.start, one.capacity).total


def test_the_same_seed_plays_the_same_episode_and_later_ones_are_training_episodes() -> None:
    envs = [DeferralEnv("sched_drop") for _ in range(2)]
    for _ in range(2):
        first, second = (env.reset(seed=8)[0] for env in envs)
        np.testing.assert_array_equal(first["tokens"], second["tokens"])
    seeds = []
    for env in envs:
        env.reset()
        assert env.world is not None
        seeds.append(env.world.episode.seed)
    assert seeds[0] == seeds[1] >= 1_000_000


def test_an_episode_has_to_be_begun() -> None:
    env = DeferralEnv(Scenario(steps=1))
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(ROWS))
    env.reset(seed=0)
    assert env.step(np.zeros(ROWS))[2]
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(ROWS))


def test_more_jobs_than_rows_are_all_decided_upon() -> None:
    env = DeferralEnv(Scenario(steps=3, lam=400.0, lead_max=0, cap_mean=2_000.0))
    _, info = env.reset(seed=1)
    assert info["dropped"] > 100
    _, _, _, _, after = env.step(np.ones(ROWS))
    assert after["started"] > ROWS


@pytest.mark.parametrize(
    "words", [{"scenario": "vally"}, {"decoding": "greedy"}, {"cref": 0.0}, {"cref": float("nan")}]
)
def test_what_cannot_be_made_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        DeferralEnv(**words)  # type: ignore[arg-type]
