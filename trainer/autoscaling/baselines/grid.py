"""The instants at which jobs can start, within a control step: what makes a clairvoyant model exact or merely valid.

Rounding every instant of a schedule down to a grid, and every duration down to one that takes grid points to grid
points, keeps the order of what happens on each core: floor(start + length) >= floor(start) + shortened length. So a
model on such a grid has every schedule of the simulator among its solutions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig

Floats = NDArray[np.float64]

MOST_OFFSETS = 12
"""A grid with more instants a step than this is not tried."""
EVEN_POINTS = (4, 2, 1)
"""Instants a step of the grids that serve where lengths vary; the first that keeps the model small is taken."""
MOST_STARTS = 8_000
"""Most start variables of a model: lengths of jobs times instants."""
COMMON_SHARE = 0.95
"""Share of the jobs whose lengths the grid of job starts has to keep as they are."""
_CLOSE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Grid:
    """Start instants as offsets from a step's start, sorted, the first one 0; lengths_s are kept, others shortened.

    unit_s: durations that are not kept are rounded down to a multiple of it.
    """

    step_s: float
    offsets: tuple[float, ...]
    lengths_s: tuple[float, ...]
    unit_s: float

    def floored(self, time_s: Floats | float) -> Floats:
        """Return the last instants at or before the times given, seconds."""
        times = np.asarray(time_s, dtype=np.float64)
        steps = np.floor((times + _CLOSE_S) / self.step_s) * self.step_s
        offsets = np.array(self.offsets)
        return np.asarray(steps + offsets[np.searchsorted(offsets, times - steps + _CLOSE_S, side="right") - 1])

    def duration(self, time_s: float) -> float:
        """Return the duration itself where the grid keeps it, else a shorter one that takes instants to instants."""
        if time_s in self.lengths_s:
            return time_s
        return math.floor(time_s / self.unit_s + _CLOSE_S) * self.unit_s

    def instants(self, steps: int) -> Floats:
        """Return all instants of so many steps, seconds."""
        return np.asarray((np.arange(steps)[:, None] * self.step_s + np.array(self.offsets)).ravel())


def grid_of(config: SimulationConfig, trace: Trace) -> Grid:
    """Return the grid of the instants at which jobs really start where they are few, else an even one.

    Jobs start at an action, an arrival, a VM's readiness or another job's end: the offsets of all these, closed under
    adding the length of a common job. Boot times that vary, or many arrivals and lengths, give too many of them.
    """
    step_s = config.step_s
    even = _even_grid(config, trace)
    arrivals = {_offset(time, step_s) for time in np.unique(trace.arrival_s)}
    if config.boot_low_s != config.boot_high_s or len(arrivals) > MOST_OFFSETS:
        return even
    seeds = arrivals | {0.0, _offset(config.boot_low_s, step_s)}
    lengths, counts = np.unique(trace.service_s / config.speeds[0], return_counts=True)
    kept: list[float] = []
    offsets = seeds
    for place in np.argsort(-counts, kind="stable")[:MOST_OFFSETS]:
        wider = _closed(seeds, [*kept, float(lengths[place])], step_s)
        if wider is not None:
            kept.append(float(lengths[place]))
            offsets = wider
    covered = counts[np.isin(lengths, kept)].sum()
    if len(offsets) > MOST_OFFSETS or covered < COMMON_SHARE * trace.jobs:
        return even
    return Grid(step_s, tuple(sorted(offsets)), tuple(kept), step_s)


def starts_of(config: SimulationConfig, trace: Trace, grid: Grid) -> int:
    """Return how many start variables a model on this grid has: one for each length of jobs and instant."""
    lengths_s = np.unique(trace.service_s) / config.speeds[0]
    steps = math.ceil(float((trace.arrival_s + trace.service_s / config.speeds[0]).max(initial=0.0)) / grid.step_s)
    return len({grid.duration(s) for s in lengths_s.tolist()}) * len(grid.offsets) * steps


def _even_grid(config: SimulationConfig, trace: Trace) -> Grid:
    step_s = config.step_s
    for points in EVEN_POINTS:
        grid = Grid(step_s, tuple(step_s * k / points for k in range(points)), (), step_s / points)
        if starts_of(config, trace, grid) <= MOST_STARTS:
            break
    return grid


def _closed(seeds: set[float], lengths_s: list[float], step_s: float) -> set[float] | None:
    """Return the seeds closed under adding the lengths, None when that is more than MOST_OFFSETS."""
    found, fresh = set(seeds), set(seeds)
    while fresh:
        fresh = {_offset(start + length, step_s) for start in fresh for length in lengths_s} - found
        found |= fresh
        if len(found) > MOST_OFFSETS:
            return None
    return found


def _offset(time_s: float, step_s: float) -> float:
    rest = round(float(time_s) % step_s, 6)
    return 0.0 if rest >= step_s - _CLOSE_S else rest
