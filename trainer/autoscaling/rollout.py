"""Gathers experience: many copies of the simulated world stepped together, each at another point of its episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulator.autoscaling.batch import AutoscalingBatch
from trainer.autoscaling.fast_lstm import compiled
from trainer.autoscaling.networks import Memory, PolicyValueNetwork

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MakeWorlds = Callable[..., AutoscalingBatch]
"""Makes copies of a world over traces; see `AutoscalingBatch`."""
NEVER = -1.0e9
"""Logit of an action that is masked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How `batch` copies gather experience; episode n of a collector has seed `first_seed` + n.

    heads: actions chosen per step. masked: hide actions without an effect. weights [traces]: chance of each trace for
    an episode; jobs: of each trace. Added to the rewards: progress_reward, dollars over an episode, paid as jobs
    finish; time_price, dollars that a step costs. scales [traces]: rewards are divided by them; none for 1 everywhere.
    """

    heads: int
    batch: int
    masked: bool
    first_seed: int
    weights: Doubles
    jobs: Sequence[int]
    progress_reward: float = 0.0
    time_price: float = 0.0
    scales: Sequence[float] = ()


@dataclass(slots=True)
class Experience:
    """T steps of B copies. `heads` actions are chosen per step, among C choices each.

    observations [T, B, F]; starts [T, B]: 1 where an episode starts; actions [T, B, heads]; masks [T, B, heads, C];
    log_probs, rewards, values [T, B]; dones [T, B]: 1 where the step ended an episode; bootstraps [T, B]: the value
    after a step that cut an episode short, else 0; last_values [B]; memory [B, H] before the first step.
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


@dataclass(frozen=True, slots=True)
class Ended:
    """Episodes that ended while experience was gathered: dollars and steps of each."""

    costs: tuple[float, ...]
    steps: tuple[int, ...]


def _choose(
    answer: Floats,
    masks: Bools,
    uniforms: Doubles,
    greedy: Bools,
    actions: Ints,
    log_probs: Floats,
    values: Floats,
) -> None:
    """Choose by logits and value [B, A + 1]; masks [B, heads, C], uniforms, actions [B, heads]; greedy [B]."""
    rows, heads, choices = masks.shape
    for b in range(rows):
        total = 0.0
        for k in range(heads):
            first = k * choices
            best, highest = -1, -np.inf
            for c in range(choices):
                if masks[b, k, c] and answer[b, first + c] > highest:
                    best, highest = c, answer[b, first + c]
            weight = 0.0
            for c in range(choices):
                if masks[b, k, c]:
                    weight += np.exp(answer[b, first + c] - highest)
            chosen = best
            if not greedy[b]:
                left = uniforms[b, k] * weight
                for c in range(choices):
                    if masks[b, k, c]:
                        chosen = c
                        left -= np.exp(answer[b, first + c] - highest)
                        if left < 0.0:
                            break
            actions[b, k] = chosen
            total += answer[b, first + chosen] - highest - np.log(weight)
        log_probs[b] = total
        values[b] = answer[b, heads * choices]


choose = compiled(_choose)


class Player:
    """Plays B copies of a world with a network, without recording; it keeps the memory of their episodes."""

    def __init__(
        self,
        worlds: AutoscalingBatch,
        network: PolicyValueNetwork,
        batch: int,
        heads: int,
        masked: bool,
        rng: np.random.Generator,
    ) -> None:
        """masked: hide actions without an effect. rng: of the actions that are drawn."""
        self._worlds, self._masked, self._rng = worlds, masked, rng
        self._actor, self._device = network.actor(batch), network.value.weight.device
        self._masks = np.ones((batch, heads, worlds.n_actions // heads), dtype=np.bool_)
        self._actions = np.zeros((batch, heads), dtype=np.int64)
        self._log_probs, self._values = np.zeros((2, batch), dtype=np.float32)

    def choose(self, observations: Floats, greedy: Bools) -> Ints:
        """Return the actions on observations [B, F], as the worlds take them: the most probable, or drawn ones."""
        answer = self._actor.step(torch.from_numpy(observations).to(self._device)).cpu().numpy()
        if self._masked:
            self._masks = self._worlds.masks().reshape(self._masks.shape)
        uniforms = self._rng.random(self._actions.shape)
        choose(answer, self._masks, uniforms, greedy, self._actions, self._log_probs, self._values)
        return self._actions[:, 0] if self._actions.shape[1] == 1 else self._actions

    def forget(self, where: Bools) -> None:
        """Empty the memory of the copies that begin anew."""
        for part in self._actor.memory:
            part[torch.from_numpy(where).to(self._device)] = 0.0


class Collector:
    """Steps B worlds with a network and records what happened; episodes follow each other without a break."""

    def __init__(
        self,
        worlds: AutoscalingBatch,
        network: PolicyValueNetwork,
        plan: Plan,
        rng: np.random.Generator,
    ) -> None:
        """Begin an episode in every copy."""
        self._worlds, self._network, self._plan, self._rng = worlds, network, plan, rng
        heads, batch = plan.heads, plan.batch
        self._heads, self._choices = heads, worlds.n_actions // heads
        self._jobs = np.maximum(np.asarray(plan.jobs, dtype=np.float64), 1.0)
        self._scales = np.asarray(plan.scales or np.ones(self._jobs.size), dtype=np.float64)
        self._episodes = 0
        self.batch = batch
        self._seeds = np.zeros(batch, dtype=np.int64)
        self._traces = np.zeros(batch, dtype=np.int64)
        self._elapsed = np.zeros(batch, dtype=np.int64)
        self._history = np.zeros((batch, 256, heads), dtype=np.int8)
        self._starts = np.ones(batch, dtype=np.float32)
        self._finished = np.zeros(batch, dtype=np.int64)
        self._actor = network.actor(batch)
        self._device = network.value.weight.device
        self._all = np.ones((batch, heads, self._choices), dtype=np.bool_)
        self._sampled = np.zeros(batch, dtype=np.bool_)
        self._actions = np.zeros((batch, heads), dtype=np.int64)
        self._log_probs, self._values = np.zeros((2, batch), dtype=np.float32)
        self._draw_episodes(np.ones(batch, dtype=np.bool_))
        self._observations = worlds.reset(self._seeds, self._traces)

    def advance(self, steps: int) -> None:
        """Take steps without recording them; copy i begins a fresh episode after a share i / B of them."""
        for t in range(steps):
            due = np.arange(self.batch) * steps // self.batch == t
            if due.any():
                self._begin(due)
            self._step(self._answer())

    def collect(self, steps: int) -> tuple[Experience, Ended]:
        """Take and record `steps` steps with the network's present weights."""
        self._load()
        T, B, heads, choices = steps, self.batch, self._heads, self._choices
        made = Experience(
            observations=np.empty((T, B, self._worlds.n_features), dtype=np.float32),
            starts=np.empty((T, B), dtype=np.float32),
            actions=np.empty((T, B, heads), dtype=np.int64),
            masks=np.empty((T, B, heads, choices), dtype=np.bool_),
            log_probs=np.empty((T, B), dtype=np.float32),
            rewards=np.empty((T, B)),
            values=np.empty((T, B), dtype=np.float32),
            dones=np.empty((T, B), dtype=np.float32),
            bootstraps=np.zeros((T, B), dtype=np.float32),
            last_values=np.empty(B, dtype=np.float32),
            memory=self.memory(),
        )
        costs: list[float] = []
        lengths: list[int] = []
        for t in range(T):
            made.observations[t], made.starts[t] = self._observations, self._starts
            made.masks[t] = self._masks()
            made.rewards[t], ended, truncated = self._step(self._answer(), made.masks[t])
            made.actions[t], made.log_probs[t], made.values[t] = self._actions, self._log_probs, self._values
            made.dones[t] = ended
            if ended.any():
                if truncated.any():
                    made.bootstraps[t, truncated] = self._peek()[truncated]
                costs += (self._worlds.rent + self._worlds.penalty)[ended].tolist()
                lengths += self._elapsed[ended].tolist()
                self._begin(ended)
        made.last_values[:] = self._peek()
        return made, Ended(tuple(costs), tuple(lengths))

    def memory(self) -> Memory:
        """Return a copy of the memory of every copy's episode."""
        return tuple(part.clone() for part in self._actor.memory)

    def _load(self) -> None:
        memory = self.memory()
        self._actor = self._network.actor(self.batch)
        self._remember(memory)

    def _remember(self, memory: Memory) -> None:
        for part, kept in zip(self._actor.memory, memory, strict=True):
            part.copy_(kept)

    def _answer(self) -> Floats:
        seen = torch.from_numpy(self._observations).to(self._device)
        answer: Floats = self._actor.step(seen).cpu().numpy()
        return answer

    def _peek(self) -> Floats:
        """Return the values [B] of the present observations, leaving the memory as it is."""
        memory = self.memory()
        values = self._answer()[:, -1].copy()
        self._remember(memory)
        return values

    def _masks(self) -> Bools:
        if not self._plan.masked:
            return self._all
        return self._worlds.masks().reshape(self.batch, self._heads, self._choices)

    def _step(self, answer: Floats, masks: Bools | None = None) -> tuple[Doubles, Bools, Bools]:
        """Choose and take one step; return rewards, ends [B], and which ends are truncations [B]."""
        masks = self._masks() if masks is None else masks
        uniforms = self._rng.random((self.batch, self._heads))
        choose(answer, masks, uniforms, self._sampled, self._actions, self._log_probs, self._values)
        if self._elapsed.max() >= self._history.shape[1]:
            self._history = np.concatenate([self._history, np.zeros_like(self._history)], axis=1)
        self._history[np.arange(self.batch), self._elapsed] = self._actions
        self._elapsed += 1
        actions = self._actions[:, 0] if self._heads == 1 else self._actions
        self._observations, rewards, terminated, truncated = self._worlds.step(actions)
        self._starts = np.zeros(self.batch, dtype=np.float32)
        rewards = rewards - self._plan.time_price
        if self._plan.progress_reward:
            done = self._worlds.finished
            rewards += self._plan.progress_reward * (done - self._finished) / self._jobs[self._traces]
            self._finished = done.copy()
        if self._plan.scales:
            rewards /= self._scales[self._traces]
        return rewards, terminated | truncated, truncated

    def _draw_episodes(self, where: Bools) -> None:
        fresh = int(where.sum())
        self._seeds[where] = self._plan.first_seed + self._episodes + np.arange(fresh)
        self._traces[where] = self._rng.choice(self._jobs.size, size=fresh, p=self._plan.weights)
        self._episodes += fresh
        self._elapsed[where] = 0

    def _begin(self, where: Bools) -> None:
        """Begin a fresh episode in some copies."""
        self._draw_episodes(where)
        self._reset(where)

    def _reset(self, where: Bools) -> None:
        self._observations = self._worlds.reset_where(where, self._seeds, self._traces)
        rows = torch.from_numpy(where).to(self._device)
        for part in self._actor.memory:
            part[rows] = 0.0
        self._starts[where] = 1.0
        self._finished[where] = 0

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly here; the worlds by the actions of their unfinished episodes."""
        return {
            "episodes": self._episodes,
            "seeds": self._seeds.copy(),
            "traces": self._traces.copy(),
            "elapsed": self._elapsed.copy(),
            "history": self._history[:, : int(self._elapsed.max())].copy(),
            "starts": self._starts.copy(),
            "finished": self._finished.copy(),
            "memory": [part.clone() for part in self._actor.memory],
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: every copy's unfinished episode is played again, all of them ending at this moment."""
        self._episodes = int(state["episodes"])
        for kept, name in ((self._seeds, "seeds"), (self._traces, "traces"), (self._elapsed, "elapsed")):
            kept[:] = state[name]
        history = np.asarray(state["history"], dtype=np.int8)
        longest = history.shape[1]
        self._history = np.zeros((self.batch, max(256, 2 * longest), self._heads), dtype=np.int8)
        self._history[:, :longest] = history
        rows = np.arange(self.batch)
        for left in range(longest, 0, -1):
            due = self._elapsed == left
            if due.any():
                self._reset(due)
            at = self._elapsed - left
            actions = np.where((at >= 0)[:, None], self._history[rows, np.maximum(at, 0)], 0).astype(np.int64)
            self._observations = self._worlds.step(actions[:, 0] if self._heads == 1 else actions)[0]
        fresh = self._elapsed == 0
        if fresh.any():
            self._reset(fresh)
        self._remember(state["memory"])
        self._starts = np.array(state["starts"], dtype=np.float32)
        self._finished = np.array(state["finished"], dtype=np.int64)
        self._rng.bit_generator.state = state["rng"]


def to_device(made: Experience, device: torch.device) -> dict[str, Tensor]:
    """Return the arrays that the loss needs as tensors."""
    names = ("observations", "starts", "actions", "masks", "log_probs", "values")
    return {name: torch.from_numpy(getattr(made, name)).to(device) for name in names}
