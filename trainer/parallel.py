"""Several processes that train one network: each has its share of the environments, and gradients are averaged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.spawn import start_processes


@dataclass(frozen=True, slots=True)
class Crew:
    """This process among `size`; rank 0 evaluates, saves and tells."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that evaluates, saves and tells."""
        return self.rank == 0

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean over all processes, the same in each."""
        if self.size == 1:
            return values
        tensor = torch.from_numpy(np.array(values, dtype=np.float64))
        distributed.all_reduce(tensor)
        averaged: NDArray[np.float64] = (tensor / self.size).numpy()
        return averaged

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its mean over all processes."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.ravel() for gradient in gradients])
        distributed.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors by those of the leading process."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, 0)


ALONE = Crew()


def run_as_follower(rank: int, size: int, meeting: str, work: Callable[[Crew], None]) -> None:
    """Join the group and work until done; for processes that `leading` starts."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    try:
        work(Crew(rank, size))
    finally:
        distributed.destroy_process_group()


def run_together(size: int, work: Callable[[Crew], None]) -> None:
    """Run `work` in this process (rank 0) and in `size - 1` fresh ones; return when all are done.

    `work` must be importable by name with plain arguments (a partial of a module's function). A process that fails ends
    the others, and its error is raised.
    """
    if size == 1:
        work(ALONE)
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        followers = cast(Any, start_processes)(
            _follow, args=(size, meeting, work), nprocs=size - 1, join=False, start_method="spawn"
        )
        try:
            run_as_follower(0, size, meeting, work)
        finally:
            while followers is not None and not followers.join():
                pass


def _follow(index: int, size: int, meeting: str, work: Callable[[Crew], None]) -> None:
    run_as_follower(index + 1, size, meeting, work)
