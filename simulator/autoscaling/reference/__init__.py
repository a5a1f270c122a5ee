"""The reference autoscaling simulator in plain Python and numpy: start at `simulation.Simulation`."""

from simulator.autoscaling.reference.actions import MULTI_CHANGES, Order
from simulator.autoscaling.reference.compat import COMPAT, EXACT, Compat, compat_rows
from simulator.autoscaling.reference.configuration import PRESETS, PRICES, SimulationConfig, preset
from simulator.autoscaling.reference.measures import Measures
from simulator.autoscaling.reference.simulation import EpisodeOver, SavedState, Simulation, Watch
from simulator.autoscaling.reference.view import FleetView, QueueView, StepInfo, StepResult

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
