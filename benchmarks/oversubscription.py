"""Whole weeks of the oversubscription simulator per processor second, beside the plain twin, and how that grows.

One week of `internal_like`, 12 subscribers and 120 hours, at rate 0.5: placed with analytic risk, and placed once with
usage drawn anew. The plain twin plays the same week in plain Python and looks at every machine for every request; it is
given just the machines that are needed, so the ratio is a lower bound. The large week has 200 subscribers, 5,000
machines and 20 times the requests.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from benchmarks.report import Target, arguments, progress, repeat, report
from simulator.oversubscription.batch import OversubscriptionBatch
from simulator.oversubscription.layout import guard_of
from simulator.oversubscription.scenario import Scenario, Week, scenario_of, week_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Assessor, sample
from tests.oracles.plain_oversubscription import play_plainly

RATE = 0.5
TARGETS = (
    Target("analytic_episodes_per_s", 1500.0, at_most=False),
    Target("sampled_episodes_per_s", 1500.0, at_most=False),
)


def grown(scenario: Scenario, week: Week, times: int, subscribers: int, machines: int) -> tuple[Scenario, Week]:
    """Return a scenario with so many subscribers and machines, and its week with so many times the requests."""
    mixed = np.random.default_rng(0).permutation(np.arange(subscribers) % scenario.subscribers)
    rows = np.tile(np.arange(len(week.ids)), times)
    same = [np.nonzero(mixed == n)[0] for n in range(scenario.subscribers)]
    pick = np.random.default_rng(1).random(len(rows))
    owner = np.array([same[n][int(p * len(same[n]))] for n, p in zip(week.subscriber[rows], pick, strict=True)])
    large = week_of(
        "s0",
        ids=np.arange(len(rows)),
        subscriber=owner,
        cores=week.cores[rows],
        memory_gb=week.memory_gb[rows],
        network_gbps=week.network_gbps[rows],
        arrival=week.arrival[rows],
        departure=week.departure[rows],
        warm_only=np.arange(len(week.ids))[rows] < week.warm,
    )
    mu, sd = scenario.mu[mixed], scenario.sd[mixed]
    return replace(scenario, subscribers=subscribers, machines=machines, mu=mu, sd=sd, _weeks={"s0": large}), large


def seconds_each(play: object, count: int) -> float:
    """Return processor seconds of one call, of so many."""
    assert callable(play)
    began = time.process_time()
    for _ in range(count):
        play()
    return (time.process_time() - began) / count


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--episodes", type=int, default=100, help="weeks of each kind (default 100)")
    parser.add_argument("--times", type=int, default=20, help="requests of the large week, in small ones (default 20)")
    given = parser.parse_args()
    scenario = scenario_of("internal_like")
    week = scenario.week("s0")
    rates = np.full(scenario.subscribers, RATE)
    model = usage_of("gauss", scenario, week)
    progress("compiling, unless that has been done before")
    began = time.process_time()
    assessor = Assessor(scenario, week)
    placement = assessor.assess(rates).placement
    sample(placement, model, np.arange(1))
    batch = OversubscriptionBatch(scenario, ["s0"], 8)
    batch.reset(np.arange(8))
    batch.step_rates(np.full((8, 12), RATE))
    shielded = Assessor(scenario, week, guard=guard_of(scenario, "shield", 0.003))
    shielded.c_hot_r(rates)
    compile_s = time.process_time() - began
    large, large_week = grown(scenario, week, given.times, 200, 5_000)
    needed = replace(scenario, machines=placement.opened, _weeks={"s0": week})
    schedule = np.full((scenario.hours, scenario.subscribers), RATE)

    def stepped() -> None:
        batch.reset(np.arange(8))
        for _ in range(scenario.hours):
            batch.step_rates(np.full((8, 12), RATE))

    def one_run() -> dict[str, float]:
        count = max(1, given.episodes)
        progress("weeks with analytic risk, with sampled usage, stepped, behind a shield")
        analytic = seconds_each(lambda: assessor.c_hot_r(rates), count)
        sampled = seconds_each(lambda: sample(placement, model, np.arange(count)), 1) / count
        figures = {
            "analytic_episodes_per_s": 1.0 / analytic,
            "sampled_episodes_per_s": 1.0 / sampled,
            "stepped_episodes_per_s": 8.0 / seconds_each(stepped, max(1, count // 20)),
            "shielded_episodes_per_s": 1.0 / seconds_each(lambda: shielded.c_hot_r(rates), max(1, count // 10)),
        }
        progress("the plain twin")
        plain = seconds_each(lambda: play_plainly(needed, week, schedule, model, 0), 1)
        figures["plain_episodes_per_s"] = 1.0 / plain
        # The twin draws usage and assesses risk in one pass.
        figures["ratio_vs_plain"] = plain / (analytic + sampled)
        progress("200 subscribers, 5,000 machines")
        wide = Assessor(large, large_week)
        many = np.full(200, RATE)
        large_s = seconds_each(lambda: wide.c_hot_r(many), 1)
        figures["large_analytic_s"] = large_s
        figures["large_requests"] = large_week.requests
        figures["growth_per_request"] = large_s / large_week.requests / (analytic / week.requests)
        return figures

    figures = repeat(one_run, given.runs)
    figures["compile_or_load_s"] = compile_s
    notes = {"episodes": given.episodes, "scenario": "internal_like s0 cold", "rate": RATE, "large_subscribers": 200}
    packages = ("numba", "numpy")
    return report("oversubscription", figures, as_json=given.json, packages=packages, targets=TARGETS, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
