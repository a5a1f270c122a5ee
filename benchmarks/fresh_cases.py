"""The scorer that ships on loads that the suite does not have, and another one beside it.

T3 and T6 with other traces than the suite's first hundred, and stretches of the recorded logs beside the windows of T5,
scaled as these and thinned to LOAD of what 140 cores do, where so much was recorded; three boot seeds each. Costs are
sums over the cases of a family, by those of the tuned queue rule on the same jobs and boots.

mean_of_nine, worst_family: of the families. With another scorer: other_mean_of_nine, other_worst_family, and
difference, of the means in per cent of the first one's, with its 95 % interval (cases drawn again in pairs within
families). `--traces 200` are the first cases of docs/train/fleet-scorer.md, `--traces 400 --shifts 300 --no-logs` the
second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Target, arguments, progress, report
from domain.units import DAY_S, HOUR_S
from domain.workload import Trace
from simulator.autoscaling.branching import RuleSetting
from simulator.autoscaling.reference import preset
from simulator.workloads.recorded import WINDOWS, Window
from simulator.workloads.swf import SwfOptions, read_swf
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.evaluation.suite import boot_twice_as_long, burst, dearer_type, idle_day, longer_jobs
from trainer.autoscaling.scorer import Lesson, Trained, ratios
from trainer.autoscaling.scorer_runs import RELEASE, start_of
from trainer.kit.jobs import Pool

LOGS = Path(__file__).parent / "logs"
STRETCHES = {
    "nasa": ("NASA-iPSC-1993-3.1-cln.swf.gz", tuple(day * DAY_S for day in range(92))),
    "hpc2n": ("HPC2N-2002-first-jobs.swf.gz", tuple(day * DAY_S for day in (0, 5, 10, 15, 19, 29, 34, 39, 54))),
    "lcg": ("LCG-2005-1-first48h.swf.gz", tuple(hour * HOUR_S for hour in (8, 16, 32))),
}
"""File of each log, and where stretches begin; those of the suite are left out."""
LOAD, LEAST, MOST_JOBS = 0.46, 0.5, 20_000
"""Share of the largest fleet's work that is kept, the share of that below which a stretch is left out, and jobs."""
BOOTS = 3
RESAMPLES = 4000

Case = tuple[str, Lesson]
Costs = NDArray[np.float64]


def stretch(log: str, from_s: float) -> Trace | None:
    """Return a stretch of a log, scaled as the windows of T5; None where too little was recorded, or too many jobs."""
    file, _ = STRETCHES[log]
    cut: Window = next(window for window in WINDOWS.values() if window.log == log)

    def read(thin: float) -> Trace:
        options = SwfOptions(
            from_s=from_s,
            hours=cut.hours,
            time_scale=cut.time_scale,
            run_scale=1.0 / cut.run_scale,
            thin=thin,
            seed=5,
        )
        return read_swf(LOGS / file, options, name=f"{log}-{from_s / DAY_S:g}")[0]

    whole = read(1.0)
    wanted = LOAD * preset("live-like").max_cores * cut.span_s
    if whole.work_core_s < LEAST * wanted:
        return None
    found = read(min(wanted / whole.work_core_s, 1.0))
    return None if found.jobs >= MOST_JOBS else found


def fresh_cases(traces: int, shifts: int, count: int, *, logs: bool) -> Iterator[Case]:
    """Yield the family and the lesson of each case: `count` traces of T3 from `traces` on, half of T6 from `shifts`."""
    world = preset("live-like")
    for seed in range(traces, traces + count):
        yield "T3", Lesson(world, train_rand(seed), RuleSetting(), seed)
    for seed in range(shifts, shifts + max(count // 2, 1)):
        trace = train_rand(seed)
        for family, config, load in (
            ("boot x2", boot_twice_as_long(world), trace),
            ("price x1.5", dearer_type(world, seed % len(world.types)), trace),
            ("jobs x2", world, longer_jobs(trace)),
            ("idle day", world, idle_day(trace)),
            ("burst x10", world, burst(trace)),
        ):
            yield family, Lesson(config, load, RuleSetting(), seed)
    suite = {(window.log, window.from_s) for window in WINDOWS.values()}
    for log, (_, begins) in STRETCHES.items() if logs else ():
        for from_s in begins:
            found = None if (log, from_s) in suite else stretch(log, from_s)
            if found is not None:
                for boot in range(BOOTS):
                    yield log, Lesson(world, found, RuleSetting(), boot)


def costs_of(models: Sequence[Trained], case: Case) -> list[float]:
    """Return what each model costs in a case, and the rule last."""
    found = [ratios([case[1]], one.weights, one.margin, one.idle_limit_min)[0] for one in models]
    return [*(float(learned) for learned, _ in found), float(found[0][1])]


def by_family(costs: Costs, places: Sequence[NDArray[np.int64]]) -> Costs:
    """Return the ratio to the rule of each family and model [F, M]."""
    sums = np.array([costs[at].sum(axis=0) for at in places])
    found: Costs = sums[:, :-1] / sums[:, -1:]
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Play and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("other", nargs="?", help="a run of `trimtab train`, or an .onnx file of a scorer")
    parser.add_argument("--traces", type=int, default=200, help="first trace of T3 (default 200)")
    parser.add_argument("--shifts", type=int, default=200, help="first trace of T6 (default 200)")
    parser.add_argument(
        "--count", type=int, default=200, help="cases of T3; half as many of T6's families (default 200)"
    )
    parser.add_argument("--no-logs", dest="logs", action="store_false", help="without the recorded logs")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    asked = parser.parse_args(given)
    models = [start_of(text) for text in (RELEASE, asked.other) if text]
    cases = list(fresh_cases(asked.traces, asked.shifts, asked.count, logs=asked.logs))
    names = [family for family, _ in cases]
    families = list(dict.fromkeys(names))
    places = [np.flatnonzero(np.array(names) == family) for family in families]
    found = []
    with Pool(partial(costs_of, models), asked.jobs) as pool:
        for number, row in enumerate(pool.run(cases), start=1):
            found.append(row)
            if number % 200 == 0:
                progress(f"{number} of {len(cases)} cases")
    costs = np.array(found)
    table = by_family(costs, places)
    means = table.mean(axis=0)
    figures = {"mean_of_nine": float(means[0]), "worst_family": float(table[:, 0].max())}
    if asked.other:
        rng = np.random.default_rng(1)
        drawn = [by_family(costs, [rng.choice(at, at.size) for at in places]).mean(axis=0) for _ in range(RESAMPLES)]
        low, high = np.percentile([100.0 * (one[1] / one[0] - 1.0) for one in drawn], [2.5, 97.5])
        figures |= {
            "other_mean_of_nine": float(means[1]),
            "other_worst_family": float(table[:, 1].max()),
            "difference": float(100.0 * (means[1] / means[0] - 1.0)),
            "difference_low": float(low),
            "difference_high": float(high),
        }
    notes = {
        family: f"{len(at)} cases: {', '.join(f'{value:.4f}' for value in row)}"
        for family, at, row in zip(families, places, table, strict=True)
    }
    return report(
        "fresh_cases",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy"),
        targets=(Target("worst_family", 1.005),),
        notes={"families": notes, "other": asked.other or "none"},
    )


if __name__ == "__main__":
    sys.exit(main())
