"""The autoscaling simulator as Gymnasium environments: `gymnasium.make("simulator.gym:Trimtab/Autoscaling-v0")`.

Only this module and `simulator.gym_vector` import Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.observations.autoscaling import OBS7_FEATURES, obs_v2_features
from domain.workload import Trace
from simulator.autoscaling.reference import MULTI_CHANGES, SimulationConfig, preset
from simulator.gym_episode import Info, Observation, episode_for
from simulator.workloads.synthetic import train_text

ENV_ID = "Trimtab/Autoscaling-v0"
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


class AutoscalingEnv(gymnasium.Env[Observation, Any]):
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
        self._episode = episode_for(
            self.config,
            self.traces,
            int(np.prod(self.observation_space.shape or ())),
            extended=observation == OBS_V2,
            multi=actions == ACT_MULTI,
        )
        self._begun = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode; BadInput for a trace that there is not."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        place = (options or {}).get("trace")
        if place is None:
            place = int(self.np_random.integers(len(self.traces))) if len(self.traces) > 1 else 0
        if not 0 <= place < len(self.traces):
            raise BadInput("options: trace", place, f"give an index in 0..{len(self.traces) - 1}")
        self._begun = True
        return self._episode.begin(episode_seed, place)

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
    """Return the state that an info tells of as one line."""
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
    """Return the state that an info tells of as bars, (rows, BAR_WIDTH, 3) uint8: one per VM type, the jobs below.

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


gymnasium.register(
    id=ENV_ID,
    entry_point="simulator.gym:AutoscalingEnv",
    vector_entry_point="simulator.gym_vector:AutoscalingVectorEnv",
)
