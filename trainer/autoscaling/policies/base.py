"""What a policy is in the simulator, and what it may ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from domain.workload import Trace
from simulator.autoscaling.reference import FleetView, Measures, Order, SimulationConfig, StepResult


class AnySimulation(Protocol):
    """One episode: the plain twin `simulator.autoscaling.reference.Simulation` or the kernel's `FastSimulation`."""

    config: SimulationConfig
    trace: Trace

    @property
    def steps(self) -> int:
        """Steps done."""
        ...

    @property
    def finished(self) -> bool:
        """Whether every job has finished."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether max_steps was reached before that."""
        ...

    def fleet_view(self) -> FleetView:
        """Return what an outside policy may decide on."""
        ...

    def observe(self) -> NDArray[np.float32]:
        """Return obs-7."""
        ...

    def observe_v2(self) -> NDArray[np.float32]:
        """Return obs-v2."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """Return which act-7 indices would have an effect now, shape (1 + 2 N,)."""
        ...

    def mask_multi(self) -> NDArray[np.bool_]:
        """Return which changes of MULTI_CHANGES would have an effect now, shape (N, 7)."""
        ...

    def step_orders(self, orders: Sequence[Order]) -> StepResult:
        """Apply orders and run one control step."""
        ...

    def measures(self) -> Measures:
        """Return the figures of the episode so far."""
        ...


class SimulatedPolicy(Protocol):
    """Chooses the orders of each minute; keeps what it remembers of an episode until the next `start`."""

    @property
    def name(self) -> str:
        """Name and parameters, a text that `policy_of` reads back (a model file: its SHA-256)."""
        ...

    def world(self, config: SimulationConfig) -> SimulationConfig:
        """Return the configuration to run under: `config`, save that a constant fleet is there from the start."""
        ...

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Begin an episode; BadInput when the policy does not fit this fleet."""
        ...

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Return the orders of the coming step."""
        ...


class PlainPolicy:
    """What most policies have in common: they take the world as it is and remember nothing of an episode."""

    __slots__ = ()

    def world(self, config: SimulationConfig) -> SimulationConfig:
        """Return the configuration as it is."""
        return config

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Begin an episode."""
