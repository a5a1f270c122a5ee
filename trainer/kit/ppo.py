"""Proximal policy optimisation, the parts that its learners share: advantages, the clipped loss, the scale of rewards.

T are steps in time, B the copies of an environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Doubles = NDArray[np.float64]
Numbers = TypeVar("Numbers", bound=NDArray[Any])
Moments = Callable[[Doubles], tuple[float, float, float]]
"""Returns count, mean and variance of numbers, over all processes of a run."""


def advantages(
    rewards: Numbers,
    values: Numbers,
    dones: NDArray[Any],
    last_values: Numbers,
    gamma: float,
    gae_lambda: float,
    bootstraps: Numbers | None = None,
) -> Numbers:
    """Return the generalised advantage estimates [T, B] of scaled rewards [T, B].

    values [T, B]: before each step. dones [T, B]: 1 where the step ended an episode, after which there is no value.
    last_values [B]: after the last step. bootstraps [T, B]: the value after a step that cut an episode short, else 0.
    """
    estimates: Numbers = np.zeros_like(rewards)
    advantage, value_after = np.zeros_like(last_values), last_values
    for t in range(len(rewards) - 1, -1, -1):
        ongoing = 1.0 - dones[t]
        ahead = ongoing * value_after if bootstraps is None else ongoing * value_after + bootstraps[t]
        error = rewards[t] + gamma * ahead - values[t]
        advantage = error + gamma * gae_lambda * ongoing * advantage
        estimates[t], value_after = advantage, values[t]
    return estimates


def clipped_loss(advantage: Tensor, log_ratio: Tensor, clip: float) -> Tensor:
    """Return the clipped surrogate loss; log_ratio: of the probabilities of the actions, the present to the acting."""
    ratio = log_ratio.exp()
    return -torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()


@torch.no_grad()
def divergence(log_ratio: Tensor) -> Tensor:
    """Return the estimate of the KL divergence of the present policy from the acting one."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def own_moments(values: Doubles) -> tuple[float, float, float]:
    """Return count, mean and variance of the numbers of this process."""
    return float(values.size), float(values.mean()), float(values.var())


@dataclass(slots=True)
class RewardScale:
    """Running standard deviation of the discounted sum of rewards, by which rewards are divided; sums [B]."""

    sums: Doubles
    count: float = 1e-4
    mean: float = 0.0
    variance: float = 1.0

    def add(self, rewards: Doubles, dones: NDArray[Any], gamma: float, moments: Moments = own_moments) -> None:
        """Add the rewards [T, B] of new experience; dones [T, B]: 1 where an episode ended."""
        sums = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            self.sums = self.sums * gamma + reward
            sums[t] = self.sums
            self.sums = self.sums * (1.0 - dones[t])
        count, mean, variance = moments(sums)
        total, delta = self.count + count, mean - self.mean
        between = delta**2 * self.count * count / total
        self.variance = (self.variance * self.count + variance * count + between) / total
        self.mean += delta * count / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation, never 0."""
        return math.sqrt(self.variance + 1e-8)
