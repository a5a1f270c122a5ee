"""Named settings of recurrent PPO: the published ones and the best that were found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from domain.errors import BadInput
from trainer.autoscaling.ppo_lstm import PPOConfig

PRESETS: Mapping[str, PPOConfig] = MappingProxyType(
    {
        "default": PPOConfig(),
        "published": PPOConfig(
            masked=False,
            forget_bias=0.0,
            environments=16,
            steps_per_update=128,
            warm_steps=0,
            minibatches=4,
            gamma=0.99,
            clip=0.1,
            value_clip=0.1,
            anneal_clip=True,
            entropy_coefficient=0.01,
            learning_rate=2.5e-4,
            target_kl=0.0,
        ),
        "train-fit": PPOConfig(
            total_steps=2_000_000,
            observation="obs-v2",
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
        "train-text": PPOConfig(
            task="train-text",
            total_steps=2_000_000,
            observation="obs-v2",
            environments=128,
            steps_per_update=128,
            minibatches=4,
            entropy_coefficient=0.01,
            anneal_entropy=True,
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
        "coevolution-rent": PPOConfig(
            task="coevolution-rent",
            total_steps=1_000_000,
            observation="obs-v2",
            action_set="act-multi",
            hidden=64,
            environments=256,
            warm_steps=192,
            most_episode_steps=400,
            minibatches=4,
            gamma=0.99,
            value_clip=0.0,
            progress_reward=13.5,
            time_price_per_minute=0.03,
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
    }
)
"""`published`: the statements of the publication, and for the rest the discrete-action defaults of the code it names.
The others are named after the tasks that they were found for: the cheapest policies of train-fit and train-text; of
coevolution-rent the least rent where a minute of the closed loop costs three cents. There progress is paid the cost of
such an episode, so that neither haste nor delay pays; for other prices: 14.9 at four cents, 11.5 at two."""


def configuration(preset: str = "default", **changes: Any) -> PPOConfig:
    """Return a preset with some fields changed; BadInput names the known ones."""
    if preset not in PRESETS:
        raise BadInput("preset", preset, f"choose one of {', '.join(PRESETS)}")
    known = {known_field.name for known_field in fields(PPOConfig)}
    for name in changes:
        if name not in known:
            raise BadInput("field", name, f"choose one of {', '.join(sorted(known))}")
    return replace(PRESETS[preset], **changes)
