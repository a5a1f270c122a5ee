"""The autoscaling simulator as Gymnasium environments, one copy or a batch: Trimtab/Autoscaling-v0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput
from domain.observations.autoscaling import OBS7_FEATURES, obs_v2_features
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.gym.base import EpisodeEnv, Info
from simulator.gym.quick_step import QuickCopy
from simulator.workloads.synthetic import train_text

Observation = NDArray[np.float32]

OBS_7, OBS_V2 = "obs-7", "obs-v2"
ACT_7, ACT_MULTI = "act-7", "act-multi"
BAR_WIDTH, BAR_HEIGHT, BAR_GAP = 320, 24, 8
PAPER, TRACK = (255, 255, 255), (228, 232, 236)
READY, BOOTING, DRAINING, WAITING = (18, 112, 140), (140, 196, 214), (154, 167, 180), (196, 79, 47)


def observation_space(config: SimulationConfig, observation: str) -> spaces.Space[Any]:
    """Return the box of `obs-7` or `obs-v2`, float32; BadInput for another name."""
    if observation not in (OBS_7, OBS_V2):
        raise BadInput("observation", observation, f"choose {OBS_7} or {OBS_V2}")
    features = OBS7_FEATURES if observation == OBS_7 else obs_v2_features(len(config.types))
    low, high = (np.array([getattr(feature, end) for feature in features], np.float32) for end in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


def action_space(config: SimulationConfig, actions: str) -> spaces.Space[Any]:
    """Return the space of `act-7` (1 + 2 N actions) or `act-multi` (7 changes of each type); BadInput for another."""
    if actions not in (ACT_7, ACT_MULTI):
        raise BadInput("actions", actions, f"choose {ACT_7} or {ACT_MULTI}")
    kinds = len(config.types)
    return spaces.Discrete(1 + 2 * kinds) if actions == ACT_7 else spaces.MultiDiscrete([len(MULTI_CHANGES)] * kinds)


class AutoscalingEnv(EpisodeEnv[Observation, Any]):
    """One episode at a time over one of the traces (autoscaler specification §15.1).

    Rendered as a line of text (`ansi`) or a picture of bars (`rgb_array`, as `make_vec_env` of stable-baselines3 asks).

    Actions are those of `act-7`, an index, or of `act-multi`, one index into MULTI_CHANGES per VM type. The reward is
    minus the step's rent and waiting penalty in dollars. An episode ends when every job has finished, and is truncated
    at the configuration's max_steps; a step after that raises EpisodeOver. `reset(seed=n)` plays boot times of seed n,
    as `Simulation(config, trace, n)` does; later resets without a seed draw theirs from the environment's generator, as
    they draw one of several traces. `reset(options={"trace": i})` chooses the trace.

    info: step, now_s, waiting, executing, finished, submitted; cores_ready, cores_booting, cores_busy; VMs per type as
    ready, booting, draining; rent, penalty (dollars of the step); accepted (act-7: whether the action was carried out;
    act-multi: VMs added or removed per type); mask (what would have an effect now, shape (1 + 2 N,) or (N, 7)).
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 (so declared by Gymnasium)

    def __init__(
        self,
        traces: Trace | Sequence[Trace] | None = None,
        config: SimulationConfig | str = "train-text",
        *,
        observation: str = OBS_7,
        actions: str = ACT_7,
        render_mode: str | None = None,
    ) -> None:
        """Make an environment; traces: the published training trace when None. config: or the name of a preset."""
        self.config = preset(config) if isinstance(config, str) else config
        self.traces = (train_text(),) if traces is None else (traces,) if isinstance(traces, Trace) else tuple(traces)
        if not self.traces:
            raise BadInput("traces", (), "give at least one trace")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise BadInput("render_mode", render_mode, "choose ansi, rgb_array, or none")
        self.render_mode = render_mode
        self.observation_space = observation_space(self.config, observation)
        self.action_space = action_space(self.config, actions)
        self._episode = QuickCopy(
            self.config,
            self.traces,
            int(np.prod(self.observation_space.shape or ())),
            extended=observation == OBS_V2,
            multi=actions == ACT_MULTI,
        )
        self._begun = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode; BadInput for a trace that there is not."""
        number, trace = self.drawn_episode(seed, options, "trace", len(self.traces))
        self._begun = True
        return self._episode.begin(number, trace)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Run one control step; raises EpisodeOver after the end, ResetNeeded before the first reset."""
        if not self._begun:
            raise ResetNeeded("call reset() before the first step")
        return self._episode.step(action)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions would have an effect now, flat: (1 + 2 N,) or (7 N,) with the first type first."""
        return self._episode.mask()

    def render(self) -> str | NDArray[np.uint8] | None:
        """Return the moment: a line of text for `ansi`, a picture (rows, columns, 3) for `rgb_array`, else None."""
        if self.render_mode is None:
            return None
        info = self._episode.info()
        return moment_text(self.config, info) if self.render_mode == "ansi" else moment_picture(self.config, info)


def moment_text(config: SimulationConfig, info: Info) -> str:
    """Return the state in an info as one line."""
    minutes, seconds = divmod(round(info["now_s"]), 60)
    counts = zip(config.types, info["ready"], info["booting"], info["draining"], strict=True)
    fleet = "  ".join(
        f"{kind.name} {ready}{f'+{booting}' if booting else ''}{f'-{draining}' if draining else ''}"
        for kind, ready, booting, draining in counts
    )
    jobs = f"{info['waiting']} waiting, {info['executing']} running, {info['finished']} finished"
    time = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return (
        f"step {info['step']:>4}  {time}  {fleet}  cores {info['cores_busy']}/{info['cores_ready']} busy  jobs {jobs}"
    )


def moment_picture(config: SimulationConfig, info: Info) -> NDArray[np.uint8]:
    """Return the state in an info as bars, (rows, BAR_WIDTH, 3) uint8: one per VM type, the jobs below.

    A type's bar: ready VMs, then booting, then draining ones, of its maximum. The jobs' bar: those that run, then those
    that wait, of all that are there.
    """
    bars = [
        [(ready / most, READY), (booting / most, BOOTING), (draining / most, DRAINING)]
        for most, ready, booting, draining in zip(
            (max(1, limit) for limit in config.limits), info["ready"], info["booting"], info["draining"], strict=True
        )
    ]
    jobs = max(1, info["waiting"] + info["executing"])
    bars.append([(info["executing"] / jobs, READY), (info["waiting"] / jobs, WAITING)])
    picture = np.full(((BAR_HEIGHT + BAR_GAP) * len(bars) + BAR_GAP, BAR_WIDTH, 3), PAPER, np.uint8)
    for number, bar in enumerate(bars):
        top = BAR_GAP + number * (BAR_HEIGHT + BAR_GAP)
        picture[top : top + BAR_HEIGHT] = TRACK
        left = 0.0
        for share, colour in bar:
            begin, left = round(left * BAR_WIDTH), left + share
            picture[top : top + BAR_HEIGHT, begin : round(left * BAR_WIDTH)] = colour
    return picture


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
        """Begin an episode everywhere, or where `reset_mask` is true."""
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
