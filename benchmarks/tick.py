"""A full tick of the loop (observe, settle, aggregate, propose, rails, ledger, act) over 20 fleets and 10,000 VMs.

p50_ms, p99_ms: wall time of `Loop.turn` over --ticks ticks after the warm-up; cpu_*: processor time of the same ticks.
The ledger is a real SQLite file, written through to the disk. The cloud is in memory and accepts every call: no
network, and no time of AWS's, is in these figures. Readings arrive between the ticks and are not counted; nor is
the garbage collection that the daemon does right after each (garbage_after_ms, processor time). Everything is
measured in a fresh process; peak_rss_mb is that process's, the benchmark's own cloud and VMs included.
growth: p50_ms divided by that of 100 VMs in the same 20 fleets. *_ms by phase: medians; they add up to p50_ms roughly.
bare_write_ms: the bytes that a tick stored, written by sqlite3 alone in one transaction, in the same run;
plain_python_ms: the means of the same minute computed reading by reading, against aggregate_ms.
aws_parse_ms: processor time that botocore takes to parse AWS's answer of this size, which a tick at AWS needs on top.
p99_ms is the median over the runs; p99_ms_quietest_run the least of them, for a machine that others use meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog

import agent.autoscaling.loop
from actuators.autoscaling_group import AutoScalingActuator
from agent.autoscaling.decide import decide_alone, with_shadows
from agent.autoscaling.decision import POLICY_DEADLINE_S
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.loop import Loop
from agent.autoscaling.policies.fallback import Proposer, evaluate_within
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.snapshot.aggregate import BIN_S, AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.service.chores import collect_between_turns, freeze_live_objects
from benchmarks.describe_answer import parse_ms
from benchmarks.loaded_cloud import GRACE_S, LoadedCloud, make_fleets
from benchmarks.report import Figures, Target, arguments, progress, report
from collectors.inventory import Inventory
from domain.decisions import Mode
from domain.fleet import Fleet
from domain.samples import VmMetric

ROOT = Path(__file__).resolve().parents[1]
SEED = 11
POLICIES = (
    ("queue-rule:job_core_s=120", 0.95),
    ("threshold:high=0.75,low=0.5,periods=2", 0.62),
    ("target-tracking:target=0.65,out_periods=2,in_periods=5", 0.62),
)
"""Each with the mean load that keeps its fleet near the size it starts with."""

SHADOW_EVERY = 4
LIMITS = RailLimits(max_step_out_percent=4.0, max_step_in_percent=2.0)
PLAIN_TURNS = 3
PHASES = ("observe", "read", "settle", "aggregate", "busy", "decide", "record", "act", "tend")


class Stopwatch:
    """Seconds by phase; time inside another phase counts for the inner one alone."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []

    def timed(self, phase: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted."""

        @wraps(act)
        def measured(*given: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            begin = time.perf_counter()
            try:
                return act(*given, **named)
            finally:
                took = time.perf_counter() - begin
                self.spent[phase] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return measured

    def watch(self, thing: object, **phases: str) -> None:
        """Count the time of a thing's methods, each under its phase."""
        for name, phase in phases.items():
            setattr(thing, name, self.timed(phase, getattr(thing, name)))


def measured_here(vms: int, fleets: int, ticks: int, warm_up: int, directory: Path) -> dict[str, float]:
    """Return the figures of one run in this process."""
    made = make_fleets(fleets, vms)
    chosen = [POLICIES[n % len(POLICIES)] for n in range(fleets)]
    cloud = LoadedCloud(made, vms // fleets, [level for _, level in chosen], SEED)
    store, watch = SeriesStore(watched=made), Stopwatch()
    figures: dict[str, float] = {}
    with Ledger.open(f"sqlite:///{directory / 'ledger.db'}") as ledger, _bare(directory / "bare.db") as bare:
        loop = make_loop(made, [policy for policy, _ in chosen], cloud, store, ledger)
        written = _Written(directory / "ledger.db")
        freeze_live_objects()
        for _ in range(warm_up):
            cloud.pass_minute(store)
            _turned(loop, cloud)
            collect_between_turns()
        written.since_last()
        _watch(watch, loop)
        rows, calls = [], cloud.calls
        with patch.multiple(
            agent.autoscaling.loop,
            decide_alone=watch.timed("decide", decide_alone),
            with_shadows=watch.timed("decide", with_shadows),
        ):
            for _ in range(ticks):
                cloud.pass_minute(store)
                rows.append(_one_tick(loop, cloud, watch) | {"vms": cloud.size} | _written(bare, written.since_last()))
        written.close()
        figures = _summed_up(rows) | {"cloud_calls": (cloud.calls - calls) / ticks, "peak_rss_mb": _peak_rss_mb()}
    # Only now: what these two make weighs more than the agent.
    figures["plain_python_ms"] = _plain_python_ms(made, store, cloud.clock.now() - GRACE_S)
    return figures | {"aws_parse_ms": parse_ms(cloud.described())}


def make_loop(
    fleets: Sequence[Fleet], policies: Sequence[str], cloud: LoadedCloud, store: SeriesStore, ledger: Ledger
) -> Loop:
    """Return the loop over these fleets, each with its policy; every fourth has a shadow beside it."""
    managed = tuple(
        ManagedFleet(
            fleet,
            LIMITS,
            policy,
            ("threshold",) if number % SHADOW_EVERY == 0 else (),
            AggregationSettings(limits=LIMITS, grace_s=GRACE_S),
        )
        for number, (fleet, policy) in enumerate(zip(fleets, policies, strict=True))
    )
    return Loop(
        fleets=managed,
        store=FleetStore(ledger),
        actuator=AutoScalingActuator(cloud, Inventory(cloud), fleets),
        aggregator=Aggregator(store),
        proposer=Proposer(evaluate_within(POLICY_DEADLINE_S)),
        clock=cloud.clock,
        mode=Mode.ACT,
        leads=Leads(every=ledger.take_epoch("benchmark", cloud.clock.now())),
    )


def _watch(watch: Stopwatch, loop: Loop) -> None:
    watch.watch(loop.aggregator, snapshots="aggregate", busy_cores="busy")
    watch.watch(loop.actuator, observe="observe", follow="settle", apply="act", tend="tend")
    reads = dict.fromkeys(("check_epoch", "all_controls", "controls", "open_intents"), "read")
    watch.watch(loop.store.ledger, **reads)
    watch.watch(loop.store, record="record", loop_states="read")


def _turned(loop: Loop, cloud: LoadedCloud) -> MinuteReport:
    turn = loop.turn(cloud.clock.now())
    if turn.failure or len(turn.decisions) != len(loop.fleets):
        raise RuntimeError(f"a tick did not decide for every fleet: {turn.failure or turn.events}")
    return turn


def _one_tick(loop: Loop, cloud: LoadedCloud, watch: Stopwatch) -> dict[str, float]:
    watch.spent.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    turn = _turned(loop, cloud)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    phases = {f"{phase}_ms": 1000.0 * watch.spent[phase] for phase in PHASES}
    other = 1000.0 * (wall - sum(watch.spent.values()))
    intents = sum(len(decision.intents) for decision in turn.decisions)
    begin = time.process_time()
    collect_between_turns()
    after = 1000.0 * (time.process_time() - begin)
    return {
        "wall_ms": 1000.0 * wall,
        "cpu_ms": 1000.0 * cpu,
        **phases,
        "other_ms": other,
        "garbage_after_ms": after,
        "intents": intents,
    }


def _summed_up(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    wall, cpu = ([row[name] for row in rows] for name in ("wall_ms", "cpu_ms"))
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0] if name.endswith("_ms")}
    figures = {"p50_ms": middle.pop("wall_ms"), "p99_ms": _p99(wall), "max_ms": max(wall)}
    figures |= {"cpu_p50_ms": middle.pop("cpu_ms"), "cpu_p99_ms": _p99(cpu)} | middle
    means = {name: statistics.mean(row[name] for row in rows) for name in ("vms", "intents", "bytes")}
    return figures | {f"{name}_per_tick": mean for name, mean in means.items()}


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def _peak_rss_mb() -> float:
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            # The process's own peak: that of getrusage starts from its parent's.
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024.0
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 1024.0


# The baselines


class _Written:
    """What a ledger file gained, read beside it."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._journal = self._decisions = 0

    def since_last(self) -> list[bytes]:
        """Return the stored bodies added since the last call, and the loop states that were written over."""
        blobs: list[bytes] = []
        for table, column in (("journal", "body"), ("decisions", "inputs")):
            before = self._journal if table == "journal" else self._decisions
            found = self._file.execute(f"SELECT rowid, {column} FROM {table} WHERE rowid > ?", (before,)).fetchall()
            blobs += [row[1] for row in found]
            last = max((row[0] for row in found), default=before)
            self._journal, self._decisions = (last, self._decisions) if table == "journal" else (self._journal, last)
        return blobs + [row[0] for row in self._file.execute("SELECT body FROM state WHERE key = 'loop'")]

    def close(self) -> None:
        self._file.close()


@contextmanager
def _bare(path: Path) -> Iterator[sqlite3.Connection]:
    bare = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        bare.execute(f"PRAGMA {pragma}").fetchall()
    bare.execute("CREATE TABLE bare (body BLOB)")
    yield bare
    bare.close()


def _written(bare: sqlite3.Connection, blobs: Sequence[bytes]) -> dict[str, float]:
    begin = time.perf_counter()
    bare.execute("BEGIN IMMEDIATE")
    bare.executemany("INSERT INTO bare VALUES (?)", [(blob,) for blob in blobs])
    bare.execute("COMMIT")
    return {"bare_write_ms": 1000.0 * (time.perf_counter() - begin), "bytes": sum(map(len, blobs))}


def _plain_python_ms(fleets: Sequence[Fleet], store: SeriesStore, end: float) -> float:
    """Return the time that the minute's means take, over CPU, RAM and busy cores, reading by reading."""
    columns = [column for column, metric in enumerate(VmMetric) if metric is not VmMetric.WORK_CORE_SECONDS]
    held = [
        [[store.readings(rows[column], end) for rows in store.vm_rows(fleet.name, group.key).values()]]
        for fleet in fleets
        for group in fleet.groups
        for column in columns
    ]
    took = []
    for _ in range(PLAIN_TURNS):
        begin = time.perf_counter()
        for series in (series for group in held for series in group):
            inside = [[value for at, value in readings if end - BIN_S < at <= end] for readings in series]
            means = [sum(values) / len(values) for values in inside if values]
            _ = sum(means) / len(means) if means else 0.0
        took.append(time.perf_counter() - begin)
    return 1000.0 * statistics.median(took)


# Runs


def _in_fresh_process(asked: Namespace, vms: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.tick", "--one", "--vms", str(vms), "--fleets", str(asked.fleets)]
    command += ["--ticks", str(asked.ticks), "--warm-up", str(asked.warm_up)]
    if asked.directory:
        command += ["--directory", str(asked.directory)]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def _run(asked: Namespace, number: int) -> dict[str, float]:
    progress(f"run {number} of {asked.runs}: {asked.ticks} ticks of {asked.fleets} fleets with {asked.vms} VMs")
    large = _in_fresh_process(asked, asked.vms)
    progress(f"  p50 {large['p50_ms']:.0f} ms, p99 {large['p99_ms']:.0f} ms, peak {large['peak_rss_mb']:.0f} MB")
    progress(f"run {number} of {asked.runs}: the same with {asked.few} VMs")
    small = _in_fresh_process(asked, asked.few)
    return large | {
        "growth": large["p50_ms"] / small["p50_ms"],
        "growth_cpu": large["cpu_p50_ms"] / small["cpu_p50_ms"],
        "p50_ms_few": small["p50_ms"],
        "p99_ms_few": small["p99_ms"],
        "peak_rss_mb_few": small["peak_rss_mb"],
        "ratio_vs_bare_write": large["p50_ms"] / large["bare_write_ms"],
        "ratio_plain_python_vs_aggregate": large["plain_python_ms"] / large["aggregate_ms"],
    }


def _medians(runs: Sequence[Figures]) -> dict[str, float]:
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return figures | {"p99_ms_quietest_run": min(run["p99_ms"] for run in runs)}


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--vms", type=int, default=10_000, help="VMs in all (default 10000)")
    parser.add_argument("--few", type=int, default=100, help="VMs in all that growth is taken from (default 100)")
    parser.add_argument("--fleets", type=int, default=20, help="fleets of three groups each (default 20)")
    parser.add_argument("--ticks", type=int, default=120, help="ticks measured per run (default 120)")
    parser.add_argument("--warm-up", type=int, default=15, help="ticks before those (default 15)")
    parser.add_argument("--one", action="store_true", help="measure once, in this process, and print the bare figures")
    asked = parser.parse_args(given)
    if asked.one:
        with tempfile.TemporaryDirectory(dir=asked.directory) as place, open(os.devnull, "w", encoding="utf-8") as sink:
            log_to(sink)
            print(json.dumps(measured_here(asked.vms, asked.fleets, asked.ticks, asked.warm_up, Path(place))))
        return 0
    figures = _medians([_run(asked, number) for number in range(1, max(1, asked.runs) + 1)])
    return report(
        "tick",
        figures,
        as_json=asked.json,
        packages=("numpy", "sqlalchemy", "pydantic"),
        targets=[Target("p99_ms", 250.0), Target("peak_rss_mb", 250.0)],
        notes={
            "vms": asked.vms,
            "vms_few": asked.few,
            "fleets": asked.fleets,
            "groups_per_fleet": 3,
            "series_per_vm": len(VmMetric),
            "ticks_per_run": asked.ticks,
            "runs": asked.runs,
            "policies": [policy for policy, _ in POLICIES],
            "cloud": "in memory, accepts every call; no network",
            "sqlite": f"{sqlite3.sqlite_version}, write-ahead log, synchronous=FULL",
        },
    )


def log_to(sink: Any) -> None:
    """Render log events as the daemon does, and throw them away."""
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(file=sink),
    )


if __name__ == "__main__":
    sys.exit(main())
