"""Policies that run in the simulator, each made from a text by `policy_of`; `autoscaling.episodes` runs them."""

from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy
from trainer.autoscaling.policies.registry import FORMS, policy_of

__all__ = ["FORMS", "AnySimulation", "SimulatedPolicy", "policy_of"]
