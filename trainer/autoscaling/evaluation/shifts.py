"""Traces and worlds that differ from what a policy was trained on: the shifts of T6 (autoscaler specification §11)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from domain.errors import BadInput
from domain.workload import Trace, make_trace
from simulator.autoscaling.reference import SimulationConfig

DAY_S = 86_400.0
BUSY_MORNING_S = 3600.0
CALL_EVERY_S = 3.0 * 3600.0
"""On an idle day one short job comes so often after the busy hour; in between a fleet has nothing to do."""
CALL_S = 60.0
BURST = 10


def boot_twice_as_long(config: SimulationConfig) -> SimulationConfig:
    """Return the world in which every VM takes twice as long to boot."""
    return replace(config, boot_low_s=2.0 * config.boot_low_s, boot_high_s=2.0 * config.boot_high_s)


def dearer_type(config: SimulationConfig, kind: int, factor: float = 1.5) -> SimulationConfig:
    """Return the world in which one VM type costs `factor` times as much."""
    dearer = replace(config.types[kind], price_per_hour=config.types[kind].price_per_hour * factor)
    return replace(config, types=(*config.types[:kind], dearer, *config.types[kind + 1 :]))


def longer_jobs(trace: Trace, factor: float = 2.0) -> Trace:
    """Return the trace whose jobs take `factor` times as long."""
    return replace(trace, name=f"{trace.name} jobs x{factor:g}", service_s=trace.service_s * factor)


def idle_day(trace: Trace) -> Trace:
    """Return a day that begins with the first hour of the trace and then brings one short job every three hours.

    The last of them comes at the end of the day, so that a fleet which stays up costs money all day.
    """
    _refuse_stages(trace)
    early = trace.arrival_s < BUSY_MORNING_S
    calls = np.arange(CALL_EVERY_S, DAY_S + 1.0, CALL_EVERY_S)
    return make_trace(
        f"{trace.name} idle day",
        np.append(trace.arrival_s[early], calls),
        np.append(trace.service_s[early], np.full(calls.size, CALL_S)),
        width=np.append(trace.width[early], np.ones(calls.size, dtype=np.int64)),
        ram_gb=np.append(trace.ram_gb[early], np.full(calls.size, float(trace.ram_gb.mean()))),
        serial_fraction=trace.serial_fraction,
    )


def burst(trace: Trace, factor: int = BURST) -> Trace:
    """Return the trace with the jobs of one batch, the one in the middle by arrival, `factor` times over."""
    _refuse_stages(trace)
    batches = np.unique(trace.arrival_s)
    struck = trace.arrival_s == batches[batches.size // 2]

    def more(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.append(column, np.tile(column[struck], factor - 1))

    return make_trace(
        f"{trace.name} burst x{factor}",
        more(trace.arrival_s),
        more(trace.service_s),
        width=np.append(trace.width, np.tile(trace.width[struck], factor - 1)),
        ram_gb=more(trace.ram_gb),
        serial_fraction=trace.serial_fraction,
    )


def _refuse_stages(trace: Trace) -> None:
    if trace.staged:
        raise BadInput("trace", trace.name, "give one whose jobs arrive at fixed times")
