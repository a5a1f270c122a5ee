"""Past one machine: the gain of a second worker of a Ray cluster, and several agents on one ledger.

Agents: the docstring of `benchmarks.scale_agents` has the figures; they come from one run, whatever --runs is.

ray_speed_up: wall time of a job in one process over that on a cluster of two local workers, with the start of the
cluster; the median of --runs pairs, each of which plays one form right after the other, in turns first. The job:
policies of deferral on episodes of the scenario `valley`, --cpu-s seconds of processor time by the plan of
`trimtab evaluate deferral`; an episode is a case. The figures of all forms must be the same bytes, otherwise nothing
is reported. processes_speed_up: the same with two processes in place of Ray. start_s: from the start of the cluster
to the first of two answers. Written before the runs: the goal is 1.7 on a job of 300 s. Use a machine without other
work, for these are wall times; load_before is its load of the last minute.

Each part is a function of PARTS that returns its figures and notes; --parts measures some, the others are None.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from benchmarks.report import Target, arguments, progress, report
from benchmarks.scale_agents import NAMES, UNDECIDED_S, Figures, Notes, scaled_agents
from trainer.deferral.evaluation import Subject, contenders_of, evaluate, subjects_of
from trainer.kit.jobs import LOCAL, Planned, Pool, Workers

WORKERS = 2
FORMS = {"one": Workers(), "processes": Workers(WORKERS), "ray": Workers(WORKERS, LOCAL)}


def ray_speed_up(asked: Namespace) -> tuple[Figures, Notes]:
    """Return the gains of two workers, and how long a cluster takes to begin."""
    (subject,) = subjects_of(["valley"], [])
    episodes = max(WORKERS, math.ceil(asked.cpu_s / _case_s(subject)))
    forms = [form for form in FORMS if form != "ray" or find_spec("ray") is not None]
    gains: dict[str, list[float]] = {form: [] for form in forms}
    for run in range(max(1, asked.runs)):
        walls, answers = {}, {}
        for form in forms[:: 1 if run % 2 == 0 else -1]:
            begun = time.perf_counter()
            done = evaluate(subject, contenders_of([]), range(episodes), workers=FORMS[form])
            walls[form] = time.perf_counter() - begun
            answers[form] = json.dumps(done.as_data(), sort_keys=True)
            progress(f"run {run + 1}: {episodes} episodes in {form}: {walls[form]:.1f} s")
        if len(set(answers.values())) > 1:
            raise AssertionError("the figures depend on where they were computed")
        for form in forms:
            gains[form].append(walls["one"] / walls[form])
    start_s = None
    if "ray" in forms:
        begun = time.perf_counter()
        with Pool(math.sqrt, FORMS["ray"]) as pool:
            next(pool.run([1.0, 2.0]))
            start_s = time.perf_counter() - begun
    figures = {
        "ray_speed_up": statistics.median(gains["ray"]) if "ray" in forms else None,
        "processes_speed_up": statistics.median(gains["processes"]),
        "episodes": episodes,
        "start_s": start_s,
    }
    return figures, {}


def _case_s(subject: Subject) -> float:
    """Return the processor time of an episode, as `--plan` measures it."""
    try:
        evaluate(subject, contenders_of([]), range(100), workers=Workers(plan=True))
    except Planned as planned:
        return planned.plan.cpu_s / planned.plan.items
    raise AssertionError("a plan plays nothing")


PARTS: Mapping[str, Callable[[Namespace], tuple[Figures, Notes]]] = {"ray": ray_speed_up, "agents": scaled_agents}


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--cpu-s", type=float, default=300.0, help="processor time of the job (default 300)")
    parser.add_argument("--fleets", type=int, default=3000, help="fleets that the agents share (default 3000)")
    parser.add_argument("--vms-per-fleet", type=int, default=30, help="VMs of each at the start (default 30)")
    parser.add_argument("--agents", type=int, default=3, help=f"2 to {len(NAMES)} agents (default 3)")
    parser.add_argument("--speed", type=float, default=1.5, help="of the agents' clock, at most 30 (default 1.5)")
    parser.add_argument("--minutes", type=int, default=3, help="of the clock, without a kill (default 3)")
    parser.add_argument("--kills", type=int, default=2, help="agents killed, one after the other (default 2)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default all)")
    asked = parser.parse_args()
    targets = [
        Target("ray_speed_up", 1.7, at_most=False),
        Target("double_acts", 0.0),
        Target("takeover_p99_s", UNDECIDED_S),
        Target("decided_share", 0.99, at_most=False),
    ]
    figures: dict[str, float | None] = {target.name: None for target in targets}
    figures["load_before"] = os.getloadavg()[0]
    notes: dict[str, object] = {"cpu_s": asked.cpu_s, "runs": asked.runs, "workers": WORKERS}
    for name in asked.parts.split(","):
        found, about = PARTS[name](asked)
        figures |= found
        notes |= about
    packages = ("numpy", *(["ray"] if find_spec("ray") else []))
    return report("scale_out", figures, as_json=asked.json, packages=packages, targets=targets, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
