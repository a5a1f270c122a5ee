"""Many simulated environments side by side, as a policy in training meets them: their episodes follow each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.batch import AutoscalingBatch
from trainer.autoscaling.tasks import Stage

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MakeWorlds = Callable[..., AutoscalingBatch]
"""Makes copies of a world over traces; see `AutoscalingBatch`."""
Choose = Callable[[Floats, Bools], Ints]
"""Returns the actions [B, heads] on observations [B, F]: where greedy [B] the most probable ones, else drawn ones."""


def heads_of(worlds: AutoscalingBatch) -> int:
    """Return the number of actions per step: one, or one per VM type."""
    return worlds.n_actions // len(MULTI_CHANGES) if worlds.multi else 1


def as_taken(actions: Ints) -> Ints:
    """Return actions [B, heads] as the worlds take them: [B] of a single head."""
    return actions[:, 0] if actions.shape[1] == 1 else actions


def play(
    worlds: AutoscalingBatch, choose: Choose, seeds: Ints, traces: Ints, greedy: Bools, most_steps: int
) -> tuple[Doubles, Ints]:
    """Play one episode per copy and return the cost (dollars) and the length (steps) of each.

    An episode that has not ended after `most_steps` counts with its cost so far.
    """
    lengths, running = np.zeros(seeds.size, dtype=np.int64), np.ones(seeds.size, dtype=np.bool_)
    observations = worlds.reset(seeds, traces)
    for _ in range(most_steps):
        observations, _, terminated, truncated = worlds.step(as_taken(choose(observations, greedy)))
        lengths += running
        running &= ~(terminated | truncated)
        if not running.any():
            break
    return worlds.rent + worlds.penalty, lengths


class Environments:
    """B copies of a stage's world; episode n has seed `first_seed` + n, and a trace drawn by the stage's chances.

    progress_reward: dollars over an episode, paid as jobs finish, and time_price: dollars that a step costs, both added
    to the rewards of the worlds; the sum is divided by the stage's scales.

    observations [B, F], starts [B] (1 where an episode starts) and elapsed [B]: of the present step.
    """

    def __init__(
        self,
        worlds: AutoscalingBatch,
        stage: Stage,
        batch: int,
        first_seed: int,
        rng: np.random.Generator,
        *,
        progress_reward: float = 0.0,
        time_price: float = 0.0,
    ) -> None:
        """Begin an episode in every copy. rng: of the traces."""
        self.worlds, self._first_seed, self._rng = worlds, first_seed, rng
        self._progress_reward, self._time_price = progress_reward, time_price
        self._chances, self._scales = stage.probabilities, np.asarray(stage.scales, dtype=np.float64)
        self._jobs = np.maximum(np.asarray(stage.jobs, dtype=np.float64), 1.0)
        self._episodes = 0
        self._seeds, self._traces, self.elapsed, self._finished = np.zeros((4, batch), dtype=np.int64)
        self._history = np.zeros((batch, 256, heads_of(worlds)), dtype=np.int8)
        self.starts = np.ones(batch, dtype=np.float32)
        self._draw(np.ones(batch, dtype=np.bool_))
        self.observations = worlds.reset(self._seeds, self._traces)

    @property
    def costs(self) -> Doubles:
        """Dollars of each present episode [B]."""
        return self.worlds.rent + self.worlds.penalty

    def step(self, actions: Ints) -> tuple[Doubles, Bools, Bools]:
        """Take a step with actions [B, heads]; return rewards, ends [B], and which ends are truncations [B].

        A copy whose episode has ended waits for `begin`.
        """
        if self.elapsed.max() >= self._history.shape[1]:
            self._history = np.concatenate([self._history, np.zeros_like(self._history)], axis=1)
        self._history[np.arange(self.elapsed.size), self.elapsed] = actions
        self.elapsed += 1
        self.observations, rewards, terminated, truncated = self.worlds.step(as_taken(actions))
        self.starts[:] = 0.0
        rewards = rewards - self._time_price
        if self._progress_reward:
            finished = self.worlds.finished
            rewards += self._progress_reward * (finished - self._finished) / self._jobs[self._traces]
            self._finished = finished.copy()
        if self._scales.size:
            rewards /= self._scales[self._traces]
        return rewards, terminated | truncated, truncated

    def begin(self, where: Bools) -> None:
        """Begin the next episodes in some copies [B]."""
        self._draw(where)
        self._reset(where)

    def _draw(self, where: Bools) -> None:
        fresh = int(where.sum())
        self._seeds[where] = self._first_seed + self._episodes + np.arange(fresh)
        self._traces[where] = self._rng.choice(self._jobs.size, size=fresh, p=self._chances)
        self._episodes += fresh
        self.elapsed[where] = 0

    def _reset(self, where: Bools) -> None:
        self.observations = self.worlds.reset_where(where, self._seeds, self._traces)
        self.starts[where] = 1.0
        self._finished[where] = 0

    def state(self) -> dict[str, Any]:
        """Return the state to resume from exactly, by the actions of the unfinished episodes."""
        return {
            "episodes": self._episodes,
            "seeds": self._seeds.copy(),
            "traces": self._traces.copy(),
            "elapsed": self.elapsed.copy(),
            "history": self._history[:, : int(self.elapsed.max())].copy(),
            "starts": self.starts.copy(),
            "finished": self._finished.copy(),
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: every copy's unfinished episode is played again, all of them ending at this moment."""
        self._episodes = int(state["episodes"])
        for kept, name in ((self._seeds, "seeds"), (self._traces, "traces"), (self.elapsed, "elapsed")):
            kept[:] = state[name]
        history = np.asarray(state["history"], dtype=np.int8)
        batch, longest, heads = history.shape
        self._history = np.zeros((batch, max(256, 2 * longest), heads), dtype=np.int8)
        self._history[:, :longest] = history
        for left in range(longest, 0, -1):
            due = self.elapsed == left
            if due.any():
                self._reset(due)
            at = self.elapsed - left
            actions = np.where((at >= 0)[:, None], self._history[np.arange(batch), np.maximum(at, 0)], 0)
            self.observations = self.worlds.step(as_taken(actions.astype(np.int64)))[0]
        fresh = self.elapsed == 0
        if fresh.any():
            self._reset(fresh)
        self.starts = np.array(state["starts"], dtype=np.float32)
        self._finished = np.array(state["finished"], dtype=np.int64)
        self._rng.bit_generator.state = state["rng"]
