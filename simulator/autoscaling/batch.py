"""Many copies of the simulated world, stepped together by one call: arrays in, arrays out (autoscaler spec §15.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput, TrimtabError
from domain.observations.autoscaling import OBS7_NAMES, obs_v2_names
from domain.workload import Trace
from simulator.autoscaling.episode import reset_some, step_all
from simulator.autoscaling.layout import ADDRESSES, COPIES, PER_COPY, Records
from simulator.autoscaling.orders import write_masks
from simulator.autoscaling.packing import pack
from simulator.autoscaling.reference.accounting import UNITS_PER_DOLLAR
from simulator.autoscaling.reference.actions import MULTI_CHANGES
from simulator.autoscaling.reference.configuration import SimulationConfig
from simulator.autoscaling.reference.measures import Measures
from simulator.autoscaling.results import measures_of

OBSERVATIONS = ("obs-7", "obs-v2")
ACTION_SETS = ("act-7", "act-multi")

Observations = NDArray[np.float32]
Step = tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class CopyState:
    """A snapshot of one copy; it goes into any copy of a batch of the same configuration and traces."""

    rows: dict[str, Records]
    obs: Observations
    identity: tuple[SimulationConfig, str]


class AutoscalingBatch:
    """`copies` worlds of one configuration, each with its own seed and one of the traces.

    Bit for bit the reference simulator, options and all. Every array that a method returns belongs to the batch and is
    overwritten by the next call of that method: copy what you keep. Not for several threads at once; the calls let
    other threads run.
    """

    def __init__(
        self,
        config: SimulationConfig,
        traces: Sequence[Trace],
        copies: int,
        *,
        observation: str = "obs-7",
        actions: str = "act-7",
    ) -> None:
        """Lay out the memory and reset with seeds 0, 1, ... and traces in turn.

        Raises TraceError when a job is wider than every VM type, BadInput for what does not exist.
        """
        if observation not in OBSERVATIONS:
            raise BadInput("observation", observation, f"choose one of {', '.join(OBSERVATIONS)}")
        if actions not in ACTION_SETS:
            raise BadInput("actions", actions, f"choose one of {', '.join(ACTION_SETS)}")
        self.config = config
        self.traces = tuple(traces)
        self.copies = copies
        self.observation = observation
        self.actions = actions
        kinds = len(config.types)
        self.extended = observation == "obs-v2"
        self.multi = actions == "act-multi"
        self.n_features = len(obs_v2_names(kinds)) if self.extended else len(OBS7_NAMES)
        self.n_actions = len(MULTI_CHANGES) * kinds if self.multi else 1 + 2 * kinds
        self._columns = kinds if self.multi else 1
        self.worlds = pack(config, self.traces, copies)
        self._copies = self.worlds.copies
        self._obs = np.zeros((copies, self.n_features), dtype=np.float32)
        self._reward = np.zeros(copies, dtype=np.float64)
        self._terminated = np.zeros(copies, dtype=np.bool_)
        self._truncated = np.zeros(copies, dtype=np.bool_)
        self._step: Step = (self._obs, self._reward, self._terminated, self._truncated)
        self._masks = np.ones((copies, self.n_actions), dtype=np.bool_)
        self._all = np.ones(copies, dtype=np.bool_)
        self.reset(np.arange(copies))

    def reset(self, seeds: ArrayLike, trace_index: ArrayLike | None = None) -> Observations:
        """Begin an episode in every copy and return the first observations, shape (copies, n_features).

        seeds: shape (copies,), whole numbers. trace_index: which trace each copy runs; by default they take turns.
        """
        if trace_index is None:
            trace_index = np.arange(self.copies) % len(self.traces)
        return self.reset_where(self._all, seeds, trace_index)

    def reset_where(self, which: ArrayLike, seeds: ArrayLike, trace_index: ArrayLike) -> Observations:
        """Begin an episode in the copies marked in `which`; seeds and trace_index are read there only."""
        # Copies: for arrays that are read-only or not contiguous the kernel would be compiled once more.
        chosen = np.array(which, dtype=np.bool_, order="C")
        new_seeds = np.array(seeds, dtype=np.int64, order="C")
        indices = np.array(trace_index, dtype=np.int64, order="C")
        for name, given in (("which", chosen), ("seeds", new_seeds), ("trace_index", indices)):
            if given.shape != (self.copies,):
                raise BadInput(name, given.shape, f"give an array of shape ({self.copies},)")
        wrong = chosen & ((indices < 0) | (indices >= len(self.traces)))
        if wrong.any():
            raise BadInput("trace_index", int(indices[wrong][0]), f"give indices in 0..{len(self.traces) - 1}")
        reset_some(
            self._copies,
            chosen,
            new_seeds,
            indices,
            self.extended,
            self._obs,
            self._terminated,
            self._truncated,
        )
        return self._obs

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Do one control step in every copy; return observations, rewards, terminated, truncated.

        actions: int64, shape (copies,) of act-7 indices, or (copies, N) of indices into MULTI_CHANGES for act-multi.
        A reward is minus the cost of the step in dollars. A copy that is over stays over and costs 0 until its reset.
        Raises BadInput for an action that does not exist, before anything is done.
        """
        return self._advance(actions, False)

    def step_auto(self, actions: NDArray[np.int64]) -> Step:
        """Do one step as `step` does, but a copy that ended in the step before begins its next episode instead.

        This is Gymnasium's NEXT_STEP mode: that copy's action is ignored, its reward is 0 and its observation is the
        first of the new episode. The next seed is the last one plus the number of copies, so that seeds 0..copies-1
        never meet again; the next trace is the one after the last, in turn.
        """
        return self._advance(actions, True)

    def _advance(self, actions: NDArray[np.int64], renew: bool) -> Step:
        columns = self._columns
        if actions.dtype != np.int64 or actions.size != self.copies * columns or len(actions) != self.copies:
            shape = (self.copies, columns) if self.multi else (self.copies,)
            raise BadInput("actions", (actions.shape, str(actions.dtype)), f"give int64 of shape {shape}")
        rows = actions.reshape(self.copies, columns)
        if not rows.flags.carray:
            rows = rows.copy()
        invalid = step_all(self._copies, rows, self.multi, self.extended, renew, *self._step)
        if invalid >= 0:
            largest = len(MULTI_CHANGES) - 1 if self.multi else self.n_actions - 1
            raise BadInput(f"actions[{invalid}]", rows[invalid].tolist(), f"give indices in 0..{largest}")
        return self._step

    def masks(self) -> NDArray[np.bool_]:
        """Return which actions would have an effect now: shape (copies, 1 + 2N), or (copies, N, 7) for act-multi."""
        write_masks(self._copies, self.multi, self._masks)
        if self.multi:
            return self._masks.reshape(self.copies, len(self.config.types), len(MULTI_CHANGES))
        return self._masks

    @property
    def steps(self) -> NDArray[np.int64]:
        """Steps done in each copy's episode."""
        return self._scalar("steps")

    @property
    def waiting(self) -> NDArray[np.int64]:
        """Jobs waiting in each copy."""
        return self._scalar("waiting") - self._scalar("uncounted")

    @property
    def finished(self) -> NDArray[np.int64]:
        """Jobs finished in each copy."""
        return self._scalar("finished")

    @property
    def rent(self) -> NDArray[np.float64]:
        """Dollars of rent in each copy's episode so far, rounded to 1e-15 of a dollar or the last bit."""
        return self._scalar("rent_dollars") + self._scalar("rent_units") / UNITS_PER_DOLLAR

    @property
    def penalty(self) -> NDArray[np.float64]:
        """Dollars of waiting penalty in each copy's episode so far."""
        return self._scalar("penalty_dollars") + self._scalar("penalty_units") / UNITS_PER_DOLLAR

    def _scalar(self, name: str) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._copies[name].copy()
        return found

    def measures(self, copy: int) -> Measures:
        """Return the measures of one copy's episode so far (autoscaler specification §11)."""
        return measures_of(self.worlds, copy, self.config)

    def state(self, copy: int) -> CopyState:
        """Return a snapshot of one copy that later steps leave untouched."""
        rows = {name: getattr(self.worlds, name)[copy].copy() for name in ("copies", *PER_COPY)}
        identity = (self.config, self.traces[int(rows["copies"]["trace"])].digest)
        return CopyState(rows, self._obs[copy].copy(), identity)

    def restore(self, copy: int, state: CopyState) -> None:
        """Let a copy go on from a snapshot; TrimtabError when it belongs to another configuration or trace.

        The trace must stand at the same place among the batch's traces.
        """
        trace = int(state.rows["copies"]["trace"])
        known = self.traces[trace].digest if trace < len(self.traces) else ""
        if state.identity != (self.config, known):
            raise TrimtabError("the snapshot belongs to another configuration or trace: build the batch it came from")
        for name in PER_COPY:
            getattr(self.worlds, name)[copy] = state.rows[name]
        row = self._copies[copy]
        for name in COPIES.names or ():
            if name not in ADDRESSES:
                row[name] = state.rows["copies"][name]
        row["jobs_at"] = self.worlds.traces["jobs_at"][trace]
        self._obs[copy] = state.obs
        self._terminated[copy] = row["finished"] == row["jobs"]
        self._truncated[copy] = bool(row["over"]) and not self._terminated[copy]

    def __reduce__(self) -> str:
        raise TypeError("a batch holds addresses of its memory: build it where it is used, or carry state(i) over")
