"""Imitation by data aggregation (DAgger): the learner plays, the teacher says what it would have done there.

Cloning a teacher's own episodes leaves a learner at a loss wherever it has strayed from them. Here the teacher plays
only the first round; in the others the learner plays greedily, and learns from the teacher's answers of all rounds. It
learns from short stretches that begin with an empty memory, for what a rule does depends on the present minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simulator.autoscaling.reference import MULTI_CHANGES, Order
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.episodes import begin
from trainer.autoscaling.imitation import Cloned, changes_of, index_of
from trainer.autoscaling.networks import Actor, PolicyValueNetwork
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy
from trainer.autoscaling.policies.registry import policy_of
from trainer.autoscaling.rollout import NEVER
from trainer.autoscaling.tasks import TRAINING_SEED, Stage, Task

STRETCH, STRETCHES = 32, 128
"""Steps of a stretch, and stretches of a minibatch."""
RATE, LAST_RATE = 3e-3, 3e-4

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Answered(NamedTuple):
    """One episode with the teacher's answers: observations [T, F], actions [T, heads], masks [T, heads, C]."""

    observations: NDArray[np.float32]
    actions: Ints
    masks: Bools


def follow(config: PPOConfig, task: Task, network: PolicyValueNetwork) -> Cloned:
    """Fit the policy to the teacher `config.imitate` in `config.imitation_rounds` rounds of `imitation_episodes`.

    Each round ends with `imitation_epochs` minibatches. Episodes are drawn as in training, from the task's last stage.
    Returns how well the last round's minibatches are repeated.
    """
    rng = np.random.default_rng([config.seed, 1])
    stage, teacher = task.stages[-1], policy_of(config.imitate)
    episodes: list[Answered] = []
    cloned = Cloned(0.0, 0.0)
    for number in range(config.imitation_rounds):
        for _ in range(config.imitation_episodes):
            player = network.actor(1) if number else None
            episodes.append(_play(config, stage, teacher, player, TRAINING_SEED + len(episodes), rng))
        cloned = _fit(network, episodes, config, rng)
    return cloned


def _play(
    config: PPOConfig,
    stage: Stage,
    teacher: SimulatedPolicy,
    player: Actor | None,
    seed: int,
    rng: np.random.Generator,
) -> Answered:
    """Play one episode, the teacher itself where there is no player; record the teacher's answers."""
    trace = stage.traces[int(rng.choice(len(stage.traces), p=stage.probabilities))]
    simulation = begin(teacher, stage.config, trace, seed)
    seen: list[NDArray[np.float32]] = []
    answers: list[Ints] = []
    masks: list[Bools] = []
    while not (simulation.finished or simulation.truncated or len(seen) >= config.most_episode_steps):
        orders = teacher.choose(simulation)
        observation = simulation.observe() if config.observation == "obs-7" else simulation.observe_v2()
        mask, answer = _answer(config, simulation, orders)
        chosen = answer
        if player is not None:
            logits = player.step(torch.from_numpy(observation)[None])[0, :-1].cpu().numpy().reshape(mask.shape)
            chosen = np.where(mask, logits, NEVER).argmax(axis=-1)
        seen.append(observation)
        answers.append(answer)
        masks.append(mask)
        simulation.step_orders(_orders(config, stage, chosen))
    return Answered(np.stack(seen), np.stack(answers), np.stack(masks))


def _answer(config: PPOConfig, simulation: AnySimulation, orders: Sequence[Order]) -> tuple[Bools, Ints]:
    """Return what is possible now, shape (heads, C), and the teacher's orders as indices into it, shape (heads,)."""
    if config.action_set == "act-7":
        mask = simulation.mask().copy()
        return mask[None], np.array([index_of(orders, mask)])
    possible = simulation.mask_multi().copy()
    return possible, changes_of(orders, possible)


def _orders(config: PPOConfig, stage: Stage, chosen: Ints) -> list[Order]:
    """Return the orders that indices stand for, in the order in which they are carried out."""
    if config.action_set == "act-7":
        index = int(chosen[0])
        return [Order((index - 1) // 2, 1 if index % 2 else -1)] if index else []
    sizes = [Order(kind, MULTI_CHANGES[index]) for kind, index in enumerate(chosen)]
    by_cores = sorted(sizes, key=lambda order: -stage.config.cores[order.kind])
    return [order for order in by_cores if order.change < 0] + [order for order in by_cores if order.change > 0]


def _fit(
    network: PolicyValueNetwork, episodes: Sequence[Answered], config: PPOConfig, rng: np.random.Generator
) -> Cloned:
    seen, actions, masks, valid = stretches(episodes)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    starts = torch.zeros(STRETCH, STRETCHES)
    starts[0] = 1.0
    losses, agreed = [], []
    for step in range(config.imitation_epochs):
        for group in optimiser.param_groups:
            group["lr"] = RATE + (LAST_RATE - RATE) * step / config.imitation_epochs
        part = torch.from_numpy(rng.integers(seen.shape[1], size=STRETCHES))
        logits, _ = network.unroll(seen[:, part], starts, network.no_memory(STRETCHES))
        shaped, weights = logits.view(masks[:, part].shape), valid[:, part]
        if config.masked:
            shaped = shaped.masked_fill(~masks[:, part], NEVER)
        log_probs = torch.log_softmax(shaped, dim=-1).gather(-1, actions[:, part].unsqueeze(-1)).squeeze(-1).sum(-1)
        loss = -(log_probs * weights).sum() / weights.sum()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        same = (shaped.argmax(-1) == actions[:, part]).all(-1)
        agreed.append(float((same * weights).sum() / weights.sum()))
    late = max(config.imitation_epochs // 4, 1)
    return Cloned(float(np.mean(agreed[-late:])), float(np.mean(losses[-late:])))


def stretches(episodes: Sequence[Answered]) -> tuple[torch.Tensor, ...]:
    """Cut episodes into stretches: observations, actions, masks [STRETCH, S, ...] and valid [STRETCH, S], 0 or 1."""
    count = sum(-(-len(episode.actions) // STRETCH) for episode in episodes)
    columns: list[NDArray[Any]] = [np.zeros((STRETCH, count, *part.shape[1:]), part.dtype) for part in episodes[0]]
    valid = np.zeros((STRETCH, count), dtype=np.float32)
    at = 0
    for episode in episodes:
        for first in range(0, len(episode.actions), STRETCH):
            length = min(STRETCH, len(episode.actions) - first)
            parts: tuple[NDArray[Any], ...] = episode
            for column, part in zip(columns, parts, strict=True):
                column[:length, at] = part[first : first + length]
            valid[:length, at] = 1.0
            # Nothing is chosen after the end; an action must still be allowed there for the loss to be a number.
            columns[2][length:, at, :, 0] = True
            at += 1
    return (*(torch.from_numpy(column) for column in columns), torch.from_numpy(valid))
