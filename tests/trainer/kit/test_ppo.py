"""Advantages and the scale of rewards, which every learner by PPO shares."""

import numpy as np
import pytest

from trainer.kit.parallel import ALONE
from trainer.kit.ppo import RewardScale, advantages


@pytest.mark.parametrize(
    ("discount", "trace", "wanted"),
    [
        # The discounted return, less the value.
        (0.5, 1.0, [1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 4)) - 0.5, 2 + 0.5 * (3 + 0.5 * 4) - 0.25, 3 + 0.5 * 4 - 0.125]),
        # The difference that one step makes.
        (0.5, 0.0, [1 + 0.5 * 0.25 - 0.5, 2 + 0.5 * 0.125 - 0.25, 3 + 0.5 * 4 - 0.125]),
    ],
)
def test_advantages_go_from_one_step_to_the_whole_return(discount: float, trace: float, wanted: list[float]) -> None:
    rewards, values = np.array([[1.0], [2.0], [3.0]], np.float32), np.array([[0.5], [0.25], [0.125]], np.float32)
    found = advantages(rewards, values, np.zeros_like(rewards), np.array([4.0], np.float32), discount, trace)
    assert found.dtype == np.float32
    assert found[:, 0].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(("bootstrap", "wanted"), [(0.0, 0.5), (3.0, 1.0 + 0.9 * 3.0 - 0.5)])
def test_nothing_flows_back_over_the_end_of_an_episode_but_the_value_where_it_was_cut_short(
    bootstrap: float, wanted: float
) -> None:
    rewards, values, dones = np.array([[1.0], [100.0]]), np.array([[0.5], [7.0]]), np.array([[1], [0]])
    found = advantages(rewards, values, dones, np.array([4.0]), 0.9, 0.9, np.array([[bootstrap], [0.0]]))
    assert found[0, 0] == pytest.approx(wanted)
    if not bootstrap:
        assert (found == advantages(rewards, values, dones, np.array([4.0]), 0.9, 0.9)).all()


@pytest.mark.parametrize("more", [(), (ALONE.moments,)], ids=["own", "of a crew"])
def test_the_scale_of_rewards_is_the_deviation_of_their_sums_over_all_that_was_seen(more) -> None:
    rng = np.random.default_rng(0)
    rewards = [rng.normal(3.0, 2.0, (50, 4)) for _ in range(3)]
    scale = RewardScale(np.zeros(4))
    for part in rewards:
        scale.add(part, np.zeros_like(part), 0.0, *more)
    assert scale.deviation == pytest.approx(np.concatenate(rewards).std(), rel=1e-3)


def test_a_discounted_sum_ends_with_its_episode() -> None:
    scale = RewardScale(np.zeros(1))
    scale.add(np.array([[1.0], [1.0], [1.0]]), np.array([[0.0], [1.0], [0.0]]), 0.5)
    assert scale.sums.tolist() == [1.0]
