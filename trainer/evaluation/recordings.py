"""The recorded job logs of T5 as traces of a few hours, grouped by log."""

from __future__ import annotations

from functools import cache

from domain.workload import Trace
from simulator.workloads.recorded import nasa_hour

NASA_CORES = 140
NASA_SEEDS = (1993, 1994, 1995)
"""Which of the recorded jobs are kept is drawn; three draws are three windows."""


@cache
def recorded_windows() -> dict[str, tuple[Trace, ...]]:
    """Return the windows by the name of their log."""
    return {"nasa": tuple(nasa_hour(max_cores=NASA_CORES, seed=seed)[0] for seed in NASA_SEEDS)}
