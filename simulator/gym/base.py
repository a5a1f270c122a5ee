"""The bases of the environments: an episode has a seed and, among several loads, one load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from domain.errors import BadInput

Observation = TypeVar("Observation")
Action = TypeVar("Action")
Info = dict[str, Any]
Arrays = NDArray[Any]
Flags = NDArray[np.bool_]


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


class EpisodeVectorEnv(VectorEnv[NDArray[np.float32], Any, Arrays]):
    """`num_envs` episodes of a compiled batch.

    Resets in NEXT_STEP mode: the step after an episode's end ignores the action, costs nothing and returns the first
    observation of the next episode, whose seed is the last one plus num_envs and whose load is the next in turn.
    `reset(seed=n)` gives the seeds n, n + 1, ...; an option of `reset` chooses loads, one index or one each, which take
    turns otherwise; `options={"reset_mask": bools}` leaves the others as they are.

    infos: as Gymnasium has it, each with a boolean array under its name and an underscore in front.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        """Batch the spaces of one environment."""
        self.num_envs = num_envs
        self.render_mode = None
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = batch_space(observation, num_envs)
        self.action_space = batch_space(action, num_envs)
        self._everywhere = np.ones(num_envs, dtype=np.bool_)

    def drawn_episodes(
        self, seed: int | Sequence[int] | None, options: Mapping[str, Any] | None, option: str, loads: int
    ) -> tuple[Flags, NDArray[np.int64], NDArray[np.int64]]:
        """Seed the generator; return which copies begin an episode, and the seed and the load of each copy."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if isinstance(seed, Sequence):
            seeds = np.array(seed, dtype=np.int64)
        else:
            first = int(self.np_random.integers(2**31)) if seed is None else seed
            seeds = np.arange(self.num_envs) + first
        given = dict(options or {})
        chosen = given.get(option)
        turns = np.arange(self.num_envs) % loads if chosen is None else np.asarray(chosen)
        # A copy: the view is read-only, and a kernel would be compiled a second time for it.
        places = np.broadcast_to(turns, (self.num_envs,)).astype(np.int64)
        return given.get("reset_mask", self._everywhere), seeds, places

    def marked(self, infos: Info) -> Info:
        """Return infos of all copies with Gymnasium's marks."""
        return infos | {f"_{name}": self._everywhere.copy() for name in infos}
