"""A training run that takes about a second: few copies, few cells, short episodes."""

from pathlib import Path
from typing import Any

from trainer.autoscaling.ppo_lstm import PPOConfig
from trainer.autoscaling.ppo_runs import configuration

TINY: dict[str, Any] = {
    "task": "train-fit",
    "total_steps": 2048,
    "environments": 8,
    "steps_per_update": 32,
    "minibatches": 2,
    "epochs": 2,
    "hidden": 8,
    "warm_steps": 16,
    "evaluate_every_steps": 512,
    "selection_episodes": 2,
    "most_episode_steps": 300,
}


def tiny(**changes: Any) -> PPOConfig:
    """The configuration, with some fields changed."""
    return configuration(**{**TINY, **changes})


def data_of(config: PPOConfig, directory: Path, **more: Any) -> dict[str, Any]:
    """What `trainer.autoscaling.ppo_runs.run` is asked with."""
    return {"config": config.plain(), "directory": str(directory), "name": "tiny", "episodes": 3, **more}


def options(*more: str) -> list[str]:
    """The same for the command line."""
    settings = [f"--set={name}={value}" for name, value in TINY.items() if name not in ("task", "total_steps")]
    return ["train", "autoscaling", "--steps", "2048", "--episodes", "3", *settings, *more]
