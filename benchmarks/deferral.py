"""Steps per second of the compiled simulator of deferral and of its plain twin, by policy; and the rolling plan.

It plays episodes of `valley`: 168 steps and about 1,410 jobs each, from the episode to the step of each job's start;
drawing the episodes does not count. The plain twin is the world in which learned policies act; it starts the same jobs.
`milp`: one decision of the rolling plan on `sched_drop`, which has longer jobs, with its forecast and its budget of
200 ms; `milp_unanswered` is the share of decisions that ran out of it and were left to the knapsack.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from agent.deferral.rolling import RollingPlan, forecast_paths
from benchmarks.report import Target, arguments, report
from domain.rules.deferral.choosing import packed
from domain.rules.deferral.forecast import History, fit
from simulator.deferral import engine, world
from simulator.deferral.engine import Rule, rule_of
from simulator.deferral.scenarios import CALIBRATION_SEEDS, Episode, episode

TARGETS = (Target("fifo_steps_per_cpu_s", 200_000, at_most=False), Target("milp_p99_ms", 200.0))


def main() -> int:
    """Measure and print; the exit status is 0 when the promises are kept."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--episodes", type=int, default=100, help="episodes that are played (default 100)")
    parser.add_argument("--decisions", type=int, default=1000, help="decisions of the rolling plan (default 1000)")
    parser.add_argument("--directory", help="taken for the sake of the other benchmarks; nothing is written")
    given = parser.parse_args()
    episodes = [episode("valley", seed) for seed in range(max(1, given.episodes))]
    figures: dict[str, float] = {}
    for text in ("fifo", "knapsack"):
        figures |= _throughput(text, episodes, max(1, given.runs))
    figures |= _rolling(max(1, given.decisions))
    return report(
        "deferral",
        figures,
        as_json=given.json,
        packages=("numpy", "numba", "highspy"),
        targets=TARGETS,
        notes={"episodes": len(episodes), "decisions": given.decisions, "jobs": sum(one.jobs.size for one in episodes)},
    )


def _throughput(text: str, episodes: list[Episode], runs: int) -> dict[str, float]:
    rule = rule_of(text)
    steps = sum(one.steps for one in episodes)
    engine.play(episodes[0], rule)
    seconds = []
    for _ in range(runs):
        began = time.process_time()
        for one in episodes:
            engine.play(one, rule)
        seconds.append(time.process_time() - began)
    fast = steps / statistics.median(seconds)
    slow = _twin(rule, episodes[: max(1, len(episodes) // 10)])
    return {
        f"{text}_steps_per_cpu_s": fast,
        f"{text}_twin_steps_per_cpu_s": slow,
        f"{text}_ratio_vs_twin": fast / slow,
    }


def _twin(rule: Rule, episodes: list[Episode]) -> float:
    policy = rule.policy()
    began = time.process_time()
    starts = [world.play(one, policy) for one in episodes]
    seconds = time.process_time() - began
    if not all(np.array_equal(start, engine.play(one, rule)) for one, start in zip(episodes, starts, strict=True)):
        raise AssertionError(f"the plain twin starts other jobs under {rule.name}")
    return sum(one.steps for one in episodes) / seconds


def _rolling(decisions: int) -> dict[str, float]:
    """Measure decisions of the rolling plan in which there is something to plan."""
    known = [episode("sched_drop", seed) for seed in CALIBRATION_SEEDS]
    forecast = fit([History(one.start_h, one.capacity) for one in known])
    plan, floor = RollingPlan(forecast_paths(forecast)), packed()
    wall: list[float] = []
    processor: list[float] = []
    unanswered = seed = 0
    while len(wall) < decisions:
        played = world.World(episode("sched_drop", CALIBRATION_SEEDS.stop + seed))
        seed += 1
        while not played.done and len(wall) < decisions:
            view = played.view()
            began, began_cpu = time.perf_counter(), time.thread_time()
            chosen = plan(view)
            if view.free > 0 and view.cur.size:
                wall.append(1e3 * (time.perf_counter() - began))
                processor.append(1e3 * (time.thread_time() - began_cpu))
                unanswered += chosen is None
            played.step(floor(view) if chosen is None else chosen)
    return {
        "milp_p50_ms": float(np.percentile(wall, 50)),
        "milp_p99_ms": float(np.percentile(wall, 99)),
        "milp_max_ms": max(wall),
        "milp_cpu_p99_ms": float(np.percentile(processor, 99)),
        "milp_unanswered": unanswered / len(wall),
    }


if __name__ == "__main__":
    sys.exit(main())
