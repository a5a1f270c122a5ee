"""Data aggregation: the learner plays by itself and learns what the teacher would have done there."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit
from trainer.autoscaling.configuration import configuration
from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.tasks import Stage, Task
from trainer.autoscaling.warm_start import STRETCH, Demonstration, sequences, warm_start

TASK = Task("short", (Stage(preset("train-fit"), (replace(train_fit(), name="short"),)),), (train_fit(),))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("action_set", "logits"), [("act-7", 7), ("act-multi", 21)])
def test_a_learner_that_plays_repeats_most_of_what_its_teacher_answers(action_set: str, logits: int) -> None:
    config = configuration(
        observation="obs-v2",
        action_set=action_set,
        queue_gain=20.0,
        imitate=f"queue-rule:horizon_s=240,idle_s=0,single={str(action_set == 'act-7').lower()}",
        imitation_rounds=2,
        imitation_episodes=2,
        imitation_epochs=150,
        most_episode_steps=240,
    )
    network = PolicyValueNetwork(config.network, 20, logits, 16, gains=config.gains(20))
    value_before = network.value.weight.detach().clone()
    cloned = warm_start(config, TASK, network)
    assert cloned.agreement > 0.55
    assert (network.value.weight == value_before).all()


def test_episodes_are_cut_into_stretches_whose_padding_is_not_valid() -> None:
    steps = STRETCH + 3
    episode = Demonstration(
        np.arange(steps, dtype=np.float32)[:, None],
        np.ones((steps, 1), dtype=np.int64),
        np.tile(np.array([False, True]), (steps, 1, 1)),
    )
    seen, actions, masks, valid = sequences([episode], STRETCH)
    assert seen[:, 0, 0].tolist() == list(range(STRETCH))
    assert seen[:4, 1, 0].tolist() == [STRETCH, STRETCH + 1, STRETCH + 2, 0]
    assert valid.sum(0).tolist() == [STRETCH, 3]
    assert actions[2:5, 1, 0].tolist() == [1, 0, 0]
    assert masks[0, 0, 0].tolist() == [False, True]
    assert masks[3, 1, 0].tolist() == [True, False]
