"""The autoscaling simulator compiled: many copies stepped by one call, bit for bit the reference simulator."""

from simulator.autoscaling.batch import ACTION_SETS, OBSERVATIONS, AutoscalingBatch, CopyState
from simulator.autoscaling.packing import unsupported
from simulator.autoscaling.single import FastSimulation, FastState

__all__ = [
    "ACTION_SETS",
    "OBSERVATIONS",
    "AutoscalingBatch",
    "CopyState",
    "FastSimulation",
    "FastState",
    "unsupported",
]
