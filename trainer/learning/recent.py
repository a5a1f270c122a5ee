"""Recent production as cases of the gate: traces from files, or made of what the agent's ledger recorded (§12.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from domain.errors import BadInput
from domain.units import DAY_S, HOUR_S
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.named import workload_of
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.lessons import LEAST_WINDOWS, cut_out
from trainer.learning.recorded import (
    LEDGER_COUNTS,
    FleetFacts,
    fitted_world,
    fleets_of,
    newest_end,
    read_recorded,
    shape_of,
    traced,
)

FAMILY = "recent"
LEDGER_ENDINGS = (".db", ".sqlite", ".sqlite3")
BOOTS = 3
"""Boot seeds per trace: when a VM of production had booted is no part of a trace, so several are tried."""


def recent_cases(
    sources: Sequence[str],
    config: SimulationConfig | None = None,
    *,
    days: int = 7,
    note: Callable[[str], None] = lambda text: None,
) -> list[Case]:
    """Return cases of trace files (CSV, SWF), workloads by name, and ledgers (a SQLite file or a URL).

    config: the world for traces without a fleet of their own, `live-like` by default; a ledger brings its fleet.
    days: how many of its last days are used. note: called with the facts of config that a ledger replaces. Raises
    BadInput when a source holds nothing that can be replayed.
    """
    world = config or preset("live-like")
    cases: list[Case] = []
    for source in sources:
        if "://" in source or source.endswith(LEDGER_ENDINGS):
            pairs = _of_ledger(source, world, days, note if config is not None else lambda text: None)
        else:
            pairs = [(world, workload_of(source, max(world.cores)))]
        for fitted, trace in pairs:
            cases += [
                Case(f"{FAMILY} {window.name} boot {seed}", FAMILY, "live-like", fitted, window, seed)
                for window in windows_of(trace)
                for seed in range(BOOTS)
            ]
    return cases


def windows_of(trace: Trace) -> list[Trace]:
    """Return a trace in days, a shorter one in LEAST_WINDOWS parts of an hour or more: boot seeds add no evidence.

    A part with fewer than two jobs is left out. A trace of fewer hours, or with jobs in stages, stays whole.
    """
    span_s = float(trace.arrival_s.max()) + 1.0
    window_s = min(span_s / LEAST_WINDOWS, DAY_S)
    if trace.staged or window_s < HOUR_S:
        return [trace]
    begins = [number * window_s for number in range(math.ceil(span_s / window_s))]
    parts = [cut_out(trace, begin, begin + window_s, f"{trace.name}#{number}") for number, begin in enumerate(begins)]
    return [part for part in parts if part.jobs > 1]


def _of_ledger(
    source: str, world: SimulationConfig, days: int, note: Callable[[str], None]
) -> list[tuple[SimulationConfig, Trace]]:
    pairs = []
    for name in fleets_of(source):
        newest = newest_end(source, name)
        if newest is None:
            continue
        recorded = read_recorded(source, name, since=newest - days * DAY_S)
        about = recorded.fleet, recorded.context.limits, recorded.context.terms
        fitted = fitted_world(world, *about)
        if unlike := FleetFacts.of_world(world).unlike(FleetFacts.of_fleet(*about)):
            note(f"fleet {name}: world: {unlike}: {LEDGER_COUNTS}")
        # Before a change of its groups it was another fleet.
        same = (one for one in traced(recorded) if shape_of(one.fleet) == shape_of(recorded.fleet))
        pairs += [(fitted, one.trace) for one in same]
    if not pairs:
        raise BadInput(
            "--recent",
            source,
            "this ledger records no jobs, or nothing of their length: name a trace file, or leave it out",
        )
    return pairs
