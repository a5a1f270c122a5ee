"""The autoscaling simulator as Gymnasium environments, one copy or a batch: Trimtab/Autoscaling-v0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput
from domain.observations.autoscaling import OBS7_FEATURES, obs_v2_features
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, SimulationConfig
from simulator.autoscaling.episode import begin_step, end_step, reset_copy
from simulator.autoscaling.memory import Records, count_at, kind_at, whole
from simulator.autoscaling.observation import observe
from simulator.autoscaling.orders import CHANGES, carry_out_changes, carry_out_index, write_masks
from simulator.autoscaling.packing import pack
from simulator.autoscaling.view import EpisodeOver
from simulator.autoscaling.world_file import preset
from simulator.compilation import compiled
from simulator.gym.base import Arrays, EpisodeEnv, EpisodeVectorEnv, Info
from simulator.workloads.synthetic import train_text

Observation = NDArray[np.float32]

OBS_7, OBS_V2 = "obs-7", "obs-v2"
ACT_7, ACT_MULTI = "act-7", "act-multi"
_OVER, _INVALID, _GOES_ON, _DONE, _TRUNCATED = range(5)
_COUNTS, _PER_TYPE = 9, 4
_SEED_BITS = 0xFFFFFFFFFFFFFFFF
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


def traces_given(traces: Trace | Sequence[Trace] | None) -> tuple[Trace, ...]:
    """Return the traces of an environment, the published training trace for None; BadInput for none."""
    found = (train_text(),) if traces is None else (traces,) if isinstance(traces, Trace) else tuple(traces)
    if not found:
        raise BadInput("traces", (), "give at least one trace")
    return found


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
        self.traces = traces_given(traces)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise BadInput("render_mode", render_mode, "choose ansi, rgb_array, or none")
        self.render_mode = render_mode
        self.observation_space = observation_space(self.config, observation)
        self.action_space = action_space(self.config, actions)
        # One copy of the kernel: a step is one call, and its results are flat buffers.
        kinds = len(self.config.types)
        self._extended, self._multi = observation == OBS_V2, actions == ACT_MULTI
        self._worlds = pack(self.config, self.traces, 1)
        self._choices = np.zeros((1, kinds if self._multi else 1), dtype=np.int64)
        self._obs = np.zeros((1, int(np.prod(self.observation_space.shape or ()))), dtype=np.float32)
        self._mask = np.zeros((1, CHANGES * kinds if self._multi else 1 + 2 * kinds), dtype=np.bool_)
        self._shown_mask = self._mask.reshape((kinds, CHANGES) if self._multi else (1 + 2 * kinds,))
        self._counts = np.zeros(_COUNTS + _PER_TYPE * kinds, dtype=np.int64)
        self._amounts = np.zeros(4, dtype=np.float64)
        self._begun = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode; BadInput for a trace that there is not."""
        number, trace = self.drawn_episode(seed, options, "trace", len(self.traces))
        self._begun = True
        word = number & _SEED_BITS
        # The kernel takes a signed word and reads it as an unsigned one.
        self._play(word - (_SEED_BITS + 1) if word > _SEED_BITS >> 1 else word, trace)
        return self._obs[0].copy(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Run one control step; raises EpisodeOver after the end, ResetNeeded before the first reset."""
        if not self._begun:
            raise ResetNeeded("call reset() before the first step")
        if self._multi:
            self._choices[0] = action
        else:
            self._choices[0, 0] = action
        outcome = self._play(0, -1)
        if outcome == _OVER:
            raise EpisodeOver(f"the episode ended after {self._counts[0]} steps: call reset() first")
        if outcome == _INVALID:
            given, kinds = np.asarray(action).tolist(), len(self.config.types)
            each = f"{kinds} indices in 0..{CHANGES - 1}, one per VM type" if self._multi else None
            raise BadInput("action", given, f"give {each or f'an index in 0..{2 * kinds}'}")
        return self._obs[0].copy(), self._amounts.item(3), outcome == _DONE, outcome == _TRUNCATED, self._info()

    def _play(self, seed: int, place: int) -> int:
        return _play(
            self._worlds.copies,
            seed,
            place,
            self._choices,
            self._multi,
            self._extended,
            self._obs,
            self._mask,
            self._counts,
            self._amounts,
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions would have an effect now, flat: (1 + 2 N,) or (7 N,) with the first type first."""
        flat: NDArray[np.bool_] = self._mask[0].copy()
        return flat

    def render(self) -> str | NDArray[np.uint8] | None:
        """Return the moment: a line of text for `ansi`, a picture (rows, columns, 3) for `rgb_array`, else None."""
        if self.render_mode is None:
            return None
        info = self._info()
        return moment_text(self.config, info) if self.render_mode == "ansi" else moment_picture(self.config, info)

    def _info(self) -> Info:
        step, waiting, executing, finished, submitted, ready, booting, busy, refused, *by_type = self._counts.tolist()
        now_s, rent, penalty, _ = self._amounts.tolist()
        kinds = len(self.config.types)
        return {
            "step": step,
            "now_s": now_s,
            "waiting": waiting,
            "executing": executing,
            "finished": finished,
            "submitted": submitted,
            "cores_ready": ready,
            "cores_booting": booting,
            "cores_busy": busy,
            "ready": tuple(by_type[:kinds]),
            "booting": tuple(by_type[kinds : 2 * kinds]),
            "draining": tuple(by_type[2 * kinds : 3 * kinds]),
            "rent": rent,
            "penalty": penalty,
            "accepted": tuple(by_type[3 * kinds :]) if self._multi else refused == 0,
            "mask": self._shown_mask.copy(),
        }


@compiled
def _play(
    copies: Records,
    seed: int,
    place: int,
    choices: NDArray[np.int64],
    multi: bool,
    extended: bool,
    obs: NDArray[np.float32],
    mask: NDArray[np.bool_],
    counts: NDArray[np.int64],
    amounts: NDArray[np.float64],
) -> int:
    """Do a step, or with a trace's `place` of 0 or more begin an episode, and write its results."""
    # A literal 0 as the row would compile the callees once more.
    row, copy, kinds = whole(0), copies[0], copies[0].kinds
    if place >= 0:
        reset_copy(copy, seed, place)
    else:
        if copy.over:
            return _OVER
        largest = CHANGES - 1 if multi else 2 * kinds
        for choice in choices.flat:
            if choice < 0 or choice > largest:
                return _INVALID
        begin_step(copy)
        if multi:
            carry_out_changes(copy, choices, row)
        else:
            carry_out_index(copy, choices[0, 0])
        end_step(copy)
    observe(copy, extended, obs, row)
    write_masks(copies, multi, mask)
    counts[0], counts[1], counts[2] = copy.steps, copy.waiting - copy.uncounted, copy.executing
    counts[3], counts[4] = copy.finished, copy.submitted
    counts[5], counts[6], counts[7], counts[8] = copy.ready_cores, 0, copy.busy_cores, 0
    for kind in range(kinds):
        count = count_at(copy, kind)
        counts[6] += count.booting * kind_at(copy, kind).cores
        counts[8] += count.step_refused
        counts[_COUNTS + kind] = count.ready
        counts[_COUNTS + kinds + kind] = count.booting
        counts[_COUNTS + 2 * kinds + kind] = count.present - count.ready - count.booting
        counts[_COUNTS + 3 * kinds + kind] = count.step_added + count.step_removed
    rent, penalty = copy.step_rent / UNITS_PER_DOLLAR, copy.step_penalty / UNITS_PER_DOLLAR
    amounts[0], amounts[1], amounts[2], amounts[3] = copy.now, rent, penalty, -(rent + penalty)
    if copy.finished == copy.jobs:
        return _DONE
    return _TRUNCATED if copy.over else _GOES_ON


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

    A type's bar: ready VMs, then booting, then draining ones, of its maximum. The jobs' bar: the running ones, then the
    waiting ones, of all.
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


class AutoscalingVectorEnv(EpisodeVectorEnv):
    """`num_envs` episodes; the arguments are those of AutoscalingEnv, for configurations that the kernel knows.

    `options={"trace": i or one index each}` chooses traces. infos: step, waiting, finished; rent, penalty (dollars of
    the step); mask, shape (num_envs, 1 + 2 N) or (num_envs, N, 7).
    """

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
        super().__init__(num_envs, observation_space(self.config, observation), action_space(self.config, actions))
        self.batch = AutoscalingBatch(
            self.config, traces_given(traces), num_envs, observation=observation, actions=actions
        )

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], Info]:
        """Begin an episode everywhere, or where `reset_mask` is true."""
        obs = self.batch.reset_where(*self.drawn_episodes(seed, options, "trace", len(self.batch.traces)))
        return obs.copy(), self._infos()

    def step(self, actions: ArrayLike) -> tuple[NDArray[np.float32], Arrays, Arrays, Arrays, Info]:
        """Do one step everywhere; BadInput for an action that does not exist, before anything is done."""
        chosen = np.asarray(actions)
        if not np.issubdtype(chosen.dtype, np.integer):
            raise BadInput("actions", str(chosen.dtype), "give whole numbers")
        obs, reward, terminated, truncated = self.batch.step_auto(chosen.astype(np.int64, copy=False))
        return obs.copy(), reward.copy(), terminated.copy(), truncated.copy(), self._infos()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions would have an effect now, flat for each: (num_envs, 1 + 2 N) or (num_envs, 7 N)."""
        return self.batch.masks().reshape(self.num_envs, -1).copy()

    def _infos(self) -> Info:
        copies = self.batch.worlds.copies
        return self.marked(
            {
                "step": self.batch.steps,
                "waiting": self.batch.waiting,
                "finished": self.batch.finished,
                "rent": copies["step_rent"] / UNITS_PER_DOLLAR,
                "penalty": copies["step_penalty"] / UNITS_PER_DOLLAR,
                "mask": self.batch.masks().copy(),
            }
        )
