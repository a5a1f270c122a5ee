"""Several processes that train one network: each has its share of the environments, and gradients are averaged."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Crew:
    """This process among `size`; rank 0 evaluates, saves and reports."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that evaluates, saves and reports."""
        return self.rank == 0

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean over all processes, the same in each."""
        if self.size == 1:
            return values
        tensor = torch.from_numpy(np.array(values, dtype=np.float64))
        distributed.all_reduce(tensor)
        averaged: NDArray[np.float64] = (tensor / self.size).numpy()
        return averaged

    def moments(self, values: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return count, mean and variance of numbers over all processes, the same in each."""
        mean, square = self.mean(np.array([values.mean(), (values**2).mean()]))
        return float(values.size * self.size), mean, square - mean**2

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

    def as_leader(self, values: Sequence[float]) -> list[float]:
        """Return the leader's values in every process."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.broadcast(tensor, 0)
        found: list[float] = tensor.tolist()
        return found


ALONE = Crew()


def run_together(size: int, lead: Callable[[Crew], Result], follow: Callable[[Crew], object] | None = None) -> Result:
    """Run `lead` in this process (rank 0) and `follow` in `size - 1` fresh ones; return what `lead` returns.

    `follow` (`lead` when it is None) must be importable by name, with plain arguments: a partial of a module's
    function. When one process fails, the others are ended and its error is raised.
    """
    if size == 1:
        return lead(ALONE)
    follow = follow or lead
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        followers = cast(Any, start_processes)(
            _follow, args=(size, meeting, follow), nprocs=size - 1, join=False, start_method="spawn"
        )
        try:
            result = _as_member(0, size, meeting, lead)
        except BaseException:
            for process in followers.processes:
                process.terminate()
            raise
        while not followers.join():
            pass
        return result


def _as_member(rank: int, size: int, meeting: str, work: Callable[[Crew], Result]) -> Result:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    try:
        return work(Crew(rank, size))
    finally:
        distributed.destroy_process_group()


def _follow(index: int, size: int, meeting: str, work: Callable[[Crew], object]) -> None:
    _as_member(index + 1, size, meeting, work)
    # What still refers to the group keeps its threads running, and the interpreter's end would abort the process after
    # its work is done. Nothing is left to do here: the leader saves and reports.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
