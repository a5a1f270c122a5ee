"""Processor seconds of one three-year run of the admission simulator, beside our own unoptimised path in the same run.

Second-moment rules use `ab_fast`, the log grid and their usual tolerance. The unoptimised path computes every curve at
every arrival on the published grid of 3,000 horizons; it is measured on the first `--peer-hours` hours, where few
deployments live yet, so the ratio is a lower bound. Published for one run: 0.5 to 4 core-hours, on another machine.
"""

from __future__ import annotations

import sys
import time

from benchmarks.report import Target, arguments, progress, repeat, report
from simulator.admission import PRESETS, draw_run, play, rule_of

PUBLISHED_CORE_HOURS = (0.5, 4.0)
TARGETS = (
    Target("zeroth_s", 0.2),
    Target("second_0obs_s", 1.0),
    Target("second_50obs_s", 3.5),
    Target("second_T_s", 12.0),
)
CASES = {
    "zeroth_s": ("H", 0, "zeroth:14000"),
    "second_0obs_s": ("H", 0, "second:2.2"),
    "second_50obs_s": ("H", 50, "second:3.8,marginal=1"),
    "second_T_s": ("T", 0, "second:2.2"),
}
PEERS = ("second:2.2", "second:2.2,grid=paper,tol=0")


def seconds(preset: str, observations: int, policy: str, hours: float) -> tuple[float, int, int]:
    """Return processor seconds, events and refreshes of one run; its arrivals are drawn beforehand."""
    run, rule = draw_run(PRESETS[preset], 0, observations=observations, hours=hours), rule_of(policy)
    began = time.process_time()
    outcome = play(run, rule)
    return time.process_time() - began, outcome.events, outcome.refreshes


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--years", type=float, default=3.0, help="length of a run (default 3)")
    parser.add_argument("--peer-hours", type=float, default=96.0, help="hours of the unoptimised path (default 96)")
    given = parser.parse_args()
    progress("compiling, unless that has been done before")
    began = time.process_time()
    for policy in ("zeroth:14000", "second:2.2"):
        seconds("H", 0, policy, 24.0)
    compile_s = time.process_time() - began

    def one_run() -> dict[str, float]:
        figures: dict[str, float] = {}
        for name, (preset, observations, policy) in CASES.items():
            progress(f"{policy} on preset {preset} with {observations} observations")
            figures[name], events, refreshes = seconds(preset, observations, policy, given.years * 8760.0)
            if name == "zeroth_s":
                figures["events_per_s"] = events / figures[name]
            if name == "second_T_s":
                figures["refresh_us"] = figures[name] / refreshes * 1e6
        progress("the unoptimised path")
        fast, plain = (seconds("H", 0, policy, given.peer_hours)[0] for policy in PEERS)
        figures["unoptimised_s"] = plain
        figures["ratio_vs_unoptimised"] = plain / fast
        figures["ratio_vs_published_best"] = PUBLISHED_CORE_HOURS[0] * 3600.0 / figures["second_0obs_s"]
        figures["ratio_vs_published_worst"] = PUBLISHED_CORE_HOURS[1] * 3600.0 / figures["second_0obs_s"]
        return figures

    figures = repeat(one_run, given.runs)
    figures["compile_or_load_s"] = compile_s
    notes = {
        "years": given.years,
        "peer_hours": given.peer_hours,
        "cases": CASES,
        "published_core_hours": PUBLISHED_CORE_HOURS,
    }
    return report(
        "admission_simulator",
        figures,
        as_json=given.json,
        packages=("numba", "numpy"),
        targets=TARGETS,
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
