"""Steps per second of the compiled simulator of deferral and of its plain twin, by policy.

It plays episodes of `valley`: 168 steps and about 1,410 jobs each, from the episode to the step of each job's start;
drawing the episodes does not count. The plain twin is the world in which learned policies act; it starts the same jobs.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from benchmarks.report import Target, arguments, report
from simulator.deferral import engine, world
from simulator.deferral.engine import Rule, rule_of
from simulator.deferral.scenarios import Episode, episode

TARGETS = (Target("fifo_steps_per_cpu_s", 200_000, at_most=False),)


def main() -> int:
    """Measure and print; the exit status is 0 when the promises are kept."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--episodes", type=int, default=100, help="episodes that are played (default 100)")
    parser.add_argument("--directory", help="taken for the sake of the other benchmarks; nothing is written")
    given = parser.parse_args()
    episodes = [episode("valley", seed) for seed in range(max(1, given.episodes))]
    figures: dict[str, float] = {}
    for text in ("fifo", "knapsack"):
        figures |= _throughput(text, episodes, max(1, given.runs))
    return report(
        "deferral",
        figures,
        as_json=given.json,
        packages=("numpy", "numba"),
        targets=TARGETS,
        notes={"episodes": len(episodes), "jobs": sum(one.jobs.size for one in episodes)},
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


if __name__ == "__main__":
    sys.exit(main())
