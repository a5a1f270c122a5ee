"""Recent production as cases of the gate: traces from files, or made of what the agent's ledger recorded (§12.4).

A ledger knows counts, not jobs: so many were submitted in a minute, and a finished job took so many core-seconds on
average. From that a trace is made: the minute's jobs spread evenly over it, each of the mean length known then. Where
the job source reports no lengths, the work of the busy cores over the jobs that finished stands for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.store import FleetStore
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.units import DAY_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.workloads.named import workload_of
from trainer.autoscaling.evaluation.suite import Case

FAMILY = "recent"
LEDGER_ENDINGS = (".db", ".sqlite", ".sqlite3")
BOOTS = 3
"""Boot seeds per trace: boot times of production are not recorded, so several are tried."""


@dataclass(frozen=True, slots=True)
class Minute:
    """The load of one recorded minute.

    Its end, jobs submitted in it, mean core-seconds of a finished job if known; busy cores, and jobs finished so far.
    """

    end_s: float
    submitted: int
    job_core_s: float | None
    busy_cores: float = 0.0
    finished: int = 0


def recent_cases(sources: Sequence[str], config: SimulationConfig | None = None, *, days: int = 7) -> list[Case]:
    """Return cases of trace files (CSV, SWF), workloads by name, and ledgers (a SQLite file or a URL).

    config: the world for traces without a fleet of their own, `live-like` by default; a ledger brings its fleet.
    days: how many of its last days are used. Raises BadInput when a source holds nothing that can be replayed.
    """
    world = config or preset("live-like")
    cases: list[Case] = []
    for source in sources:
        if "://" in source or source.endswith(LEDGER_ENDINGS):
            pairs = _of_ledger(source, world, days)
        else:
            pairs = [(world, workload_of(source, max(world.cores)))]
        for fitted, trace in pairs:
            cases += [
                Case(f"{FAMILY} {trace.name} boot {seed}", FAMILY, "live-like", fitted, trace, seed)
                for seed in range(BOOTS)
            ]
    return cases


def _of_ledger(source: str, world: SimulationConfig, days: int) -> list[tuple[SimulationConfig, Trace]]:
    from agent.ledger import Ledger

    url = source if "://" in source else f"sqlite:///{Path(source).absolute()}"
    pairs = []
    with Ledger.open(url, read_only=True) as ledger:
        for name in FleetStore(ledger).fleets():
            inputs = list(FleetStore(ledger).inputs(name))
            if inputs:
                last = inputs[-1][0]
                recent = [i for i, _ in inputs if i.now > last.now - days * DAY_S]
                fitted = fitted_world(world, last.fleet)
                pairs += [(fitted, trace) for trace in traces_of_minutes(name, minutes_of(recent))]
    if not pairs:
        raise BadInput(
            "--recent",
            source,
            "this ledger records no jobs, or nothing of their length: name a trace file, or leave it out",
        )
    return pairs


def fitted_world(world: SimulationConfig, fleet: Fleet) -> SimulationConfig:
    """Return the world with the types, limits and minimum of a fleet, starting from its minimum."""
    minimum = tuple(group.minimum for group in fleet.groups)
    return replace(
        world,
        types=tuple(group.vm_type for group in fleet.groups),
        limits=tuple(group.maximum for group in fleet.groups),
        minimum=minimum,
        initial=minimum,
        speed=(),
    )


def minutes_of(inputs: Iterable[DecisionInputs]) -> list[Minute]:
    """Return the minutes in which the queue was known."""
    found = []
    for snapshot in (i.snapshot for i in inputs):
        if snapshot is None or snapshot.queue is None:
            continue
        queue = snapshot.queue
        busy = sum(group.busy_cores or 0.0 for group in snapshot.groups)
        done = queue.submitted - queue.waiting - queue.running
        found.append(Minute(snapshot.bin_end, queue.submitted_recent, queue.job_core_s, busy, done))
    return found


def mean_job_core_s(minutes: Sequence[Minute]) -> float | None:
    """Return the core-seconds of a job as work over jobs finished, None where nothing finished."""
    # A count that falls is that of a new episode of the job source.
    finished = sum(max(after.finished - before.finished, 0) for before, after in pairwise(minutes))
    work = sum(minute.busy_cores for minute in minutes[1:]) * MINUTE_S
    return work / finished if finished > 0 and work > 0.0 else None


def traces_of_minutes(name: str, minutes: Sequence[Minute]) -> list[Trace]:
    """Return one trace per day of minutes, none of a day without jobs.

    Jobs before the first known length take that one. Returns nothing when no length can be known.
    """
    length = next((m.job_core_s for m in minutes if m.job_core_s), None) or mean_job_core_s(minutes)
    if length is None:
        return []
    by_day: dict[int, tuple[list[float], list[float]]] = {}
    start = minutes[0].end_s - MINUTE_S
    for minute in minutes:
        length = minute.job_core_s or length
        day = int((minute.end_s - MINUTE_S - start) // DAY_S)
        arrivals, services = by_day.setdefault(day, ([], []))
        offset = minute.end_s - MINUTE_S - start - day * DAY_S
        spread = (np.arange(minute.submitted) + 0.5) / max(minute.submitted, 1) * MINUTE_S
        arrivals += (offset + spread).tolist()
        services += [length] * minute.submitted
    return [
        make_trace(f"{name} day {day}", np.array(arrivals), np.array(services))
        for day, (arrivals, services) in by_day.items()
        if arrivals
    ]
