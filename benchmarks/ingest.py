"""Ingest: Graphite lines per CPU-second of the receiving process, ours beside a real carbon-cache.

20,000 series (5,000 VMs with four metrics) arrive over 64 TCP connections, the same bytes for both, each receiver in a
process of its own. lines_per_cpu_s: lines of all rounds but the first (which makes the series known) by the receiver's
user and system time over them, as the kernel counts it for the whole process. Both must have taken every line: ours by
the listener's counters, carbon by its own `metricsReceived` and by what its cache answers. carbon's limits are off and
its writer is held back, so that it receives and caches and writes no files.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import Figures, Target, arguments, progress, repeat, report
from domain.samples import VmMetric, VmSeries
from tests.collectors.graphite.installation import NotInstallable, installed
from tests.collectors.graphite.real_graphite import Carbon, running_carbon

VMS = 5_000
CONNECTIONS = 64
EVERY_S = 10
RECEIVER = "--receiver"
TAKES_AT_MOST_S = 120.0
NO_WRITES = "0.001"
"""Updates a second: carbon writes one of its own series and then waits, for longer than a run lasts."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A process that takes lines on a port, and how to ask it how many it has taken."""

    port: int
    process: psutil.Process
    taken: Callable[[], float]

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        used = self.process.cpu_times()
        return used.user + used.system


def rounds(count: int, vms: int, now: float, seed: int) -> list[list[bytes]]:
    """Return `count` rounds of one line for each series, 10 s apart and ending at `now`; a chunk per connection."""
    dice = random.Random(seed)
    heads = [
        f"{VmSeries('web', 'workers_s', _vm(vm), metric).path} ".encode() for vm in range(vms) for metric in VmMetric
    ]
    share = -(-len(heads) // CONNECTIONS)
    made = []
    for number in range(count):
        at = int(now) - EVERY_S * (count - 1 - number)
        tails = [b"%.4f %d\n" % (dice.uniform(0.0, 100.0), at) for _ in range(997)]
        lines = [head + tail for head, tail in zip(heads, itertools.cycle(tails), strict=False)]
        made.append([b"".join(lines[first : first + share]) for first in range(0, len(lines), share)])
    return made


def _vm(number: int) -> str:
    return f"i-0abc{number:012x}"


def measured(receiver: Receiver, batches: Sequence[Sequence[bytes]]) -> tuple[float, float]:
    """Send every round and return (lines by CPU-second, lines by second) over all but the first."""
    series = sum(chunk.count(b"\n") for chunk in batches[0])
    with ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", receiver.port))) for _ in range(CONNECTIONS)
        ]
        _send(links, batches[0])
        _until_taken(receiver, series)
        cpu_s, began = receiver.cpu_s(), time.perf_counter()
        for batch in batches[1:]:
            _send(links, batch)
        _until_taken(receiver, series * len(batches))
        lines = series * (len(batches) - 1)
        # The kernel counts in hundredths of a second, so a very short run may show none.
        used_s = max(0.01, receiver.cpu_s() - cpu_s)
        return lines / used_s, lines / (time.perf_counter() - began)


def _send(links: Sequence[socket.socket], chunks: Sequence[bytes]) -> None:
    for link, chunk in zip(links, chunks, strict=False):
        link.sendall(chunk)


def _until_taken(receiver: Receiver, lines: int) -> None:
    deadline = time.monotonic() + TAKES_AT_MOST_S
    while (taken := receiver.taken()) < lines:
        if time.monotonic() > deadline:
            raise SystemExit(f"error: {taken:.0f} of {lines} lines taken after {TAKES_AT_MOST_S:g} s")
        time.sleep(0.05)
    if taken > lines:
        raise SystemExit(f"error: {taken:.0f} lines taken, only {lines} sent")


@contextmanager
def our_receiver() -> Iterator[Receiver]:
    """Run the listener over a store in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ingest", RECEIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def taken() -> float:
            asks.write("\n")
            asks.flush()
            result = json.loads(answers.readline())
            if result["rejected"]:
                raise SystemExit(f"error: {result['rejected']} lines refused: {result['examples']}")
            return float(result["accepted"])

        try:
            yield Receiver(int(answers.readline()), psutil.Process(process.pid), taken)
        finally:
            process.terminate()


def receive() -> None:
    """Be the receiver: print the port, then the counters whenever asked by a line of input."""
    import structlog

    from agent.autoscaling.snapshot.series import SeriesStore
    from collectors.listener import GraphiteListener

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    listener = GraphiteListener(SeriesStore(), time.time, port=0)
    listener.start()
    counters = listener.counters
    print(listener.port, flush=True)
    for _ in sys.stdin:
        examples = [text for text in counters.examples.values() if text]
        result = {"accepted": counters.accepted, "rejected": counters.rejected_total, "examples": examples}
        print(json.dumps(result), flush=True)


@contextmanager
def carbon_receiver(programs: Path, directory: Path | None, vms: int, per_series: int) -> Iterator[Receiver]:
    """Run a real carbon-cache; its lines are counted by its own counter, and in the end by the content of its cache."""
    with (
        tempfile.TemporaryDirectory(dir=directory) as place,
        running_carbon(programs, Path(place), updates_per_s=NO_WRITES, own_interval_s=1) as carbon,
    ):
        counter = f"{carbon.own_prefix}.metricsReceived"

        def taken() -> float:
            return sum(value for _, value in carbon.cached(counter))

        # What its writer takes out of the cache before it is held back must not be a count of ours.
        while len(carbon.cached(counter)) < 2:
            time.sleep(0.1)
        try:
            yield Receiver(carbon.port, psutil.Process(carbon.process.pid), taken)
            _check_cached(carbon, vms, per_series)
        finally:
            # Its writer sleeps, and would keep it from ending by itself.
            carbon.process.kill()


def _check_cached(carbon: Carbon, vms: int, per_series: int) -> None:
    for vm in (0, vms // 2, vms - 1):
        path = VmSeries("web", "workers_s", _vm(vm), VmMetric.CPU_PERCENT).path
        held = len(carbon.cached(path))
        if held != per_series:
            raise SystemExit(f"error: carbon's cache holds {held} readings of {path}, {per_series} were sent")


def one_run(programs: Path, directory: Path | None, vms: int, count: int, seeds: Iterator[int]) -> Figures:
    """Measure both with the same bytes."""
    batches = rounds(count + 1, vms, time.time(), next(seeds))
    with our_receiver() as ours:
        by_cpu, by_wall = measured(ours, batches)
    with carbon_receiver(programs, directory, vms, len(batches)) as carbon:
        carbon_by_cpu, carbon_by_wall = measured(carbon, batches)
    progress(f"  {by_cpu:,.0f} lines per CPU-second, carbon {carbon_by_cpu:,.0f}")
    return {
        "lines_per_cpu_s": by_cpu,
        "carbon_lines_per_cpu_s": carbon_by_cpu,
        "ratio_vs_carbon": by_cpu / carbon_by_cpu,
        "lines_per_s": by_wall,
        "carbon_lines_per_s": carbon_by_wall,
    }


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--rounds", type=int, default=50, help="lines for each series and run (default 50)")
    parser.add_argument("--vms", type=int, default=VMS, help=f"VMs, each with four series (default {VMS})")
    asked = parser.parse_args(given)
    try:
        programs = installed()
    except NotInstallable as reason:
        parser.error(f"there is no carbon to compare with: {reason}")
    progress(f"sending {asked.rounds} rounds of {asked.vms * len(VmMetric)} lines to each, {asked.runs} times")
    seeds = itertools.count()
    figures = repeat(lambda: one_run(programs, asked.directory, asked.vms, asked.rounds, seeds), asked.runs)
    carbon = next(
        line for line in (Path("tests/collectors/graphite/requirements.txt")).read_text().split() if "carbon==" in line
    )
    return report(
        "ingest",
        figures,
        as_json=asked.json,
        packages=("numpy",),
        targets=[
            Target("lines_per_cpu_s", 1_000_000, at_most=False),
            Target("ratio_vs_carbon", 8.0, at_most=False),
        ],
        notes={
            "series": asked.vms * len(VmMetric),
            "connections": CONNECTIONS,
            "rounds": asked.rounds,
            "runs": asked.runs,
            "compared_with": carbon,
        },
    )


if __name__ == "__main__":
    if sys.argv[1:] == [RECEIVER]:
        receive()
    else:
        sys.exit(main())
