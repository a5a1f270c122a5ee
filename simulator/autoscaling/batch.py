"""Many copies of the simulated world, stepped together by one call, arrays in, arrays out (§15.1), and one alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput, TrimtabError
from domain.observations.autoscaling import OBS7_NAMES, obs_v2_names
from domain.units import HOUR_S
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order, Outcome, orders_of_index, orders_of_vector
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, RemovalChoice, SimulationConfig, dollars
from simulator.autoscaling.episode import reset_some, show, step_all, step_orders, view
from simulator.autoscaling.memory import ADDRESSES, COPIES, PER_COPY, Records, Worlds
from simulator.autoscaling.orders import write_masks
from simulator.autoscaling.packing import pack
from simulator.autoscaling.view import EpisodeOver, FleetView, Measures, QueueView, StepInfo, StepResult


def total_units(row: Records, name: str) -> int:
    """Return an episode total in the units of `simulator.autoscaling.configuration`."""
    return int(row[f"{name}_dollars"]) * UNITS_PER_DOLLAR + int(row[f"{name}_units"])


def measures_of(worlds: Worlds, copy: int, config: SimulationConfig) -> Measures:
    """Return the measures of a copy's episode so far."""
    row, counts = worlds.copies[copy], worlds.counts[copy]
    steps, ready_core_s, busy_core_s = int(row["steps"]), float(row["ready_core_s"]), float(row["busy_core_s"])
    rent, penalty = total_units(row, "rent"), total_units(row, "penalty")
    answered = int(row["bursts_answered"])
    waits = worlds.waits["seconds"][copy, : int(row["finished"])]
    return Measures(
        steps=steps,
        run_time_s=float(row["now"]),
        cost=dollars(rent + penalty),
        rent=dollars(rent),
        penalty=dollars(penalty),
        jobs_finished=int(row["finished"]),
        jobs_submitted=int(row["submitted"]),
        mean_wait_s=float(waits.mean()) if waits.size else 0.0,
        p95_wait_s=float(np.percentile(waits, 95.0)) if waits.size else 0.0,
        allocated_ratio=float(row["allocated"]) / steps if steps else 0.0,
        utilisation=busy_core_s / ready_core_s if ready_core_s > 0 else 0.0,
        idle_core_h=(ready_core_s - busy_core_s) / HOUR_S,
        executed_core_s=float(row["executed_core_s"]),
        added=tuple(counts["added"].tolist()),
        removed=tuple(counts["removed"].tolist()),
        refused=tuple(counts["refused"].tolist()),
        interruptions=int(row["interruptions"]),
        lost_core_s=float(row["lost_core_s"]),
        peak_cores=int(row["peak_cores"]),
        bursts=int(row["bursts"]),
        reclaimed=int(row["reclaimed"]),
        first_core_s=float(row["burst_wait_s"]) / answered if answered else 0.0,
    )


def info_of(worlds: Worlds, copy: int, config: SimulationConfig, *, with_outcome: bool) -> StepInfo:
    """Return a copy's counts at this instant, with the outcome of the last step's orders or with none."""
    row, counts = worlds.copies[copy], worlds.counts[copy]
    ready, booting = counts["ready"].tolist(), counts["booting"].tolist()
    none = (0,) * len(ready)
    names = ("step_added", "step_removed", "step_refused")
    outcome = Outcome(*(tuple(counts[name].tolist()) for name in names)) if with_outcome else Outcome(none, none, none)
    return StepInfo(
        step=int(row["steps"]),
        now_s=float(row["now"]),
        waiting=int(row["waiting"] - row["uncounted"]),
        executing=int(row["executing"]),
        finished=int(row["finished"]),
        submitted=int(row["submitted"]),
        ready=tuple(ready),
        booting=tuple(booting),
        draining=tuple((counts["present"] - counts["ready"] - counts["booting"]).tolist()),
        cores_ready=int(row["ready_cores"]),
        cores_booting=sum(n * cores for n, cores in zip(booting, config.cores, strict=True)),
        cores_busy=int(row["busy_cores"]),
        outcome=outcome,
    )


class Viewer:
    """Reads the view of the fleet of copies of one configuration; what never changes is shared by all views."""

    def __init__(self, config: SimulationConfig) -> None:
        self._removes_newest = config.removal_choice is RemovalChoice.NEWEST
        self._cores, self._minimum, self._maximum = (
            np.array(column, dtype=np.int64) for column in (config.cores, config.minimum, config.limits)
        )
        for shared in (self._cores, self._minimum, self._maximum):
            shared.setflags(write=False)
        self._cooldowns = np.zeros((2, len(config.types)), dtype=np.float64)
        self._vms = np.zeros((5, max(sum(config.limits), 1)), dtype=np.float64)

    def view(self, worlds: Worlds, copy: int) -> FleetView:
        """Return what an outside policy may decide on."""
        oldest = view(worlds.copies, copy, self._cooldowns, self._vms)
        row, counts = worlds.copies[copy], worlds.counts[copy]
        now, queued, finished, submitted = (row[name].item() for name in ("now", "waiting", "finished", "submitted"))
        shown, cooldowns = self._vms[:, : row["ready"]].copy(), self._cooldowns.copy()
        ready, booting = counts["ready"].copy(), counts["booting"].copy()
        requested = ready + booting
        return FleetView(
            now_s=now,
            cores=self._cores,
            requested=requested,
            ready=ready,
            booting=booting,
            draining=counts["present"] - requested,
            minimum=self._minimum,
            maximum=self._maximum,
            cooldown_out_s=cooldowns[0],
            cooldown_in_s=cooldowns[1],
            free_cores=row["free_cores"].item(),
            busy_cores=row["busy_cores"].item(),
            removes_newest=self._removes_newest,
            vm_type=shown[0].astype(np.int64),
            vm_cpu=shown[1],
            vm_ram=shown[2],
            vm_ready_s=shown[3],
            vm_idle_s=shown[4],
            queue=QueueView(
                waiting=queued - row["uncounted"].item(),
                running=row["executing"].item(),
                submitted=submitted,
                submitted_recent=submitted - row["submitted_before"].item(),
                oldest_wait_s=now - oldest if queued else 0.0,
                queued_core_s=row["queued_core_s"].item(),
                mean_job_core_s=row["finished_core_s"].item() / finished if finished else None,
            ),
        )


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
            self._copies, chosen, new_seeds, indices, self.extended, self._obs, self._terminated, self._truncated
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

        The trace must have the same index among the batch's traces.
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


@dataclass(frozen=True, slots=True)
class FastState:
    """A snapshot of an episode; restores into any FastSimulation of the same configuration and trace."""

    seed: int
    copy: CopyState


class FastSimulation:
    """One episode at a time over one trace, with the methods, results and bits of `twin.Simulation`."""

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
