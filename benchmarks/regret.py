"""The scorer with and without its guard, by window: a day of a log, or a whole case of a held-out world.

Cases: 20 days of each of four logs in the `live-like` world, real time, and the 49 worlds of
`benchmarks.held_out_worlds`. Of NASA, Lublin and HPC2N days are taken evenly from those with 200 one-core jobs or more;
each of the two days of LCG is dealt into ten parts, job by job. Days offer 20 or 40 % of the fleet's cores, in turn by
pairs. The rule of a day is tuned on four other days with the same offer, that of a world as the page of it has it.

Split, written before any guard was tried: days of even number, and worlds whose name has an even SHA-256, may choose a
guard; the others (`judged_...`) judge it. Rule for choosing: of the guards whose mean on the even half is within .002
of the least, the one with the lowest worst window.

Each window is played with BOOTS draws of boots. Its ratio is the mean cost divided by that of the rule on the same
draws: in a single draw the rule costs as much more or less than in another (`null_...`: the rule against the rule with
other boots), so that a bound on single draws (`..._single`) is a bound on luck too. Intervals (`low`, `high`) resample
logs and their days, and worlds.

plain, guarded: the scorer without and with `domain.rules.autoscaling_regret`. mean: of ratios. worst: window. above:
share of windows above 1.05. hand_overs: a day lived under the scorer. held: share of minutes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.held_out_worlds import held_out_worlds
from benchmarks.report import Target, arguments, progress, report
from domain.units import DAY_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import read_swf
from trainer.autoscaling.lessons import Lesson, best_rule
from trainer.autoscaling.scorer import THE_RULE
from trainer.autoscaling.scorer_runs import SHIPPED_SCORER, scorer_named

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
    """A window. group: its log, or its own name for a world. judged: whether it may not choose a guard."""

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


def cases(folder: Path) -> list[Case]:
    """Return the days of the logs that are in a folder, and the worlds."""
    found = []
    for log, file in LOGS.items():
        if not (folder / file).exists():
            progress(f"{log} is not in {folder}, left out")
            continue
        days = days_of(log, folder)
        for k, trace in enumerate(days):
            rule = best_rule(CONFIG, [days[(k + other) % DAYS] for other in (4, 8, 12, 16)])
            found.append(Case(trace.name, log, bool(k % 2), Lesson(CONFIG, trace, rule, SEED + k)))
    for world in held_out_worlds():
        odd = bool(int(hashlib.sha256(world.name.encode()).hexdigest(), 16) % 2)
        found.append(Case(world.name, world.name, odd, world.lesson()))
    return found


@dataclass(frozen=True, slots=True)
class Played:
    """Costs of a case [BOOTS] under the rule, the scorer, and the scorer with its guard; actions of the guard.

    hand_overs: by day. held: share of minutes.
    """

    rule: Floats
    plain: Floats
    guarded: Floats
    hand_overs: float
    held: float


def play(case: Case, boots: int, model: str) -> Played:
    """Play a case."""
    lesson = case.lesson
    episodes, policy = lesson.episodes(), scorer_named(model).policy
    seeds = [lesson.seed + APART * boot for boot in range(boots)]
    rule = np.array([THE_RULE.cost(episodes, seed) for seed in seeds])
    plain = np.array([policy._replace(guarded=False).cost(episodes, seed) for seed in seeds])
    guarded = [policy.play(episodes, seed) for seed in seeds]
    minutes = sum(one.steps for one in guarded)
    return Played(
        rule,
        plain,
        np.array([one.cost for one in guarded]),
        sum(one.hand_overs for one in guarded) / (minutes * MINUTE_S / DAY_S),
        sum(one.held for one in guarded) / minutes,
    )


def figures_of(chosen: Sequence[Case], played: Sequence[Played]) -> dict[str, float]:
    """Return the figures of some cases."""
    found: dict[str, float] = {}
    for name in ("plain", "guarded"):
        each = [getattr(one, name) for one in played]
        ratios = np.array([ours.mean() / one.rule.mean() for ours, one in zip(each, played, strict=True)])
        single = np.array([ours / one.rule for ours, one in zip(each, played, strict=True)])
        low, high = interval(chosen, ratios)
        found |= {f"{name}_mean": float(ratios.mean()), f"{name}_mean_low": low, f"{name}_mean_high": high}
        found |= {f"{name}_worst": float(ratios.max()), f"{name}_above": float((ratios > MOST).mean())}
        found |= {f"{name}_worst_single": float(single.max()), f"{name}_above_single": float((single > MOST).mean())}
    null = np.array([one.rule[1:] / one.rule[:-1] for one in played])
    found |= {"null_worst_single": float(null.max()), "null_above_single": float((null > MOST).mean())}
    return found | {
        "hand_overs": float(np.mean([one.hand_overs for one in played])),
        "held": float(np.mean([one.held for one in played])),
    }


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
    parser.add_argument("--model", default=SHIPPED_SCORER, help="scorer (default), a model file, or a run of train")
    asked = parser.parse_args(given)
    every = cases(asked.logs)
    played = []
    for number, case in enumerate(every):
        played.append(play(case, asked.boots, asked.model))
        plain, guarded = (each.mean() / played[-1].rule.mean() for each in (played[-1].plain, played[-1].guarded))
        progress(f"{number + 1} of {len(every)}: {case.name}, {plain:.3f}, with the guard {guarded:.3f}")
    figures: dict[str, float] = {"windows": float(len(every))}
    parts = {
        "judged": [case.judged for case in every],
        "judged_days": [case.judged and case.group in LOGS for case in every],
        "judged_worlds": [case.judged and case.group not in LOGS for case in every],
        "chosen_on": [not case.judged for case in every],
    }
    for part, which in parts.items():
        places = np.flatnonzero(which)
        found = figures_of([every[k] for k in places], [played[k] for k in places])
        figures |= {f"{part}_{name}": value for name, value in found.items()}
    worst = sorted(zip(every, played, strict=True), key=lambda pair: -pair[1].guarded.mean() / pair[1].rule.mean())
    return report(
        "regret",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy"),
        targets=(
            Target("judged_guarded_mean", 0.95),
            Target("judged_guarded_worst", MOST),
        ),
        notes={
            "boots": asked.boots,
            "model": asked.model,
            "worst": {case.name: round(float(one.guarded.mean() / one.rule.mean()), 3) for case, one in worst[:8]},
        },
    )


if __name__ == "__main__":
    sys.exit(main())
