"""The reference autoscaling simulator in plain Python and numpy: start at `simulation.Simulation`."""

from simulator.reference.actions import MULTI_CHANGES, Order
from simulator.reference.compat import COMPAT, EXACT, Compat, compat_rows
from simulator.reference.configuration import PRESETS, PRICES, SimulationConfig, preset
from simulator.reference.measures import Measures
from simulator.reference.simulation import EpisodeOver, SavedState, Simulation, Watch
from simulator.reference.view import FleetView, QueueView, StepInfo, StepResult

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
