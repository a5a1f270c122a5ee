"""A warm start: before the first update the network clones the choices of a rule, such as the queue rule.

With `imitation_rounds` 0 it is fitted to whole episodes that the teacher plays. Such a clone is at a loss wherever it
leaves the teacher's states. So with more rounds (DAgger, data aggregation) the teacher plays the first round only; in
the others the network plays greedily, and learns from the teacher's answers of all rounds, in short stretches that
begin with an empty memory: what a rule does depends on the present minute.

Afterwards the value has to be learnt before the policy may move, or its first wrong estimates undo the clone
(autoscaler specification §18): see `value_updates` in the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.episodes import begin
from trainer.autoscaling.networks import Actor, PolicyValueNetwork
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy
from trainer.autoscaling.policies.registry import policy_of
from trainer.autoscaling.rollout import NEVER
from trainer.autoscaling.tasks import TRAINING_SEED, Stage, Task

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

CLONING_RATE = 1e-2
STRETCH, STRETCHES = 32, 128
"""Steps of a stretch, and stretches of a minibatch."""
RATE, LAST_RATE = 3e-3, 3e-4


class Demonstration(NamedTuple):
    """One episode with the teacher's answers: observations [T, F], actions [T, heads], masks [T, heads, C]."""

    observations: NDArray[np.float32]
    actions: Ints
    masks: Bools


class Demonstrations(NamedTuple):
    """S sequences of T steps; shapes as in `Experience`. valid [T, S]: 1 while the sequence lasts, else 0."""

    observations: Tensor
    actions: Tensor
    masks: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class Cloned:
    """How well a network repeats its teacher: share of steps with the same action in every head, and mean loss."""

    agreement: float
    loss: float


def warm_start(config: PPOConfig, task: Task, network: PolicyValueNetwork) -> Cloned:
    """Fit the policy to the teacher `config.imitate`; return how well it repeats the teacher."""
    if config.imitation_rounds:
        return aggregate(config, task, network)
    return clone(network, demonstrate(config, task), config.imitation_epochs, masked=config.masked)


def demonstrate(config: PPOConfig, task: Task) -> Demonstrations:
    """Record `imitation_episodes` whole episodes of the teacher, over the traces of the task's last stage in turn."""
    stage, teacher = task.stages[-1], policy_of(config.imitate)
    episodes = [
        play(config, stage, teacher, stage.traces[k % len(stage.traces)], TRAINING_SEED + k)
        for k in range(config.imitation_episodes)
    ]
    return sequences(episodes, max(len(episode.actions) for episode in episodes))


def clone(network: PolicyValueNetwork, shown: Demonstrations, epochs: int, *, masked: bool) -> Cloned:
    """Fit the policy by `epochs` passes of gradient descent over whole episodes; the value head stays as it is."""
    shown = Demonstrations(*(part.to(network.value.weight.device) for part in shown))
    optimiser = torch.optim.Adam(network.parameters(), lr=CLONING_RATE)
    loss = agreed = torch.zeros(())
    for epoch in range(epochs):
        rate = CLONING_RATE * (1.0 - epoch / epochs)
        loss, agreed = _descend(network, optimiser, rate, shown, masked=masked)
    return Cloned(float(agreed), float(loss))


def aggregate(config: PPOConfig, task: Task, network: PolicyValueNetwork) -> Cloned:
    """Fit the policy in `imitation_rounds` rounds of `imitation_episodes`, by `imitation_epochs` minibatches each.

    Episodes are drawn as in training, from the task's last stage. Returns how well the last round's later minibatches
    are repeated.
    """
    rng = np.random.default_rng([config.seed, 1])
    stage, teacher = task.stages[-1], policy_of(config.imitate)
    episodes: list[Demonstration] = []
    cloned = Cloned(0.0, 0.0)
    for number in range(config.imitation_rounds):
        for _ in range(config.imitation_episodes):
            player = network.actor(1) if number else None
            trace = stage.traces[int(rng.choice(len(stage.traces), p=stage.probabilities))]
            episodes.append(play(config, stage, teacher, trace, TRAINING_SEED + len(episodes), player))
        cloned = _fit_stretches(network, sequences(episodes, STRETCH), config, rng)
    return cloned


def play(
    config: PPOConfig,
    stage: Stage,
    teacher: SimulatedPolicy,
    trace: Trace,
    seed: int,
    player: Actor | None = None,
) -> Demonstration:
    """Play one episode, by the teacher where there is no player, and record the teacher's answers in its states."""
    simulation = begin(teacher, stage.config, trace, seed)
    observations: list[NDArray[np.float32]] = []
    answers: list[Ints] = []
    masks: list[Bools] = []
    while not (simulation.finished or simulation.truncated or len(observations) >= config.most_episode_steps):
        orders = teacher.choose(simulation)
        observation = simulation.observe() if config.observation == "obs-7" else simulation.observe_v2()
        mask, answer = _answer(config, simulation, orders)
        chosen = answer
        if player is not None:
            logits = player.step(torch.from_numpy(observation)[None])[0, :-1].cpu().numpy().reshape(mask.shape)
            chosen = np.where(mask, logits, NEVER).argmax(axis=-1)
        observations.append(observation)
        answers.append(answer)
        masks.append(mask)
        simulation.step_orders(_orders(config, stage, chosen))
    return Demonstration(np.stack(observations), np.stack(answers), np.stack(masks))


def _answer(config: PPOConfig, simulation: AnySimulation, orders: Sequence[Order]) -> tuple[Bools, Ints]:
    """Return what is possible now, shape (heads, C), and the teacher's orders as indices into it, shape (heads,)."""
    if config.action_set == "act-7":
        mask = simulation.mask().copy()
        return mask[None], np.array([index_of(orders, mask)])
    possible = simulation.mask_multi().copy()
    return possible, changes_of(orders, possible)


def index_of(orders: Sequence[Order], mask: Bools) -> int:
    """Return the act-7 index of the first order that would have an effect now, 0 when none would."""
    wanted = (2 * order.kind + (1 if order.change > 0 else 2) for order in orders if order.change)
    return next((index for index in wanted if mask[index]), 0)


def changes_of(orders: Sequence[Order], mask: Bools) -> Ints:
    """Return per type the index of the largest allowed change that does not go beyond what the orders ask for.

    mask: shape (N, 7), over MULTI_CHANGES.
    """
    kinds = mask.shape[0]
    wanted = [sum(order.change for order in orders if order.kind == kind) for kind in range(kinds)]
    chosen = np.full(kinds, MULTI_CHANGES.index(0), dtype=np.int64)
    for kind, change in enumerate(wanted):
        for index, size in enumerate(MULTI_CHANGES):
            fits = mask[kind, index] and size * change > 0 and abs(size) <= abs(change)
            if fits and abs(size) > abs(MULTI_CHANGES[chosen[kind]]):
                chosen[kind] = index
    return chosen


def _orders(config: PPOConfig, stage: Stage, chosen: Ints) -> list[Order]:
    """Return the orders that indices stand for, in the order in which they are carried out."""
    if config.action_set == "act-7":
        index = int(chosen[0])
        return [Order((index - 1) // 2, 1 if index % 2 else -1)] if index else []
    sizes = [Order(kind, MULTI_CHANGES[index]) for kind, index in enumerate(chosen)]
    by_cores = sorted(sizes, key=lambda order: -stage.config.cores[order.kind])
    return [order for order in by_cores if order.change < 0] + [order for order in by_cores if order.change > 0]


def sequences(episodes: Sequence[Demonstration], length: int) -> Demonstrations:
    """Cut episodes into sequences of at most `length` steps, side by side."""
    count = sum(-(-len(episode.actions) // length) for episode in episodes)
    observations, actions, masks = (np.zeros((length, count, *part.shape[1:]), part.dtype) for part in episodes[0])
    valid = np.zeros((length, count), dtype=np.float32)
    at = 0
    for episode in episodes:
        for first in range(0, len(episode.actions), length):
            steps = min(length, len(episode.actions) - first)
            part = slice(first, first + steps)
            observations[:steps, at], actions[:steps, at] = episode.observations[part], episode.actions[part]
            masks[:steps, at], valid[:steps, at] = episode.masks[part], 1.0
            # Nothing is chosen after the end; an action must still be allowed there for the loss to be a number.
            masks[steps:, at, :, 0] = True
            at += 1
    return Demonstrations(*map(torch.from_numpy, (observations, actions, masks, valid)))


def _fit_stretches(
    network: PolicyValueNetwork, shown: Demonstrations, config: PPOConfig, rng: np.random.Generator
) -> Cloned:
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    losses, agreed = [], []
    for step in range(config.imitation_epochs):
        chosen = torch.from_numpy(rng.integers(shown.valid.shape[1], size=STRETCHES))
        part = Demonstrations(*(tensor[:, chosen] for tensor in shown))
        rate = RATE + (LAST_RATE - RATE) * step / config.imitation_epochs
        loss, same = _descend(network, optimiser, rate, part, masked=config.masked)
        losses.append(float(loss))
        agreed.append(float(same))
    late = max(config.imitation_epochs // 4, 1)
    return Cloned(float(np.mean(agreed[-late:])), float(np.mean(losses[-late:])))


def _descend(
    network: PolicyValueNetwork, optimiser: torch.optim.Adam, rate: float, part: Demonstrations, *, masked: bool
) -> tuple[Tensor, Tensor]:
    """Take one step down the negative log-likelihood of the teacher's actions; return it and the share repeated."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    steps, count = part.valid.shape
    starts = torch.zeros(steps, count, device=part.valid.device)
    starts[0] = 1.0
    logits, _ = network.unroll(part.observations, starts, network.no_memory(count))
    shaped = logits.view(part.masks.shape)
    if masked:
        shaped = shaped.masked_fill(~part.masks, NEVER)
    log_probs = torch.log_softmax(shaped, dim=-1).gather(-1, part.actions.unsqueeze(-1)).squeeze(-1).sum(-1)
    loss = -(log_probs * part.valid).sum() / part.valid.sum()
    agreed = ((shaped.argmax(-1) == part.actions).all(-1) * part.valid).sum() / part.valid.sum()
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    return loss.detach(), agreed
