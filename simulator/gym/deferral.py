"""Deferral as a Gymnasium environment: Trimtab/Deferral-v0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.deferral.choosing import DECODINGS, Decoding, Floats, ScoresUnusable, decode, packed
from domain.rules.deferral.jobs import Ints, objective
from domain.rules.deferral.tokens import (
    LIMIT,
    MOST_TOKENS,
    TOKEN_FEATURES,
    WINDOW,
    WINDOW_FEATURES,
    Tokens,
    scores_of,
    stacked,
    tokens,
    values_of,
    window,
)
from simulator.deferral.scenarios import TRAINING_SEED, Scenario, episode, scenario_of
from simulator.deferral.world import World
from simulator.gym.base import EpisodeEnv, Info

ROWS = 1 + MOST_TOKENS
"""The empty token, and one for each job."""
Observation = dict[str, NDArray[Any]]


class DeferralEnv(EpisodeEnv[Observation, NDArray[np.floating]]):
    """One episode at a time: a score for every job that may start, step by step (deferral specification §2, §3).

    Observation: `tokens` (129, 18) and `mask` (129,), as `domain.rules.deferral.tokens` makes them, and `window`
    (24, 11), the last steps. The action is a score for each row; those of rows that are no job that may start are
    ignored. The scores are decoded as `decoding` says. The reward is that of the step (§1.3). An episode ends after the
    scenario's steps. `reset(seed=n)` plays the episode of seed n; later resets without a seed draw training episodes
    from the environment's generator.

    info: `job` (129,), the position among the jobs that may start that a row represents, -1 for the others; `cores`
    (129,) of that job, 0 for the others; `free`; `step`; `dropped`, jobs without a row. Each has one shape in all
    steps, so that Gymnasium's vector environments can stack it. After a step also `started` and
    `violation`, and `fallback`: whether scores that were not finite left the decision to the knapsack. After the last
    step `score`, the figures of the episode.
    """

    def __init__(
        self,
        scenario: str | Scenario = "valley",
        *,
        decoding: Decoding = "skip",
        cref: float | None = None,
        render_mode: None = None,
    ) -> None:
        """Make an environment.

        cref: cores that observations of capacity are divided by, the scenario's mean where it is None. Raises BadInput.
        """
        if decoding not in DECODINGS:
            raise BadInput("decoding", decoding, f"choose from {', '.join(DECODINGS)}")
        self.scenario = scenario_of(scenario) if isinstance(scenario, str) else scenario
        self.decoding: Decoding = decoding
        self.cref = max(1.0, self.scenario.cap_mean * self.scenario.scale) if cref is None else cref
        if not (np.isfinite(self.cref) and self.cref > 0):
            raise BadInput("cref", cref, "give a number of cores above 0")
        self.render_mode = render_mode
        boxes: dict[str, spaces.Space[Any]] = {
            "tokens": spaces.Box(-LIMIT, LIMIT, (ROWS, len(TOKEN_FEATURES)), np.float32),
            "mask": spaces.Box(0, 1, (ROWS,), np.int8),
            "window": spaces.Box(-LIMIT, LIMIT, (WINDOW, len(WINDOW_FEATURES)), np.float32),
        }
        self.observation_space = cast("spaces.Space[Observation]", spaces.Dict(boxes))
        self.action_space = spaces.Box(-1.0, 1.0, (ROWS,), np.float32)
        self.world: World | None = None
        self._tokens: Tokens | None = None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode; BadInput for a seed below 0."""
        number, _ = self.drawn_episode(seed, None)
        self.world = World(episode(self.scenario, TRAINING_SEED + number if seed is None else number))
        return self._seen(self.world)

    def step(self, action: NDArray[np.floating]) -> tuple[Observation, float, bool, bool, Info]:
        """Decide on a step; raises ResetNeeded before the first reset and after the end."""
        world, state = self.world, self._tokens
        if world is None or state is None or world.t >= self.scenario.steps:
            raise ResetNeeded("call reset() to begin an episode")
        view = world.view()
        scores = scores_of(view, state, np.asarray(action, dtype=np.float64))
        try:
            chosen, fallback = self._decoded(scores, view.cur.cores, view.free, view.cur.submitted), False
        except ScoresUnusable:
            chosen, fallback = packed()(view), True
        reward = world.step(chosen)
        cores = int(view.cur.cores[chosen].sum())
        done: Info = {"started": int(chosen.size), "fallback": fallback, "violation": max(0, cores - view.free)}
        if not world.done:
            seen, info = self._seen(world)
            return seen, reward, False, False, info | done
        score = objective(world.episode.jobs, world.start, world.episode.capacity)
        return self._nothing(), reward, True, False, done | {"score": score._asdict()}

    def _decoded(self, scores: Floats, cores: Ints, free: int, submitted: Ints) -> Ints:
        values = values_of(scores, cores) if self.decoding == "knapsack" else scores
        return decode(values, cores, free, self.decoding, ties=submitted)

    def _seen(self, world: World) -> tuple[Observation, Info]:
        view = world.view()
        state = self._tokens = tokens(view, self.cref)
        (matrix,), (mask,) = stacked([state], ROWS)
        job = np.full(ROWS, -1, dtype=np.int64)
        job[: state.job.size] = state.job
        cores = np.zeros(ROWS, dtype=np.int64)
        cores[job >= 0] = view.cur.cores[job[job >= 0]]
        info: Info = {
            "job": job,
            "cores": cores,
            "free": view.free,
            "step": view.step,
            "dropped": state.dropped,
        }
        return {"tokens": matrix, "mask": mask.astype(np.int8), "window": window(view, self.cref)}, info

    def _nothing(self) -> Observation:
        """Return the observation of no job, which follows the last step."""
        return {
            "tokens": np.zeros((ROWS, len(TOKEN_FEATURES)), np.float32),
            "mask": np.zeros(ROWS, np.int8),
            "window": np.zeros((WINDOW, len(WINDOW_FEATURES)), np.float32),
        }
