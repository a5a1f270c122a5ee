"""Trees of arrays, tensors and plain values as named arrays and JSON, and back, bit for bit and without pickle.

A tree is a dict, list or tuple of trees, an array, a torch tensor, or a plain value: None, bool, int of any size,
float, str.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from domain.errors import BadInput

Arrays = dict[str, NDArray[Any]]

_ARRAY, _TENSOR, _TUPLE, _PAIRS, _FLOAT = "$array", "$tensor", "$tuple", "$pairs", "$float"
"""Keys that mark what JSON has no word for; a dict with a key that begins with $ is stored as pairs."""


def pack(tree: Any) -> tuple[Arrays, Any]:
    """Return the arrays of a tree by their path in it, and the rest as JSON data that names them.

    Raises BadInput, naming the path, for a value that is none of those above.
    """
    arrays: Arrays = {}
    return arrays, _pack(tree, "", arrays)


def unpack(arrays: Mapping[str, NDArray[Any]], data: Any) -> Any:
    """Return the tree that `pack` took apart; KeyError when an array it names is absent."""
    if isinstance(data, list):
        return [unpack(arrays, item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        ((mark, inner),) = data.items()
        if mark == _ARRAY:
            return arrays[inner]
        if mark == _TENSOR:
            return torch.from_numpy(np.array(arrays[inner]))
        if mark == _TUPLE:
            return tuple(unpack(arrays, item) for item in inner)
        if mark == _PAIRS:
            return {unpack(arrays, key): unpack(arrays, value) for key, value in inner}
        if mark == _FLOAT:
            return float(inner)
    return {key: unpack(arrays, value) for key, value in data.items()}


def _pack(tree: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(tree, torch.Tensor):
        return _named(_TENSOR, tree.detach().cpu().numpy(), path, arrays)
    if isinstance(tree, np.ndarray):
        return _named(_ARRAY, tree, path, arrays)
    if isinstance(tree, np.generic):
        tree = tree.item()
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {_FLOAT: repr(tree)}
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: _pack(value, f"{path}/{key}", arrays) for key, value in tree.items()}
        return {_PAIRS: [[_pack(k, path, arrays), _pack(v, f"{path}/{k}", arrays)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        items = [_pack(value, f"{path}/{at}", arrays) for at, value in enumerate(tree)]
        return items if isinstance(tree, list) else {_TUPLE: items}
    raise BadInput(f"state {path}", type(tree).__name__, "give arrays, plain values, or dicts and lists of them")


def _named(mark: str, array: NDArray[Any], path: str, arrays: Arrays) -> dict[str, str]:
    if array.dtype.hasobject:
        raise BadInput(f"state {path}", "an array of Python objects", "give an array of numbers")
    name = path.lstrip("/") or "value"
    while name in arrays:
        name += "'"
    # A copy: what training goes on to change must not change under the writer.
    arrays[name] = np.array(array)
    return {mark: name}
