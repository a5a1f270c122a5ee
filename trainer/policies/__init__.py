"""Policies that run in the simulator, each made from a text by `policy_of`; `trainer.episodes` runs them."""

from trainer.policies.base import AnySimulation, SimulatedPolicy
from trainer.policies.registry import FORMS, policy_of

__all__ = ["FORMS", "AnySimulation", "SimulatedPolicy", "policy_of"]
