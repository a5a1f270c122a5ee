"""One copy played alone with as little Python as can be: a step is one call, and leaves everything in flat buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, SimulationConfig
from simulator.autoscaling.episode import begin_step, end_step, reset_copy
from simulator.autoscaling.memory import Records, count_at, kind_at, whole
from simulator.autoscaling.observation import observe
from simulator.autoscaling.orders import CHANGES, carry_out_changes, carry_out_index, write_masks
from simulator.autoscaling.packing import pack
from simulator.autoscaling.view import EpisodeOver
from simulator.compilation import compiled

Info = dict[str, Any]
Step = tuple[NDArray[np.float32], float, bool, bool, Info]

_OVER, _INVALID, _GOES_ON, _DONE, _TRUNCATED = range(5)
_COUNTS = 9
_PER_TYPE = 4
_SEED_BITS = 0xFFFFFFFFFFFFFFFF


class QuickCopy:
    """One copy of the kernel with the results of its last step, as the Gymnasium environment gives them.

    observations: entries of an observation. extended: obs-v2. multi: one index into MULTI_CHANGES per type.
    """

    def __init__(
        self, config: SimulationConfig, traces: Sequence[Trace], observations: int, *, extended: bool, multi: bool
    ) -> None:
        """Pack the traces; TraceError for a job that fits no VM type."""
        self._kinds = kinds = len(config.types)
        self._extended, self._multi = extended, multi
        self._worlds = pack(config, traces, 1)
        self._choices = np.zeros((1, kinds if multi else 1), dtype=np.int64)
        self._obs = np.zeros((1, observations), dtype=np.float32)
        self._mask = np.zeros((1, CHANGES * kinds if multi else 1 + 2 * kinds), dtype=np.bool_)
        self._shown_mask = self._mask.reshape((kinds, CHANGES) if multi else (1 + 2 * kinds,))
        self._counts = np.zeros(_COUNTS + _PER_TYPE * kinds, dtype=np.int64)
        self._amounts = np.zeros(4, dtype=np.float64)

    def begin(self, seed: int, place: int) -> tuple[NDArray[np.float32], Info]:
        """Begin an episode on the trace at `place`."""
        word = seed & _SEED_BITS
        # The kernel takes a signed word and reads it as an unsigned one.
        signed = word - (_SEED_BITS + 1) if word > _SEED_BITS >> 1 else word
        self._play(signed, place)
        return self._obs[0].copy(), self.info()

    def step(self, action: Any) -> Step:
        """Do a step: observation, reward, terminated, truncated, info. Raises EpisodeOver, BadInput."""
        if self._multi:
            self._choices[0] = action
        else:
            self._choices[0, 0] = action
        outcome = self._play(0, -1)
        if outcome <= _INVALID:
            self._refuse(outcome, action)
        return self._obs[0].copy(), self._amounts.item(3), outcome == _DONE, outcome == _TRUNCATED, self.info()

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

    def _refuse(self, outcome: int, action: Any) -> None:
        if outcome == _OVER:
            raise EpisodeOver(f"the episode ended after {self._counts[0]} steps: call reset() first")
        given = np.asarray(action).tolist()
        if self._multi:
            raise BadInput("action", given, f"give {self._kinds} indices in 0..{CHANGES - 1}, one per VM type")
        raise BadInput("action", given, f"give an index in 0..{2 * self._kinds}")

    def mask(self) -> NDArray[np.bool_]:
        """Return what would have an effect now, flat."""
        flat: NDArray[np.bool_] = self._mask[0].copy()
        return flat

    def info(self) -> Info:
        """Return the info of the last step or reset."""
        step, waiting, executing, finished, submitted, ready, booting, busy, refused, *by_type = self._counts.tolist()
        now_s, rent, penalty, _ = self._amounts.tolist()
        kinds = self._kinds
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
    """Do a step, or with a trace's `place` of 0 or more begin an episode, and write all that is shown of it."""
    # A literal 0 as the row would compile what is called here once more.
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
