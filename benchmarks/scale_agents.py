"""Several agents on one PostgreSQL ledger: what fleets cost, and what happens to them when an agent is killed.

Each agent is the daemon in a process (`benchmarks.shared_agent`), on a clock that runs --speed times as fast as the
wall. A lease and its renewal are --speed times shorter on the wall, so that they keep their lengths on this clock, the
lease clock; PostgreSQL's clock is the wall's, and only differences of it count. Not shorter: the second between two
batches of subjects that move. All agents are announced before the first takes a fleet.

    double_acts                changing calls under an epoch that was not the newest of its fleet, and further epochs
                               under which turns that decided one minute of a fleet made calls
    takeover_p99_s             from SIGKILL until a fleet's decision by another agent is in the ledger, on the lease
                               clock, over all fleets of the killed agents; each at another phase of the minute
    cpu_ms_per_fleet           processor time of all agents per fleet and minute, intake_cpu_ms of it for readings; not
                               the cloud, not the load, not the parsing of lines or of AWS's answers
    postgres_cpu_ms_per_fleet  processor time of all processes of the server per fleet and minute
    ledger_bytes_per_decision  growth of tables and indexes by decision; wal_bytes_per_decision: of the log
    ledger_rows_per_s          rows added, by second of the clock; ledger_writes_per_s: added, changed and removed
    aws_reads_per_fleet        calls of all agents that read, per fleet and minute
    decided_share              fleets and minutes with a decision, of all; turn_p99_s: duration of a turn on the clock

Written before the runs: double_acts is 0, every fleet of a killed agent is taken over within a lease, two intervals
and a grace (UNDECIDED_S), and at least 99 % of fleets and minutes are decided before the first kill.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg

from agent.ledger import Ledger
from benchmarks.loaded_cloud import GRACE_S, START
from benchmarks.report import progress
from benchmarks.shared_agent import MINUTE_S, Task
from domain.clock import ScaledClock
from tests.agent.ledger.postgres.server import Server, programs, running_server

NAMES = ("north", "east", "west", "south", "middle", "coast", "hill", "lake")
LEASE_S, RENEW_S = 30.0, 10.0
UNDECIDED_S = LEASE_S + 2.0 * MINUTE_S + GRACE_S
PATIENCE_S = 600.0
WARM_UP_MINUTES = 2
SEED = 3

FIGURES = (
    *("double_acts", "changing_calls", "takeovers", "takeover_p50_s", "takeover_p99_s", "takeover_max_s"),
    *("cpu_ms_per_fleet", "intake_cpu_ms", "postgres_cpu_ms_per_fleet", "ledger_bytes_per_decision"),
    *("ledger_bytes_per_s", "wal_bytes_per_decision", "ledger_rows_per_s", "ledger_writes_per_s"),
    *("aws_reads_per_fleet", "decided_share", "turn_p99_s", "agent_rss_mb"),
)
Figures = Mapping[str, float | None]
Notes = Mapping[str, object]
Call = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """The state of the server at a time of the clock."""

    at: float
    cpu_s: float
    wal_bytes: int
    bytes_of: Mapping[str, int]
    added: int
    written: int


@dataclass(slots=True)
class Process:
    """A process of an agent, and what it has recorded so far."""

    task: Task
    popen: subprocess.Popen[str]
    read_to: int = 0

    def new_records(self) -> Iterator[dict[str, Any]]:
        """Yield what was recorded since the last call."""
        if not self.task.records.exists():
            return
        with self.task.records.open("rb") as file:
            file.seek(self.read_to)
            whole, _, _ = file.read().rpartition(b"\n")
        self.read_to += len(whole) + 1 if whole else 0
        yield from map(json.loads, whole.splitlines())


class Installation:
    """The agents of a run, their records, and the server."""

    def __init__(self, asked: Namespace, server: Server, directory: Path, stack: ExitStack) -> None:
        self.server, self._stack = server, stack
        url = server.new_database("scale")
        Ledger.open(url).close()
        self.clock = ScaledClock(START, time.time(), asked.speed)
        on_wall = {"lease_s": LEASE_S / asked.speed, "renew_s": RENEW_S / asked.speed}
        sizes = {"fleets": asked.fleets, "vms_per_fleet": asked.vms_per_fleet}
        self._first = Task(
            "",
            0,
            **sizes,
            url=url,
            directory=str(directory),
            begins=self.clock.wall_origin,
            speed=asked.speed,
            **on_wall,
        )
        self.truth = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self.running: dict[str, Process] = {}
        self.records: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def start(self, name: str) -> None:
        """Start a process of this name."""
        task = replace(self._first, name=name, number=len(self.records) + 1)
        self.records[f"{name}-{task.number}"] = []
        command = [sys.executable, "-m", "benchmarks.shared_agent"]
        popen = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        self._stack.callback(_end, popen)
        assert popen.stdin is not None
        json.dump(asdict(task), popen.stdin)
        popen.stdin.close()
        self.running[name] = Process(task, popen)

    def look(self) -> None:
        """Read what the processes have recorded meanwhile."""
        for name, process in self.running.items():
            self.records[f"{name}-{process.task.number}"] += process.new_records()
            if process.popen.poll() is not None:
                raise RuntimeError(f"agent {name} has ended with status {process.popen.returncode}")

    def wait(self, what: str, is_so: Any, patience_s: float = PATIENCE_S) -> None:
        """Wait on the clock until something is so; RuntimeError after `patience_s` of wall time."""
        until = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > until:
                raise RuntimeError(f"after {patience_s:g} s not yet: {what}")
            time.sleep(0.05)
            self.look()

    def is_ready(self, name: str) -> bool:
        """Return whether the present process of a name has started."""
        return bool(self.records[f"{name}-{self.running[name].task.number}"])

    def open_gate(self) -> None:
        """Let the agents take fleets."""
        self._first.gate.touch()

    @property
    def calls(self) -> list[Call]:
        """The changing calls of all processes, in order."""
        return [json.loads(line) for line in self._first.calls.read_text("utf-8").splitlines()]

    def kill(self, name: str) -> tuple[float, frozenset[str]]:
        """Kill an agent; return when, and which fleets it led."""
        process = self.running.pop(name)
        query = "SELECT subject FROM lease JOIN agent ON process = owner WHERE name = %s"
        process.popen.send_signal(signal.SIGKILL)
        at = self.clock.now()
        process.popen.wait()
        led = self.truth.execute(query, [name]).fetchall()
        self.records[f"{name}-{process.task.number}"] += process.new_records()
        return at, frozenset(subject.partition("/")[2] for (subject,) in led)

    def measured(self) -> Measured:
        """Measure the server."""
        tables = self.truth.execute(
            "SELECT relname, pg_total_relation_size(relid), n_tup_ins, n_tup_ins + n_tup_upd + n_tup_del "
            "FROM pg_stat_user_tables"
        ).fetchall()
        (wal,) = self.truth.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone() or (0,)
        postmaster = psutil.Process(int((self.server.directory / "data/postmaster.pid").read_text().splitlines()[0]))
        own = postmaster.cpu_times()
        # The times of sessions that have ended are among the postmaster's children.
        used_s = own.user + own.system + own.children_user + own.children_system
        for child in postmaster.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                of_child = child.cpu_times()
                used_s += of_child.user + of_child.system
        return Measured(
            self.clock.now(),
            used_s,
            int(wal),
            {name: size for name, size, *_ in tables},
            sum(added for _, _, added, _ in tables),
            sum(written for *_, written in tables),
        )


def _end(popen: subprocess.Popen[str]) -> None:
    popen.kill()
    popen.wait()


def scaled_agents(asked: Namespace) -> tuple[Figures, Notes]:
    """Return the figures of a run, and notes; no figures without a PostgreSQL server."""
    if not (programs() / "initdb").exists():
        progress("no PostgreSQL server is installed: several agents are not measured")
        return dict.fromkeys(FIGURES), {}
    names = NAMES[: asked.agents]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=asked.directory)))
        server = stack.enter_context(running_server())
        server.stop()
        # As delivered but for autovacuum, whose interval is a minute of the clock.
        server.start(fsync="on", autovacuum_naptime=max(1, round(MINUTE_S / asked.speed)))
        there = Installation(asked, server, directory, stack)
        for name in names:
            there.start(name)
        there.wait("all agents have started", lambda: all(map(there.is_ready, names)))
        progress(f"{asked.agents} agents with {asked.fleets} fleets are up")
        there.open_gate()
        leased = "SELECT count(*) FROM lease"
        there.wait("every fleet is led", lambda: there.truth.execute(leased).fetchone() == (asked.fleets,))
        _pass(there, WARM_UP_MINUTES)
        before = there.measured()
        _pass(there, asked.minutes)
        after = there.measured()
        progress(f"measured {asked.minutes} minutes; now {asked.kills} kills")
        dice, took = random.Random(SEED), []
        for number in range(asked.kills):
            name = max(there.running, key=lambda one: (_led(there, one), one))
            phase_s = MINUTE_S * (number + dice.random()) / asked.kills
            there.clock.sleep((phase_s - there.clock.now()) % MINUTE_S)
            took += _taken_over(there, name)
            progress(f"kill {number + 1}: {name}; longest so far {max(took):.0f} s")
            there.start(name)
            there.wait("the agent has started again", lambda name=name: there.is_ready(name))
            _pass(there, 1)
        # The last calls are on their way.
        _pass(there, 1)
        calls = _calls_per_minute(there, before, after)
        figures = _of_window(there, before, after, asked.fleets) | {
            "aws_reads_per_fleet": sum(n for name, n in calls.items() if name.startswith("Describe")) / asked.fleets,
            "double_acts": double_acts(there.calls),
            "changing_calls": len(there.calls),
            "takeovers": len(took),
            "takeover_p50_s": _quantile(took, 0.5),
            "takeover_p99_s": _quantile(took, 0.99),
            "takeover_max_s": max(took, default=None),
        }
        sizes = {
            name: getattr(asked, name) for name in ("agents", "fleets", "vms_per_fleet", "speed", "minutes", "kills")
        }
        by_operation = {name: round(n, 1) for name, n in sorted(calls.items())}
        return figures, sizes | {"aws_calls_per_minute": by_operation} | _growth(before, after)


def _pass(there: Installation, minutes: float) -> None:
    until = there.clock.now() + MINUTE_S * minutes
    there.wait("minutes pass", lambda: there.clock.now() >= until)


def _led(there: Installation, name: str) -> int:
    of = there.records[f"{name}-{there.running[name].task.number}"]
    return next((int(one["led"]) for one in reversed(of) if one["kind"] == "usage"), 0)


def _taken_over(there: Installation, name: str) -> list[float]:
    """Kill an agent and return how long each of its fleets was without a decision by another one."""
    at, fleets = there.kill(name)
    others = [f"{one}-{process.task.number}" for one, process in there.running.items()]
    first: dict[str, float] = {}

    def all_decided() -> bool:
        for other in others:
            for record in there.records[other]:
                if record["kind"] == "decided" and record["at"] > at:
                    for fleet in fleets.intersection(record["fleets"]):
                        first[fleet] = min(first.get(fleet, record["at"]), record["at"])
        return first.keys() >= fleets

    there.wait(f"every fleet of {name} is decided by another agent", all_decided)
    return [decided_at - at for decided_at in first.values()]


def double_acts(calls: Sequence[Call]) -> int:
    """Return how many calls a second leader made.

    These are calls under an epoch that was not the newest of its fleet, and for each fleet and minute the epochs beyond
    the first under which calls were made.
    """
    deposed = len([call for call in calls if call["epoch"] != call["newest"]])
    epochs: dict[tuple[str, int], set[int]] = defaultdict(set)
    for call in calls:
        epochs[call["fleet"], call["minute"]].add(call["epoch"])
    return deposed + sum(len(of_minute) - 1 for of_minute in epochs.values())


def _of_window(there: Installation, before: Measured, after: Measured, fleets: int) -> dict[str, float | None]:
    """Return what fleets cost between two measurements of the server."""
    lasted_s = after.at - before.at
    per_fleet_ms = 1000.0 * MINUTE_S / fleets
    # Of the turns that were due in between.
    minutes = range(*(math.ceil((one.at - GRACE_S) / MINUTE_S) for one in (before, after)))
    cpu_s = intake_s = rss_mb = 0.0
    decisions, turns = 0, []
    decided: set[tuple[str, int]] = set()
    for records in there.records.values():
        inside = [one for one in records if before.at <= one["at"] <= after.at]
        used = [one for one in inside if one["kind"] == "usage"]
        if len(used) > 1:
            span_s = used[-1]["at"] - used[0]["at"]
            cpu_s += (used[-1]["cpu_s"] - used[0]["cpu_s"]) / span_s
            intake_s += (used[-1]["intake_cpu_s"] - used[0]["intake_cpu_s"]) / span_s
            rss_mb = max(rss_mb, used[-1]["rss_mb"])
        decisions += sum(len(one["fleets"]) for one in inside if one["kind"] == "decided")
        decided |= {(name, one["minute"]) for one in records if one["kind"] == "decided" for name in one["fleets"]}
        turns += [one["at"] - one["began"] for one in inside if one["kind"] == "turn"]
    grown = sum(after.bytes_of.values()) - sum(before.bytes_of.values())
    return {
        "cpu_ms_per_fleet": cpu_s * per_fleet_ms,
        "intake_cpu_ms": intake_s * per_fleet_ms,
        "postgres_cpu_ms_per_fleet": (after.cpu_s - before.cpu_s) / lasted_s * per_fleet_ms,
        "ledger_bytes_per_decision": grown / decisions,
        "ledger_bytes_per_s": grown / lasted_s,
        "wal_bytes_per_decision": (after.wal_bytes - before.wal_bytes) / decisions,
        "ledger_rows_per_s": (after.added - before.added) / lasted_s,
        "ledger_writes_per_s": (after.written - before.written) / lasted_s,
        "decided_share": sum(minute in minutes for _, minute in decided) / (fleets * len(minutes)),
        "turn_p99_s": _quantile(turns, 0.99),
        "agent_rss_mb": rss_mb,
    }


def _calls_per_minute(there: Installation, before: Measured, after: Measured) -> dict[str, float]:
    """Return AWS calls of all agents by operation, per minute of the clock."""
    calls: dict[str, float] = defaultdict(float)
    for records in there.records.values():
        used = [one for one in records if one["kind"] == "usage" and before.at <= one["at"] <= after.at]
        for name in used[-1]["calls"] if used else ():
            span = (used[-1]["at"] - used[0]["at"]) / MINUTE_S
            calls[name] += (used[-1]["calls"][name] - used[0]["calls"].get(name, 0)) / max(span, 1e-9)
    return calls


def _growth(before: Measured, after: Measured) -> dict[str, object]:
    """Return the growth in bytes by table, per minute of the clock."""
    minutes = (after.at - before.at) / MINUTE_S
    grown = {name: (size - before.bytes_of[name]) / minutes for name, size in after.bytes_of.items()}
    return {"bytes_per_minute": {name: round(size) for name, size in sorted(grown.items()) if size}}


def _quantile(values: Sequence[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
