"""The vector environment steps many episodes at once, and begins the next of each in the step after its end."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from domain.errors import BadInput
from domain.workload import make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.gym import ENV_ID, AutoscalingEnv, AutoscalingVectorEnv
from simulator.workloads.synthetic import train_fit

FIXED_BOOT = SimulationConfig(boot_low_s=71.0, boot_high_s=71.0)
SHORT = make_trace("short", [0.0, 30.0, 400.0], [100.0, 50.0, 30.0])
LONG = make_trace("long", [0.0, 700.0], [100.0, 60.0])


@pytest.mark.parametrize("actions", ["act-7", "act-multi"])
@pytest.mark.parametrize("observation", ["obs-7", "obs-v2"])
def test_it_does_what_gymnasiums_own_row_of_single_environments_does(observation: str, actions: str) -> None:
    # With one boot time and one trace the two ways to count seeds give the same episodes.
    def single() -> AutoscalingEnv:
        return AutoscalingEnv(SHORT, FIXED_BOOT, observation=observation, actions=actions)

    many = AutoscalingVectorEnv(3, SHORT, FIXED_BOOT, observation=observation, actions=actions)
    row = SyncVectorEnv([single] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert many.action_space == row.action_space
    assert many.observation_space == row.observation_space
    obs, infos = many.reset(seed=5)
    np.testing.assert_array_equal(obs, row.reset(seed=5)[0])
    row.action_space.seed(1)
    ends = 0
    for _ in range(40):
        actions_taken = row.action_space.sample()
        *ours, infos = many.step(actions_taken)
        *theirs, their_infos = row.step(actions_taken)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)
            assert mine.dtype == other.dtype
        for name in ("step", "waiting", "finished", "rent", "penalty"):
            np.testing.assert_array_equal(infos[name], their_infos[name], err_msg=name)
            assert infos[f"_{name}"].all()
        np.testing.assert_array_equal(infos["mask"], np.stack(list(their_infos["mask"])))
        np.testing.assert_array_equal(many.action_masks(), infos["mask"].reshape(3, -1))
        ends += int(ours[2].sum())
    assert ends >= 6


def test_it_is_made_by_name() -> None:
    made = gymnasium.make_vec(f"simulator.gym:{ENV_ID}", num_envs=2, traces=train_fit())
    assert isinstance(made.unwrapped, AutoscalingVectorEnv)
    assert made.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    obs, _ = made.reset(seed=0)
    assert obs.shape == (2, 7)
    made.close()


def test_what_was_returned_stays_as_it_was() -> None:
    many = AutoscalingVectorEnv(2, SHORT)
    returned = [many.reset(seed=0), many.step(np.array([1, 5])), many.step(np.array([0, 0]))]
    first = returned[1][0].copy()
    many.step(np.array([3, 3]))
    np.testing.assert_array_equal(returned[1][0], first)
    assert returned[1][-1]["step"].tolist() == [1, 1]


def test_traces_take_turns_or_are_chosen_and_some_may_be_reset_alone() -> None:
    many = AutoscalingVectorEnv(3, [SHORT, LONG])
    many.reset(seed=0)
    for _ in range(8):
        many.step(np.zeros(3, dtype=np.int64))
    assert many.batch.finished.tolist() == [3, 1, 3]
    many.reset(seed=0, options={"trace": 1, "reset_mask": np.array([True, False, False])})
    infos = many.step(np.zeros(3, dtype=np.int64))[-1]
    assert infos["step"].tolist()[:2] == [1, 9]
    many.reset(seed=[4, 9, 2], options={"trace": [1, 1, 0]})
    assert many.batch.worlds.copies["seed"].tolist() == [4, 9, 2]
    assert many.batch.worlds.copies["trace"].tolist() == [1, 1, 0]


def test_an_unseeded_reset_draws_other_seeds_each_time() -> None:
    many = AutoscalingVectorEnv(2, SHORT)
    many.reset(seed=3)
    drawn = []
    for _ in range(3):
        many.reset()
        drawn.append(int(many.batch.worlds.copies["seed"][0]))
    assert len(set(drawn)) == 3
    many.reset(seed=3)
    many.reset()
    assert int(many.batch.worlds.copies["seed"][0]) == drawn[0]


def test_wrong_actions_are_refused() -> None:
    many = AutoscalingVectorEnv(2, SHORT)
    many.reset(seed=0)
    for wrong in (np.array([0, 7]), np.array([0.0, 1.0]), np.array([0, 1, 2])):
        with pytest.raises(BadInput, match="actions"):
            many.step(wrong)
