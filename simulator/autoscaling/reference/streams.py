"""Named streams of random numbers in which the i-th draw never depends on how many were drawn elsewhere."""

from __future__ import annotations

import numpy as np

BOOT = 1
REMOVAL = 2
RECLAIM = 3

_BLOCK = 64


class Streams:
    """Uniform numbers in [0, 1) addressed by (stream, kind, index): any draw is a function of the seed.

    Two policies on one seed see the same boot time for the i-th VM of a type (autoscaler specification §2.5).
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn: dict[tuple[int, int], list[float]] = {}
        self._generators: dict[tuple[int, int], np.random.Generator] = {}

    def draw(self, stream: int, kind: int, index: int) -> float:
        """Return draw number `index` (from 0) of a stream."""
        key = (stream, kind)
        drawn = self._drawn.setdefault(key, [])
        while index >= len(drawn):
            if key not in self._generators:
                words = np.array([self.seed & 0xFFFFFFFFFFFFFFFF, (stream << 32) | kind], dtype=np.uint64)
                self._generators[key] = np.random.Generator(np.random.Philox(key=words))
            drawn.extend(self._generators[key].random(_BLOCK).tolist())
        return drawn[index]
