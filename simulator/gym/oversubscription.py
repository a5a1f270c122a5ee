"""Oversubscription as a Gymnasium environment: Trimtab/Oversubscription-v0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from simulator.gym.base import Arrays, EpisodeEnv, EpisodeVectorEnv, Info
from simulator.oversubscription.batch import OversubscriptionBatch, Vector
from simulator.oversubscription.scenario import Scenario, scenario_of


class Given(TypedDict, total=False):
    """Settings of the environments, as `OversubscriptionBatch` takes them; the cost is sampled by default."""

    start: str
    usage: str
    cost: str
    observation: str


class OversubscriptionEnv(EpisodeEnv[Vector, NDArray[np.int64]]):
    """One week at a time: a level for every subscriber, hour by hour (oversubscription specification §2).

    The action is an index of the scenario's levels for each subscriber; those without requests are ignored. The
    reward is the hour's saved cores over the mean hourly requested cores. An episode ends after the scenario's hours.
    `reset(seed=n)` plays the usage of seed n; later resets without a seed draw theirs from the environment's generator,
    as they draw one of several weeks. `reset(options={"week": i})` chooses the week.

    info: cost (the chance of a hot machine where the cost is analytic, else 0 or 1), mask (N,), local (N, 9 or 13),
    hour, machines_used, rejects; hot (K,) where usage is drawn.
    """

    def __init__(
        self,
        scenario: str | Scenario = "internal_like",
        weeks: Sequence[str] = ("s0",),
        *,
        render_mode: None = None,
        **given: Unpack[Given],
    ) -> None:
        """Make an environment; raises BadInput."""
        self.batch = _batch_of(1, scenario, weeks, given)
        self.render_mode = render_mode
        self.observation_space, self.action_space = _spaces(self.batch)
        self._begun = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Vector, Info]:
        """Begin a week; BadInput for one that there is not."""
        number, week = self.drawn_episode(seed, options, "week", len(self.batch.weeks))
        self._begun = True
        return self.batch.reset(np.array([number]), np.array([week]))[0].copy(), self._info(0.0)

    def step(self, action: NDArray[np.int64]) -> tuple[Vector, float, bool, bool, Info]:
        """Play an hour; raises ResetNeeded before the first reset and after the end."""
        if not self._begun or self.batch.over[0]:
            raise ResetNeeded("call reset() to begin a week")
        seen, reward, cost, over = self.batch.step(np.asarray(action)[None])
        return seen[0].copy(), float(reward[0]), bool(over[0]), False, self._info(float(cost[0]))

    def _info(self, cost: float) -> Info:
        books = self.batch.books(0)
        info: Info = {
            "cost": cost,
            "mask": self.batch.mask[0].copy(),
            "local": self.batch.local[0].copy(),
            "hour": books["hour"],
            "machines_used": books["used"],
            "rejects": books["rejects"],
        }
        if self.batch.cost != "analytic":
            info["hot"] = self.batch.hot[0].copy()
        return info


def _batch_of(copies: int, scenario: str | Scenario, weeks: Sequence[str], given: Given) -> OversubscriptionBatch:
    cluster = scenario_of(scenario) if isinstance(scenario, str) else scenario
    given.setdefault("cost", "sampled")
    return OversubscriptionBatch(cluster, weeks, copies, **given)


def _spaces(batch: OversubscriptionBatch) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    box = spaces.Box(-1.0, 2.0, (batch.n_features,), np.float32)
    return box, spaces.MultiDiscrete([len(batch.actions)] * batch.subscribers)


class OversubscriptionVectorEnv(EpisodeVectorEnv):
    """`num_envs` weeks; the arguments are those of OversubscriptionEnv. `options={"week": i}` chooses weeks.

    infos: cost (num_envs,), mask (num_envs, N), local (num_envs, N, 9 or 13), hour (num_envs,); hot (num_envs, K) where
    usage is drawn.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | Scenario = "internal_like",
        weeks: Sequence[str] = ("s0",),
        *,
        render_mode: None = None,
        **given: Unpack[Given],
    ) -> None:
        """Lay out the batch; raises BadInput."""
        self.batch = _batch_of(num_envs, scenario, weeks, given)
        super().__init__(num_envs, *_spaces(self.batch))
        self._seeds, self._weeks = np.zeros((2, num_envs), dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Vector, Info]:
        """Begin a week everywhere, or where `reset_mask` is true."""
        which, seeds, weeks = self.drawn_episodes(seed, options, "week", len(self.batch.weeks))
        self._seeds[which], self._weeks[which] = seeds[which], weeks[which]
        return self.batch.reset_where(which, self._seeds, self._weeks).copy(), self._infos(np.zeros(self.num_envs))

    def step(self, actions: NDArray[np.int64]) -> tuple[Vector, Arrays, Arrays, Arrays, Info]:
        """Play an hour everywhere; BadInput for an action that does not exist."""
        ended = self.batch.over.copy()
        _, reward, cost, over = self.batch.step(np.where(ended[:, None], 0, actions))
        # A week that has ended costs nothing: the next one begins.
        self._seeds[ended] += self.num_envs
        self._weeks[ended] = (self._weeks[ended] + 1) % len(self.batch.weeks)
        seen = self.batch.reset_where(ended, self._seeds, self._weeks)
        return seen.copy(), reward.copy(), over & ~ended, np.zeros_like(ended), self._infos(cost.copy())

    def _infos(self, cost: Arrays) -> Info:
        infos: Info = {
            "cost": cost,
            "mask": self.batch.mask.copy(),
            "local": self.batch.local.copy(),
            "hour": self.batch.hour.copy(),
        }
        if self.batch.cost != "analytic":
            infos["hot"] = self.batch.hot.copy()
        return self.marked(infos)
