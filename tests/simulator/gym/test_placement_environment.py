"""The Gymnasium environment of placement plays what the simulator plays."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from domain.errors import BadInput
from domain.rules.placement.policies import BF, LIFETIME, OLDEST, Policy, scores
from simulator.gym.placement import PlacementEnv
from simulator.placement.engine import play
from simulator.placement.instances import instance_of

NAME = "alibaba-openb:200+300@3"


def test_gymnasium_finds_no_fault() -> None:
    env = gymnasium.make("simulator.gym:Trimtab/Placement-v0", trace="alibaba-openb", requests=40)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(infinity|not within the interval).*")
        check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("policy", [BF, OLDEST, LIFETIME], ids=lambda policy: policy.name)
def test_the_rewards_of_a_policy_sum_to_its_host_hours(policy: Policy) -> None:
    env = PlacementEnv(instance=NAME)
    seen, info = env.reset(seed=1)
    total, steps, over = 0.0, 0, False
    while not over:
        assert env.view is not None
        assert seen in env.observation_space
        row = int(np.argmax(scores(policy, env.view)))
        assert info["host"][row] == env.view.hosts[row]
        seen, reward, over, cut, info = env.step(np.int64(row))
        total, steps = total + reward, steps + 1
        assert not cut
    made = instance_of(NAME, "0.5")
    expected = play(made, policy, until_s=made.requests[-1].at_s).host_hours
    assert steps == 300
    assert -total == pytest.approx(expected)
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))


def test_with_few_rows_a_closed_host_has_the_last_one_and_a_row_without_a_host_is_the_first() -> None:
    env = PlacementEnv(instance=NAME, rows=3)
    _, info = env.reset()
    # The first container meets one closed host.
    assert (info["host"] >= 0).tolist() == [True, False, False]
    for k in range(40):
        assert env.view is not None
        before = info["host"]
        closed = int(np.argmax(env.view.new[np.searchsorted(env.view.hosts, before[before >= 0])]))
        assert env.view.new[np.searchsorted(env.view.hosts, before[closed])]
        _, _, _, _, info = env.step(np.int64(closed))
        # A container that ended before the next one came has no host.
        assert env._where.get(k, before[closed]) == before[closed]
    # More than three hosts would take it by then.
    assert env.view is not None
    assert env.view.hosts.size > 3
    assert len(env._where) > 4
    assert (before >= 0).all()
    assert closed == 2
    env.reset()
    env.step(np.int64(2))
    assert env._where == {0: 0}


def test_episodes_are_drawn_by_their_seed() -> None:
    env = PlacementEnv(requests=50)
    first, again, other = (env.reset(seed=seed)[0]["container"].tolist() for seed in (3, 3, 4))
    assert first == again
    moments = []
    for seed in (3, 4):
        env.reset(seed=seed)
        moments.append(env.step(np.int64(0))[4]["time"])
    assert first != other or moments[0] != moments[1]


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(BadInput, match="give 2 or more"):
        PlacementEnv(rows=1)
    with pytest.raises(BadInput, match="come at once"):
        PlacementEnv(instance="S1", hints="").reset()
