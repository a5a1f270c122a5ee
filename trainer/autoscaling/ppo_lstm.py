"""Recurrent proximal policy optimisation (PPO) on the simulated autoscaler (autoscaler specification §10), in one file.

From top to bottom: settings, network, rollout, loss, update, loop. `trainer.kit.ppo` has the parts of PPO for any
network: advantages, the clipped loss, the scale of rewards. `trainer.autoscaling.fast_lstm` has the LSTM once more,
fast on one CPU core, and the compiled choice of actions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.environments import Bools, Doubles, Environments, Floats, Ints, MakeWorlds, heads_of, play
from trainer.autoscaling.fast_lstm import Actor, LstmActor, LstmUnroll, UnrolledLstm, choose, compiled, fast_products
from trainer.autoscaling.tasks import SELECTION_SEED, TRAINING_SEED, Task, task_of
from trainer.kit.checkpoint import Checkpoint, Checkpoints, check_resumable, plain, weights_hash
from trainer.kit.device import CPU, DEVICES, device_of
from trainer.kit.parallel import ALONE, Crew
from trainer.kit.ppo import RewardScale, advantages
from trainer.kit.progress import Progress

Memory = tuple[Tensor, ...]
SEEDS_PER_RUN = 10_000_000  # room for the seeds of the episodes of one worker of one run


# Settings.


class NetworkKind(StrEnum):
    """The trunk: a long short-term memory layer, or two layers of tanh without memory."""

    LSTM = "lstm"
    MLP = "mlp"


CHOICES = {"observation": ("obs-7", "obs-v2"), "action_set": ("act-7", "act-multi"), "device": DEVICES}


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """Everything that a training run depends on. Fractions and coefficients have no unit; raises BadInput."""

    task: str = "train-fit"  # a name of `trainer.autoscaling.tasks.TASKS`, or a task file
    seed: int = 0  # of weights, exploration and worlds
    total_steps: int = 4_000_000  # environment steps
    observation: str = "obs-7"  # or obs-v2
    action_set: str = "act-7"  # or act-multi
    masked: bool = True  # hide actions without an effect
    network: NetworkKind = NetworkKind.LSTM
    hidden: int = 128  # cells of the LSTM
    forget_bias: float = 1.0  # initial bias of the LSTM's forget gate
    environments: int = 512  # copies of the world over all workers
    steps_per_update: int = 32  # of each copy
    warm_steps: int = 256  # the first episodes begin over these steps, so that copies are out of phase
    most_episode_steps: int = 600  # an episode is cut there and its value estimated
    gamma: float = 0.98  # discount per step
    gae_lambda: float = 0.95  # of the advantage estimate
    scale_rewards: bool = True  # divide rewards by the standard deviation of their discounted sum
    progress_reward: float = 0.0  # dollars over an episode, paid as jobs finish
    time_price_per_minute: float = 0.0  # dollars
    epochs: int = 4  # passes over the experience of an update
    minibatches: int = 8  # parts of an epoch: whole environments, never parts of their time
    clip: float = 0.2  # limit of the change of a ratio of probabilities
    value_clip: float = 0.2  # limit of the change of a value; 0: no limit
    value_coefficient: float = 0.5  # weight of the value loss
    entropy_coefficient: float = 0.003  # weight of the entropy
    learning_rate: float = 2e-3  # of Adam
    adam_epsilon: float = 1e-5  # of Adam
    anneal_rate: bool = True  # the learning rate falls linearly to 0
    anneal_clip: bool = False  # the clip falls linearly to 0
    anneal_entropy: bool = False  # the weight of the entropy falls linearly to 0
    gradient_norm: float = 0.5  # longest gradient
    target_kl: float = 0.02  # epochs end at this divergence from the acting policy; 0: never
    normalise_advantages: bool = True  # per minibatch
    evaluate_every_steps: int = 131_072  # environment steps between evaluations on held-out episodes
    selection_episodes: int = 16  # held-out episodes with the most probable actions, and as many with drawn ones
    collapse_share: float = 0.95  # a policy has collapsed with one action in more than this share of steps, ...
    collapse_entropy: float = 0.05  # ... or with less entropy than this, nats per head, ...
    collapse_worse: float = 1.25  # ... where its held-out cost is this multiple of the best: the best weights return
    collapse_lost: float = 3.0  # so has a policy whose cost, greedy and sampled, is this multiple of the best
    collapse_rate: float = 0.5  # factor of the learning rate after each collapse
    workers: int = 1  # processes that share the environments and average their gradients
    device: str = CPU  # or cuda

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", NetworkKind(self.network))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(name, getattr(self, name), f"choose one of {', '.join(choices)}")
        for name in (
            *("total_steps", "hidden", "environments", "steps_per_update", "epochs", "minibatches", "learning_rate"),
            *("clip", "most_episode_steps", "gradient_norm", "evaluate_every_steps", "selection_episodes", "workers"),
        ):
            if not getattr(self, name) > 0:
                raise BadInput(name, getattr(self, name), "give a number above 0")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(name, getattr(self, name), "give a number in 0..1")
        parts = self.workers * self.minibatches
        if self.environments % parts:
            raise BadInput("environments", self.environments, f"give a multiple of workers x minibatches, {parts}")

    def plain(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return cast(dict[str, Any], plain(asdict(self)))


def worlds_of(
    config: PPOConfig, make: MakeWorlds, world: SimulationConfig, traces: tuple[Trace, ...], copies: int
) -> AutoscalingBatch:
    """Build copies of a world, as the policy sees it, whose episodes are cut after `most_episode_steps`."""
    cut = replace(world, max_steps=min(world.max_steps, config.most_episode_steps))
    return make(cut, traces, copies, observation=config.observation, actions=config.action_set)


# Network.


class PolicyValueNetwork(nn.Module):
    """A trunk with two linear heads, `policy` and `value` (autoscaler specification §10).

    features: F. logits: A = heads x choices. hidden: H, cells of the LSTM. Orthogonal initialisation from `seed`, gain
    0.01 for the logits and 1 elsewhere. Raises BadInput for sizes below 1.
    """

    def __init__(
        self, kind: NetworkKind, features: int, logits: int, hidden: int = 128, forget_bias: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        if min(features, logits, hidden) < 1:
            raise BadInput("features, logits, hidden", (features, logits, hidden), "give 1 or more of each")
        generator = torch.Generator().manual_seed(seed)
        self.kind, self.features, self.logits = NetworkKind(kind), features, logits
        self.trunk: LstmTrunk | MlpTrunk
        if self.kind is NetworkKind.LSTM:
            self.trunk = LstmTrunk(features, hidden, forget_bias, generator)
        else:
            self.trunk = MlpTrunk(features, generator)
        self.policy = _linear(self.trunk.width, logits, 0.01, generator)
        self.value = _linear(self.trunk.width, 1, 1.0, generator)

    def no_memory(self, batch: int) -> Memory:
        """Return the memory [B, H] at an episode's start."""
        return tuple(self.value.weight.new_zeros(batch, self.trunk.width) for _ in self.trunk.memory_names)

    def copied_weights(self) -> dict[str, Tensor]:
        """Return a copy of the weights by name, without gradients."""
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}

    def head(self) -> tuple[Tensor, Tensor]:
        """Return weights [A + 1, H] and biases [A + 1] of both heads together: logits, then value."""
        return torch.cat([self.policy.weight, self.value.weight]), torch.cat([self.policy.bias, self.value.bias])

    def unroll(self, observations: Tensor, starts: Tensor, memory: Memory) -> Tensor:
        """Return logits and value [T, B, A + 1] with gradients.

        observations [T, B, F]; starts [T, B], 1 where an episode starts (the memory is dropped there); memory [B, H]
        before the first step. Only one unroll of a size may wait for its gradient at a time: buffers are reused.
        """
        return nn.functional.linear(self.trunk.unroll(observations, starts, memory), *self.head())

    def step(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """Return logits [B, A], values [B] and the next memory for observations [B, F], in plain torch operations."""
        output, memory = self.trunk.step(observations, memory)
        both = nn.functional.linear(output, *self.head())
        return both[:, :-1], both[:, -1], memory

    def actor(self, batch: int) -> Actor:
        """Return an actor with the present weights and no memory yet."""
        if isinstance(self.trunk, LstmTrunk) and self.trunk.fast:
            return LstmActor(self.trunk.weight, *self.head(), batch)
        return TorchActor(self, batch)


def _linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class LstmTrunk(nn.Module):
    """Long short-term memory with one bias vector; `weight` [H + F + 1, 4 H].

    Rows: hidden, features, bias. Columns: gates in the order input, output, forget, candidate.
    """

    memory_names: tuple[str, ...] = ("hidden", "cell")

    def __init__(self, features: int, hidden: int, forget_bias: float, generator: torch.Generator) -> None:
        super().__init__()
        self.width = hidden
        weight = torch.zeros(hidden + features + 1, 4 * hidden)
        nn.init.orthogonal_(weight[:hidden], generator=generator)
        nn.init.orthogonal_(weight[hidden:-1], generator=generator)
        weight[-1, 2 * hidden : 3 * hidden] = forget_bias
        self.weight = nn.Parameter(weight)
        self._unrolls: dict[tuple[int, int], LstmUnroll] = {}

    @property
    def fast(self) -> bool:
        """Whether the weights are where the fused form runs: 32 bits, on a processor."""
        return self.weight.device.type == "cpu" and self.weight.dtype is torch.float32

    def unroll(self, observations: Tensor, starts: Tensor, memory: Memory) -> Tensor:
        """Return the outputs [T, B, H]; the plain and the fast form give the same."""
        if not self.fast:
            outputs = []
            for seen, start in zip(observations, starts, strict=True):
                output, memory = self.step(seen, tuple(part * (1.0 - start).unsqueeze(1) for part in memory))
                outputs.append(output)
            return torch.stack(outputs)
        steps, batch, features = observations.shape
        unroll = self._unrolls.get((steps, batch))
        if unroll is None:
            unroll = self._unrolls[steps, batch] = LstmUnroll(steps, batch, features, self.width)
        unroll.fill(observations, starts, *memory)
        fast: Tensor = cast(Any, UnrolledLstm).apply(self.weight, unroll)
        return fast

    def step(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the output [B, H] and the next memory."""
        hidden, cell = memory
        gates = torch.addmm(self.weight[-1], torch.cat([hidden, observations], dim=1), self.weight[:-1])
        enter, out, forget = torch.sigmoid(gates[:, : 3 * self.width]).chunk(3, dim=1)
        cell = forget * cell + enter * torch.tanh(gates[:, 3 * self.width :])
        hidden = out * torch.tanh(cell)
        return hidden, (hidden, cell)


class MlpTrunk(nn.Module):
    """Two layers of 64 with tanh and no memory: it sees the present observation alone."""

    memory_names: tuple[str, ...] = ()
    width = 64

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_linear(size, 64, math.sqrt(2.0), generator) for size in (features, 64))

    def unroll(self, observations: Tensor, starts: Tensor, memory: Memory) -> Tensor:
        """Return the outputs [T, B, 64]."""
        return self.step(observations, memory)[0]

    def step(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the output [..., 64]; there is no memory."""
        for layer in self.layers:
            observations = torch.tanh(layer(observations))
        return observations, memory


class TorchActor(Actor):
    """An actor for any trunk and device, in plain torch operations."""

    def __init__(self, network: PolicyValueNetwork, batch: int) -> None:
        self._network, self._memory = network, network.no_memory(batch)
        self.device = network.value.weight.device

    @property
    def memory(self) -> Memory:
        """The memory of the trunk."""
        return self._memory

    @torch.no_grad()
    def step(self, observations: Tensor) -> Tensor:
        """Return logits and value [B, A + 1]."""
        logits, values, memory = self._network.step(observations, self._memory)
        self.remember(memory)
        return torch.cat([logits, values.unsqueeze(1)], dim=1)


# Rollout.


class Player:
    """Chooses the actions of B copies of a world by a network, and keeps the memory of their episodes.

    actions [B, heads], log_probs, values [B]: of the newest choice.
    """

    def __init__(
        self, worlds: AutoscalingBatch, network: PolicyValueNetwork, batch: int, masked: bool, rng: np.random.Generator
    ) -> None:
        """masked: hide actions without an effect. rng: of drawn actions."""
        self._worlds, self._network, self._masked, self._rng = worlds, network, masked, rng
        self.actor, heads = network.actor(batch), heads_of(worlds)
        self.masks = np.ones((batch, heads, worlds.n_actions // heads), dtype=np.bool_)
        self.actions = np.zeros((batch, heads), dtype=np.int64)
        self.log_probs, self.values = np.zeros((2, batch), dtype=np.float32)

    def choose(self, observations: Floats, greedy: Bools) -> Ints:
        """Return the actions [B, heads] on observations [B, F]: the most probable, or drawn ones."""
        answer = self.actor.answer(observations)
        if self._masked:
            self.masks = self._worlds.masks().reshape(self.masks.shape)
        uniforms = self._rng.random(self.actions.shape)
        choose(answer, self.masks, uniforms, greedy, self.actions, self.log_probs, self.values)
        return self.actions

    def renew(self) -> None:
        """Take the present weights of the network; the memory stays."""
        memory = self.actor.copied_memory()
        self.actor = self._network.actor(len(self.actions))
        self.actor.remember(memory)


@dataclass(slots=True)
class Experience:
    """T steps of B copies. `heads` actions are chosen per step, among C choices each.

    observations [T, B, F]; starts [T, B]: 1 where an episode starts; actions [T, B, heads]; masks [T, B, heads, C];
    log_probs, rewards, values [T, B]; dones [T, B]: 1 where the step ended an episode; bootstraps [T, B]: the value
    after a step that cut an episode short, else 0; last_values [B]; memory [B, H] before the first step. costs,
    lengths: dollars and steps of each episode that ended.
    """

    observations: Floats
    starts: Floats
    actions: Ints
    masks: Bools
    log_probs: Floats
    rewards: Doubles
    values: Floats
    dones: Floats
    bootstraps: Floats
    last_values: Floats
    memory: Memory
    costs: list[float]
    lengths: list[int]


class Collector(Player):
    """Steps environments with a network and records experience."""

    def __init__(
        self, environments: Environments, network: PolicyValueNetwork, masked: bool, rng: np.random.Generator
    ) -> None:
        """masked: hide actions without an effect. rng: of the actions."""
        super().__init__(environments.worlds, network, environments.starts.size, masked, rng)
        self.environments, self._drawn = environments, np.zeros(environments.starts.size, dtype=np.bool_)

    def _step(self) -> tuple[Doubles, Bools, Bools]:
        return self.environments.step(self.choose(self.environments.observations, self._drawn))

    def _begin(self, where: Bools) -> None:
        self.environments.begin(where)
        self.actor.forget(where)

    def advance(self, steps: int) -> None:
        """Take steps without recording them; copy i begins a fresh episode after a share i / B of them."""
        for t in range(steps):
            due = np.arange(self._drawn.size) * steps // self._drawn.size == t
            if due.any():
                self._begin(due)
            self._step()

    def collect(self, steps: int) -> Experience:
        """Take and record `steps` steps with the network's present weights."""
        worlds, shape = self.environments, (steps, self._drawn.size)
        self.renew()
        starts, log_probs, values, dones, bootstraps = np.zeros((5, *shape), dtype=np.float32)
        observations = np.empty((*shape, worlds.observations.shape[1]), dtype=np.float32)
        actions = np.empty((steps, *self.actions.shape), dtype=np.int64)
        masks = np.empty((steps, *self.masks.shape), dtype=np.bool_)
        rewards, memory = np.empty(shape), self.actor.copied_memory()
        costs: list[float] = []
        lengths: list[int] = []
        for t in range(steps):
            observations[t], starts[t] = worlds.observations, worlds.starts
            rewards[t], ended, truncated = self._step()
            actions[t], masks[t], dones[t] = self.actions, self.masks, ended
            log_probs[t], values[t] = self.log_probs, self.values
            if ended.any():
                if truncated.any():
                    bootstraps[t, truncated] = self.actor.peek(worlds.observations)[truncated]
                costs += worlds.costs[ended].tolist()
                lengths += worlds.elapsed[ended].tolist()
                self._begin(ended)
        last_values = self.actor.peek(worlds.observations)
        return Experience(
            *(observations, starts, actions, masks, log_probs, rewards, values, dones, bootstraps),
            *(last_values, memory, costs, lengths),
        )

    def state(self) -> dict[str, Any]:
        """Return the state to resume from exactly."""
        return {**self.environments.state(), "memory": list(self.actor.copied_memory())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.environments.restore(state)
        self.actor.remember(state["memory"])


# Loss.


FIGURES = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clipped")


def _loss(
    clip: float,
    value_clip: float,
    value_weight: float,
    entropy_weight: float,
    answer: Floats,
    chosen: Ints,
    actions: Ints,
    masks: Bools,
    log_probs: Floats,
    values: Floats,
    returns: Floats,
    advantage: Floats,
    gradient: Floats,
) -> Doubles:
    """Write the gradient of a minibatch's loss by `answer` into `gradient`, and return the FIGURES.

    answer, gradient [T, M, A + 1]: logits and value of the present weights. advantage [T, M]. chosen [M]: the copies of
    the minibatch in actions, masks, log_probs, values (of the policy that acted) and returns, which are as in
    Experience. r is the ratio of the probabilities of the actions, the present to the acting, H the entropy, v the
    present value, u the acting one, R the return and A the advantage; means are over all T M samples:

        - mean min(A r, A clip(r)) + value_weight / 2 mean max((v - R)², (u + clip(v - u) - R)²) - entropy_weight mean H

    A masked action has no probability. Log-probability and entropy of several heads are sums.
    """
    steps, copies = answer.shape[:2]
    heads, choices = masks.shape[2:]
    samples = steps * copies
    policy = value = entropy = kl = clipped = 0.0
    log_all, shares = np.empty((heads, choices)), np.empty((heads, choices))
    entropies = np.empty(heads)
    for t in range(steps):
        for i, b in enumerate(chosen):
            log_ratio = -np.float64(log_probs[t, b])
            for k in range(heads):
                logits, mask = answer[t, i, k * choices : (k + 1) * choices], masks[t, b, k]
                highest = -np.inf
                for c in range(choices):
                    if mask[c]:
                        highest = max(highest, np.float64(logits[c]))
                total = 0.0
                for c in range(choices):
                    shares[k, c] = np.exp(logits[c] - highest) if mask[c] else 0.0
                    total += shares[k, c]
                whole = highest + np.log(total)
                entropies[k] = 0.0
                for c in range(choices):
                    shares[k, c] /= total
                    log_all[k, c] = logits[c] - whole
                    entropies[k] -= shares[k, c] * log_all[k, c]
                log_ratio += log_all[k, actions[t, b, k]]
                entropy += entropies[k]
            ratio, a = np.exp(log_ratio), np.float64(advantage[t, i])
            held = min(max(ratio, 1.0 - clip), 1.0 + clip)
            policy -= min(a * ratio, a * held)
            kl += ratio - 1.0 - log_ratio
            clipped += abs(ratio - 1.0) > clip
            # Where the clip holds the ratio, nothing pulls.
            pull = -a * ratio if a * ratio <= a * held else 0.0
            for k in range(heads):
                for c in range(choices):
                    towards = pull * ((c == actions[t, b, k]) - shares[k, c])
                    spread = entropy_weight * shares[k, c] * (log_all[k, c] + entropies[k])
                    gradient[t, i, k * choices + c] = (towards + spread) / samples
            now, before, goal = np.float64(answer[t, i, -1]), np.float64(values[t, b]), np.float64(returns[t, b])
            error = near = now - goal
            if value_clip > 0.0:
                near = before + min(max(now - before, -value_clip), value_clip) - goal
            value += 0.5 * max(error * error, near * near)
            gradient[t, i, -1] = value_weight * error / samples if error * error >= near * near else 0.0
    means: Doubles = np.array([policy, value, entropy, kl, clipped]) / samples
    return means


loss = compiled(_loss)


# Update.


HELD_OUT = ("held_out/greedy", "held_out/sampled", "held_out/greedy_steps")
"""Cost of the held-out episodes by most probable and by drawn actions (`Task.score`); mean steps of the former."""


class Training:
    """One run: network, optimiser, environments and the best weights; `update` is one turn of the loop.

    best_weights: with the least held-out cost, best_cost (None before the first evaluation). restarts: collapses so
    far. evaluated_at: steps at the last evaluation.
    """

    def __init__(
        self,
        config: PPOConfig,
        task: Task | None = None,
        crew: Crew = ALONE,
        make_worlds: MakeWorlds = AutoscalingBatch,
    ) -> None:
        """task: in place of the task of the configuration."""
        self.config, self.task, self._crew = config, task or task_of(config.task), crew
        self._make_worlds = make_worlds
        self._rng = np.random.default_rng([config.seed, crew.rank])
        self._copies = config.environments // crew.size
        self.updates = self.restarts = self.evaluated_at = 0
        # Half of the copies take the most probable actions, the others draw theirs.
        copies = 2 * config.selection_episodes
        self._held_out = worlds_of(config, make_worlds, self.task.world, self.task.selection, copies)
        sizes = self._held_out.n_features, self._held_out.n_actions
        self.network = PolicyValueNetwork(
            config.network, *sizes, config.hidden, forget_bias=config.forget_bias, seed=config.seed
        ).to(device_of(config.device))
        self.optimiser = self._new_optimiser()
        self.best_cost: float | None = None
        self.best_weights = self.network.copied_weights()
        self._scale = RewardScale(np.zeros(self._copies))
        self.collector = self._enter(0)

    def _new_optimiser(self) -> torch.optim.Adam:
        config = self.config
        return torch.optim.Adam(self.network.parameters(), config.learning_rate, eps=config.adam_epsilon, fused=True)

    @property
    def steps(self) -> int:
        """Environment steps done, over all workers."""
        return self.updates * self.config.steps_per_update * self.config.environments

    @property
    def _left(self) -> float:
        """Share of the run that is still to come, never 0."""
        return max(1.0 - self.steps / self.config.total_steps, 1e-3)

    def _enter(self, number: int) -> Collector:
        """Build the environments of a stage of the task, and bring the copies out of phase."""
        config, stage = self.config, self.task.stages[number]
        self._stage = number
        worker = config.seed * config.workers + self._crew.rank + 1
        worlds = worlds_of(config, self._make_worlds, stage.config, stage.traces, self._copies)
        environments = Environments(
            *(worlds, stage, self._copies),
            TRAINING_SEED + SEEDS_PER_RUN * worker + number * SEEDS_PER_RUN // 10,
            self._rng,
            progress_reward=config.progress_reward + self.task.progress_reward,
            time_price=self.task.step_price(config.time_price_per_minute, stage.config),
        )
        collector = Collector(environments, self.network, config.masked, self._rng)
        collector.advance(config.warm_steps)
        return collector

    def update(self) -> dict[str, float]:
        """Collect experience and learn from it; return the figures of this update by name."""
        config = self.config
        stage = self.task.stage_at(self.steps / config.total_steps)
        if stage != self._stage:
            self.collector, self._scale = self._enter(stage), RewardScale(np.zeros(self._copies))
        rate = config.learning_rate * config.collapse_rate**self.restarts
        rate *= self._left if config.anneal_rate else 1.0
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        made = self.collector.collect(config.steps_per_update)
        figures = {"rate/learning_rate": rate} | self._learn(made)
        self.updates += 1
        figures["policy/most_frequent_action"] = self._most_frequent_action(made)
        if made.costs:
            figures |= {"episodes/cost": float(np.mean(made.costs)), "episodes/steps": float(np.mean(made.lengths))}
        return figures

    def _learn(self, made: Experience) -> dict[str, float]:
        """Scale the rewards, estimate the advantages, and descend the loss in epochs of minibatches."""
        config, left = self.config, self._left
        rewards = made.rewards
        if config.scale_rewards:
            self._scale.add(made.rewards, made.dones, config.gamma, self._crew.moments)
            rewards = rewards / self._scale.deviation
        gained = advantages(
            *(rewards.astype(np.float32), made.values, made.dones, made.last_values),
            *(config.gamma, config.gae_lambda, made.bootstraps),
        )
        clip = config.clip * (left if config.anneal_clip else 1.0)
        entropy_weight = config.entropy_coefficient * (left if config.anneal_entropy else 1.0)
        coefficients = clip, config.value_clip, config.value_coefficient, entropy_weight
        returns = gained + made.values
        observations, starts = (torch.from_numpy(x).to(config.device) for x in (made.observations, made.starts))
        sums, steps = np.zeros(len(FIGURES)), 0
        for chosen in self._minibatches():
            there = torch.from_numpy(chosen).to(config.device)
            memory = tuple(kept[there] for kept in made.memory)
            answer = self.network.unroll(observations.index_select(1, there), starts.index_select(1, there), memory)
            shown = answer.detach().cpu().numpy()
            gradient, advantage = np.empty_like(shown), gained[:, chosen]
            if config.normalise_advantages:
                advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
            acted = made.actions, made.masks, made.log_probs, made.values
            figures = self._crew.mean(loss(*coefficients, shown, chosen, *acted, returns, advantage, gradient))
            if config.target_kl and figures[FIGURES.index("policy/kl")] > config.target_kl:
                break
            self.network.zero_grad()
            torch.autograd.backward(answer, torch.from_numpy(gradient).to(config.device))
            self._crew.average_gradients(self.network.parameters())
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.gradient_norm)
            self.optimiser.step()
            sums, steps = sums + figures, steps + 1
        unexplained = np.var(gained) / max(float(np.var(gained + made.values)), 1e-12)
        means = dict(zip(FIGURES, (sums / max(steps, 1)).tolist(), strict=True))
        return means | {"policy/minibatches": float(steps), "value/explained": float(1.0 - unexplained)}

    def _minibatches(self) -> Iterator[Ints]:
        """Yield the copies of each minibatch: all of them every epoch, whole in time, in another order."""
        for _ in range(self.config.epochs):
            yield from np.split(self._rng.permutation(self._copies), self.config.minibatches)

    def _most_frequent_action(self, made: Experience) -> float:
        """Return the share of steps with the most frequent action, of the head where that share is least."""
        most = np.array([min(np.bincount(head.ravel()).max() for head in np.moveaxis(made.actions, -1, 0))])
        return float(self._crew.mean(most / made.values.size)[0])

    def evaluate(self) -> dict[str, float]:
        """Play the held-out episodes with the present weights; return their HELD_OUT figures."""
        config, task, episodes = self.config, self.task, self.config.selection_episodes
        which = np.tile(np.arange(episodes), 2)
        greedy, seeds, traces = np.arange(which.size) < episodes, SELECTION_SEED + which, which % len(task.selection)
        rng = np.random.default_rng(SELECTION_SEED)
        player = Player(self._held_out, self.network, which.size, config.masked, rng)
        costs, lengths = play(self._held_out, player.choose, seeds, traces, greedy, config.most_episode_steps)
        costs += task.step_price(config.time_price_per_minute, task.world) * lengths
        found = task.score(costs[greedy]), task.score(costs[~greedy]), float(lengths[greedy].mean())
        return dict(zip(HELD_OUT, found, strict=True))

    def judge(self, figures: dict[str, float]) -> tuple[bool, str]:
        """Evaluate, keep the weights when they are the best, and return to the best ones after a collapse.

        Adds the held-out costs to `figures`; returns whether the weights are the best so far, and a note on a restart.
        """
        config = self.config
        self.evaluated_at = self.steps
        found = self.evaluate() if self._crew.leads else dict.fromkeys(HELD_OUT, 0.0)
        cost, sampled, _ = held_out = self._crew.as_leader(list(found.values()))
        figures |= dict(zip(HELD_OUT, held_out, strict=True))
        if self.best_cost is None or cost < self.best_cost:
            self.best_cost, self.best_weights = cost, self.network.copied_weights()
            return True, ""
        stuck = figures["policy/most_frequent_action"] > config.collapse_share
        stuck |= figures["policy/entropy"] < config.collapse_entropy
        lost = min(cost, sampled) > config.collapse_lost * self.best_cost
        if not lost and not (stuck and cost > config.collapse_worse * self.best_cost):
            return False, ""
        self.restarts += 1
        self.network.load_state_dict(self.best_weights)
        self.optimiser = self._new_optimiser()
        slower = f"rate x {config.collapse_rate**self.restarts:g}"
        return False, f"collapsed at cost {cost:.2f}: back to the weights of {self.best_cost:.2f}, {slower}"

    def state(self) -> dict[str, Any]:
        """Return the state to resume a run from exactly, as a tree for `trainer.kit.checkpoint`."""
        return {
            "weights": self.network.copied_weights(),
            "optimiser": deepcopy(self.optimiser.state_dict()),
            "best_weights": self.best_weights,
            "best_cost": self.best_cost,
            "counts": [self.updates, self.restarts, self._stage, self.evaluated_at],
            "scale": asdict(self._scale),
            "collector": self.collector.state(),
            "rank": self._crew.rank,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same configuration."""
        self.updates, self.restarts, stage, self.evaluated_at = state["counts"]
        if stage != self._stage:
            self.collector = self._enter(stage)
        self.network.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        self.best_weights, self.best_cost = dict(state["best_weights"]), state["best_cost"]
        self._scale = RewardScale(**state["scale"])
        if state["rank"] == self._crew.rank:
            # A worker without a checkpoint begins new episodes.
            self.collector.restore(state["collector"])


# Loop.


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a run: the network with its best weights, their held-out cost, and the digest of the last ones."""

    network: PolicyValueNetwork
    best_cost: float | None
    weights_hash: str
    steps: int


def train(
    config: PPOConfig,
    *,
    resume: Checkpoint | None = None,
    on_update: Callable[[Progress], None] = lambda progress: None,
    on_phase: Callable[[str], None] = lambda words: None,
    checkpoints: Checkpoints | None = None,
    task: Task | None = None,
    crew: Crew = ALONE,
    make_worlds: MakeWorlds = AutoscalingBatch,
) -> TrainingResult:
    """Train until `total_steps`; call `on_update` after every update, and save a checkpoint at every evaluation.

    on_phase: called with the phases before the first update. The same configuration gives the same weights, and so
    does a run resumed from its last checkpoint (one worker). Runs on one thread of this process; with `workers` above 1
    it is one of a crew, see `run_together`. Raises OtherConfiguration for a `resume` of another configuration, BadInput
    for a crew of another size.
    """
    if config.workers != crew.size:
        raise BadInput("workers", config.workers, f"give {crew.size}, or train in as many processes")
    torch.set_num_threads(1)
    began, cpu_before = time.monotonic(), time.process_time()
    wall_s = cpu_s = 0.0
    with fast_products():
        on_phase(f"compiling, and playing {config.warm_steps} steps of {config.environments} environments")
        run = Training(config, task=task, crew=crew, make_worlds=make_worlds)
        if resume is not None:
            check_resumable(resume, config.plain(), Path("--resume"))
            run.restore(resume.state)
            wall_s, cpu_s = float(resume.progress["wall_s"]), float(resume.progress["cpu_s"])
        each = config.steps_per_update * config.environments
        on_phase(f"gathering {each:,} steps, and learning from them for the first time")
        while run.steps < config.total_steps:
            figures = run.update()
            due = run.steps >= config.total_steps or run.steps - run.evaluated_at >= config.evaluate_every_steps
            best, note = run.judge(figures) if due else (False, "")
            spent = wall_s + time.monotonic() - began, cpu_s + time.process_time() - cpu_before
            total = -(-config.total_steps // each) * each
            progress = Progress(run.updates, run.steps, total, *spent, figures, run.best_cost, note)
            on_update(progress)
            if checkpoints is not None and due:
                checkpoints.save(Checkpoint(config.plain(), asdict(progress), run.state()), best=best)
        last = weights_hash(run.network.state_dict())
        run.network.load_state_dict(run.best_weights)
    return TrainingResult(run.network.cpu(), run.best_cost, last, run.steps)
