"""Mapped inputs: lines of another sender per CPU-second, read, mapped by 50 rules and stored; beside carbon's rules.

2,000 VMs send under names of collectd. mapped_lines_per_cpu_s: each line is a measurement. folded_lines_per_cpu_s:
eight lines of a VM are one, the share of two processors' time. own_lines_per_cpu_s: lines under our own paths, without
a map. The rule that fits is the last of 50, and the first round, in which paths become known, is not counted.
carbon_lines_per_cpu_s: carbon-relay's own router with 50 rules of the same form, in its own environment: a line is
split, its number and time are read, and the router says where it goes. Only that: nothing is stored or sent.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.autoscaling.snapshot.series import SeriesStore
from benchmarks.report import Figures, Target, arguments, progress, repeat, report
from collectors.base import SampleSink
from collectors.intake import IntakeCounters, LineReader
from collectors.mapping import Hosts, MappedSink, map_of
from tests.collectors.graphite.installation import NotInstallable, installed

RULES, STATES = 50, ("user", "system", "idle", "wait")
CHUNK = 64 * 1024
CARBON = """
import json, sys, time
from carbon.conf import settings
from carbon.routers import DatapointRouter
rules, chunks = json.load(sys.stdin)
settings["relay-rules"] = sys.argv[1]
with open(sys.argv[1], "w") as file:
    for n, pattern in enumerate(rules):
        file.write(f"[r{n}]\\npattern = {pattern}\\ndestinations = 127.0.0.1:20{n + 10}:a\\n\\n")
    file.write("[default]\\ndefault = true\\ndestinations = 127.0.0.1:2004:a\\n")
router = DatapointRouter.plugins["rules"](settings)
for n in range(len(rules)):
    router.addDestination(("127.0.0.1", int(f"20{n + 10}"), "a"))
router.addDestination(("127.0.0.1", 2004, "a"))
lines = [line for chunk in chunks for line in chunk.split("\\n") if line]
began = time.process_time()
for line in lines:
    metric, value, at = line.split()
    float(value), float(at)
    for destination in router.getDestinations(metric):
        pass
print(json.dumps(len(lines) / (time.process_time() - began)))
"""


def table_of(rule: Mapping[str, object]) -> dict[str, object]:
    """Return a map whose last rule is this one."""
    others = [{"from": f"unit{n}.{{host}}.value", "to": "busy_cores"} for n in range(RULES - 1)]
    return {"series": [*others, rule]}


MEASURED = {"from": "collectd.{host}.busy", "to": "cpu_percent"}
SHARE = {
    "from": "collectd.{host}.cpu-*.cpu-{state}",
    "to": "cpu_percent",
    "fold": "share",
    "part": "state",
    "not_counted": ["idle", "wait"],
}


def chunks(heads: Sequence[str], rounds: int, now: float) -> list[list[bytes]]:
    """Return the bytes of each round, as a connection brings them: levels, of which some fall as others rise."""
    made = []
    for number in range(rounds):
        at = int(now) - rounds + number
        values = [(7 * k + (number if k % 2 else -number)) % 90 + 0.5 for k in range(len(heads))]
        text = "".join(f"{head} {value} {at}\n" for head, value in zip(heads, values, strict=True)).encode()
        made.append([text[k : k + CHUNK] for k in range(0, len(text), CHUNK)])
    return made


def rate(sink: SampleSink, heads: Sequence[str], rounds: int) -> float:
    """Return the lines per CPU-second of all rounds but the first."""
    now = time.time()
    batches, counters = chunks(heads, rounds + 1, now), IntakeCounters()
    reader = LineReader(sink, counters, lambda: now)
    for chunk in batches[0]:
        reader.feed(chunk)
    began = time.process_time()
    for batch in batches[1:]:
        for chunk in batch:
            reader.feed(chunk)
    spent_s = time.process_time() - began
    if counters.rejected_total:
        raise SystemExit(f"error: {counters.rejected_total} lines refused: {dict(counters.examples)}")
    return len(heads) * rounds / spent_s


def carbon_rate(programs: Path, heads: Sequence[str], rounds: int, place: Path) -> float:
    """Return the same of carbon-relay's router."""
    rules = [rf"^unit{n}\\.[^.]+\\.value$" for n in range(RULES - 1)] + [r"^collectd\\.[^.]+\\.cpu-.*$"]
    text = json.dumps([rules, [chunk.decode() for chunk in chunks_whole(heads, rounds)]])
    command = [str(programs / "python"), "-c", CARBON, str(place)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: carbon's router failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(json.loads(done.stdout))


def chunks_whole(heads: Sequence[str], rounds: int) -> list[bytes]:
    """Return the bytes of each round in one piece."""
    return [b"".join(batch) for batch in chunks(heads, rounds, time.time())]


def one_run(programs: Path, vms: int, rounds: int, place: Path) -> Figures:
    """Measure each once."""
    names = [f"i-0abc{n:012x}" for n in range(vms)]
    hosts = Hosts()
    hosts.update([(("web", "workers", name), ()) for name in names])
    parts = [f"collectd.{name}.cpu-{n}.cpu-{state}" for name in names for n in range(2) for state in STATES]
    alone = [f"collectd.{name}.busy" for name in names]
    own = [f"trimtab.web.workers.{name}.cpu_percent" for name in names]
    capacity = 20 * vms
    found = {
        "mapped_lines_per_cpu_s": rate(
            MappedSink(SeriesStore(capacity), map_of(table_of(MEASURED)), hosts), alone, 8 * rounds
        ),
        "folded_lines_per_cpu_s": rate(
            MappedSink(SeriesStore(capacity), map_of(table_of(SHARE)), hosts), parts, rounds
        ),
        "own_lines_per_cpu_s": rate(SeriesStore(capacity), own, 8 * rounds),
        "carbon_lines_per_cpu_s": carbon_rate(programs, parts, rounds, place),
    }
    found["ratio_vs_carbon"] = found["folded_lines_per_cpu_s"] / found["carbon_lines_per_cpu_s"]
    progress(f"  {found['mapped_lines_per_cpu_s']:,.0f} mapped, {found['folded_lines_per_cpu_s']:,.0f} folded")
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    import tempfile

    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--vms", type=int, default=2000, help="VMs, with eight lines each (default 2000)")
    parser.add_argument("--rounds", type=int, default=20, help="lines of each series and run (default 20)")
    asked = parser.parse_args(given)
    try:
        programs = installed()
    except NotInstallable as reason:
        parser.error(f"there is no carbon to compare with: {reason}")
    with tempfile.TemporaryDirectory(dir=asked.directory) as place:
        rules = Path(place) / "relay-rules.conf"
        figures = repeat(lambda: one_run(programs, asked.vms, asked.rounds, rules), asked.runs)
    return report(
        "inputs",
        figures,
        as_json=asked.json,
        packages=("numpy",),
        targets=[
            Target("mapped_lines_per_cpu_s", 400_000, at_most=False),
            Target("folded_lines_per_cpu_s", 400_000, at_most=False),
        ],
        notes={"vms": asked.vms, "rounds": asked.rounds, "rules": RULES, "runs": asked.runs},
    )


if __name__ == "__main__":
    sys.exit(main())
