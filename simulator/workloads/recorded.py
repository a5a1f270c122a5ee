"""Recorded job logs that ship with the program: an hour for the dry run, and the windows of evaluation (§7.3, §11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from domain.errors import BadInput
from domain.units import DAY_S, HOUR_S
from domain.workload import Trace
from simulator.workloads.swf import SwfOptions, read_swf

DATA = Path(__file__).parent / "data"
NASA_DAY = DATA / "nasa_ipsc_1993_day.swf.gz"
NASA_DAY_NAME = "Friday 26 November 1993"
NASA_DAY_START_S = 56 * DAY_S
"""Midnight of that day on the clock of the log, whose first day is Friday 1 October 1993."""
SQUEEZE = 24.0
"""Hours of the recording in one hour of `nasa_hour`; run times are divided by it in both traces."""
DAY_FROM_S = 1950.0
"""Seconds after midnight at which `nasa_day` begins: its first jobs come after 108 s, as those of `nasa_hour` do."""
DAY_SQUEEZE = 6.0
"""Hours of the recording in one hour of `nasa_day`."""
_THINNING_SEED = 5


HOUR_LOADS, DAY_LOADS = (0.3, 0.6), (0.15, 0.3)
"""Work that the traces may hold, least and most, as shares of the work that the fleet at its limits can do."""


def nasa_hour(load: float = 0.45, max_cores: int = 42, seed: int = 1993) -> tuple[Trace, str]:
    """Return one hour of jobs made of a recorded NASA iPSC day, and a paragraph on how it was made.

    Every job is split into one-core jobs; arrivals and run times are divided by 24; then jobs are kept at random
    (`seed`) so that the expected work is `load` of what `max_cores` cores do in an hour. Raises BadInput when `load` is
    outside 0.3..0.6 or asks for more than was recorded.
    """
    return _nasa(SQUEEZE, 0.0, load, HOUR_LOADS, max_cores, seed)


def nasa_day(load: float = 0.3, max_cores: int = 42, seed: int = 1993) -> tuple[Trace, str]:
    """Return four hours of jobs made of the same day, with its lulls: arrivals are divided by 6, run times by 24.

    Otherwise as `nasa_hour`, with a load in 0.15..0.3.
    """
    return _nasa(DAY_SQUEEZE, DAY_FROM_S, load, DAY_LOADS, max_cores, seed)


def _nasa(
    squeeze: float, from_s: float, load: float, loads: tuple[float, float], max_cores: int, seed: int
) -> tuple[Trace, str]:
    if not loads[0] <= load <= loads[1]:
        raise BadInput("load", load, f"give a share of the largest fleet in {loads[0]:g}..{loads[1]:g}")
    if max_cores < 1:
        raise BadInput("max_cores", max_cores, "give the cores of the fleet at its limits, 1 or more")
    hours = DAY_S / squeeze / HOUR_S
    whole, _ = read_swf(NASA_DAY, _options(squeeze, from_s, thin=1.0, seed=seed))
    thin = load * max_cores * hours * HOUR_S / whole.work_core_s
    if thin > 1.0:
        most = int(whole.work_core_s / HOUR_S / hours / load)
        raise BadInput("max_cores", max_cores, f"the recorded day fills at most {most} cores to {load:.0%}")
    trace, report = read_swf(NASA_DAY, _options(squeeze, from_s, thin=thin, seed=seed), name="nasa-ipsc-1993-11-26")
    offered = trace.work_core_s / HOUR_S / hours / max_cores
    span = "one hour" if hours == 1.0 else f"{hours:g} hours"
    scaled = (
        f"arrivals and run times divided by {SQUEEZE:.0f}"
        if squeeze == SQUEEZE
        else f"arrivals divided by {squeeze:.0f} and run times by {SQUEEZE:.0f}"
    )
    description = (
        f"Recorded jobs: NASA Ames iPSC/860 log, {NASA_DAY_NAME} (Parallel Workloads Archive; log supplied by Bill "
        f"Nitzberg), {report.kept} jobs on up to 128 processors. Scaling: each job split into one-core jobs, {scaled} "
        f"so that the day becomes {span}, then {thin:.1%} of the one-core "
        f"jobs kept at random (seed {seed}). That leaves {trace.jobs} jobs of {trace.service_s.mean():.0f} s on "
        f"average, {offered:.0%} of what {max_cores} cores, the fleet at its limits, can do in "
        f"{'the hour' if hours == 1.0 else span}."
    )
    return trace, description


def _options(squeeze: float, from_s: float, thin: float, seed: int) -> SwfOptions:
    return SwfOptions(
        from_s=NASA_DAY_START_S + from_s,
        hours=24.0,
        time_scale=squeeze,
        run_scale=1.0 / SQUEEZE,
        thin=thin,
        seed=seed,
    )


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a log and its scaling.

    log: `nasa`, `hpc2n` or `lcg`. file: in the folder of recorded data. from_s, hours: the stretch on the log's own
    clock. time_scale: divides arrivals. run_scale: divides run times. thin: share of the one-core jobs kept.
    """

    log: str
    file: str
    from_s: float
    hours: float
    time_scale: float
    run_scale: float
    thin: float = 1.0

    @property
    def span_s(self) -> float:
        """Seconds of the trace in which jobs arrive."""
        return self.hours * HOUR_S / self.time_scale

    @property
    def scaling(self) -> str:
        """The scaling as in the trace's name: the two divisors, and the share of jobs kept if not all."""
        kept = f"-keep{self.thin:g}" if self.thin < 1 else ""
        return f"time{self.time_scale:g}-run{self.run_scale:g}{kept}"


def _nasa_window(day: int, file: str) -> Window:
    return Window("nasa", file, day * DAY_S, 24.0, time_scale=6.0, run_scale=6.0)


def _hpc2n(day: int, thin: float) -> Window:
    return Window("hpc2n", f"hpc2n_2002_day_{day}", day * DAY_S, 120.0, time_scale=24.0, run_scale=24.0, thin=thin)


def _lcg(hour: int, thin: float = 1.0) -> Window:
    return Window("lcg", f"lcg_2005_hour_{hour:02}", hour * HOUR_S, 8.0, time_scale=2.0, run_scale=8.0, thin=thin)


WINDOWS: Mapping[str, Window] = MappingProxyType(
    {
        "nasa-1993-10-08": _nasa_window(7, "nasa_ipsc_1993_10_08"),
        "nasa-1993-10-20": _nasa_window(19, "nasa_ipsc_1993_10_20"),
        "nasa-1993-12-15": _nasa_window(75, "nasa_ipsc_1993_12_15"),
        "hpc2n-2002-day-24": _hpc2n(24, thin=0.5),
        "hpc2n-2002-day-43": _hpc2n(43, thin=0.4),
        "hpc2n-2002-day-49": _hpc2n(49, thin=0.45),
        "lcg-2005-hour-00": _lcg(0),
        "lcg-2005-hour-24": _lcg(24),
        "lcg-2005-hour-40": _lcg(40, thin=0.55),
    }
)
"""Three windows of each of three logs, by name; the offered load is 0.39 to 0.54 of 140 cores."""


@cache
def window(name: str) -> Trace:
    """Return a window as a trace of one-core jobs named after it and its scaling; BadInput lists the windows."""
    if name not in WINDOWS:
        raise BadInput("window", name, f"choose one of {', '.join(WINDOWS)}")
    cut = WINDOWS[name]
    options = SwfOptions(
        from_s=cut.from_s,
        hours=cut.hours,
        time_scale=cut.time_scale,
        run_scale=1.0 / cut.run_scale,
        thin=cut.thin,
        seed=_THINNING_SEED,
    )
    return read_swf(DATA / f"{cut.file}.swf.gz", options, name=f"{name}-{cut.scaling}")[0]


def windows() -> dict[str, tuple[Trace, ...]]:
    """Return the windows by log: `nasa`, `hpc2n`, `lcg`."""
    by_log: dict[str, list[Trace]] = {}
    for name, cut in WINDOWS.items():
        by_log.setdefault(cut.log, []).append(window(name))
    return {log: tuple(traces) for log, traces in by_log.items()}
