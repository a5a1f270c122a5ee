"""The arithmetic over rings of readings: what one minute holds of every series at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEVER = float("-inf")
"""The time of a place in a ring that holds no reading."""

_BLOCK_ROWS = 2048
"""Rows folded together: their intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class BinFold:
    """What the bin (start, end] holds, per row: how many readings and their mean (0 where there are none).

    Both arrays have one place more than there were rows, empty, so that row -1 (a series that does not exist) reads as
    no readings.
    """

    start: float
    end: float
    counts: Ints
    means: Floats

    def at(self, rows: Ints) -> tuple[Ints, Floats]:
        """Return counts and means of these rows; rows that came after the fold, and -1, have no readings."""
        known = np.where(rows < self.counts.size - 1, rows, -1)
        return self.counts[known], self.means[known]


def fold_rings(times: Floats, values: Floats, start: float, end: float) -> BinFold:
    """Fold rings of shape (rows, depth) over (start, end]; an empty place has time `NEVER` and a finite value."""
    rows = times.shape[0]
    counts = np.zeros(rows + 1, dtype=np.int64)
    means = np.zeros(rows + 1, dtype=np.float64)
    for first in range(0, rows, _BLOCK_ROWS):
        block = slice(first, min(first + _BLOCK_ROWS, rows))
        inside = times[block] > start
        inside &= times[block] <= end
        counted = np.count_nonzero(inside, axis=1)
        totals = np.einsum("ij,ij->i", values[block], inside)
        counts[block] = counted
        means[block] = totals / np.maximum(counted, 1)
    return BinFold(start, end, counts, means)


def first_times(times: Floats) -> Floats:
    """Return the earliest reading's time of each ring of shape (rows, depth); +inf where there is none."""
    earliest: Floats = np.where(times > NEVER, times, np.inf).min(axis=1, initial=np.inf)
    return earliest


def latest_values(times: Floats, values: Floats, until: float) -> tuple[Floats, Floats]:
    """Return time and value of each ring's newest reading at or before `until`; `NEVER` and nan where there is none."""
    if not times.size:
        return np.empty(0), np.empty(0)
    seen = np.where(times <= until, times, NEVER)
    place = seen.argmax(axis=1)
    row = np.arange(times.shape[0])
    at: Floats = seen[row, place]
    return at, np.where(at > NEVER, values[row, place], np.nan)
