"""CMA-ES with mirrored samples and a capped step, seeded by generation so that a stopped search continues bit for bit.

The update is that of Hansen, The CMA Evolution Strategy: A Tutorial (2016), with positive weights. The package `cmaes`
of the placement search has neither mirrored samples nor a cap, and a saved search of it loses its random generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGEST_STEP = 0.2


class Evolution:
    """A normal distribution that moves towards points of a high score: N(centre, step^2 covariance)."""

    def __init__(self, centre: Floats, step: float, population: int, seed: tuple[int, ...]) -> None:
        """Begin at a centre (D,); population: even, 4 or more."""
        dimensions, half = len(centre), population // 2
        raw = math.log(half + 0.5) - np.log(np.arange(1, half + 1))
        self._weights: Floats = raw / raw.sum()
        self._seed, self._population, self._dimensions = seed, population, dimensions
        # Names of the tutorial: mu_eff, c_sigma, d_sigma, c_c, c_1, c_mu.
        many = 1.0 / float((self._weights**2).sum())
        self._many = many
        self._step_rate = (many + 2.0) / (dimensions + many + 5.0)
        excess = max(0.0, math.sqrt((many - 1.0) / (dimensions + 1.0)) - 1.0)
        self._damping = 1.0 + 2.0 * excess + self._step_rate
        self._path_rate = (4.0 + many / dimensions) / (dimensions + 4.0 + 2.0 * many / dimensions)
        self._one_rate = 2.0 / ((dimensions + 1.3) ** 2 + many)
        rank = 2.0 * (many - 2.0 + 1.0 / many) / ((dimensions + 2.0) ** 2 + many)
        self._rank_rate = min(1.0 - self._one_rate, rank)
        self._usual = math.sqrt(dimensions) * (1.0 - 1.0 / (4.0 * dimensions) + 1.0 / (21.0 * dimensions**2))
        self.generation, self.step, self.centre = 0, step, centre.astype(np.float64)
        self._covariance = np.eye(dimensions)
        self._step_path, self._path = np.zeros(dimensions), np.zeros(dimensions)

    def ask(self) -> Floats:
        """Return the points of this generation, (population, D): each of the first half has its mirror image."""
        draws = np.random.default_rng((*self._seed, self.generation))
        half = draws.normal(size=(self._population // 2, self._dimensions))
        root, _ = self._roots()
        points: Floats = self.centre + self.step * np.concatenate([half, -half]) @ root
        return points

    def tell(self, points: Floats, scores: Floats) -> None:
        """Move towards the better half of the points.

        Of a pair both may be among them, and their moves then cancel: the step shrinks, faster than without pairs.
        A short search gains by it (docs/evidence/oversubscription.md).
        """
        self.generation += 1
        best = np.argsort(-scores, kind="stable")[: len(self._weights)]
        moves = (points[best] - self.centre) / self.step
        move = self._weights @ moves
        _, inverse = self._roots()
        self.centre = self.centre + self.step * move
        kept = 1.0 - self._step_rate
        self._step_path = kept * self._step_path + math.sqrt((1.0 - kept**2) * self._many) * (inverse @ move)
        length = float(np.linalg.norm(self._step_path))
        steady = length / math.sqrt(1.0 - kept ** (2 * self.generation)) < self._usual * (
            1.4 + 2.0 / (self._dimensions + 1.0)
        )
        kept = 1.0 - self._path_rate
        self._path = kept * self._path + steady * math.sqrt((1.0 - kept**2) * self._many) * move
        lost = 0.0 if steady else self._path_rate * (2.0 - self._path_rate)
        old = 1.0 - self._one_rate * (1.0 - lost) - self._rank_rate
        spread = (moves * self._weights[:, None]).T @ moves
        outer = np.outer(self._path, self._path)
        self._covariance = old * self._covariance + self._one_rate * outer + self._rank_rate * spread
        growth = math.exp(self._step_rate / self._damping * (length / self._usual - 1.0))
        self.step = min(self.step * growth, LARGEST_STEP)

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {
            "generation": self.generation,
            "step": self.step,
            "centre": self.centre,
            "covariance": self._covariance,
            "step_path": self._step_path,
            "path": self._path,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same dimensions, population and seed."""
        self.generation, self.step = int(state["generation"]), float(state["step"])
        self.centre, self._covariance = state["centre"], state["covariance"]
        self._step_path, self._path = state["step_path"], state["path"]

    def _roots(self) -> tuple[Floats, Floats]:
        """Return the symmetric root of the covariance, and its inverse."""
        values, vectors = np.linalg.eigh(self._covariance)
        deviations = np.sqrt(np.maximum(values, 1e-20))
        return (vectors * deviations) @ vectors.T, (vectors / deviations) @ vectors.T
