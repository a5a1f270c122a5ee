"""Runs a policy on a trace, keeps what happened, and draws it: what is behind `trimtab simulate autoscaling`."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import Measures, StepResult
from trainer.autoscaling.policies import AnySimulation, SimulatedPolicy
from trainer.autoscaling.policy_names import stuck
from trainer.kit import drawing
from trainer.kit.drawing import BUSY, FLEET, INK, QUEUE, SOFT
from trainer.kit.report import Plot, Section, document, escape, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AUTO, FAST, PLAIN = "auto", "numba", "plain"
"""Names of the engines: the compiled kernel, and the plain twin that it is held to bit for bit; or the better one."""
FAST_FROM_JOBS = 50_000
"""Below so many jobs the twin has finished before the kernel is loaded."""
LONG_S = 8 * HOUR_S
"""Episodes from this length on have an axis in hours."""
_FINEST = 2000
_BOOTING, _LEAVING = "#d9d2c3", "#b6ada0"
_STYLE: Any = {"text.parse_math": False, "axes.spines.left": False, "axes.grid.axis": "y"}

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """One episode: its policy (the text given), trace, engine and measures, and its steps where they are kept."""

    policy: str
    trace: Trace
    seed: int
    config: SimulationConfig
    engine: str
    truncated: bool
    measures: Measures
    steps: tuple[StepResult, ...]

    @property
    def stuck(self) -> str:
        """Why its cost is compared with none; see `episodes.stuck`."""
        return stuck(self.policy, [self.measures], int(self.truncated))

    def as_data(self) -> dict[str, Any]:
        """Return policy, workload, engine and all measures as JSON data; a figure that does not exist is None."""
        figures = {name: _plain(value) for name, value in asdict(self.measures).items()}
        about = {
            "policy": self.policy,
            "workload": self.trace.name,
            "workload_digest": self.trace.digest,
            "jobs": self.trace.jobs,
            "seed": self.seed,
            "engine": self.engine,
            "truncated": self.truncated,
            "stuck": self.stuck,
        }
        return about | figures


def simulation_on(engine: str, config: SimulationConfig, trace: Trace, seed: int) -> AnySimulation:
    """Return an episode at its start; BadInput for an unknown engine."""
    if engine not in (AUTO, FAST, PLAIN):
        raise BadInput("--engine", engine, f"choose one of {AUTO}, {FAST}, {PLAIN}")
    if engine == PLAIN or (engine == AUTO and trace.jobs < FAST_FROM_JOBS):
        return Simulation(config, trace, seed)
    # Loading the kernel takes longer than most episodes.
    from simulator.autoscaling.batch import FastSimulation

    return FastSimulation(config, trace, seed)


def play(
    policy: SimulatedPolicy,
    named: str,
    config: SimulationConfig,
    trace: Trace,
    seed: int = 0,
    *,
    engine: str = AUTO,
    keep_steps: bool = False,
    on_step: Callable[[int, int], None] | None = None,
) -> Run:
    """Run one episode to its end or truncation.

    A constant fleet is there from the start. named: what the report calls the policy. engine: `numba`, `plain` or
    `auto`; they agree to the last bit. keep_steps: keep a row per step. on_step: called after each step with the number
    of finished jobs and of all. Raises TraceError when a job fits no VM type, BadInput as `simulation_on`.
    """
    world = policy.world(config)
    policy.start(world, trace)
    simulation = simulation_on(engine, world, trace, seed)
    used = PLAIN if isinstance(simulation, Simulation) else FAST
    rows = []
    while not (simulation.finished or simulation.truncated):
        result = simulation.step_orders(policy.choose(simulation))
        if keep_steps:
            rows.append(result)
        if on_step is not None:
            on_step(result.info.finished, trace.jobs)
    return Run(named, trace, seed, world, used, simulation.truncated, simulation.measures(), tuple(rows))


def write_steps(run: Run, path: Path) -> None:
    """Write a run's steps as CSV: numbers read back bit for bit; VMs per type stand after the observation.

    busy, allocated: cores at work and cores ready. obs_0..: obs-7.
    """
    states = ("ready", "booting", "draining")
    observed = [f"obs_{i}" for i in range(len(run.steps[0].obs) if run.steps else 7)]
    counts = [f"{state}_{kind}" for state in states for kind in range(len(run.config.types))]
    single = ("step", "waiting", "finished", "busy", "allocated", "rent", "penalty")
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*single, *observed, *counts))
        for result in run.steps:
            info = result.info
            # The doubles that the 32-bit numbers are: they can be compared without rounding.
            seen = result.obs.astype(np.float64).tolist()
            vms = [int(count) for state in states for count in getattr(info, state)]
            jobs = (info.step, info.waiting, info.finished, info.cores_busy, info.cores_ready)
            writer.writerow(map(repr, (*jobs, result.rent, result.penalty, *seen, *vms)))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value


def draw(run: Run, path: Path) -> None:
    """Write a picture of a run that kept its steps; the same run gives the same bytes."""
    if path.suffix.lower() == ".html":
        path.write_text(_page(run), encoding="utf-8")
        return
    path.write_bytes(picture(run, path.suffix.lower().removeprefix(".")))


def picture(run: Run, kind: str) -> bytes:
    """Return the picture as `png` or `svg`."""
    return drawing.picture(lambda: _figure(run), kind, style=_STYLE, dpi=160)


def _figure(run: Run) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9.0, 6.4), layout=ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 0.92)))
    fleet, queue, cores = figure.subplots(3, 1, sharex=True, height_ratios=(3.0, 1.6, 1.6))
    hours = run.measures.run_time_s >= LONG_S
    unit_s = HOUR_S if hours else MINUTE_S
    times = np.arange(len(run.steps) + 1, dtype=np.float64) * (run.config.step_s / unit_s)
    _draw_fleet(fleet, run, times)
    _area(queue, times, _column(run, "waiting"), QUEUE)
    drawing.panel(queue, "Jobs waiting", y="queue, jobs")
    ready, busy = _column(run, "cores_ready"), _column(run, "cores_busy")
    _area(cores, times, busy, BUSY, "busy")
    cores.step(times, _from_start(ready), where="pre", color=INK, linewidth=1.1, label="ready")
    title = f"Cores: {run.measures.utilisation:.0%} of the ready ones at work on average"
    drawing.panel(cores, title, x="time, hours" if hours else "time, minutes", y="fleet, cores")
    cores.legend(**_LEGEND)
    cores.set_xlim(0.0, float(times[-1]) or 1.0)
    for axes in (fleet, queue, cores):
        axes.set_ylim(bottom=0.0)
        axes.yaxis.get_major_locator().set_params(integer=True)
    cores.xaxis.set_major_locator(MaxNLocator(9, steps=(1, 2, 5, 10) if hours else (1, 1.5, 3, 6, 10)))
    above: Any = {"xy": (0.0, 1.0), "xycoords": "axes fraction", "textcoords": "offset points"}
    # A long name is to run over the margin rather than to narrow the plots.
    above["in_layout"] = False
    fleet.annotate(_title(run), xytext=(0.0, 42.0), fontsize=12, fontweight="bold", **above)
    fleet.annotate(_subtitle(run), xytext=(0.0, 27.0), color=SOFT, **above)
    return figure


_LEGEND: Any = {
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "ncols": 6,
    "frameon": False,
    "handlelength": 1.0,
    "borderaxespad": 0.1,
}


def _draw_fleet(axes: Axes, run: Run, times: Column) -> None:
    """Stack ready VMs, smallest type below, then those that boot or leave."""
    order = sorted(range(len(run.config.types)), key=lambda kind: run.config.types[kind].cores)
    layers = [
        (run.config.types[kind].name, colour, _column(run, "ready", kind))
        for kind, colour in zip(order, _shades(len(order)), strict=True)
    ]
    kinds = range(len(order))
    layers.append(("booting", _BOOTING, np.sum([_column(run, "booting", kind) for kind in kinds], axis=0)))
    leaving = np.sum([_column(run, "draining", kind) for kind in kinds], axis=0)
    if leaving.any():
        layers.append(("draining", _LEAVING, leaving))
    levels = np.cumsum([np.zeros(len(run.steps)), *(column for _, _, column in layers)], axis=0)
    for (label, colour, _), (low, high) in zip(layers, pairwise(levels), strict=True):
        _area(axes, times, high, colour, label, low)
    drawing.panel(axes, "VMs by type", y="fleet, VMs")
    axes.legend(**_LEGEND)


def _area(
    axes: Axes, times: Column, high: Column, colour: str, label: str | None = None, low: Column | None = None
) -> None:
    """Fill between two columns that hold the value of each step's end."""
    bottom = _from_start(np.zeros_like(high) if low is None else low)
    fine = times.size > _FINEST
    axes.fill_between(
        times, bottom, _from_start(high), step="pre", color=colour, linewidth=0.0, label=label, rasterized=fine
    )


def _column(run: Run, name: str, kind: int | None = None) -> Column:
    """Return a count at the end of each step, of one VM type where it is by type."""
    counts = [getattr(result.info, name) for result in run.steps]
    return np.array(counts if kind is None else [count[kind] for count in counts], dtype=np.float64)


def _from_start(column: Column) -> Column:
    """Draw the first step from the time 0 on."""
    return np.append(column[:1], column) if column.size else np.zeros(1)


def _shades(count: int) -> Sequence[str]:
    """Return colours from light to dark, as many as there are types."""
    if count <= len(FLEET):
        return FLEET[:count] if count != 1 else FLEET[1:2]
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    scale = LinearSegmentedColormap.from_list("fleet", FLEET)
    return [to_hex(scale(place)) for place in np.linspace(0.0, 1.0, count)]


def _title(run: Run) -> str:
    return run.policy if len(run.policy) <= 90 else f"{run.policy[:87]}..."


def _subtitle(run: Run) -> str:
    figures = run.measures
    return (
        f"{run.trace.name}: {run.trace.jobs:,} jobs in {figures.run_time_s / 60:,.0f} minutes for "
        f"${figures.cost:,.2f} = rent ${figures.rent:,.2f} + waiting ${figures.penalty:,.2f}; mean wait "
        f"{figures.mean_wait_s:,.0f} s, {figures.interruptions:,} jobs interrupted"
    )


def _page(run: Run) -> str:
    rows = [[escape(name.replace("_", " ")), escape(str(value))] for name, value in run.as_data().items()]
    drawn = Plot(_subtitle(run), picture(run, "svg").decode("utf-8")).html("run")
    sections = [Section("run", "The fleet", drawn), Section("figures", "Figures", table(("figure", "value"), rows))]
    return document(f"{run.policy} on {run.trace.name}", sections)
