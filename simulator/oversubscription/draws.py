"""Standard normal numbers addressed by index: a VM's usage in an hour stays the same whatever a policy does.

The ziggurat of Marsaglia and Tsang (2000) in the form of Doornik (An Improved Ziggurat Method, 2005), fed by the Weyl
sequence of `simulator.admission.streams`.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.admission.streams import mixed
from simulator.oversubscription.compiled import compiled

_STEP = np.uint64(0x9E3779B97F4A7C15)
_11, _LAYER = np.uint64(11), np.uint64(127)
_UNIT = 1.0 / 9007199254740992.0
LAYERS = 128
_TAIL = 3.442619855899
_AREA = 9.91256303526217e-3


def _edges() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the right ends of the layers, widest first, and 0 behind the last."""
    edges = np.zeros(LAYERS + 1)
    density = math.exp(-0.5 * _TAIL * _TAIL)
    edges[0], edges[1] = _AREA / density, _TAIL
    for i in range(2, LAYERS):
        edges[i] = math.sqrt(-2.0 * math.log(_AREA / edges[i - 1] + density))
        density = math.exp(-0.5 * edges[i] * edges[i])
    return edges


_EDGE = _edges()
_INSIDE = _EDGE[1:] / _EDGE[:-1]


@compiled
def _uniform(word: np.uint64) -> float:
    """Return a word's upper 53 bits as a number in (0, 1)."""
    return (float(word >> _11) + 0.5) * _UNIT


@compiled
def _in_tail(word: np.uint64, negative: bool) -> float:
    """Return a normal number beyond the layers."""
    while True:
        word = mixed(word + _STEP)
        x = math.log(_uniform(word)) / _TAIL
        word = mixed(word + _STEP)
        if -2.0 * math.log(_uniform(word)) >= x * x:
            return x - _TAIL if negative else _TAIL - x


@compiled
def _outside(word: np.uint64, layer: int, u: float) -> tuple[bool, float]:
    """Return whether a point beyond the inner part of its layer is taken, and its place."""
    if layer == 0:
        return True, _in_tail(word, u < 0.0)
    second = _uniform(mixed(word + _STEP))
    x = u * _EDGE[layer]
    outer = math.exp(-0.5 * (_EDGE[layer] * _EDGE[layer] - x * x))
    inner = math.exp(-0.5 * (_EDGE[layer + 1] * _EDGE[layer + 1] - x * x))
    return bool(inner + second * (outer - inner) < 1.0), x


@compiled
def normal(key: np.uint64, index: np.uint64) -> float:
    """Return draw number `index` of a sequence of standard normals."""
    word = mixed(key + index * _STEP)
    while True:
        u = 2.0 * _uniform(word) - 1.0
        layer = int(word & _LAYER)
        if abs(u) < _INSIDE[layer]:
            return float(u * _EDGE[layer])
        taken, x = _outside(word, layer, u)
        if taken:
            return x
        word = mixed(word ^ _STEP)
