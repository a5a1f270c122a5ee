"""Steps of the autoscaling simulator per second of processor time, beside the plain reference in the same run.

`train-text`, act-7, obs-7, random actions without a mask, copies at all stages of the episode, one core. A batch is
stepped by one call for all its copies; the Gymnasium environment steps one copy and builds what `step` returns.

`growth`: cost of a step late in a trace of `--jobs` jobs over that in one of 1,500, at the same load. Published for the
simulator of the paper: 281 to 2,288 steps per second and 20 to 250 ms for a reset.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Target, arguments, progress, repeat, report
from domain.workload import Trace, make_trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.world_file import preset
from simulator.gym import AutoscalingEnv
from simulator.workloads.synthetic import train_text

PUBLISHED_STEPS_PER_S = (281.0, 2288.0)
TARGETS = (
    Target("batch_steps_per_s", 1e6, at_most=False),
    Target("gym_steps_per_s", 1e5, at_most=False),
    Target("reset_us", 50.0),
    Target("growth", 1.5),
)
Actions = NDArray[np.int64]


def steady_trace(jobs: int) -> Trace:
    """Return one-core jobs of 360 s that keep some 30 cores busy, whatever their number."""
    return make_trace(f"steady-{jobs}", np.arange(jobs) * 12.0, np.full(jobs, 360.0))


def seconds(batch: AutoscalingBatch, actions: Actions) -> float:
    """Return the processor time of stepping a batch through rows of actions."""
    began = time.process_time()
    for row in actions:
        batch.step_auto(row)
    return time.process_time() - began


def out_of_phase(batch: AutoscalingBatch, actions: Actions) -> None:
    """Spread the copies over the episode."""
    for row in actions[:300]:
        again = np.random.default_rng(int(row[0])).random(batch.copies) < 1 / 300
        batch.reset_where(again, row, np.zeros(batch.copies, dtype=np.int64))
        batch.step_auto(row)


def measure_batch(copies: int, steps: int, config: SimulationConfig) -> dict[str, float]:
    """Return steps per second of a batch, and microseconds for resetting one of its copies."""
    batch = AutoscalingBatch(config, [train_text()], copies)
    actions = np.random.default_rng(1).integers(0, 7, size=(max(steps, 300), copies))
    out_of_phase(batch, actions)
    per_s = steps * copies / seconds(batch, actions[:steps])
    which, resets = np.zeros(copies, dtype=np.bool_), 200
    which[copies // 2] = True
    places = np.zeros(copies, dtype=np.int64)
    began = time.process_time()
    for _ in range(resets):
        batch.reset_where(which, actions[0], places)
    return {"batch_steps_per_s": per_s, "reset_us": (time.process_time() - began) / resets * 1e6}


def measure_reference(steps: int, config: SimulationConfig) -> float:
    """Return steps per second of the plain reference."""
    simulation = Simulation(config, train_text(), 1)
    actions = np.random.default_rng(1).integers(0, 7, size=steps).tolist()
    began = time.process_time()
    for action in actions:
        if simulation.finished:
            simulation.reset()
        simulation.step(action)
    return steps / (time.process_time() - began)


def measure_gym(steps: int, config: SimulationConfig) -> float:
    """Return steps per second of the Gymnasium environment, resets included."""
    env = AutoscalingEnv(train_text(), config)
    env.reset(seed=1)
    actions = np.random.default_rng(1).integers(0, 7, size=steps).tolist()
    began = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return steps / (time.process_time() - began)


def measure_growth(jobs: int, steps: int, config: SimulationConfig) -> float:
    """Return the cost of a step near the end of a long trace over that in one of 1,500 jobs."""
    fixed = replace(config, initial=(5, 5, 5), max_steps=10**9)
    per_step, copies = [], 16
    for size in (1500, jobs):
        batch = AutoscalingBatch(fixed, [steady_trace(size)], copies)
        nothing = np.zeros((int(size * 12.0 / config.step_s) - steps - 10, copies), dtype=np.int64)
        for row in nothing:
            batch.step(row)
        per_step.append(seconds(batch, np.zeros((steps, copies), dtype=np.int64)) / steps)
    return per_step[1] / per_step[0]


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--copies", type=int, default=256, help="copies in the batch (default 256)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each copy (default 2000)")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs of the long trace (default 1000000)")
    given = parser.parse_args()
    config = preset("train-text")
    progress("compiling, unless that has been done before")
    began = time.process_time()
    for _ in range(2):
        AutoscalingBatch(config, [train_text()], 1).step_auto(np.zeros(1, dtype=np.int64))
    compile_s = time.process_time() - began
    measure_gym(10, config)

    def one_run() -> dict[str, float]:
        figures = measure_batch(given.copies, given.steps, config)
        figures["reference_steps_per_s"] = measure_reference(min(given.steps, 600), config)
        figures["gym_steps_per_s"] = measure_gym(given.steps * 10, config)
        figures["ratio_vs_reference"] = figures["batch_steps_per_s"] / figures["reference_steps_per_s"]
        figures["gym_ratio_vs_reference"] = figures["gym_steps_per_s"] / figures["reference_steps_per_s"]
        figures["ratio_vs_published_best"] = figures["batch_steps_per_s"] / PUBLISHED_STEPS_PER_S[1]
        return figures

    progress("stepping")
    figures = repeat(one_run, given.runs)
    progress("walking through the long trace")
    steps = min(given.steps, 100)
    figures["growth"] = min(measure_growth(given.jobs, steps, config) for _ in range(min(given.runs, 3)))
    figures["compile_or_load_s"] = compile_s
    notes = {"copies": given.copies, "jobs": given.jobs, "published_steps_per_s": PUBLISHED_STEPS_PER_S}
    return report(
        "autoscaling_simulator",
        figures,
        as_json=given.json,
        packages=("numba", "numpy", "gymnasium"),
        targets=TARGETS,
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
