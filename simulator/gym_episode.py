"""Episodes as the Gymnasium environment plays them: on one copy of the kernel, or on the reference simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.orders import CHANGES
from simulator.autoscaling.packing import unsupported
from simulator.autoscaling.quick_step import QuickCopy
from simulator.autoscaling.reference import MULTI_CHANGES, Simulation, SimulationConfig, StepInfo

Observation = NDArray[np.float32]
Info = dict[str, Any]
Step = tuple[Observation, float, bool, bool, Info]


class Episode(Protocol):
    """What the environment asks of either kind."""

    def begin(self, seed: int, place: int) -> tuple[Observation, Info]:
        """Begin an episode on the trace at `place`."""
        ...

    def step(self, action: Any) -> Step:
        """Do a step: observation, reward, terminated, truncated, info. Raises EpisodeOver, BadInput."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """Return what would have an effect now, flat."""
        ...

    def info(self) -> Info:
        """Return the info of the last step or reset."""
        ...


def episode_for(
    config: SimulationConfig, traces: Sequence[Trace], observations: int, *, extended: bool, multi: bool
) -> Episode:
    """Return the kernel's episode, or the reference simulator's for what the kernel does not know.

    observations: entries of an observation. extended: obs-v2. multi: one index into MULTI_CHANGES per type.
    """
    if unsupported(config) is None:
        return QuickCopy(config, traces, observations, extended=extended, multi=multi)
    return ReferenceEpisode(config, traces, extended=extended, multi=multi)


class ReferenceEpisode:
    """The reference simulator, for configurations that the kernel does not know."""

    def __init__(self, config: SimulationConfig, traces: Sequence[Trace], *, extended: bool, multi: bool) -> None:
        """Make a simulation of each trace; TraceError for a job that fits no VM type."""
        self._extended, self._multi = extended, multi
        self._simulations = [Simulation(config, trace) for trace in traces]
        self._simulation = self._simulations[0]
        self._info: Info = {}

    def begin(self, seed: int, place: int) -> tuple[Observation, Info]:
        """Begin an episode on the trace at `place`."""
        self._simulation = self._simulations[place]
        self._simulation.reset(seed)
        return self._observe(), self._told(self._simulation.info(), 0.0, 0.0)

    def step(self, action: Any) -> Step:
        """Do a step."""
        result = self._simulation.step(self._changes(action) if self._multi else int(action))
        info = self._told(result.info, result.rent, result.penalty)
        return self._observe(), result.reward, result.done, result.truncated, info

    def mask(self) -> NDArray[np.bool_]:
        """Return what would have an effect now, flat."""
        return self._masked().reshape(-1)

    def info(self) -> Info:
        """Return the info of the last step or reset."""
        return self._info

    def _changes(self, action: Any) -> list[int]:
        choices = [int(choice) for choice in action]
        if any(not 0 <= choice < CHANGES for choice in choices):
            remedy = f"give {len(self._simulation.config.types)} indices in 0..{CHANGES - 1}, one per VM type"
            raise BadInput("action", choices, remedy)
        return [MULTI_CHANGES[choice] for choice in choices]

    def _observe(self) -> Observation:
        return self._simulation.observe_v2() if self._extended else self._simulation.observe()

    def _masked(self) -> NDArray[np.bool_]:
        return self._simulation.mask_multi() if self._multi else self._simulation.mask()

    def _told(self, info: StepInfo, rent: float, penalty: float) -> Info:
        outcome = info.outcome
        changed = tuple(a + b for a, b in zip(outcome.added, outcome.removed, strict=True))
        names = ("step", "now_s", "waiting", "executing", "finished", "submitted", "cores_ready", "cores_booting")
        self._info = {name: getattr(info, name) for name in (*names, "cores_busy", "ready", "booting", "draining")}
        self._info |= {"rent": rent, "penalty": penalty, "accepted": changed if self._multi else info.accepted}
        return self._info | {"mask": self._masked()}
