"""Random numbers addressed by index: the numbers of `autoscaling.reference.streams`, without a generator object.

Philox-4x64-10 of Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (2011), as numpy seeds and
reads it: key (seed, stream and kind), one counter block per four draws, counted from 1.
"""

from __future__ import annotations

import numpy as np

from simulator.autoscaling.compiled import compiled

_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_32, _11 = np.uint64(32), np.uint64(11)


@compiled
def _high(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper 64 bits of a product."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _32) + (other >> _32)


@compiled
def draw(seed: np.uint64, stream: int, kind: int, index: int) -> float:
    """Return draw number `index` (from 0) of a stream, in [0, 1) (autoscaler specification §2.5)."""
    key0, key1 = np.uint64(seed), np.uint64((stream << 32) | kind)
    c0, c1 = np.uint64(index // 4 + 1), np.uint64(0)
    c2, c3 = np.uint64(0), np.uint64(0)
    for _ in range(10):
        high0, low0, high1, low1 = _high(_M0, c0), _M0 * c0, _high(_M1, c2), _M1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = key0 + _W0, key1 + _W1
    lane = index % 4
    word = c0 if lane == 0 else c1 if lane == 1 else c2 if lane == 2 else c3
    return float(word >> _11) * (1.0 / 9007199254740992.0)
