"""What the learner remembers: whole episodes, hour by hour, and transitions drawn from them (§4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

KEPT = ("cluster", "local", "mask", "actions", "reward", "cost", "own_reward", "own_cost")


@dataclass(frozen=True, slots=True)
class Transitions:
    """Rows of what happened: reward and cost are kept apart, as lambda moves."""

    cluster: Tensor
    local: Tensor
    mask: Tensor
    actions: Tensor
    reward: Tensor
    cost: Tensor
    cluster_next: Tensor
    local_next: Tensor
    mask_next: Tensor
    done: Tensor
    own_reward: Tensor
    own_cost: Tensor
    """Each subscriber's part of the reward, and the hot hours its VMs answer for, (B, N); 0 without credit."""


class Replay:
    """The last episodes whole, each hour with what was seen before and after it."""

    def __init__(self, episodes: int, hours: int, cluster: int, local: tuple[int, int]) -> None:
        rows = (episodes, hours + 1)
        self.cluster, self.local = np.zeros((*rows, cluster), np.float32), np.zeros((*rows, *local), np.float32)
        self.mask = np.zeros((*rows, local[0]), np.float32)
        self.actions = np.zeros((episodes, hours, local[0]), np.int64)
        self.reward, self.cost = (np.zeros((episodes, hours), np.float32) for _ in range(2))
        self.own_reward, self.own_cost = (np.zeros((episodes, hours, local[0]), np.float32) for _ in range(2))
        self.filled = self.at = 0

    def sample(self, count: int, draws: np.random.Generator, bootstrap: bool) -> Transitions:
        """Return so many transitions drawn with replacement."""
        hours = self.reward.shape[1]
        e, t = draws.integers(self.filled, size=count), draws.integers(hours, size=count)
        done = np.zeros(count, np.float32) if bootstrap else (t == hours - 1).astype(np.float32)
        arrays = (
            *(self.cluster[e, t], self.local[e, t], self.mask[e, t], self.actions[e, t], self.reward[e, t]),
            *(self.cost[e, t], self.cluster[e, t + 1], self.local[e, t + 1], self.mask[e, t + 1], done),
            *(self.own_reward[e, t], self.own_cost[e, t]),
        )
        return Transitions(*(torch.from_numpy(array) for array in arrays))

    def state(self) -> dict[str, Any]:
        """Return what is kept."""
        return {name: getattr(self, name)[: self.filled] for name in KEPT} | {"at": self.at, "filled": self.filled}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with what was kept."""
        self.at, self.filled = state["at"], state["filled"]
        for name in KEPT:
            getattr(self, name)[: self.filled] = state[name]
