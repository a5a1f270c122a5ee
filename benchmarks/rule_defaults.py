"""What defaults of the queue rule cost as the agent lives, each divided by the cost of the same case with the first.

Every case is played by the agent's own decision under the default rails, on the same jobs and boots. A fleet that does
not report the work of its jobs expects the default length, for nothing is set. Intervals are over fleets, and over logs
and stretches: fleets of one stretch count together.

The rule for choosing, written before the runs: HORIZON_S 300 and IDLE_S 0 take the place of 150 and 120 if, over at
least 100 cases that chose neither, the mean ratio on fleets (drawn and held out together) is surely below 1, by the
upper end of its 95 % interval, and that on recorded logs is not above 1. If they fail, the setting of SETTINGS with the
least mean on fleets that keeps both is played on the other half of the cases, and taken if it keeps both there. The
worst case is stated.

--guess: the first guess of the horizon for a job length that is set (`domain.rules.autoscaling.first_horizon_s`). Its
form and factor were fitted to the geometric mean cost of 60 drawn fleets (seeds from 7,000,000 on, horizons of 20 to
2,400 s); it takes the place of 300/0 there if it is surely cheaper on drawn fleets of the second half, which chose
nothing. Without its upper end of 600 s it was dearer than 300/0 on logs.

drawn: fleets of 1 to 5 types of at most 40 VMs, from SEED on. held_out: drawn worlds of `benchmarks.held_out_worlds`.
logs: days of each log that is found in --logs, in the `live-like` world and in a drawn one, at loads of 10 to 45 % of
the fleet and run times of half to twice the recorded ones. --half: two disjoint sets of all of them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.rehearsal.virtual_time import DEFAULT, fleet_of
from benchmarks.held_out_worlds import held_out_fleets, scaled
from benchmarks.report import arguments, progress, report
from domain.rules.queue_rule import JOB_CORE_S, first_horizon_s
from domain.units import DAY_S, HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import SwfOptions, read_swf
from trainer.autoscaling import lessons
from trainer.kit.intervals import mean_interval
from trainer.learning.replay import Loop, play

SEED, LOG_SEED, BOOT_SEED = 6_000_000, 6_100_000, 6_200_000
FLEETS = 60
SMALL, LIMITS = (1, 2, 3, 4, 5), (1, 40)
SETTINGS = ("150/120", "150/0", "300/0", "300/120", "600/0")
"""HORIZON_S/IDLE_S, the former default first."""
DAYS: Mapping[str, Sequence[float]] = {
    "NASA-iPSC-1993-3.1-cln.swf.gz": (10, 16, 22, 28, 34, 47, 53, 59, 65, 71, 77, 83, 89),
    "HPC2N-2002-first-jobs.swf.gz": (14, 18, 22, 26, 36, 40, 44, 48, 52),
    "LCG-2005-1-first48h.swf.gz": (0, 0.5, 1, 1.5),
    "lublin_256.swf.gz": (12, 20, 28, 36, 44, 58, 66, 74, 82),
}
"""Days of a log, from its first one, at which a stretch begins. It lasts a day, half of one where the next is near."""
LOGS = Path(__file__).parent / "logs"
REST_S, LONGEST_REST_S = 2 * HOUR_S, DAY_S
"""A case ends so long after its last job could have begun and ended, at the latest so long after the last arrival."""


@dataclass(frozen=True, slots=True)
class Case:
    """A world and its load. kind: drawn, held out or logs. cluster: cases that count as one in an interval."""

    kind: str
    cluster: str
    config: SimulationConfig
    trace: Trace
    sizes_known: bool
    seed: int

    @property
    def mean_s(self) -> float:
        """Mean seconds of a job on one core."""
        return float(self.trace.service_s.mean())

    def guess_s(self, length_s: float) -> float:
        """Return the first guess of the horizon for jobs that take so long on one core."""
        price = fleet_of(self.config).core_price_per_hour
        return first_horizon_s(length_s, price, self.config.waiting_price_per_hour)

    def cost(self, horizon_s: float, idle_s: float, job_core_s: float = JOB_CORE_S) -> float:
        """Return dollars of the queue rule with this setting."""
        config, trace = DEFAULT.world(self.config), self.trace
        longest_s = min(float(trace.service_s.max()) + REST_S, LONGEST_REST_S)
        minutes = math.ceil((float(trace.arrival_s.max()) + longest_s) / MINUTE_S)
        loop = Loop(fleet_of(config), DEFAULT.limits, None, idle_s, DEFAULT.grace_s, self.sizes_known)
        return play(loop, config, trace, [QueueRulePolicy(horizon_s, job_core_s).name] * minutes, self.seed).cost


def drawn_cases(count: int, first: int = SEED) -> Iterator[Case]:
    """Yield cases of small fleets from a seed on."""
    for seed in range(first, first + count):
        fleet = lessons.fleet_of(seed, SMALL, LIMITS)
        yield Case("drawn", f"fleet {seed}", fleet.config, fleet.trace(0), fleet.sizes_known, seed)


def held_out_cases(count: int, half: int) -> Iterator[Case]:
    """Yield cases of the worlds that no training draws, of a half of them at most `count`."""
    for fleet in [fleet for k, fleet in enumerate(held_out_fleets()) if k // 4 % 2 == half][:count]:
        name = f"held out {fleet.seed}"
        yield Case("held out", name, fleet.config, fleet.trace(0), fleet.sizes_known, fleet.seed)


def log_cases(folder: Path, most: int, half: int) -> Iterator[Case]:
    """Yield cases of each log in the folder, two of each stretch and at most a given number of stretches of a log.

    The stretches of the second half are two days later; those of the shortest log are the same at other loads.
    """
    live = preset("live-like")
    for file, days in DAYS.items():
        if not (folder / file).is_file():
            progress(f"{folder} has no {file}: left out")
            continue
        span = min([1.0, *(later - day for day, later in itertools.pairwise(days))])
        for number, day in enumerate(days[:most]):
            begin = day + (2 * half if span == 1.0 else 0.0)
            name = f"{file.partition('-')[0]} day {begin:g}"
            stretch = lessons.cut_out(_whole(folder / file), begin * DAY_S, (begin + span) * DAY_S, name)
            if stretch.jobs < 2:
                progress(f"{stretch.name}: fewer than two jobs, left out")
                continue
            seed = LOG_SEED + 1_000 * half + 100 * list(DAYS).index(file) + number
            drawn = lessons.fleet_of(seed, SMALL[1:], LIMITS)
            for config, known in ((live, True), (drawn.config, drawn.sizes_known)):
                yield Case("logs", stretch.name, config, scaled(stretch, config, seed, 0), known, seed)


@cache
def _whole(path: Path) -> Trace:
    return read_swf(path, SwfOptions(from_s=0.0))[0]


def of_defaults(case: Case) -> dict[str, float]:
    """Return the cost of each setting where nothing else is set, the former default first.

    guess: the first guess for the length that is reported, else for JOB_CORE_S.
    """
    costs = {setting: case.cost(*map(float, setting.split("/"))) for setting in SETTINGS}
    return costs | {"guess": case.cost(case.guess_s(case.mean_s if case.sizes_known else JOB_CORE_S), 0.0)}


def of_guesses(case: Case) -> dict[str, float]:
    """Return the cost of 300/0, first, of 150/0 and of two guesses, the mean length of a job being set.

    former: 1.25 times the length, 150 s at least.
    """
    length_s = case.mean_s
    horizons_s = {
        "300/0": 300.0,
        "150/0": 150.0,
        "former": max(150.0, 1.25 * length_s),
        "guess": case.guess_s(length_s),
    }
    return {name: case.cost(horizon_s, 0.0, length_s) for name, horizon_s in horizons_s.items()}


def summary(ratios: Mapping[str, Sequence[float]], name: str) -> dict[str, float]:
    """Return mean, ends of its interval over clusters, and the worst case; ratios: of the cases of each cluster."""
    mean = mean_interval([fmean(one) for one in ratios.values()])
    worst = max(max(one) for one in ratios.values())
    return {name: mean.mean, f"{name}_low": mean.low, f"{name}_high": mean.high, f"{name}_worst": worst}


def main(given: Sequence[str] | None = None) -> int:
    """Play all cases with all settings and print the ratios to the first setting."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--fleets", type=int, default=FLEETS, help=f"drawn fleets (default {FLEETS})")
    parser.add_argument("--held-out", type=int, default=20, help="held-out worlds (default 20)")
    parser.add_argument("--half", type=int, choices=(0, 1), default=0, help="which half of the cases (default 0)")
    parser.add_argument("--stretches", type=int, default=100, help="stretches of each log, at most (default: all)")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of job logs (default: benchmarks/logs)")
    parser.add_argument("--guess", action="store_true", help="the first guess for a job length, against 300/0")
    asked = parser.parse_args(given)
    cases = [
        *drawn_cases(asked.fleets, SEED + 1_000 * asked.half),
        *held_out_cases(asked.held_out, asked.half),
        *log_cases(asked.logs, asked.stretches, asked.half),
    ]
    found: dict[str, dict[str, dict[str, list[float]]]] = {"fleets": {}, "logs": {}}
    for number, case in enumerate(cases):
        costs = of_guesses(case) if asked.guess else of_defaults(case)
        base = costs.pop(next(iter(costs)))
        for setting, cost in costs.items():
            of_kind = found["logs" if case.kind == "logs" else "fleets"]
            of_kind.setdefault(setting, {}).setdefault(case.cluster, []).append(cost / base)
        shown = ", ".join(f"{setting} {cost / base:.3f}" for setting, cost in costs.items())
        known = "known" if case.sizes_known else "unknown"
        progress(f"{number + 1}/{len(cases)} {case.kind} {case.cluster} sizes {known}: {base:.2f} $, {shown}")
    figures: dict[str, float] = {"cases": len(cases)}
    for kind, settings in found.items():
        for setting, ratios in settings.items():
            figures |= summary(ratios, f"{kind}_{setting.replace('/', '_')}")
    notes = {"half": asked.half, "logs": str(asked.logs)}
    return report("rule_defaults", figures, as_json=asked.json, packages=("numba", "numpy"), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
