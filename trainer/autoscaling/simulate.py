"""Runs one policy on one trace and keeps what happened: the what-if tool behind `trimtab simulate autoscaling`."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.reference import Measures, Simulation, SimulationConfig, StepResult
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy

AUTO, FAST, PLAIN = "auto", "numba", "plain"
"""Names of the engines: the compiled kernel, and the plain twin that it is held to bit for bit; or the better one."""
FAST_FROM_JOBS = 50_000
"""Below so many jobs the twin has finished before the kernel is loaded."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepRow:
    """The end of one step: jobs waiting and finished (so far), cores, dollars of the step, obs-7, VMs per type.

    busy, allocated: cores at work and cores ready.
    """

    step: int
    waiting: int
    finished: int
    busy: int
    allocated: int
    rent: float
    penalty: float
    obs: tuple[float, ...]
    ready: tuple[int, ...]
    booting: tuple[int, ...]
    draining: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One episode: who decided (the text given), on what, on which engine, what it cost, and its steps where kept."""

    policy: str
    trace: Trace
    seed: int
    config: SimulationConfig
    engine: str
    truncated: bool
    measures: Measures
    steps: tuple[StepRow, ...]

    def as_data(self) -> dict[str, Any]:
        """Return policy, workload, engine and all measures as JSON data; a figure that does not exist is None."""
        figures = {name: _plain(value) for name, value in dataclasses.asdict(self.measures).items()}
        about = {
            "policy": self.policy,
            "workload": self.trace.name,
            "workload_digest": self.trace.digest,
            "jobs": self.trace.jobs,
            "seed": self.seed,
            "engine": self.engine,
            "truncated": self.truncated,
        }
        return about | figures


def simulation_on(engine: str, config: SimulationConfig, trace: Trace, seed: int) -> AnySimulation:
    """Return an episode at its start; BadInput for an engine that there is not, or that lacks the configuration."""
    if engine not in (AUTO, FAST, PLAIN):
        raise BadInput("--engine", engine, f"choose one of {AUTO}, {FAST}, {PLAIN}")
    if engine == PLAIN or (engine == AUTO and trace.jobs < FAST_FROM_JOBS):
        return Simulation(config, trace, seed)
    # Loading the kernel takes longer than most episodes.
    from simulator.autoscaling.packing import unsupported
    from simulator.autoscaling.single import FastSimulation

    lacking = unsupported(config)
    if lacking is None:
        return FastSimulation(config, trace, seed)
    if engine == FAST:
        raise BadInput("--engine", engine, f"only {PLAIN} knows this {lacking}")
    return Simulation(config, trace, seed)


def play(
    policy: SimulatedPolicy,
    named: str,
    config: SimulationConfig,
    trace: Trace,
    seed: int = 0,
    *,
    engine: str = AUTO,
    keep_steps: bool = False,
    told: Callable[[int, int], None] | None = None,
) -> Run:
    """Run one episode to its end or truncation.

    A constant fleet is there from the start. named: what the report calls the policy. engine: `numba`, `plain` or
    `auto`; they agree to the last bit. keep_steps: keep a row per step. told: called after each step with the number of
    steps and of finished jobs. Raises TraceError when a job fits no VM type, BadInput as `simulation_on`.
    """
    world = policy.world(config)
    policy.start(world, trace)
    simulation = simulation_on(engine, world, trace, seed)
    used = PLAIN if isinstance(simulation, Simulation) else FAST
    rows = []
    while not (simulation.finished or simulation.truncated):
        result = simulation.step_orders(policy.choose(simulation))
        if keep_steps:
            rows.append(_row(result))
        if told is not None:
            told(result.info.step, result.info.finished)
    return Run(named, trace, seed, world, used, simulation.truncated, simulation.measures(), tuple(rows))


def write_steps(run: Run, path: Path) -> None:
    """Write a run's steps as CSV: numbers read back bit for bit; VMs per type stand after the observation."""
    kinds = range(len(run.config.types))
    counts = [f"{state}_{kind}" for state in ("ready", "booting", "draining") for kind in kinds]
    observed = [f"obs_{i}" for i in range(len(run.steps[0].obs) if run.steps else 7)]
    single = ("step", "waiting", "finished", "busy", "allocated", "rent", "penalty")
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*single, *observed, *counts))
        for row in run.steps:
            numbers = (*(getattr(row, name) for name in single), *row.obs, *row.ready, *row.booting, *row.draining)
            writer.writerow(map(repr, numbers))


def _row(result: StepResult) -> StepRow:
    info = result.info
    return StepRow(
        step=info.step,
        waiting=info.waiting,
        finished=info.finished,
        busy=info.cores_busy,
        allocated=info.cores_ready,
        rent=result.rent,
        penalty=result.penalty,
        # The doubles that the 32-bit numbers are: they can be compared without rounding.
        obs=tuple(result.obs.astype(np.float64).tolist()),
        ready=tuple(map(int, info.ready)),
        booting=tuple(map(int, info.booting)),
        draining=tuple(map(int, info.draining)),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value
