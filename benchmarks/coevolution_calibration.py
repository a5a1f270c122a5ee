"""Calibration of the co-evolution trace: run time and utilisation of fixed fleets, and readings that do not fit.

The published experiment ran 173 minutes on 69.9 cores and 149 on 92.7, at utilisations of .69 and .61 (one run each).
Which VMs made up those cores is not known, so four mixes represent each number of cores, and means are taken over mixes
and seeds. The same is done for readings of the text that do not fit, so that the choice can be seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.report import Target, arguments, progress, report
from domain.workload import Trace
from simulator.autoscaling.reference import Measures, Simulation, preset
from simulator.workloads.synthetic import CoevolutionVariant, coevolution

FLEETS: Mapping[int, Sequence[tuple[int, int, int]]] = {
    70: ((1, 3, 7), (3, 4, 6), (3, 8, 4), (5, 5, 5)),
    92: ((2, 2, 10), (4, 5, 8), (2, 8, 7), (6, 6, 7)),
}
PUBLISHED_MINUTES = {70: 173.0, 92: 149.0}
PUBLISHED_UTILISATION = {70: 0.69, 92: 0.61}
READINGS: Mapping[str, Callable[[int], Trace]] = {
    # The shipped trace.
    "": coevolution,
    # Each job on one core of a VM, as in the training traces.
    "one_core_": lambda seed: coevolution(seed, variant=CoevolutionVariant.ONE_CORE),
    # One core, and generations released by the clock instead of by the end of the one before.
    "fixed_list_": lambda seed: coevolution(seed, variant=CoevolutionVariant.FIXED_LIST),
    # One job per candidate network and per predictor of the published population, with the same work.
    "one_job_": lambda seed: coevolution(
        seed, candidates=32, candidate_core_min=9.9, predictors=16, predictor_core_min=6.6
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run every reading on every fleet and print the figures."""
    parser = arguments(__doc__, runs=10)
    parser.add_argument("--directory", help="taken for the sake of the others: nothing is written")
    options = parser.parse_args(argv)
    figures: dict[str, float] = {}
    for reading, make in READINGS.items():
        progress(f"{reading or 'shipped trace'} ...")
        for cores in FLEETS:
            figures |= {f"{reading}{name}_{cores}": value for name, value in measure(make, cores, options.runs).items()}
        figures[f"{reading}speed_up"] = figures[f"{reading}minutes_70"] / figures[f"{reading}minutes_92"]
    for cores in FLEETS:
        ratio = figures[f"minutes_{cores}"] / PUBLISHED_MINUTES[cores]
        figures |= {f"ratio_vs_published_{cores}": ratio, f"minutes_off_{cores}": abs(ratio - 1.0)}
        figures[f"utilisation_off_{cores}"] = abs(figures[f"utilisation_{cores}"] - PUBLISHED_UTILISATION[cores])
    return report(
        "coevolution_calibration",
        figures,
        as_json=options.json,
        packages=("numpy",),
        targets=[
            *(Target(f"minutes_off_{cores}", 0.05) for cores in FLEETS),
            *(Target(f"utilisation_off_{cores}", 0.04) for cores in FLEETS),
        ],
        notes={
            "seeds": options.runs,
            "published_minutes": PUBLISHED_MINUTES,
            "published_utilisation": PUBLISHED_UTILISATION,
            "published_speed_up": PUBLISHED_MINUTES[70] / PUBLISHED_MINUTES[92],
            "fleets": {cores: ["+".join(map(str, fleet)) for fleet in fleets] for cores, fleets in FLEETS.items()},
        },
    )


def measure(make: Callable[[int], Trace], cores: int, seeds: int) -> dict[str, float]:
    """Return mean run time and utilisation over mixes and seeds, and the range of the mixes' mean run times."""
    traces = [make(seed) for seed in range(seeds)]
    by_mix = [[run(trace, fleet) for trace in traces] for fleet in FLEETS[cores]]
    minutes = [statistics.fmean(one.run_time_s for one in runs) / 60 for runs in by_mix]
    return {
        "minutes": statistics.fmean(minutes),
        "least_minutes": min(minutes),
        "most_minutes": max(minutes),
        "utilisation": statistics.fmean(one.utilisation for runs in by_mix for one in runs),
    }


def run(trace: Trace, fleet: tuple[int, int, int]) -> Measures:
    """Play a trace on a constant fleet in the world of the published experiment."""
    simulation = Simulation(preset("paper-live", initial=fleet), trace)
    while not simulation.finished:
        simulation.step(0)
    return simulation.measures()


if __name__ == "__main__":
    raise SystemExit(main())
