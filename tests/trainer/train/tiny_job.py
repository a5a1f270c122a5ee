"""A training job small enough for tests of what runs jobs, and a real one that tells where it ran."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import Checkpoint, Checkpoints, weights_hash


def train_tiny(data: Mapping[str, Any]) -> dict[str, Any]:
    """Do `updates` random updates in `directory`, going on from its checkpoint; each attempt leaves its mark."""
    directory = Path(data["directory"])
    checkpoints = Checkpoints(directory / "checkpoints")
    generator = torch.Generator().manual_seed(data["seed"])
    weights, update = torch.zeros(8), 0
    if (saved := checkpoints.last()) is not None:
        weights, update = saved.state["weights"]["w"], saved.update
        generator.set_state(saved.state["random"])
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "attempts").open("a") as attempts:
        attempts.write(f"{update}\n")
    while update < data["updates"]:
        weights = 0.9 * weights + torch.randn(8, generator=generator)
        update += 1
        checkpoints.save(
            Checkpoint({}, {"update": update}, {"weights": {"w": weights}, "random": generator.get_state()})
        )
    return {"seed": data["seed"], "weights": weights_hash({"w": weights})}


def train_marked(data: Mapping[str, Any]) -> dict[str, Any]:
    """Train in earnest; each attempt leaves its mark, with the update it goes on from."""
    from trainer.runs import run

    directory = Path(data["directory"])
    saved = Checkpoints(directory / "checkpoints").last()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "attempts").open("a") as attempts:
        attempts.write(f"{os.environ.get('TINY_NODE', 'first')} {0 if saved is None else saved.update}\n")
    return run(data)


def fail(data: Mapping[str, Any]) -> dict[str, Any]:
    """Raise, or die without a word."""
    if data.get("die"):
        os._exit(1)
    raise ValueError("the third law")
