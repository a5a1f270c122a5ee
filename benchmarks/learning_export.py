"""Exporting what a ledger recorded for learning: a year of one fleet as a trace and as a world.

export_year_s: seconds of `trimtab trace from-ledger` for 525,600 generated minutes, in a process of its own, its start
included; export_year_cpu_s: those of processors alone, which other work does not change; export_year_mb: the most
memory. world_year_*: the same of `trimtab world from-ledger`. row_bytes: of a minute in the file, with its index.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent.autoscaling.minutes import Boot, JobLengths, MinuteContext, RecordedMinute, Rows, encoded
from agent.autoscaling.store import FleetStore
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.state import LoopState
from benchmarks.report import Figures, Target, arguments, progress, report
from domain.decisions import Mode
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import Terms

YEAR_MINUTES = 525_600
START_S = 1_764_547_200.0
DAY_MINUTES = 1440
JOBS_PER_MINUTE = 4.0
TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
FLEET = Fleet("web", tuple(Group(f"workers_{t.cores}", f"web-{t.cores}", t, 1, 10) for t in TYPES))
TERMS = Terms(0.036, 300.0, 120.0, 300.0, (45.0,) * 3, (97.0,) * 3)
CONTEXT = MinuteContext(FLEET, "queue-rule", Mode.ACT, RailLimits(), TERMS)
LARGEST_MB = 300.0


def generated(minutes: int, seed: int = 7) -> Iterator[RecordedMinute]:
    """Yield minutes of a fleet whose load follows the day; a boot in one of ten, a gap of an hour each week."""
    rng = np.random.default_rng(seed)
    rhythm = JOBS_PER_MINUTE * (1.0 + np.sin(2.0 * np.pi * np.arange(minutes) / DAY_MINUTES))
    jobs, boots = rng.poisson(rhythm).tolist(), rng.uniform(45.0, 97.0, minutes).tolist()
    means, booted = rng.uniform(50.0, 70.0, minutes).tolist(), (rng.random(minutes) < 0.1).tolist()
    for n in range(minutes):
        if n % (7 * DAY_MINUTES) < 60 and n > 60:
            continue
        mean = means[n]
        yield RecordedMinute(
            START_S + 60.0 * (n + 1),
            1,
            CONTEXT,
            submitted=jobs[n],
            finished=jobs[n],
            waiting=jobs[n] / 3.0,
            running=jobs[n],
            lengths=JobLengths(mean, mean / 4.0, mean * 0.8, mean * 2.2, mean * 5.0),
            requested=(3, 2, 1),
            warm=(3, 2, 1),
            draining=(0, 0, 0),
            busy_cores=(jobs[n] * mean / 180.0,) * 3,
            boots=(Boot(n % 3, boots[n]),) if booted[n] else (),
        )


def build(path: Path, minutes: int) -> None:
    """Write a ledger with so many minutes, by bulk inserts."""
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record((), states={"web": LoopState(decisions=minutes)})
        first = Rows([next(generated(1))])
        with ledger.database.write() as connection:
            first.write(connection, set())
    direct = sqlite3.connect(path, isolation_level=None)
    direct.execute("PRAGMA synchronous=OFF")
    (number,) = direct.execute("SELECT context FROM learning_contexts").fetchone()
    rows = (("web", round(m.end_s), m.epoch, number, encoded(m)) for m in generated(minutes))
    direct.execute("BEGIN")
    direct.execute("DELETE FROM learning_minutes")
    direct.executemany(
        "INSERT INTO learning_minutes (fleet, minute, epoch, context, body) VALUES (?, ?, ?, ?, ?)", rows
    )
    direct.execute("COMMIT")
    direct.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    direct.close()


CHILD = """
import resource, sys
from agent.commands.main import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
"""


def measured(*words: str) -> tuple[float, float, float, dict[str, Any]]:
    """Run the program in a process of its own.

    Returns its seconds, those of processors alone, its largest memory in MB, and what it printed.
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words, "--json"], capture_output=True, text=True, check=False, env=os.environ
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    cpu_s, largest_kb = done.stderr.split()[-2:]
    return seconds, float(cpu_s), float(largest_kb) / 1024.0, json.loads(done.stdout)


def export(path: Path, folder: Path) -> tuple[Figures, dict[str, Any]]:
    """Export a ledger in both ways, and return the figures and what the first said."""
    trace = ("trace", "from-ledger", str(path), "--fleet", "web", "--force", "--out", str(folder / "year.csv.gz"))
    world = ("world", "from-ledger", str(path), "--fleet", "web", "--force", "--out", str(folder / "year.toml"))
    trace_s, trace_cpu_s, trace_mb, found = measured(*trace)
    world_s, world_cpu_s, world_mb, _ = measured(*world)
    figures = {"export_year_s": trace_s, "export_year_cpu_s": trace_cpu_s, "export_year_mb": trace_mb}
    return figures | {"world_year_s": world_s, "world_year_cpu_s": world_cpu_s, "world_year_mb": world_mb}, found


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--minutes", type=int, default=YEAR_MINUTES, help="minutes of the ledger (default a year)")
    parser.add_argument("--directory", type=Path, help="for the ledger (default: the temporary directory)")
    asked = parser.parse_args(given)
    with tempfile.TemporaryDirectory(dir=asked.directory) as place:
        path = Path(place) / "year.db"
        progress(f"building a ledger of {asked.minutes} minutes")
        began = time.monotonic()
        build(path, asked.minutes)
        build_s = time.monotonic() - began
        progress("exporting")
        rounds = [export(path, Path(place)) for _ in range(max(1, asked.runs))]
        figures = {name: float(np.median([each[name] for each, _ in rounds])) for name in rounds[0][0]}
        figures |= {"build_s": build_s, "row_bytes": path.stat().st_size / asked.minutes}
        notes = {"minutes": asked.minutes, "jobs": rounds[0][1]["jobs"], "runs": asked.runs}
    return report(
        "learning_export",
        figures,
        as_json=asked.json,
        packages=("sqlalchemy", "numpy"),
        targets=[
            Target("export_year_s", 60.0),
            Target("export_year_mb", LARGEST_MB),
            Target("world_year_mb", LARGEST_MB),
            Target("row_bytes", 150.0),
        ],
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
