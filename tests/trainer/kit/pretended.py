"""A device `cuda` on a machine without a GPU: tensors that compute on the processor, and refuse what a GPU refuses.

A tensor on it and one of the processor are refused in one operation, except for a number; so is its conversion to
numpy, and a generator of the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

CUDA = torch.device("cuda")
ACROSS = ("copy_", "to", "index_copy_", "_has_compatible_shallow_copy_type", "__setitem__", "__getitem__", "__set__")
"""Operations that take tensors of two devices."""
PACKED = ("_pack_padded_sequence", "_pad_packed_sequence", "lstm")
"""Operations whose lengths, whole numbers, are always of the processor."""


class There(Tensor):
    """A tensor of the pretended device."""


class WrongDevice(AssertionError):
    """An operation that a GPU refuses."""


def _is_there(value: object) -> bool:
    return isinstance(value, There)


def _there(value: Any) -> Any:
    return value.as_subclass(There) if isinstance(value, Tensor) and not _is_there(value) else value


def _here(value: Any) -> Any:
    return value.as_subclass(Tensor) if _is_there(value) else value


def _names(device: object) -> bool:
    return device is not None and torch.device(device).type == "cuda"  # type: ignore[arg-type]


def _copied(tensor: Any, memo: dict[int, Any]) -> Any:
    made = _there(tensor.detach().clone()).requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        made._is_param = True
    memo[id(tensor)] = made
    return made


class Pretended(TorchFunctionMode):
    """Sends tensors to the pretended device and back, and checks each operation on them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do an operation on the processor, and mark the tensors of its result with its device."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        marked = any(map(_is_there, tensors))
        with torch._C.DisableTorchFunctionSubclass():
            if func == Tensor.device.__get__:
                return CUDA if marked else func(*args, **kwargs)
            if name == "to" and marked | any(_names(one) for one in args[1:] if isinstance(one, str | torch.device)):
                return self._sent(func, args, kwargs)
            if name == "__deepcopy__" and marked:
                return _copied(args[0], args[1])
            if name == "cpu":
                return args[0].detach().as_subclass(Tensor) if not args[0].requires_grad else _here(args[0])
            asked = kwargs.get("device")
            if asked is not None and _names(asked):
                return _there(func(*args, **{**kwargs, "device": "cpu"}))
            if marked:
                self._check(name, args, kwargs, tensors)
            result = func(*args, **kwargs)
            if name == "_pack_padded_sequence" and marked:
                return _there(result[0]), result[1]
            return pytree.tree_map(_there, result) if marked and name != "tolist" else result

    def _sent(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        target = [one for one in args[1:] if isinstance(one, str | torch.device)]
        rest = [torch.device("cpu") if isinstance(one, str | torch.device) else one for one in args[1:]]
        found = func(args[0], *rest, **kwargs)
        there = _names(target[0]) if target else _is_there(args[0])
        # A copy: on a GPU nothing is shared with the processor.
        return _there(found.clone()) if there else _here(found)

    def _check(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
        self.operations += 1
        if name in ("numpy", "__array__"):
            raise WrongDevice("numpy of a tensor on the device: take .cpu() first")
        if isinstance(kwargs.get("generator"), torch.Generator):
            raise WrongDevice(f"{name}: a generator of the processor")
        apart = [one for one in tensors if not _is_there(one) and one.dim()]
        apart = [one for one in apart if name not in PACKED or one.is_floating_point()]
        if apart and name not in ACROSS:
            raise WrongDevice(f"{name}: tensors of two devices")


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    """Let `cuda` be a pretended device."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with monkeypatch.context() as patched, Pretended() as mode:
            patched.setattr(torch.cuda, "is_available", lambda: True)
            yield mode
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
