"""Random numbers of one deployment, addressed by index: whatever a policy does, its future stays the same.

A Weyl sequence through the finaliser of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number
Generators, 2014); the start of the sequence comes from the run's seed and the deployment's stream.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.compilation import compiled

_STEP = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
PIECE = 256.0
"""Largest mean whose Poisson law is inverted at once; larger means are sums."""


@compiled
def mixed(word: np.uint64) -> np.uint64:
    """Return the word with every bit depending on all of its bits."""
    word = (word ^ (word >> _30)) * _A
    word = (word ^ (word >> _27)) * _B
    return word ^ (word >> _31)


@compiled
def key_of(seed: np.uint64, stream: np.uint64) -> np.uint64:
    """Return the start of the sequence of one deployment of one run."""
    return mixed(mixed(np.uint64(seed) + _STEP) + np.uint64(stream))


@compiled
def uniform(key: np.uint64, index: np.uint64) -> float:
    """Return draw number `index` of a sequence, in (0, 1)."""
    word = mixed(key + np.uint64(index) * _STEP)
    return (float(word >> _11) + 0.5) * (1.0 / 9007199254740992.0)


@compiled
def poisson(mean: float, u: float) -> int:
    """Return the Poisson variate at the quantile `u`, by summing up probabilities; mean up to PIECE."""
    p = math.exp(-mean)
    reached, k = p, 0
    while u > reached:
        k += 1
        p *= mean / k
        reached += p
        # Rounding may keep the sum below u for ever.
        if p < 1e-18 and k > mean:
            break
    return k


@compiled
def extra_cores(mean: float, key: np.uint64, index: np.uint64) -> int:
    """Return a Poisson variate of any mean from draw `index` (and, above PIECE, from sequences split off there)."""
    if mean <= PIECE:
        return poisson(mean, uniform(key, index))
    pieces = math.ceil(mean / PIECE)
    own = mixed(key + np.uint64(index) * _STEP)
    cores = 0
    for piece in range(pieces):
        cores += poisson(mean / pieces, uniform(own, np.uint64(piece)))
    return cores
