"""Recordings as lists of minutes, and ledgers that hold them, of any length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.autoscaling.minutes import JobLengths, MinuteContext, RecordedMinute, Rows
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.state import LoopState
from domain.decisions import Mode
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import Terms
from domain.units import DAY_S
from simulator.autoscaling.configuration import SimulationConfig
from trainer.learning.recorded import Recording, WindowTrace, measured_world, traced

START_S = 1_772_000_040.0
GROUPS = (
    Group("s", "asg-s", VmType("m5a.large", 2, 8.0, 0.086), 1, 4),
    Group("l", "asg-l", VmType("m5a.2xlarge", 8, 32.0, 0.344), 0, 3),
)
FLEET = Fleet("web", GROUPS)
TERMS = Terms(0.36, 300.0, 120.0, 300.0, (50.0, 60.0), (90.0, 110.0))
CONTEXT = MinuteContext(FLEET, "queue-rule", Mode.ACT, RailLimits(), TERMS)


def minute(n: int, submitted: int | None = 0, mean: float | None = None, **more: Any) -> RecordedMinute:
    """Minute number n of the recording, with one VM of 2 cores at rest."""
    lengths = None if mean is None else JobLengths(mean)
    context = more.pop("context", CONTEXT)
    given = {"requested": (1, 0), "warm": (1, 0), "draining": (0, 0), "busy_cores": (0.0, 0.0), "lengths": lengths}
    if submitted is not None:
        given |= {"waiting": 0.0, "running": 0, "finished": 0}
    return RecordedMinute(START_S + 60.0 * (n + 1), 1, context, submitted, **(given | more))


def recording(minutes: Iterable[RecordedMinute]) -> Recording:
    found = list(minutes)
    return Recording(found[-1].context.fleet, found, found[-1].context)


def traces(recorded: Recording, window_s: float = DAY_S) -> list[WindowTrace]:
    """The traces of a recording, none of a window without jobs."""
    return list(traced(recorded, window_s))


def world_of(recorded: Recording, base: SimulationConfig) -> SimulationConfig:
    """The world of a recording."""
    return measured_world(recorded, base).config


def written(path: Path, minutes: Iterable[RecordedMinute]) -> Path:
    """Write minutes to a ledger as the loop does, and return it."""
    rows = list(minutes)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        names = {row.context.fleet.name for row in rows}
        FleetStore(ledger).record((), states={name: LoopState(decisions=1) for name in names})
        batch = Rows(rows)
        with ledger.database.write() as connection:
            batch.write(connection, set())
    return path


def without(minute: RecordedMinute, *absent: str) -> RecordedMinute:
    return replace(minute, submitted=None, waiting=None, running=None, finished=None, absent=absent)
