"""The device on which a network is trained: weights and minibatches are there, everything else is in numpy."""

from __future__ import annotations

import torch

from domain.errors import BadInput

CPU, CUDA = "cpu", "cuda"
DEVICES = (CPU, CUDA)


def device_of(name: str, ray: str | None = None) -> torch.device:
    """Return the device of a name; BadInput for `cuda` without a GPU, or on a Ray cluster.

    ray: the option of that name. A task that reserves a core sees no GPU.
    """
    if name not in DEVICES:
        raise BadInput("--device", name, f"choose one of {', '.join(DEVICES)}")
    if name == CUDA and ray is not None:
        raise BadInput("--device", name, "leave out --ray, whose tasks see no GPU, or give --device cpu")
    if name == CUDA and not torch.cuda.is_available():
        remedy = f"PyTorch {torch.__version__} sees no GPU: install its CUDA build and the driver, or give --device cpu"
        raise BadInput("--device", name, remedy)
    return torch.device(name)
