"""The scale of rewards while training: the running standard deviation of their discounted sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.kit.parallel import Crew

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


@dataclass(slots=True)
class RewardScale:
    """Running standard deviation of the discounted sum of rewards; state of every copy and of the whole."""

    sums: Doubles
    count: float = 1e-4
    mean: float = 0.0
    variance: float = 1.0

    def take(self, rewards: Doubles, dones: Floats, gamma: float, crew: Crew) -> None:
        """Take in the rewards [T, B] of new experience."""
        seen = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            self.sums = self.sums * gamma + reward
            seen[t] = self.sums
            self.sums = self.sums * (1.0 - dones[t])
        fresh_mean, fresh_square = crew.mean(np.array([seen.mean(), (seen**2).mean()]))
        fresh_variance, fresh_count = fresh_square - fresh_mean**2, float(seen.size * crew.size)
        total, delta = self.count + fresh_count, fresh_mean - self.mean
        between = delta**2 * self.count * fresh_count / total
        self.variance = (self.variance * self.count + fresh_variance * fresh_count + between) / total
        self.mean += delta * fresh_count / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation, never 0."""
        return math.sqrt(self.variance + 1e-8)
