"""The reference autoscaling simulator in plain Python and numpy: start at `simulation.Simulation`."""

from simulator.autoscaling.reference.actions import MULTI_CHANGES, Order
from simulator.autoscaling.reference.configuration import (
    COMPAT,
    EXACT,
    PRICES,
    Compat,
    SimulationConfig,
    compat_rows,
)
from simulator.autoscaling.reference.simulation import EpisodeOver, SavedState, Simulation, Watch
from simulator.autoscaling.reference.view import FleetView, Measures, QueueView, StepInfo, StepResult
from simulator.autoscaling.reference.world_file import PRESETS, preset

__all__ = [
    "COMPAT",
    "EXACT",
    "MULTI_CHANGES",
    "PRESETS",
    "PRICES",
    "Compat",
    "EpisodeOver",
    "FleetView",
    "Measures",
    "Order",
    "QueueView",
    "SavedState",
    "Simulation",
    "SimulationConfig",
    "StepInfo",
    "StepResult",
    "Watch",
    "compat_rows",
    "preset",
]
