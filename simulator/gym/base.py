"""The base of the environments: an episode has a seed and, among several loads, one load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import gymnasium

from domain.errors import BadInput

Observation = TypeVar("Observation")
Action = TypeVar("Action")
Info = dict[str, Any]


class EpisodeEnv(gymnasium.Env[Observation, Action]):
    """One episode at a time.

    `reset(seed=n)` plays the episode of seed n; later resets without a seed draw theirs from the environment's
    generator, as they draw one of several loads. An option of `reset` chooses the load by its index.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (so declared by Gymnasium)

    def drawn_episode(
        self, seed: int | None, options: Mapping[str, Any] | None, option: str = "", loads: int = 1
    ) -> tuple[int, int]:
        """Seed the generator; return the episode's seed and load. BadInput for a load that does not exist."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31)) if seed is None else seed
        load = (options or {}).get(option)
        if load is None:
            load = int(self.np_random.integers(loads)) if loads > 1 else 0
        if not 0 <= load < loads:
            raise BadInput(f"options: {option}", load, f"give an index in 0..{loads - 1}")
        return number, load
