"""Many episodes side by side as one Gymnasium vector environment, stepped by one call of the compiled simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.autoscaling.reference.accounting import UNITS_PER_DOLLAR
from simulator.gym import ACT_7, OBS_7, action_space, observation_space
from simulator.workloads.synthetic import train_text

Arrays = NDArray[Any]
Infos = dict[str, Any]


class AutoscalingVectorEnv(VectorEnv[NDArray[np.float32], Any, Arrays]):
    """`num_envs` episodes; the arguments are those of AutoscalingEnv, for configurations that the kernel knows.

    Resets in NEXT_STEP mode: the step after an episode's end ignores the action, costs nothing and returns the first
    observation of the next episode, whose seed is the last one plus num_envs and whose trace is the next in turn.
    `reset(seed=n)` gives the seeds n, n + 1, ...; `options={"trace": i or one index each}` chooses traces, which take
    turns otherwise; `options={"reset_mask": bools}` leaves the others as they are.

    infos: step, waiting, finished; rent, penalty (dollars of the step); mask, shape (num_envs, 1 + 2 N) or (num_envs,
    N, 7); as Gymnasium has it, each with a boolean array under its name and an underscore in front.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        traces: Trace | Sequence[Trace] | None = None,
        config: SimulationConfig | str = "train-text",
        *,
        observation: str = OBS_7,
        actions: str = ACT_7,
        render_mode: None = None,
    ) -> None:
        """Lay out the batch; BadInput for what does not exist or only the reference simulator knows."""
        self.config = preset(config) if isinstance(config, str) else config
        chosen = (train_text(),) if traces is None else (traces,) if isinstance(traces, Trace) else tuple(traces)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = observation_space(self.config, observation)
        self.single_action_space = action_space(self.config, actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.batch = AutoscalingBatch(self.config, chosen, num_envs, observation=observation, actions=actions)
        self._everywhere = np.ones(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], Infos]:
        """Begin an episode everywhere, or where `reset_mask` says so."""
        first = seed if isinstance(seed, int) else None
        super().reset(seed=first)
        if seed is None:
            first = int(self.np_random.integers(2**31))
        seeds = list(seed) if isinstance(seed, Sequence) else np.arange(self.num_envs) + (first or 0)
        asked = dict(options or {})
        place = asked.get("trace")
        traces = np.arange(self.num_envs) % len(self.batch.traces) if place is None else np.asarray(place)
        which = asked.get("reset_mask", self._everywhere)
        # A copy: the view is read-only, and the kernel would be compiled a second time for it.
        obs = self.batch.reset_where(which, seeds, np.broadcast_to(traces, (self.num_envs,)).copy())
        return obs.copy(), self._infos()

    def step(self, actions: ArrayLike) -> tuple[NDArray[np.float32], Arrays, Arrays, Arrays, Infos]:
        """Do one step everywhere; BadInput for an action that does not exist, before anything is done."""
        chosen = np.asarray(actions)
        if not np.issubdtype(chosen.dtype, np.integer):
            raise BadInput("actions", str(chosen.dtype), "give whole numbers")
        obs, reward, terminated, truncated = self.batch.step_auto(chosen.astype(np.int64, copy=False))
        return obs.copy(), reward.copy(), terminated.copy(), truncated.copy(), self._infos()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions would have an effect now, flat for each: (num_envs, 1 + 2 N) or (num_envs, 7 N)."""
        return self.batch.masks().reshape(self.num_envs, -1).copy()

    def _infos(self) -> Infos:
        copies = self.batch.worlds.copies
        infos: Infos = {
            "step": self.batch.steps,
            "waiting": self.batch.waiting,
            "finished": self.batch.finished,
            "rent": copies["step_rent"] / UNITS_PER_DOLLAR,
            "penalty": copies["step_penalty"] / UNITS_PER_DOLLAR,
            "mask": self.batch.masks().copy(),
        }
        return infos | {f"_{name}": self._everywhere.copy() for name in infos}
