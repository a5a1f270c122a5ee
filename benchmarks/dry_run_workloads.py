"""Candidates for the jobs of the dry run: how much a fleet that changes its size matters with each.

A candidate is the recorded day of the dry run with arrivals divided by --squeezes, run times by as much or by 24, and a
share of its jobs that makes --loads of what the fleet at its maximum can do. For each, without faults and with the
default policy: what target tracking, the fleet at its maximum and the best constant fleet, which only hindsight knows,
cost over what the queue rule does. Means over --seeds, none of which is the dry run's. Rule, written before the dry run
was: of the candidates in which the queue rule finishes at least 99 of 100 jobs, the one in which the best constant
fleet costs most beside it (`best_constant`). Target tracking has no part in the choice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from agent.autoscaling.fleets import managed_fleets
from agent.rehearsal.scenario import INITIAL, MAX_CORES, environment
from agent.rehearsal.summary import TRACKING_SHOWN, FleetParameters, compare
from agent.settings import load_settings
from benchmarks.report import arguments, progress, report
from domain.units import DAY_S
from simulator.workloads.recorded import DAY_FROM_S, NASA_DAY, NASA_DAY_START_S, SQUEEZE
from simulator.workloads.swf import SwfOptions, read_swf


def options(squeeze: float, runs: float, thin: float, seed: int) -> SwfOptions:
    """Return how the recorded day is read for a candidate."""
    return SwfOptions(
        from_s=NASA_DAY_START_S + DAY_FROM_S,
        hours=24.0,
        time_scale=squeeze,
        run_scale=1.0 / runs,
        thin=thin,
        seed=seed,
    )


def main() -> int:
    """Simulate every candidate and report the ratios."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--squeezes", type=float, nargs="+", default=[6.0, 8.0], help="divisors of arrivals")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.15, 0.2, 0.3], help="shares of the largest fleet")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102, 103], help="choices of jobs")
    asked = parser.parse_args()
    with TemporaryDirectory() as directory:
        settings = load_settings(environment(Path(directory), "http://127.0.0.1:1", "", "", "act", {}))
        (managed,) = managed_fleets(settings)
    fold = managed.aggregation
    parameters = FleetParameters(managed.fleet, managed.limits, fold.idle_s, fold.job_core_s, fold.terms)
    figures: dict[str, float] = {}
    for squeeze in asked.squeezes:
        horizon_s = DAY_S / squeeze
        for runs in dict.fromkeys((squeeze, SQUEEZE)):
            whole, _ = read_swf(NASA_DAY, options(squeeze, runs, 1.0, 0))
            for load in asked.loads:
                thin = load * MAX_CORES * horizon_s / whole.work_core_s
                if thin > 1.0:
                    continue
                name = f"{squeeze:g}_{runs:g}_{load:g}"
                progress(name)
                found: dict[str, list[float]] = {}
                for seed in asked.seeds:
                    trace, _ = read_swf(NASA_DAY, options(squeeze, runs, thin, seed))
                    own, *others, largest = compare(parameters, managed.policy, trace, INITIAL, horizon_s, seed)
                    tracking = next(one for one in others if one.name == TRACKING_SHOWN)
                    beside = {"best_constant": others[-1], "target_tracking": tracking, "maximum": largest}
                    for label, other in beside.items():
                        found.setdefault(label, []).append(other.run.cost / own.run.cost)
                    found.setdefault("done", []).append(own.run.jobs_finished / trace.jobs)
                figures |= {f"{name}_{label}": fmean(values) for label, values in found.items()}
    return report("dry_run_workloads", figures, as_json=asked.json, packages=("numpy",))


if __name__ == "__main__":
    sys.exit(main())
