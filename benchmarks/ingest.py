"""Ingest: Graphite lines per CPU-second of the receiving process, ours beside a real carbon-cache.

20,000 series (5,000 VMs with four metrics) arrive over 64 TCP connections, the same bytes for both, each receiver in a
process of its own. lines_per_cpu_s: lines of all rounds but the first (which makes the series known) by the receiver's
user and system time over them, as the kernel counts it for the whole process. Both must have taken every line: ours by
the listener's counters, carbon by its own `metricsReceived` and by what its cache answers. carbon's limits are off and
its writer is held back, so that it receives and caches and writes no files.

Then three receivers share the fleets, a third each, as agents on one PostgreSQL ledger do. Each is sent lines of every
fleet, 300,000 lines/s over all, so that two thirds are forwarded. Every line must be taken once, by the leader of its
fleet. sharded_cpu_ratio: CPU time per line of the three by that of one receiver that forwards nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.report import Figures, Target, arguments, progress, repeat, report
from domain.samples import VmMetric, VmSeries
from tests.collectors.graphite.installation import NotInstallable, installed
from tests.collectors.graphite.real_graphite import Carbon, running_carbon

VMS = 5_000
CONNECTIONS = 64
AGENTS = 3
EVERY_S = 10
RECEIVER = "--receiver"
TAKES_AT_MOST_S = 120.0
NO_WRITES = "0.001"
"""Updates a second: carbon writes one of its own series and then waits, for longer than a run lasts."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A process that takes lines on a port, and how to ask it how many it has taken.

    relay_port, lead: of ours, the port for forwarded lines, and how to name the ports of other fleets' leaders.
    """

    port: int
    process: psutil.Process
    taken: Callable[[], float]
    relay_port: int = 0
    lead: Callable[[Mapping[str, int]], None] = lambda ports: None

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        used = self.process.cpu_times()
        return used.user + used.system


def rounds(
    count: int, vms: int, now: float, seed: int, fleets: Sequence[str] = ("web",), every_s: int = EVERY_S
) -> list[list[bytes]]:
    """Return `count` rounds of one line for each series, ending at `now`; a chunk per connection.

    vms: in all; they belong to the fleets in turn.
    """
    dice = random.Random(seed)
    heads = [
        f"{VmSeries(fleets[vm % len(fleets)], 'workers_s', _vm(vm), metric).path} ".encode()
        for vm in range(vms)
        for metric in VmMetric
    ]
    share = -(-len(heads) // CONNECTIONS)
    made = []
    for number in range(count):
        at = int(now) - every_s * (count - 1 - number)
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
            return float(result["stored"])

        def lead(ports: Mapping[str, int]) -> None:
            asks.write(f"{json.dumps(ports)}\n")
            taken()

        try:
            port, relay_port = map(int, answers.readline().split())
            yield Receiver(port, psutil.Process(process.pid), taken, relay_port, lead)
        finally:
            process.terminate()


def receive() -> None:
    """Be the receiver: print both ports, then the counters whenever asked by a line of input.

    A line with text is the leader's port for forwarded lines by fleet, of the fleets of the other receivers.
    """
    import structlog

    from agent.autoscaling.snapshot.series import SeriesStore
    from collectors.base import Refusal
    from collectors.forwarding import ForwardingSink, Peer
    from collectors.listener import GraphiteListener
    from domain.samples import fleet_of
    from domain.subject import Subject, fleet_subject

    class CountedStore(SeriesStore):
        """Counts the readings that it took: those that wait for another agent are not among them."""

        taken = 0

        def append(
            self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
        ) -> list[Refusal]:
            refused = super().append(paths, values, times, now, peer)
            self.taken += len(paths) - len(refused)
            return refused

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    store, leaders = CountedStore(), dict[Subject, Peer]()
    sink = ForwardingSink(store, lambda path: fleet_subject(fleet_of(path.decode())), lambda: leaders)
    listener = GraphiteListener(sink, time.time, port=0)
    listener.start()
    counters = listener.counters
    print(listener.port, listener.relay_port, flush=True)
    for line in sys.stdin:
        if line.strip():
            ports = json.loads(line).items()
            leaders = {fleet_subject(fleet): Peer(f"port {port}", "127.0.0.1", port) for fleet, port in ports}
            continue
        forwarding = sink.counters.values()
        result = {
            "stored": store.taken,
            "rejected": counters.rejected_total + sum(each.dropped for each in forwarding),
            "examples": [text for text in counters.examples.values() if text],
        }
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


def sharded(vms: int, seconds: int, seed: int, lines_per_s: int) -> Figures:
    """Send lines of every fleet to each of three receivers that lead a third of the fleets, and count each once."""
    names = [f"web{n}" for n in range(AGENTS)]
    series = vms * len(VmMetric)
    repeats = max(1, round(lines_per_s * seconds / series))
    batches = rounds(repeats + 1, vms, time.time(), seed, names, every_s=1)
    with ExitStack() as stack:
        agents = [stack.enter_context(our_receiver()) for _ in names]
        for agent in agents:
            agent.lead(
                {name: there.relay_port for name, there in zip(names, agents, strict=True) if there is not agent}
            )
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", agents[n % AGENTS].port)))
            for n in range(CONNECTIONS)
        ]
        _send(links, batches[0])
        _until_all_taken(agents, series)
        before, began = [agent.cpu_s() for agent in agents], time.perf_counter()
        for number, batch in enumerate(batches[1:], 1):
            _send(links, batch)
            time.sleep(max(0.0, began + number * series / lines_per_s - time.perf_counter()))
        lines = repeats * series
        _until_all_taken(agents, series + lines)
        wall_s = time.perf_counter() - began
        stored = [agent.taken() for agent in agents]
        own = [len(range(first, vms, AGENTS)) * len(VmMetric) * len(batches) for first in range(AGENTS)]
        if stored != own:
            raise SystemExit(f"error: the leaders took {stored} lines, {own} are of their fleets")
        used_s = sum(agent.cpu_s() for agent in agents) - sum(before)
    return {"sharded_lines_per_s": lines / wall_s, "sharded_cpu_s_per_million": used_s / lines * 1e6}


def _until_all_taken(agents: Sequence[Receiver], lines: int) -> None:
    everything = replace(agents[0], taken=lambda: sum(agent.taken() for agent in agents))
    _until_taken(everything, lines)


def one_run(programs: Path, asked: argparse.Namespace, seeds: Iterator[int]) -> Figures:
    """Measure both with the same bytes, then three of ours that share the fleets."""
    batches = rounds(asked.rounds + 1, asked.vms, time.time(), next(seeds))
    with our_receiver() as ours:
        by_cpu, by_wall = measured(ours, batches)
    with carbon_receiver(programs, asked.directory, asked.vms, len(batches)) as carbon:
        carbon_by_cpu, carbon_by_wall = measured(carbon, batches)
    progress(f"  {by_cpu:,.0f} lines per CPU-second, carbon {carbon_by_cpu:,.0f}")
    shared = sharded(asked.vms, asked.seconds, next(seeds), asked.lines_per_s)
    return {
        **shared,
        "sharded_cpu_ratio": shared["sharded_cpu_s_per_million"] * by_cpu / 1e6,
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
    parser.add_argument("--seconds", type=int, default=10, help="of lines to three receivers in each run (default 10)")
    parser.add_argument("--lines-per-s", type=int, default=300_000, help="to three receivers (default 300,000)")
    asked = parser.parse_args(given)
    try:
        programs = installed()
    except NotInstallable as reason:
        parser.error(f"there is no carbon to compare with: {reason}")
    progress(f"sending {asked.rounds} rounds of {asked.vms * len(VmMetric)} lines to each, {asked.runs} times")
    seeds = itertools.count()
    figures = repeat(
        lambda: one_run(programs, asked, seeds),
        asked.runs,
    )
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
            Target("sharded_lines_per_s", 0.99 * asked.lines_per_s, at_most=False),
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
