"""sb3-contrib's RecurrentPPO on this project's compiled simulator: the peer of `benchmarks.ppo_throughput`.

It gets the same batch of worlds through an adapter with nothing in it that costs time, one shared LSTM without a second
one for the value, no layers besides, and the same sizes and coefficients. It has no action masks. It is no dependency:

    pip install --no-deps stable-baselines3 sb3-contrib
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.reward_scale import RewardScale
from trainer.autoscaling.rollout import Worlds
from trainer.autoscaling.tasks import SELECTION_SEED, TRAINING_SEED, kernel_worlds, task_of
from trainer.kit.parallel import ALONE

INSTALL = "pip install --no-deps stable-baselines3 sb3-contrib"


def installed() -> bool:
    """Whether the peer is there."""
    return importlib.util.find_spec("sb3_contrib") is not None


def _worlds(config: PPOConfig, copies: int) -> Worlds:
    stage = task_of(config.task).stages[0]
    return kernel_worlds(stage.config, stage.traces, copies, observation=config.observation, actions=config.action_set)


def _adapter(config: PPOConfig, worlds: Worlds) -> Any:
    """Return the batch as the kind of environment that the peer takes."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    copies = config.environments

    class Batch(VecEnv):
        """`copies` worlds; those that end begin again at once, with the next seeds; out of phase from the start."""

        def __init__(self) -> None:
            self.render_mode = None
            box = spaces.Box(0.0, 10.0, (worlds.n_features,), np.float32)
            super().__init__(copies, box, spaces.Discrete(worlds.n_actions))
            self._seeds_used = np.arange(copies, dtype=np.int64) + TRAINING_SEED
            self._traces = np.zeros(copies, dtype=np.int64)
            self._infos: list[dict[str, Any]] = [{} for _ in range(copies)]
            self._scale = RewardScale(np.zeros(copies))

        def reset(self) -> NDArray[np.float32]:
            worlds.reset(self._seeds_used, self._traces)
            rng = np.random.default_rng(config.seed)
            for t in range(config.warm_steps):
                due = np.arange(copies) * config.warm_steps // copies == t
                observations = worlds.reset_where(due, self._seeds_used, self._traces)
                observations = worlds.step(rng.integers(0, worlds.n_actions, copies))[0]
            return observations.copy()

        def step_async(self, actions: NDArray[np.int64]) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated = worlds.step(self._actions)
            done = terminated | truncated
            if config.scale_rewards:
                self._scale.take(rewards[None], done[None].astype(np.float32), config.gamma, ALONE)
                rewards = rewards / self._scale.deviation
            if done.any():
                self._seeds_used[done] += copies
                observations = worlds.reset_where(done, self._seeds_used, self._traces)
            return observations.copy(), rewards.astype(np.float32), done, self._infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * copies

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            pass

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return []

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * copies

    return Batch()


class Peer:
    """RecurrentPPO with this configuration's sizes and coefficients; `update` is one rollout and its epochs."""

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from sb3_contrib import RecurrentPPO

            self._model = RecurrentPPO(
                "MlpLstmPolicy",
                _adapter(config, _worlds(config, config.environments)),
                n_steps=config.steps_per_update,
                batch_size=config.environments * config.steps_per_update // config.minibatches,
                n_epochs=config.epochs,
                learning_rate=config.learning_rate,
                gamma=config.gamma,
                gae_lambda=config.gae_lambda,
                clip_range=config.clip,
                clip_range_vf=config.value_clip or None,
                ent_coef=config.entropy_coefficient,
                vf_coef=config.value_coefficient,
                max_grad_norm=config.gradient_norm,
                target_kl=config.target_kl or None,
                normalize_advantage=config.normalise_advantages,
                seed=config.seed,
                device="cpu",
                policy_kwargs={
                    "lstm_hidden_size": config.hidden,
                    "shared_lstm": True,
                    "enable_critic_lstm": False,
                    "net_arch": [],
                },
            )
            _, self._callback = self._model._setup_learn(10**12)
        self._judged = _worlds(config, config.selection_episodes)

    def update(self) -> float:
        """Gather and learn once; return the processor seconds it took."""
        # Ours counts tiny numbers as zero, which spares time: so does the peer.
        torch.set_flush_denormal(True)
        model, before = self._model, time.process_time()
        model.collect_rollouts(model.env, self._callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        model.train()
        return time.process_time() - before

    def held_out_cost(self, *, greedy: bool) -> float:
        """Return the mean cost of the held-out episodes, dollars, by most probable or by drawn actions."""
        copies = self.config.selection_episodes
        seeds = SELECTION_SEED + np.arange(copies)
        observations = self._judged.reset(seeds, np.zeros(copies, dtype=np.int64))
        state: Any = None
        starts, running = np.ones(copies, dtype=np.bool_), np.ones(copies, dtype=np.bool_)
        for _ in range(self.config.most_episode_steps):
            actions, state = self._model.predict(observations, state, starts, deterministic=greedy)
            observations, _, terminated, truncated = self._judged.step(actions.astype(np.int64))
            starts[:] = False
            running &= ~(terminated | truncated)
            if not running.any():
                break
        return float((self._judged.rent + self._judged.penalty).mean())


def parameters(peer: Peer) -> Sequence[int]:
    """Return how many numbers the peer's network has: in all, and in its LSTM."""
    policy = peer._model.policy
    every = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    return every, sum(p.numel() for p in policy.lstm_actor.parameters())
