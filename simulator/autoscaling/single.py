"""One copy of the compiled world behind the interface of the reference simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.observations.autoscaling import OBS7_NAMES
from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch, CopyState
from simulator.autoscaling.episode import show, step_orders
from simulator.autoscaling.orders import write_masks
from simulator.autoscaling.reference.accounting import dollars
from simulator.autoscaling.reference.actions import MULTI_CHANGES, Order, orders_of_index, orders_of_vector
from simulator.autoscaling.reference.configuration import SimulationConfig
from simulator.autoscaling.reference.measures import Measures
from simulator.autoscaling.reference.simulation import EpisodeOver
from simulator.autoscaling.reference.view import FleetView, StepInfo, StepResult
from simulator.autoscaling.results import Viewer, info_of


@dataclass(frozen=True, slots=True)
class FastState:
    """A snapshot of an episode; restores into any FastSimulation of the same configuration and trace."""

    seed: int
    copy: CopyState


class FastSimulation:
    """One episode at a time over one trace, with the methods, results and bits of `reference.Simulation`."""

    def __init__(self, config: SimulationConfig, trace: Trace, seed: int = 0) -> None:
        """Check the trace against the configuration and reset.

        Raises TraceError when a job is wider than every VM type, BadInput for what only the reference simulator can do.
        """
        self.config = config
        self.trace = trace
        self.seed = seed
        self._batch = AutoscalingBatch(config, [trace], 1, observation="obs-v2")
        self._worlds = self._batch.worlds
        self._copies = self._worlds.copies
        kinds = len(config.types)
        self._vector = np.zeros((1, self._batch.n_features), dtype=np.float32)
        self._viewer = Viewer(config)
        self._flat_mask = np.zeros((1, 1 + 2 * kinds), dtype=np.bool_)
        self._multi_mask = np.zeros((1, len(MULTI_CHANGES) * kinds), dtype=np.bool_)
        self.reset()

    def reset(self, seed: int | None = None) -> NDArray[np.float32]:
        """Begin a new episode (with another seed, if given) and return the first observation, obs-7."""
        self.seed = self.seed if seed is None else seed
        # The streams of random numbers are keyed by the lowest 64 bits of the seed.
        low = np.array([self.seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64).view(np.int64)
        self._batch.reset(low)
        self._row = self._copies[0]
        return self.observe()

    @property
    def steps(self) -> int:
        """Steps done in this episode."""
        return int(self._row["steps"])

    @property
    def finished(self) -> bool:
        """Whether every job has finished; true from the start for an empty trace."""
        return bool(self._row["finished"] == self._row["jobs"])

    @property
    def truncated(self) -> bool:
        """Whether max_steps was reached with jobs left."""
        return self.steps >= self.config.max_steps and not self.finished

    def step(self, action: int | np.integer | Sequence[int] | NDArray[np.int64]) -> StepResult:
        """Apply an act-7 index, or a change per type (any size), and run one control step.

        Raises EpisodeOver after the end, BadInput for an action that does not exist.
        """
        if isinstance(action, int | np.integer):
            return self.step_orders(orders_of_index(int(action), len(self.config.types)))
        return self.step_orders(orders_of_vector(action, self.config.cores))

    def step_orders(self, orders: Sequence[Order]) -> StepResult:
        """Apply orders in the order given, and run one control step."""
        if self._row["over"]:
            raise EpisodeOver(f"the episode ended after {self.steps} steps: call reset() first")
        for order in orders:
            if not 0 <= order[0] < len(self.config.types):
                raise BadInput("order", order, f"name a VM type in 0..{len(self.config.types) - 1}")
        step_orders(self._copies, np.array(orders, dtype=np.int64).reshape(-1, 2))
        row = self._row
        finished = self.finished
        return StepResult(
            obs=self.observe(),
            rent=dollars(int(row["step_rent"])),
            penalty=dollars(int(row["step_penalty"])),
            done=finished,
            truncated=bool(row["over"]) and not finished,
            info=info_of(self._worlds, 0, self.config, with_outcome=True),
        )

    def observe(self) -> NDArray[np.float32]:
        """Return obs-7 at this instant."""
        show(self._copies, False, self._vector)
        return self._vector[0, : len(OBS7_NAMES)].copy()

    def observe_v2(self) -> NDArray[np.float32]:
        """Return obs-v2 at this instant."""
        show(self._copies, True, self._vector)
        vector: NDArray[np.float32] = self._vector[0].copy()
        return vector

    def fleet_view(self) -> FleetView:
        """Return what an outside policy may decide on."""
        return self._viewer.view(self._worlds, 0)

    def info(self) -> StepInfo:
        """Return the counts at this instant, with no outcome."""
        return info_of(self._worlds, 0, self.config, with_outcome=False)

    def mask(self) -> NDArray[np.bool_]:
        """Return which act-7 indices would have an effect now, shape (1 + 2 N,)."""
        write_masks(self._copies, False, self._flat_mask)
        mask: NDArray[np.bool_] = self._flat_mask[0].copy()
        return mask

    def mask_multi(self) -> NDArray[np.bool_]:
        """Return which changes of MULTI_CHANGES would have an effect now, shape (N, 7)."""
        write_masks(self._copies, True, self._multi_mask)
        mask: NDArray[np.bool_] = self._multi_mask.reshape(-1, len(MULTI_CHANGES)).copy()
        return mask

    def measures(self) -> Measures:
        """Return the measures of the episode so far (§11)."""
        return self._batch.measures(0)

    def state(self) -> FastState:
        """Return a snapshot that later steps leave untouched."""
        return FastState(self.seed, self._batch.state(0))

    def restore(self, saved: FastState) -> None:
        """Go on from a snapshot; TrimtabError when it belongs to another configuration or trace."""
        self._batch.restore(0, saved.copy)
        self.seed = saved.seed
