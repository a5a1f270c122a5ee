"""A warm start repeats its teacher: through the learner's actions, under its masks, with its memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from simulator.autoscaling.actions import MULTI_CHANGES, Order
from tests.trainer.autoscaling.ppo.test_ppo import TINY
from tests.trainer.autoscaling.ppo.twin_worlds import SMALL, TRACE, WORLD
from trainer.autoscaling.episodes import run_policy
from trainer.autoscaling.networks import NetworkKind, PolicyValueNetwork
from trainer.autoscaling.policies.registry import policy_of
from trainer.autoscaling.ppo import Training
from trainer.autoscaling.tasks import Stage, Task
from trainer.autoscaling.warm_start import changes_of, clone, demonstrate, index_of, warm_start

ALL = np.ones(7, dtype=bool)
TEACHER = "queue-rule:horizon_s=240,idle_s=60,single=true"
TAUGHT = replace(TINY, imitate=TEACHER, imitation_episodes=4, most_episode_steps=100)
ONE_TRACE = Task("one", (Stage(replace(WORLD, boot_low_s=71.0, boot_high_s=71.0), (TRACE,)),), (TRACE,))


def test_the_first_order_that_would_have_an_effect_is_the_action() -> None:
    assert index_of([], ALL) == 0
    assert index_of([Order(1, 1)], ALL) == 3
    assert index_of([Order(2, -2)], ALL) == 6
    no_large = ALL.copy()
    no_large[5] = False
    assert index_of([Order(2, 3), Order(0, 1)], no_large) == 1
    assert index_of([Order(2, 3)], no_large) == 0


def test_changes_go_as_far_as_asked_and_allowed_and_no_further() -> None:
    mask = np.ones((3, 7), dtype=bool)
    mask[2, MULTI_CHANGES.index(-5)] = False
    chosen = changes_of([Order(0, 4), Order(1, 1), Order(2, -6)], mask)
    assert [MULTI_CHANGES[index] for index in chosen] == [2, 1, -2]


@pytest.mark.parametrize(("observation", "action_set", "heads"), [("obs-7", "act-7", 1), ("obs-v2", "act-multi", 3)])
def test_demonstrations_are_legal_and_end_with_their_episodes(observation: str, action_set: str, heads: int) -> None:
    shown = demonstrate(replace(TAUGHT, observation=observation, action_set=action_set), SMALL)
    steps = shown.valid.shape[0]
    assert shown.actions.shape == (steps, 4, heads)
    assert shown.masks.gather(-1, shown.actions.unsqueeze(-1))[shown.valid == 1].all()
    assert shown.masks.any(-1).all()
    # Episodes 0 and 2 have the longer trace.
    assert shown.valid.sum(0)[0] == shown.valid.sum(0).max() == steps
    assert (shown.valid.diff(dim=0) <= 0).all()


def test_a_demonstration_is_the_teachers_own_episode_where_its_orders_are_single() -> None:
    shown = demonstrate(replace(TAUGHT, imitation_episodes=1, most_episode_steps=500), ONE_TRACE)
    measures = run_policy(policy_of(TEACHER), ONE_TRACE.world, TRACE, 1_000_000)
    assert int(shown.valid.sum()) == measures.steps
    taken = np.bincount(shown.actions[:, 0, 0].numpy(), minlength=7)
    assert tuple(taken[1::2]) == measures.added
    assert tuple(taken[2::2]) == measures.removed


@pytest.mark.parametrize("kind", [NetworkKind.LSTM, NetworkKind.MLP])
def test_a_clone_repeats_its_teacher(kind: NetworkKind) -> None:
    shown = demonstrate(replace(TAUGHT, observation="obs-v2"), SMALL)
    network = PolicyValueNetwork(kind, 20, 7, 32, seed=0)
    value = network.value.weight.clone()
    before = clone(network, shown, 1, masked=True)
    after = clone(network, shown, 200, masked=True)
    assert before.agreement < 0.9
    assert after.agreement > 0.95
    assert after.loss < 0.2 * before.loss
    assert torch.equal(network.value.weight, value)


def test_a_run_starts_from_the_clone() -> None:
    config = replace(TINY, imitate=TEACHER, imitation_episodes=2, imitation_epochs=20)
    network = PolicyValueNetwork(config.network, 7, 7, config.hidden, seed=config.seed)
    warm_start(config, SMALL, network)
    started = Training(config, task=SMALL).network.state_dict()
    assert all(torch.equal(tensor, started[name]) for name, tensor in network.state_dict().items())
