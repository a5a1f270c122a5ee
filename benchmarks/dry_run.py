"""The dry run beside its own hours simulated, alone and beside other work, and how long people wait for it.

For each policy and seed `trimtab dry-run --section fleet --fault none` lives the hours in real processes, first alone,
then beside --busy processes that take all of the processors they can get. lived_by_simulated: what they cost, over
what the same jobs cost the same policy simulated; lived_off: how far the run that is farthest off is from that; _busy:
the same beside other work. fast_by_slow: what the first of the runs cost, over what it costs at --slow-speed.
clock_jumps: events that say that the clock jumped or was set back. whole_wall_s: seconds until `trimtab dry-run`, with
its faults and all sections, has ended; first_decision_wall_s: until it shows its first decision; whole_cpu_s: processor
time of it and of all processes that it started.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.report import Target, arguments, progress, report
from domain.decisions import Reason

PROGRAM = (sys.executable, "-c", "from agent.commands.main import app; app()", "dry-run", "--headless", "--json")
WORK = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with the benchmark, however that ends."""
AGREE_WITHIN = 0.05
FIRST_DECISION_S, WHOLE_S = 60.0, 120.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """One dry run: its summary, how often the clock jumped, and its time until the first decision and in all."""

    summary: dict[str, Any]
    clock_jumps: int
    first_s: float
    wall_s: float
    cpu_s: float


def lived(parent: Path | None, *options: str) -> RunResult:
    """Run `trimtab dry-run` with options to its end, in a folder of its own; CalledProcessError without a summary."""
    began, before = time.monotonic(), _children_cpu_s()
    first_s, clock_jumps, summary = math.inf, 0, dict[str, Any]()
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        command = (*PROGRAM, "--keep", directory, *options)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                entry = json.loads(line)
                if entry["kind"] == "decision":
                    first_s = min(first_s, time.monotonic() - began)
                clock_jumps += Reason.CLOCK_JUMP in entry.get("reasons", ())
                summary = entry if entry["kind"] == "summary" else summary
    # It also fails where other jobs lead to less than its story, which is no matter here.
    if not summary:
        raise subprocess.CalledProcessError(process.returncode, command)
    return RunResult(summary, clock_jumps, first_s, time.monotonic() - began, _children_cpu_s() - before)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def other_work(processes: int) -> Iterator[None]:
    """Keep so many processes at work meanwhile."""
    started = [subprocess.Popen((sys.executable, "-c", WORK)) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def by_simulated(summary: dict[str, Any]) -> float:
    """Return what the lived hour cost over what it costs simulated; the run's own policy is the first of the others."""
    return float(summary["lived"]["cost"] / summary["others"][0]["cost"])


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--policies", default="queue-rule,learned", help="separated by commas (queue-rule,learned)")
    parser.add_argument("--seeds", default="1993,1994", help="choices of jobs, separated by commas (default 1993,1994)")
    parser.add_argument("--minutes", default="240", help="simulated minutes (default 240)")
    parser.add_argument("--slow-speed", default="120", help="of the run that the first is compared with (default 120)")
    parser.add_argument("--busy", type=int, default=2 * (os.cpu_count() or 1), help="processes beside it (two a core)")
    parser.add_argument("--no-whole", action="store_true", help="leave out the run with faults and all sections")
    asked = parser.parse_args(given)
    ratios: dict[str, dict[str, float]] = {"": {}, "_busy": {}}
    clock_jumps, walls, costs = 0, dict[str, list[float]](), list[float]()

    def fleet_alone(policy: str, seed: str, *more: str) -> RunResult:
        about = ("--section", "fleet", "--fault", "none", "--minutes", asked.minutes, "--seed", seed)
        return lived(asked.directory, *about, "--set", f"FLEETS__web__POLICY={policy}", *more)

    for suffix, processes in (("", 0), ("_busy", asked.busy)):
        for policy in asked.policies.split(","):
            for seed in asked.seeds.split(","):
                with other_work(processes):
                    one = fleet_alone(policy, seed)
                ratios[suffix][f"{policy} {seed}"] = ratio = by_simulated(one.summary)
                costs.append(one.summary["lived"]["cost"])
                clock_jumps += one.clock_jumps
                walls.setdefault(suffix, []).append(one.wall_s)
                progress(f"{policy}, seed {seed}, beside {processes}: {ratio:.4f} of simulated, {one.wall_s:.0f} s")
    figures: dict[str, float] = {"clock_jumps": clock_jumps}
    targets = [Target("clock_jumps", 0)]
    for suffix, found in ratios.items():
        figures[f"lived_by_simulated{suffix}"] = fmean(found.values())
        figures[f"lived_off{suffix}"] = max(abs(ratio - 1.0) for ratio in found.values())
        figures[f"fleet_wall_s{suffix}"] = median(walls[suffix])
        targets.append(Target(f"lived_off{suffix}", AGREE_WITHIN))
    slow = fleet_alone(asked.policies.split(",")[0], asked.seeds.split(",")[0], "--speed", asked.slow_speed)
    figures["fast_by_slow"] = costs[0] / slow.summary["lived"]["cost"]
    if not asked.no_whole:
        whole = [lived(asked.directory) for _ in range(asked.runs)]
        figures["first_decision_wall_s"] = median(one.first_s for one in whole)
        figures["whole_wall_s"] = median(one.wall_s for one in whole)
        figures["whole_cpu_s"] = median(one.cpu_s for one in whole)
        targets += [Target("first_decision_wall_s", FIRST_DECISION_S), Target("whole_wall_s", WHOLE_S)]
    return report(
        "dry_run",
        figures,
        as_json=asked.json,
        targets=targets,
        notes={"lived_by_simulated": ratios[""], "lived_by_simulated_busy": ratios["_busy"], "busy": asked.busy},
    )


if __name__ == "__main__":
    raise SystemExit(main())
