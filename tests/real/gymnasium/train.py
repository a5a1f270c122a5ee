"""Trains PPO of stable-baselines3 for a few steps on each environment named, and prints the steps of each as JSON."""

from __future__ import annotations

import importlib
import json
import sys

from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env

STEPS, COPIES = 16, 2


def trained(qualified: str) -> int:
    """Return the steps that PPO took, of all copies."""
    module, name = qualified.split(":")
    importlib.import_module(module)
    copies = make_vec_env(name, n_envs=COPIES, seed=1)
    check_env(copies.envs[0])  # type: ignore[attr-defined]
    policy = "MultiInputPolicy" if hasattr(copies.observation_space, "spaces") else "MlpPolicy"
    model = PPO(policy, copies, n_steps=STEPS, batch_size=STEPS, n_epochs=1, seed=1, device="cpu")
    before = [weights.detach().clone() for weights in model.policy.parameters()]
    model.learn(2 * STEPS * COPIES)
    assert any((old != new).any() for old, new in zip(before, model.policy.parameters(), strict=True))
    return model.num_timesteps


if __name__ == "__main__":
    print(json.dumps({qualified: trained(qualified) for qualified in sys.argv[1:]}))
