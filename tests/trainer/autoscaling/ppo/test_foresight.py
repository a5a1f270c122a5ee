"""The critic that knows the jobs to come: what it knows, that it learns, and that the policy never sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from domain.errors import BadInput
from domain.workload import make_trace
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution
from tests.trainer.autoscaling.ppo.test_ppo import TINY
from tests.trainer.autoscaling.ppo.twin_worlds import SMALL, TRACE
from trainer.autoscaling.foresight import AHEAD_MIN, WIDTH, Foresight, outlook
from trainer.autoscaling.ppo import Training, train
from trainer.autoscaling.tasks import Stage, Task
from trainer.kit.checkpoint import Checkpoints

SEEING = replace(TINY, foresight=True, value_clip=0.0, anneal_rate=False)


def test_it_knows_the_jobs_and_the_work_of_each_stretch_of_time_to_come() -> None:
    trace = make_trace("two batches", np.repeat([0.0, 150.0], [3, 2]), np.repeat([60.0, 720.0], [3, 2]))
    found = outlook(trace, 2.0, 4, 60.0, fleet_cores=4) / 0.25
    assert found.shape == (5, WIDTH)
    stretch = AHEAD_MIN.index(3)
    # The second batch is 2.5 minutes away: 1,440 core-seconds, a tenth of an hour of the fleet's four cores.
    assert found[0, 2 * stretch : 2 * stretch + 2] == pytest.approx([np.log(3), np.log1p(100 * 0.1)])
    assert found[0, -5:] == pytest.approx([np.log(3), np.log1p(10), np.log1p(2.5), np.log1p(2.5), np.log(2)])
    assert found[2, :2] == pytest.approx([np.log(3), np.log1p(10)])
    # Jobs that have come are not counted again.
    assert found[3, :-1] == pytest.approx(0.0)


def test_it_refuses_a_closed_loop_whose_jobs_to_come_depend_on_the_policy() -> None:
    with pytest.raises(BadInput, match="foresight"):
        outlook(coevolution(0), 1.0, 4, 60.0, 4)


@pytest.mark.exhaustive
def test_it_learns_what_only_the_jobs_to_come_can_explain() -> None:
    rng = np.random.default_rng(0)
    critic = Foresight(replace(SEEING, critic_epochs=1, most_episode_steps=50), features=3)
    critic.enter(SMALL.world, SMALL.stages[0].traces, ())
    traces, elapsed = rng.integers(0, 2, (20, 64)), rng.integers(0, 16, (20, 64))
    future, seen = critic.future(traces, elapsed), np.zeros((20, 64, 3), np.float32)
    returns = (future[..., 2 * AHEAD_MIN.index(5)] > 0).astype(np.float32)
    losses = [critic.learn(seen, future, returns, 1.0, rng) for _ in range(61)]
    assert np.mean(losses[1:]) < 0.25 * losses[0]
    assert np.round(critic.values(seen[0], future[0])).tolist() == returns[0].tolist()


@pytest.mark.exhaustive
def test_advantages_against_it_are_quieter_than_against_a_value_that_sees_only_the_observation() -> None:
    rng = np.random.default_rng(1)
    traces = tuple(
        make_trace(f"batches {k}", np.sort(rng.uniform(0, 1800, 8)).round(-1), rng.uniform(30, 600, 8))
        for k in range(6)
    )
    task = Task("surprises", (Stage(SMALL.world, traces),), traces[:2])
    explained = []
    for foresight in (False, True):
        config = replace(TINY, environments=32, value_clip=0.0, foresight=foresight, critic_epochs=4, gae_lambda=1.0)
        training = Training(config, task=task)
        figures = [training.update() for _ in range(40)]
        explained.append(np.mean([figure["value/explained"] for figure in figures[-10:]]))
    assert explained[1] > explained[0] + 0.1


@pytest.mark.exhaustive
def test_the_same_configuration_gives_the_same_weights_and_so_does_a_run_that_was_resumed(tmp_path: Path) -> None:
    whole = train(SEEING, task=SMALL)
    assert whole.weights_hash == train(SEEING, task=SMALL).weights_hash != train(TINY, task=SMALL).weights_hash
    kept = Checkpoints(tmp_path)
    train(replace(SEEING, total_steps=SEEING.total_steps // 3), task=SMALL, checkpoints=kept)
    assert train(SEEING, task=SMALL, resume=kept.last()).weights_hash == whole.weights_hash


def test_while_it_warms_up_the_policy_stays_and_afterwards_its_value_moves_its_own_head_alone() -> None:
    training = Training(replace(SEEING, value_updates=1), task=SMALL)
    before = {name: tensor.clone() for name, tensor in training.network.state_dict().items()}
    training.update()
    assert all(torch.equal(before[name], tensor) for name, tensor in training.network.state_dict().items())
    training.update()
    assert all(not torch.equal(before[name], tensor) for name, tensor in training.network.state_dict().items())

    network, size = training.network, training.network.features
    _, values = network.unroll(torch.randn(4, 8, size), torch.zeros(4, 8), network.no_memory(8), value_apart=True)
    network.zero_grad()
    torch.autograd.backward(values.square().sum())
    moved = {name for name, weight in network.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert moved == {"value.weight", "value.bias"}


def test_the_trained_policy_asks_for_the_observation_alone() -> None:
    assert train(SEEING, task=SMALL).network.features == train(TINY, task=SMALL).network.features


def test_a_value_clip_is_refused_since_the_value_head_is_not_what_is_compared_with() -> None:
    with pytest.raises(BadInput, match="value_clip"):
        replace(TINY, foresight=True)


def test_an_episode_longer_than_the_outlook_has_that_of_its_last_moment() -> None:
    critic = Foresight(replace(SEEING, most_episode_steps=20), features=3)
    critic.enter(preset("live-like"), (TRACE,), (3.0,))
    assert np.array_equal(critic.future(np.array([0]), np.array([99])), critic.future(np.array([0]), np.array([20])))
