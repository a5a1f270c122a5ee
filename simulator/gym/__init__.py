"""The simulators as Gymnasium environments: `gymnasium.make("simulator.gym:Trimtab/Autoscaling-v0")`.

Trimtab/Oversubscription-v0, Trimtab/Deferral-v0 and Trimtab/Placement-v0 likewise.
No other package of the simulator imports Gymnasium.
"""

from __future__ import annotations

import gymnasium

from simulator.gym.autoscaling import AutoscalingEnv, AutoscalingVectorEnv

ENV_ID = "Trimtab/Autoscaling-v0"

__all__ = ["ENV_ID", "AutoscalingEnv", "AutoscalingVectorEnv"]

gymnasium.register(
    id=ENV_ID,
    entry_point="simulator.gym.autoscaling:AutoscalingEnv",
    vector_entry_point="simulator.gym.autoscaling:AutoscalingVectorEnv",
)
gymnasium.register(
    id="Trimtab/Oversubscription-v0",
    entry_point="simulator.gym.oversubscription:OversubscriptionEnv",
    vector_entry_point="simulator.gym.oversubscription:OversubscriptionVectorEnv",
)
gymnasium.register(id="Trimtab/Deferral-v0", entry_point="simulator.gym.deferral:DeferralEnv")
gymnasium.register(id="Trimtab/Placement-v0", entry_point="simulator.gym.placement:PlacementEnv")
