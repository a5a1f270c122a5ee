"""Policies of the oversubscription simulator: fixed rates, the published baselines, the static optimum, and guards."""

from trainer.oversubscription.policies.base import OversubscriptionPolicy, Plan, Task
from trainer.oversubscription.policies.registry import policy_of

__all__ = ["OversubscriptionPolicy", "Plan", "Task", "policy_of"]
