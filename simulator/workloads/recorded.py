"""The recorded day that ships with the program, squeezed into one hour that a small fleet can carry."""

from __future__ import annotations

from pathlib import Path

from domain.errors import BadInput
from domain.workload import Trace
from simulator.workloads.swf import SwfOptions, read_swf

NASA_DAY = Path(__file__).parent / "data" / "nasa_ipsc_1993_day.swf.gz"
NASA_DAY_NAME = "Friday 26 November 1993"
NASA_DAY_START_S = 56 * 86_400.0
"""Midnight of that day on the clock of the log, whose first day is Friday 1 October 1993."""
SQUEEZE = 24.0
"""Hours of the recording in one hour of the trace."""


def nasa_hour(load: float = 0.45, max_cores: int = 42, seed: int = 1993) -> tuple[Trace, str]:
    """Return one hour of jobs made of a recorded NASA iPSC day, and a paragraph that says how it was made.

    Every job is split into one-core jobs; arrivals and run times are divided by 24; then jobs are kept at random
    (`seed`) so that the expected work is `load` of what `max_cores` cores do in an hour. Raises BadInput when `load` is
    outside 0.3..0.6 or asks for more than was recorded.
    """
    if not 0.3 <= load <= 0.6:
        raise BadInput("load", load, "give a share of the largest fleet in 0.3..0.6")
    if max_cores < 1:
        raise BadInput("max_cores", max_cores, "give the cores of the fleet at its limits, 1 or more")
    whole, _ = read_swf(NASA_DAY, _options(thin=1.0, seed=seed))
    thin = load * max_cores * 3600.0 / whole.work_core_s
    if thin > 1.0:
        most = int(whole.work_core_s / 3600.0 / load)
        raise BadInput("max_cores", max_cores, f"the recorded day fills at most {most} cores to {load:.0%}")
    trace, report = read_swf(NASA_DAY, _options(thin=thin, seed=seed), name="nasa-ipsc-1993-11-26")
    offered = trace.work_core_s / 3600.0 / max_cores
    description = (
        f"Recorded jobs: NASA Ames iPSC/860 log, {NASA_DAY_NAME} (Parallel Workloads Archive; log supplied by Bill "
        f"Nitzberg), {report.kept} jobs on up to 128 processors. Scaling: each job split into one-core jobs, arrivals "
        f"and run times divided by {SQUEEZE:.0f} so that the day becomes one hour, then {thin:.1%} of the one-core "
        f"jobs kept at random (seed {seed}). That leaves {trace.jobs} jobs of {trace.service_s.mean():.0f} s on "
        f"average, {offered:.0%} of what {max_cores} cores, the fleet at its limits, can do in the hour."
    )
    return trace, description


def _options(thin: float, seed: int) -> SwfOptions:
    return SwfOptions(
        from_s=NASA_DAY_START_S, hours=24.0, time_scale=SQUEEZE, run_scale=1.0 / SQUEEZE, thin=thin, seed=seed
    )
