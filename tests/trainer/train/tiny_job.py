"""A training job small enough for tests of what runs jobs: one weight vector, a checkpoint after every update."""

import os
import time
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
        attempts.write(f"{os.getpid()} {os.environ.get('TINY_NODE', '')} {update}\n")
    while update < data["updates"]:
        weights = 0.9 * weights + torch.randn(8, generator=generator)
        update += 1
        checkpoints.save(
            Checkpoint({}, {"update": update}, {"weights": {"w": weights}, "random": generator.get_state()})
        )
        time.sleep(data.get("pause_s", 0.0))
    return {"seed": data["seed"], "weights": weights_hash({"w": weights})}


def fail(data: Mapping[str, Any]) -> dict[str, Any]:
    """Raise, or die without a word."""
    if data.get("die"):
        os._exit(1)
    raise ValueError("the third law")
