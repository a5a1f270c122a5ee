"""How dear the scorer is in its bad windows: a day of a log, or a whole case of a held-out world.

Cases: 20 days of each of four logs in the `live-like` world, real time, and the 49 worlds of
`benchmarks.held_out_worlds`. Of NASA, Lublin and HPC2N days are taken evenly from those with 200 one-core jobs or more;
each of the two days of LCG is dealt into ten parts, job by job. Days offer 20 or 40 % of the fleet's cores, in turn by
pairs. The rule of a day is tuned on four other days with the same offer, that of a world on other loads of it.

Split, written before any change was tried: days of even number, and worlds whose name has an even SHA-256, may choose
a change of the policy (`chosen_on_...`); the others (`judged_...`) judge it. Rule for choosing: of the changes whose
mean on the even half is within .002 of the least, the one with the lowest worst window.

Each window is played with BOOTS draws of boots. Its ratio is the mean cost divided by that of the rule on the same
draws. In a single draw the rule itself costs more or less than in another: `above_single` and `worst_single` are of
single draws, `null_...` the same of the rule, divided by the rule with other boots. Intervals (`low`, `high`) resample
logs and their days, and worlds. mean: of ratios. worst: window. above: share of windows above 1.05. surely_above: share
of windows whose own 95 % interval, over its draws, lies above 1.05; of the others above it, boots may be the cause.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.held_out_worlds import FLEETS, held_out_worlds
from benchmarks.report import Target, arguments, progress, report
from domain.units import DAY_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import read_swf
from trainer.autoscaling.lessons import Lesson, best_rule
from trainer.autoscaling.scorer import THE_RULE, Policy
from trainer.autoscaling.scorer_runs import SHIPPED_SCORER, scorer_named
from trainer.kit.intervals import compare

Floats = NDArray[np.float64]
LOGS_FOLDER = Path(__file__).parent / "logs"
LOGS = {
    "nasa": "NASA-iPSC-1993-3.1-cln.swf.gz",
    "lublin": "lublin_256.swf.gz",
    "lcg": "LCG-2005-1-first48h.swf.gz",
    "hpc2n": "HPC2N-2002-first-jobs.swf.gz",
}
DAYS, LEAST_JOBS, OFFERED = 20, 200, (0.2, 0.4)
BOOTS, APART, SEED = 24, 1_000_003, 7_000_000
MOST = 1.05
RESAMPLES = 2_000
CONFIG = preset("live-like")


@dataclass(frozen=True, slots=True)
class Case:
    """A window. group: its log, or its own name for a world. judged: whether it may not choose a change."""

    name: str
    group: str
    judged: bool
    lesson: Lesson


def days_of(log: str, folder: Path) -> list[Trace]:
    """Return the days of a log, as one-core jobs."""
    whole, _ = read_swf(folder / LOGS[log])
    day = (whole.arrival_s // DAY_S).astype(np.int64)
    busy = np.flatnonzero(np.bincount(day) >= LEAST_JOBS)
    chosen = busy[np.linspace(0, len(busy) - 1, DAYS).round().astype(np.int64)]
    part = np.random.default_rng(17).integers(0, DAYS // 2, whole.jobs)
    found = []
    for k in range(DAYS):
        number = k % 2 if log == "lcg" else int(chosen[k])
        which = (day == number) & ((part == k // 2) | (log != "lcg"))
        arrival_s, service_s = whole.arrival_s[which] - number * DAY_S, whole.service_s[which]
        share = OFFERED[k // 2 % 2] * CONFIG.max_cores * DAY_S / service_s.sum()
        kept = np.random.default_rng([18, k]).random(arrival_s.size) < share
        kept[0] = True
        found.append(make_trace(f"{log}-{k}", arrival_s[kept] - arrival_s[0], service_s[kept]))
    return found


def cases(folder: Path, days_played: int = DAYS, fleets: int = FLEETS) -> list[Case]:
    """Return the first days of each log that is in a folder, and the worlds of this number of fleets."""
    found = []
    for log, file in LOGS.items():
        if not (folder / file).exists():
            progress(f"{log} is not in {folder}, left out")
            continue
        days = days_of(log, folder)
        for k, trace in enumerate(days[:days_played]):
            rule = best_rule(CONFIG, [days[(k + other) % DAYS] for other in (4, 8, 12, 16)])
            found.append(Case(trace.name, log, bool(k % 2), Lesson(CONFIG, trace, rule, SEED + k)))
    for world in held_out_worlds(fleets):
        odd = bool(int(hashlib.sha256(world.name.encode()).hexdigest(), 16) % 2)
        found.append(Case(world.name, world.name, odd, world.lesson()))
    return found


def play(case: Case, boots: int, policy: Policy) -> Floats:
    """Return the costs of a case under the policy and under the rule [2, BOOTS]."""
    lesson = case.lesson
    episodes = lesson.episodes()
    seeds = [lesson.seed + APART * boot for boot in range(boots)]
    return np.array([[one.cost(episodes, seed) for seed in seeds] for one in (policy, THE_RULE)])


def figures_of(chosen: Sequence[Case], costs: Floats) -> dict[str, float]:
    """Return the figures of some cases; costs [cases, 2, BOOTS]."""
    ours, rule = costs[:, 0], costs[:, 1]
    ratios, single, null = ours.mean(axis=1) / rule.mean(axis=1), ours / rule, rule[:, 1:] / rule[:, :-1]
    low, high = interval(chosen, ratios)
    return {
        "mean": float(ratios.mean()),
        "mean_low": low,
        "mean_high": high,
        "worst": float(ratios.max()),
        "above": float((ratios > MOST).mean()),
        "surely_above": float(np.mean([of_draws(one)[1] > MOST for one in costs])),
        "worst_single": float(single.max()),
        "above_single": float((single > MOST).mean()),
        "null_worst_single": float(null.max(initial=1.0)),
        "null_above_single": float((null > MOST).mean()) if null.size else 0.0,
    }


def of_draws(costs: Floats) -> tuple[float, float, float]:
    """Return the ratio of a window with its 95 % interval over draws of boots; costs [2, BOOTS], draw by draw."""
    found = compare(*costs).relative
    return 1.0 + found.mean, 1.0 + found.low, 1.0 + found.high


def interval(chosen: Sequence[Case], ratios: Floats) -> tuple[float, float]:
    """Return a 95 % interval of the mean: groups are drawn with replacement, and then the windows of each."""
    groups = [
        np.flatnonzero([case.group == name for case in chosen]) for name in dict.fromkeys(c.group for c in chosen)
    ]
    weights = np.array([len(group) for group in groups]) / len(ratios)
    days = [group for group in groups if len(group) > 1]
    worlds = np.array([group[0] for group in groups if len(group) == 1], dtype=np.int64)
    rng = np.random.default_rng(5)
    share = float(weights[[len(group) > 1 for group in groups]].sum())
    means = []
    for _ in range(RESAMPLES):
        total = 0.0
        if days:
            drawn = (days[k] for k in rng.integers(0, len(days), len(days)))
            total += share * float(np.mean([ratios[rng.choice(group, len(group))].mean() for group in drawn]))
        if worlds.size:
            total += (1.0 - share) * float(ratios[rng.choice(worlds, worlds.size)].mean())
        means.append(total)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def main(given: Sequence[str] | None = None) -> int:
    """Play all cases and print; exit status 1 for a missed target."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--logs", type=Path, default=LOGS_FOLDER, help="folder of the logs (default: benchmarks/logs)")
    parser.add_argument("--boots", type=int, default=BOOTS, help=f"draws of boots of a window (default {BOOTS})")
    parser.add_argument("--days", type=int, default=DAYS, help=f"of each log, the first of {DAYS} (default all)")
    parser.add_argument("--fleets", type=int, default=FLEETS, help=f"drawn fleets (default {FLEETS})")
    parser.add_argument("--model", default=SHIPPED_SCORER, help="scorer (default), a model file, or a run of train")
    asked = parser.parse_args(given)
    every, policy = cases(asked.logs, asked.days, asked.fleets), scorer_named(asked.model).policy
    found = []
    for number, case in enumerate(every):
        found.append(play(case, asked.boots, policy))
        progress(f"{number + 1} of {len(every)}: {case.name}, {found[-1][0].mean() / found[-1][1].mean():.3f}")
    costs = np.array(found)
    figures: dict[str, float] = {"windows": float(len(every))}
    parts = {
        "judged": [case.judged for case in every],
        "judged_days": [case.judged and case.group in LOGS for case in every],
        "judged_worlds": [case.judged and case.group not in LOGS for case in every],
        "chosen_on": [not case.judged for case in every],
    }
    for part, which in parts.items():
        places = np.flatnonzero(which)
        if places.size:
            of_part = figures_of([every[k] for k in places], costs[places])
            figures |= {f"{part}_{name}": value for name, value in of_part.items()}
    ratios = costs[:, 0].mean(axis=1) / costs[:, 1].mean(axis=1)
    worst = {every[k].name: [round(end, 3) for end in of_draws(costs[k])] for k in np.argsort(-ratios)[:8]}
    return report(
        "regret",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy"),
        targets=(Target("judged_mean", 0.95), Target("judged_worst", MOST)),
        notes={
            "boots": asked.boots,
            "model": asked.model,
            "worst": worst,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
