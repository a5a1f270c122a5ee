"""Plays a trained network to learn about it: what its episodes cost, and which observations training meets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.goals import Episodes
from trainer.autoscaling.held_out import play
from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.rollout import choose
from trainer.autoscaling.tasks import kernel_worlds, task_of

Floats = NDArray[np.float32]

_COPIES, _STEPS, _SEED = 64, 600, 2_000_000_000
"""How much is played for the ranges, from which boot seeds: beside those of training, tuning and reports."""


def greedy_costs(network: PolicyValueNetwork, config: PPOConfig, episodes: Episodes) -> list[float]:
    """Return the cost, dollars, of each episode played greedily to its end, however late that is in its world."""
    count = len(episodes.seeds)
    costs, _ = play(
        kernel_worlds(
            episodes.world, episodes.traces, count, observation=config.observation, actions=config.action_set
        ),
        network,
        np.array(episodes.seeds, dtype=np.int64),
        np.arange(count),
        np.ones(count, dtype=np.bool_),
        heads=_heads(config),
        masked=config.masked,
        most_steps=episodes.world.max_steps,
        rng=np.random.default_rng(0),
    )
    return [float(cost) for cost in costs]


def feature_ranges(network: PolicyValueNetwork, config: PPOConfig) -> tuple[Floats, Floats]:
    """Return the lowest and highest value of each feature as training meets them, each of shape (F,).

    Taken from sampled actions of untrained weights, with which training begins, and of the network's, with which it
    ends, in every world of the task.
    """
    untrained = PolicyValueNetwork(network.kind, network.features, network.logits, config.hidden, seed=config.seed)
    seen = [
        _seen(player, config, stage.config, stage.traces)
        for stage in task_of(config.task).stages
        for player in (untrained, network)
    ]
    low = np.min([rows.min(axis=(0, 1)) for rows in seen], axis=0)
    high = np.max([rows.max(axis=(0, 1)) for rows in seen], axis=0)
    return low, high


def _seen(network: PolicyValueNetwork, config: PPOConfig, world: SimulationConfig, traces: tuple[Trace, ...]) -> Floats:
    """Return the observations of sampled episodes, shape (steps, copies, F); what is over begins anew."""
    heads, rng, everyone = _heads(config), np.random.default_rng(config.seed), np.ones(_COPIES, dtype=np.bool_)
    world = replace(world, max_steps=min(world.max_steps, config.most_episode_steps))
    worlds = kernel_worlds(world, traces, _COPIES, observation=config.observation, actions=config.action_set)
    actor = network.actor(_COPIES)
    choices = worlds.n_actions // heads
    masks = np.ones((_COPIES, heads, choices), dtype=np.bool_)
    actions = np.zeros((_COPIES, heads), dtype=np.int64)
    log_probs, values = np.zeros((2, _COPIES), dtype=np.float32)
    which = np.arange(_COPIES) * len(traces) // _COPIES
    observations = worlds.reset(_SEED + which, which)
    seen = np.empty((_STEPS, _COPIES, worlds.n_features), dtype=np.float32)
    for step in range(_STEPS):
        seen[step] = observations
        answer = actor.step(torch.from_numpy(observations)).numpy()
        if config.masked:
            masks = worlds.masks().reshape(_COPIES, heads, choices)
        choose(answer, masks, rng.random((_COPIES, heads)), ~everyone, actions, log_probs, values)
        observations, _, terminated, truncated = worlds.step(actions[:, 0] if heads == 1 else actions)
        over = terminated | truncated
        if over.any():
            which[over] = rng.integers(len(traces), size=int(over.sum()))
            observations = worlds.reset_where(over, _SEED + step + which, which)
            for part in actor.memory:
                part[torch.from_numpy(over)] = 0.0
    return seen


def _heads(config: PPOConfig) -> int:
    return len(task_of(config.task).world.types) if config.action_set == "act-multi" else 1
