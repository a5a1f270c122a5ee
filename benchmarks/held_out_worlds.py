"""What a scorer costs in worlds that no training draws, each compared with the queue rule tuned for it on other loads.

zero_shot_mean: mean over the worlds of the scorer's cost divided by that of the rule, on the same jobs and boots;
zero_shot_worst: of the worst class of worlds. The notes have every class.

Fleets of 5, 7 and 10 to 12 VM types; fleets with a limit above 200, the greatest in training; and the recorded logs, in
fleets of 5 and 7 types with another scaling than that of the suite. The tuned settings are kept in SETTINGS, which
`python -m benchmarks.held_out_worlds --write` makes again; without it other_settings counts those that differ.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import Target, arguments, progress, report
from domain.rules.queue_rule import RuleSetting
from domain.units import HOUR_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.workloads.recorded import windows
from trainer.autoscaling.lessons import (
    HELD_OUT_TYPES,
    MOST_JOBS,
    MOST_LIMIT,
    TRAINED_TYPES,
    TUNED_ON,
    Fleet,
    Lesson,
    best_rule,
    fleet_of,
    tuned_rule,
)
from trainer.autoscaling.scorer import ratios
from trainer.autoscaling.scorer_runs import SHIPPED_SCORER, scorer_named

SEED, LOG_SEED = 5_000_000, 5_100_000
FLEETS = 40
SETTINGS = Path(__file__).with_name("held_out_settings.json")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A world with the load that is measured. kind: its class. tune: finds the rule's setting on other loads."""

    name: str
    kind: str
    config: SimulationConfig
    trace: Trace
    seed: int
    tune: Callable[[], RuleSetting]

    def lesson(self) -> Lesson:
        """Return it with the setting that is kept for it."""
        return Lesson(self.config, self.trace, kept_settings()[self.name], self.seed)


def held_out_fleets(count: int = FLEETS) -> list[Fleet]:
    """Return drawn fleets: three of four with other numbers of types, the others with a limit above MOST_LIMIT."""
    return [fleet_of(SEED + k, HELD_OUT_TYPES) if k % 4 else _large_fleet(SEED + k) for k in range(count)]


def _large_fleet(seed: int) -> Fleet:
    """Return the first fleet of a series that has a limit above MOST_LIMIT: the bound on cores cuts many."""
    drawn = (fleet_of(seed + 1_000 * turn, TRAINED_TYPES, (MOST_LIMIT + 1, 2 * MOST_LIMIT)) for turn in range(1_000))
    return next(fleet for fleet in drawn if max(fleet.config.limits) > MOST_LIMIT)


def held_out_worlds(fleets: int = FLEETS) -> list[HeldOut]:
    """Return the worlds: so many drawn fleets, and a fleet for each recorded window, at most as many."""
    drawn = []
    for fleet in held_out_fleets(fleets):
        kind = (
            f"limits above {MOST_LIMIT}"
            if max(fleet.config.limits) > MOST_LIMIT
            else f"{len(fleet.config.types)} types"
        )
        drawn.append(HeldOut(f"fleet-{fleet.seed}", kind, fleet.config, fleet.trace(0), fleet.seed, _tuning(fleet)))
    return [*drawn, *_recorded()[:fleets]]


def _tuning(fleet: Fleet) -> Callable[[], RuleSetting]:
    return lambda: tuned_rule(fleet)


def _recorded() -> list[HeldOut]:
    """Return a world for each window of a log, its rule to be tuned on the other windows of that log."""
    found: list[HeldOut] = []
    for log, traces in windows().items():
        for number, trace in enumerate(traces):
            seed = LOG_SEED + len(found)
            config = fleet_of(seed, (5, 7)).config
            others = [scaled(other, config, seed, 1 + k) for k, other in enumerate(traces) if k != number]
            measured = scaled(trace, config, seed, 0)
            found.append(HeldOut(f"log-{trace.name}", f"log {log}", config, measured, seed, _tuning_on(config, others)))
    return found


def _tuning_on(config: SimulationConfig, traces: Sequence[Trace]) -> Callable[[], RuleSetting]:
    return lambda: best_rule(config, traces)


def scaled(trace: Trace, config: SimulationConfig, seed: int, number: int) -> Trace:
    """Return a recorded trace for another fleet: run times times 0.5 to 2, and as many jobs as fill 10 to 45 % of it.

    Jobs are left out at random, or come several times.
    """
    rng = np.random.default_rng([seed, 7])
    longer, share = math.exp(rng.uniform(math.log(0.5), math.log(2.0))), rng.uniform(0.1, 0.45)
    rng = np.random.default_rng([seed, 8, number])
    span_s = max(float(trace.arrival_s.max()), HOUR_S)
    wanted = min(share * config.max_cores * span_s / (longer * trace.work_core_s), MOST_JOBS / trace.jobs)
    times = math.floor(wanted) + (rng.random(trace.jobs) < wanted % 1.0)
    times[-1] = max(times[-1], 1)
    arrivals, lengths = np.repeat(trace.arrival_s, times), np.repeat(trace.service_s, times)
    return make_trace(f"{trace.name}-{seed}", arrivals - arrivals[0], longer * lengths)


def kept_settings() -> dict[str, RuleSetting]:
    """Return the tuned setting of each world, from SETTINGS."""
    return {name: RuleSetting(**setting) for name, setting in json.loads(SETTINGS.read_text("utf-8")).items()}


def main(given: Sequence[str] | None = None) -> int:
    """Tune the rule for each world and play the model; exit status 1 for another setting or a missed target."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--fleets", type=int, default=FLEETS, help=f"drawn fleets (default {FLEETS})")
    parser.add_argument("--model", default=SHIPPED_SCORER, help="scorer (default), a model file, or a run of train")
    parser.add_argument("--write", action="store_true", help=f"write {SETTINGS.name}")
    asked = parser.parse_args(given)
    worlds, found = held_out_worlds(asked.fleets), {}
    for number, world in enumerate(worlds):
        found[world.name] = world.tune()
        progress(f"{number + 1} of {len(worlds)}: {world.kind}, {found[world.name].name}")
    if asked.write:
        text = json.dumps({name: asdict(setting) for name, setting in found.items()}, indent=1)
        SETTINGS.write_text(text + "\n", "utf-8")
    kept = kept_settings()
    others = [name for name, setting in found.items() if kept.get(name) != setting]
    scorer = scorer_named(asked.model)
    by_class: dict[str, list[float]] = {}
    for number, world in enumerate(worlds):
        costs = ratios([world.lesson()], scorer.policy)
        learned, rule = costs.sum(axis=0)
        by_class.setdefault(world.kind, []).append(float(learned / rule))
        progress(f"{number + 1} of {len(worlds)}: {world.kind}, ratio {by_class[world.kind][-1]:.3f}")
    classes = {kind: float(np.mean(shares)) for kind, shares in sorted(by_class.items())}
    figures = {
        "worlds": float(len(found)),
        "other_settings": float(len(others)),
        "zero_shot_mean": float(np.mean([share for shares in by_class.values() for share in shares])),
        "zero_shot_worst": max(classes.values()),
    }
    status = report(
        "held_out_worlds",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy"),
        targets=(Target("zero_shot_mean", 0.985), Target("zero_shot_worst", 1.01)),
        notes={"model": asked.model, "loads": TUNED_ON, "other": others, "classes": classes},
    )
    return 1 if others else status


if __name__ == "__main__":
    sys.exit(main())
