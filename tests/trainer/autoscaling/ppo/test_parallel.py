"""Two processes train one network: the same weights in both, repeatable, and errors are not lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from domain.errors import BadInput
from tests.trainer.autoscaling.ppo.test_ppo import TINY
from tests.trainer.autoscaling.ppo.twin_worlds import SMALL, TwinWorlds
from trainer.autoscaling.ppo_lstm import Training, train
from trainer.kit.checkpoint import weights_hash
from trainer.kit.parallel import ALONE, Crew, run_together

PAIR = replace(TINY, workers=2, total_steps=8 * 12 * 2)


def collective(crew: Crew) -> list[Any]:
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([1.0, 2.0, 3.0]) * (1 + crew.rank)
    crew.average_gradients([parameter, torch.nn.Parameter(torch.zeros(1))])
    mean = crew.mean(np.array([float(crew.rank), 1.0])).tolist()
    return [parameter.grad.tolist(), mean, crew.as_leader([7.0 + crew.rank])]


@pytest.mark.exhaustive
def test_gradients_and_figures_are_averaged_and_the_leader_is_heard() -> None:
    assert collective(ALONE) == [[1.0, 2.0, 3.0], [0.0, 1.0], [7.0]]
    assert run_together(2, collective) == [[1.5, 3.0, 4.5], [0.5, 1.0], [7.0]]


def weights_after_two_updates(crew: Crew) -> bool:
    """Train as a member, and return whether all members have the leader's weights."""
    training = Training(PAIR, task=SMALL, crew=crew, make_worlds=TwinWorlds)
    for _ in range(2):
        training.judge(training.update())
    mine = int(weights_hash(training.network.state_dict())[:12], 16)
    different = abs(mine - crew.as_leader([mine])[0])
    return bool(crew.mean(np.array([different]))[0] == 0.0)


@pytest.mark.exhaustive
def test_every_worker_has_the_same_weights_from_experience_of_its_own() -> None:
    assert run_together(2, weights_after_two_updates)


def weights_of(workers: int, crew: Crew) -> str:
    return train(replace(PAIR, workers=workers), task=SMALL, crew=crew, make_worlds=TwinWorlds).weights_hash


@pytest.mark.exhaustive
def test_a_run_with_two_workers_can_be_repeated() -> None:
    one, again = (run_together(2, partial(weights_of, 2)) for _ in range(2))
    assert one == again != weights_of(1, ALONE)


def test_a_crew_of_another_size_is_refused() -> None:
    with pytest.raises(BadInput, match="workers"):
        weights_of(2, ALONE)


def fail(rank: int, crew: Crew) -> None:
    if crew.rank == rank:
        raise ValueError(f"worker {rank} cannot")
    crew.mean(np.zeros(1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_fails_ends_the_run(rank: int) -> None:
    with pytest.raises(Exception, match=r"cannot|[Cc]onnection"):
        run_together(2, partial(fail, rank))
