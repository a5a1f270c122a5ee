"""How much better than expected each action turned out: generalised advantage estimates (specification §10)."""

from __future__ import annotations

import numpy as np

from trainer.autoscaling.rollout import Experience, Floats


def advantages(made: Experience, rewards: Floats, gamma: float, gae_lambda: float) -> Floats:
    """Return the generalised advantage estimates [T, B] of scaled rewards.

    An episode that ended has no value after it; one that was cut short has its estimated value.
    """
    found = np.zeros_like(rewards)
    going, after = np.zeros_like(made.last_values), made.last_values
    for t in range(rewards.shape[0] - 1, -1, -1):
        goes_on = 1.0 - made.dones[t]
        surprise = rewards[t] + gamma * (goes_on * after + made.bootstraps[t]) - made.values[t]
        going = surprise + gamma * gae_lambda * goes_on * going
        found[t], after = going, made.values[t]
    return found
