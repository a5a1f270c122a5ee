"""A warm start: clones the choices of another policy, such as the queue rule or the clairvoyant plan.

After it, the value has to be learnt before the policy may move, or its first wrong estimates undo the clone (autoscaler
specification §18): see `value_updates` in the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulator.autoscaling.reference import MULTI_CHANGES, Order, SimulationConfig
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.episodes import begin
from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.policies.registry import policy_of
from trainer.autoscaling.rollout import NEVER
from trainer.autoscaling.tasks import TRAINING_SEED, Task

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

CLONING_RATE = 1e-2


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What a teacher saw and did in E episodes of up to T steps; shapes as in `trainer.autoscaling.rollout.Experience`.

    valid [T, E]: 1 while the episode lasts, else 0.
    """

    observations: Tensor
    actions: Tensor
    masks: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class Cloned:
    """How well a network repeats its teacher: share of steps with the same action in every head, and mean loss."""

    agreement: float
    loss: float


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


def imitate(config: PPOConfig, task: Task, network: PolicyValueNetwork) -> Cloned:
    """Fit the policy to episodes of the teacher that the configuration names."""
    shown = demonstrate(
        config.imitate,
        task,
        observation=config.observation,
        action_set=config.action_set,
        episodes=config.imitation_episodes,
        most_steps=config.most_episode_steps,
    )
    return clone(network, shown, config.imitation_epochs, masked=config.masked)


def demonstrate(
    teacher: str, task: Task, *, observation: str, action_set: str, episodes: int, most_steps: int
) -> Demonstrations:
    """Let a policy, given as text, play episodes of a task's last stage in the learner's actions; record them."""
    stage = task.stages[-1]
    runs = [
        _episode(teacher, stage.config, task, k % len(stage.traces), k, observation, action_set, most_steps)
        for k in range(episodes)
    ]
    longest = max(len(run) for run in runs)
    columns: list[Tensor] = []
    for part in range(3):
        shape = np.shape(runs[0][0][part])
        column = np.zeros((longest, episodes, *shape), dtype=np.asarray(runs[0][0][part]).dtype)
        for k, run in enumerate(runs):
            column[: len(run), k] = [step[part] for step in run]
        columns.append(torch.from_numpy(column))
    valid = torch.zeros(longest, episodes)
    for k, run in enumerate(runs):
        valid[: len(run), k] = 1.0
    observations, actions, masks = columns
    # Nothing is chosen after an episode's end; an action must still be allowed there for the loss to be a number.
    masks[..., 0] |= valid.view(longest, episodes, 1) == 0
    return Demonstrations(observations, actions, masks, valid)


Step = tuple[NDArray[np.float32], Ints, Bools]


def _episode(
    teacher: str,
    world: SimulationConfig,
    task: Task,
    trace: int,
    number: int,
    observation: str,
    action_set: str,
    most: int,
) -> list[Step]:
    policy = policy_of(teacher)
    simulation = begin(policy, world, task.stages[-1].traces[trace], TRAINING_SEED + number)
    cores = world.cores
    steps: list[Step] = []
    while not (simulation.finished or simulation.truncated or len(steps) >= most):
        orders = policy.choose(simulation)
        seen = simulation.observe() if observation == "obs-7" else simulation.observe_v2()
        if action_set == "act-7":
            mask = simulation.mask()
            index = index_of(orders, mask)
            steps.append((seen, np.array([index]), mask[None]))
            carried_out = [Order((index - 1) // 2, 1 if index % 2 else -1)] if index else []
        else:
            mask = simulation.mask_multi()
            chosen = changes_of(orders, mask)
            steps.append((seen, chosen, mask))
            sizes = [Order(kind, MULTI_CHANGES[chosen[kind]]) for kind in range(len(cores))]
            by_cores = sorted(sizes, key=lambda order: -cores[order.kind])
            carried_out = [order for order in by_cores if order.change < 0]
            carried_out += [order for order in by_cores if order.change > 0]
        simulation.step_orders(carried_out)
    return steps


def clone(network: PolicyValueNetwork, shown: Demonstrations, epochs: int, *, masked: bool) -> Cloned:
    """Fit the policy to the demonstrations by `epochs` passes of gradient descent over whole episodes.

    The value head stays as it is. Raises nothing; says how well it went.
    """
    steps, episodes = shown.valid.shape
    device = network.value.weight.device
    seen, actions, valid = (part.to(device) for part in (shown.observations, shown.actions, shown.valid))
    masks = shown.masks.to(device)
    starts = torch.zeros(steps, episodes, device=device)
    starts[0] = 1.0
    optimiser = torch.optim.Adam(network.parameters(), lr=CLONING_RATE)
    total, agreed = torch.zeros(()), torch.zeros(())
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = CLONING_RATE * (1.0 - epoch / epochs)
        logits, _ = network.unroll(seen, starts, network.no_memory(episodes))
        shaped = logits.view(masks.shape)
        if masked:
            shaped = shaped.masked_fill(~masks, NEVER)
        log_probs = torch.log_softmax(shaped, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1).sum(-1)
        total = -(log_probs * valid).sum() / valid.sum()
        agreed = ((shaped.argmax(-1) == actions).all(-1) * valid).sum() / valid.sum()
        optimiser.zero_grad()
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
    return Cloned(float(agreed), float(total.detach()))
