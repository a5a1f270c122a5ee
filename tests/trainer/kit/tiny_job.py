"""A training job small enough for tests of what runs jobs, and a real one that tells where it ran."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.kit.checkpoint import Checkpoint, Checkpoints, weights_hash

LOST_AT = 3
"""The checkpoint after which a machine called `second` does nothing more."""


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
    """Train in earnest; each attempt leaves its mark, with the update it goes on from.

    On a machine called `second` it goes no further than its third checkpoint: there it waits for the machine's loss.
    """
    from trainer.autoscaling.ppo_runs import run

    directory, machine = Path(data["directory"]), os.environ.get("TINY_NODE", "first")
    saved = Checkpoints(directory / "checkpoints").last()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "attempts").open("a") as attempts:
        attempts.write(f"{machine} {0 if saved is None else saved.update}\n")
    if machine == "second":
        _hang_after(LOST_AT)
    return run(data)


def _hang_after(update: int) -> None:
    save = Checkpoints.save

    def save_and_hang(checkpoints: Checkpoints, checkpoint: Checkpoint, *, best: bool = False) -> Path:
        path = save(checkpoints, checkpoint, best=best)
        while checkpoint.update >= update:
            time.sleep(60.0)
        return path

    setattr(Checkpoints, "save", save_and_hang)  # noqa: B010
