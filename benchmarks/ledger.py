"""The ledger: durable decisions per second beside the same bytes in bare SQLite, and explaining one of a million.

decisions_per_s: each decision in a transaction of its own, on disk when it returns. decisions_per_s_by_20: twenty in
one transaction, as a tick of twenty fleets records them; record_20_ms is that transaction. ratio_vs_bare_sqlite: the
first divided by what sqlite3 alone reaches in the same run with the same bytes, one insert and one commit each.
inputs_bytes: what a decision was made on takes, its share of a dictionary included; --like FILE: of the decisions of
that ledger, in place of made ones that differ in every number. explain_ms, explain_p99_ms: `FleetStore.decision(id)`
over random ids in a journal of --rows rows; list_ms: a fleet's newest 50 in it; retention_s: forgetting a tenth of it.
*_cpu_ms: processor time of the same.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import text

from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger, codec
from benchmarks.report import Figures, Target, arguments, progress, repeat, report
from domain.decisions import Reason, Status
from tests.agent.ledger.records import made, outcome_of

FLEETS = 20
PATTERN_MINUTES = 100
ACTING_EVERY = 30
EXPLAINED = 400
LISTED = 50
TABLES = {
    "journal": ("at", "ref", "decision", "subject", "kind", "reason", "body"),
    "dictionaries": ("at", "dictionary_id", "body"),
    "decisions": ("at", "decision_id", "subject", "changed", "inputs", "dictionary"),
    "intents": ("created_at", "intent_id", "decision_id", "fleet", "group_key", "state", "closed_at", "intent"),
}
DECISION_ID = re.compile(r"fleet-\d\d-(\d{8})")

Row = tuple[Any, ...]
Record = tuple[DecisionInputs, DecisionResult]


def recording(directory: Path, count: int) -> Figures:
    """Record `count` decisions one by one, then by twenty, then the bytes of the former in bare SQLite."""
    records = [made(n // FLEETS, f"fleet-{n % FLEETS:02d}") for n in range(count)]
    by_20 = [records[start : start + FLEETS] for start in range(0, count, FLEETS)]
    single_s = _recording_s(directory, [[record] for record in records])
    cpu_s = time.process_time()
    batched_s = _recording_s(directory, by_20)
    batched_cpu_s = time.process_time() - cpu_s
    bare_s = _bare_s(directory, records)
    return {
        "decisions_per_s": count / single_s,
        "decisions_per_s_by_20": count / batched_s,
        "record_20_ms": 1000.0 * batched_s / len(by_20),
        "record_20_cpu_ms": 1000.0 * batched_cpu_s / len(by_20),
        "bare_sqlite_per_s": count / bare_s,
        "ratio_vs_bare_sqlite": bare_s / single_s,
    }


def _recording_s(directory: Path, batches: Sequence[Sequence[Record]]) -> float:
    with tempfile.TemporaryDirectory(dir=directory) as place, Ledger.open(f"sqlite:///{place}/ledger.db") as ledger:
        store = FleetStore(ledger)
        store.record([made(0, "warm-up")])
        return _seconds(lambda: deque(map(store.record, batches), maxlen=0))


def inputs_bytes(directory: Path, records: Sequence[Record]) -> float:
    """Return the bytes that a decision's inputs take when these are recorded one after the other."""
    with tempfile.TemporaryDirectory(dir=directory) as place, Ledger.open(f"sqlite:///{place}/ledger.db") as ledger:
        store = FleetStore(ledger)
        for record in records:
            store.record([record])
        with ledger.database.read() as connection:
            columns = ("inputs", "decisions"), ("body", "dictionaries")
            sizes = [text(f"SELECT coalesce(sum(length({column})), 0) FROM {table}") for column, table in columns]
            stored = sum(int(connection.execute(size).scalar_one()) for size in sizes)
            return stored / len(records)


def recorded(directory: Path, path: Path) -> list[Record]:
    """Return what a ledger, of any schema, has of its fleets, without intents, which nobody follows."""
    with Ledger.open(f"sqlite:///{shutil.copy(path, directory / 'like.db')}") as ledger:
        store = FleetStore(ledger)
        return [
            (inputs, DecisionResult(replace(decision, intents=()), inputs.state))
            for fleet in store.fleets()
            for inputs, decision in store.inputs(fleet)
        ]


def _bare_s(directory: Path, records: Iterable[Record]) -> float:
    rows = [tuple(codec.pack(codec.encode(part)) for part in (i, d.decision, d.state)) for i, d in records]
    with tempfile.TemporaryDirectory(dir=directory) as place:
        bare = sqlite3.connect(f"{place}/bare.db", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            bare.execute(f"PRAGMA {pragma}").fetchall()
        bare.execute("CREATE TABLE bare (inputs BLOB, decision BLOB, state BLOB)")

        def insert() -> None:
            for row in rows:
                bare.execute("BEGIN IMMEDIATE")
                bare.execute("INSERT INTO bare VALUES (?, ?, ?)", row)
                bare.execute("COMMIT")

        seconds = _seconds(insert)
        bare.close()
        return seconds


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def pattern(store: FleetStore) -> None:
    """Record a stretch of minutes of every fleet as the loop does; some act and are followed to their end."""
    for number in range(PATTERN_MINUTES):
        acting = [("workers_2",) if (number + name) % ACTING_EVERY == 0 else () for name in range(FLEETS)]
        records = [made(number, f"fleet-{name:02d}", groups=groups) for name, groups in enumerate(acting)]
        store.record(records)
        intents = [intent for _, decided in records for intent in decided.decision.intents]
        for status, reason in ((Status.IN_PROGRESS, Reason.ACCEPTED), (Status.DONE, Reason.DONE)):
            outcomes = [(i, outcome_of(i, status, reason, at=i.created_at + 60.0)) for i in intents]
            store.record((), outcomes=outcomes)


def build(path: Path, rows: int) -> None:
    """Fill a ledger with at least `rows` journal rows: one recorded stretch, repeated under later numbers and times.

    What is looked up by an id in its body (acting decisions, intents, outcomes) is encoded anew for each repetition.
    Of other bodies, and of inputs, only the row's own columns change; their stored bytes repeat.
    """
    with Ledger.open(f"sqlite:///{path}") as ledger:
        pattern(FleetStore(ledger))
    filling = sqlite3.connect(path, isolation_level=None)
    filling.execute("PRAGMA synchronous=OFF")
    stretch = {t: filling.execute(f"SELECT {', '.join(columns)} FROM {t}").fetchall() for t, columns in TABLES.items()}
    acting = {row[2] for row in stretch["intents"]}
    shared = len(stretch["dictionaries"])
    for turn in range(1, -(-rows // len(stretch["journal"]))):
        filling.execute("BEGIN")
        for table, columns in TABLES.items():
            statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            filling.executemany(statement, (_later(row, turn, acting, shared) for row in stretch[table]))
        filling.execute("COMMIT")
    filling.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    filling.close()


def _later(row: Row, turn: int, acting: set[str], shared: int) -> Row:
    """Return a row as it is `turn` stretches later; first column: its time, second: its decision's id, or a number.

    shared: how many dictionaries a stretch has, which are the numbers in rows.
    """
    at = row[0] + turn * PATTERN_MINUTES * 60.0
    if isinstance(row[1], int):
        return (at, row[1] + turn * shared, *row[2:])
    found = DECISION_ID.match(row[1])
    assert found is not None
    old = found.group()
    new = f"{old[:-8]}{int(found.group(1)) + turn * PATTERN_MINUTES:08d}"
    if isinstance(row[-1], int):
        return (at, new, *row[2:-1], row[-1] + turn * shared)
    changed: list[Any] = [at]
    for part in row[1:]:
        if isinstance(part, str):
            changed.append(part.replace(old, new))
        elif isinstance(part, bytes) and old in acting:
            changed.append(codec.pack(codec.unpack(part).replace(old.encode(), new.encode())))
        else:
            changed.append(part)
    return tuple(changed)


def reading(path: Path, decision_ids: Sequence[str]) -> Figures:
    """Explain these decisions of a ledger, and list each fleet's newest."""
    with Ledger.open(f"sqlite:///{path}", read_only=True) as ledger:
        ledger.epoch()
        store = FleetStore(ledger)
        cpu_s = time.process_time()
        explained = [_seconds(partial(store.decision, decision_id)) for decision_id in decision_ids]
        explained_cpu_s = time.process_time() - cpu_s
        cpu_s = time.process_time()
        listed = [_seconds(partial(store.decisions, fleet, limit=LISTED)) for fleet in store.fleets()]
        listed_cpu_s = time.process_time() - cpu_s
    explained_ms = sorted(1000.0 * seconds for seconds in explained)
    return {
        "explain_ms": statistics.median(explained_ms),
        "explain_p99_ms": explained_ms[int(0.99 * len(explained_ms))],
        "list_ms": 1000.0 * statistics.median(listed),
        "explain_cpu_ms": 1000.0 * explained_cpu_s / len(explained),
        "list_cpu_ms": 1000.0 * listed_cpu_s / len(listed),
    }


def retention_s(path: Path) -> float:
    """Return how long it takes to forget the oldest tenth of a ledger."""
    with Ledger.open(f"sqlite:///{path}") as ledger:
        with ledger.database.read() as connection:
            first, last = connection.execute(text("SELECT min(at), max(at) FROM journal")).one()
        return _seconds(lambda: ledger.compact(last, 0.9 * (last - first)))


def some_ids(path: Path, count: int, seed: int) -> list[str]:
    """Return ids of decisions anywhere in a ledger, one in ten of them of a decision that acted."""
    ledger = sqlite3.connect(path)
    dice = random.Random(seed)
    last = ledger.execute("SELECT max(rowid) FROM decisions").fetchone()[0]
    any_id = "SELECT decision_id FROM decisions WHERE rowid = ?"
    ids = [ledger.execute(any_id, (dice.randint(1, last),)).fetchone()[0] for _ in range(count - count // 10)]
    acted = [row[0] for row in ledger.execute("SELECT decision_id FROM intents")]
    ledger.close()
    return ids + dice.choices(acted, k=count // 10)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, default=1_000_000, help="journal rows to explain in (default 1000000)")
    parser.add_argument("--decisions", type=int, default=1000, help="decisions to record per run (default 1000)")
    parser.add_argument("--like", type=Path, help="a SQLite ledger: inputs_bytes is that of its fleets' decisions")
    asked = parser.parse_args(given)
    with tempfile.TemporaryDirectory(dir=asked.directory) as place:
        directory = Path(place)
        progress(f"recording {asked.decisions} decisions in each way, {asked.runs} times")
        figures = repeat(lambda: recording(directory, asked.decisions), asked.runs)
        like = recorded(directory, asked.like) if asked.like else [made(n) for n in range(PATTERN_MINUTES)]
        figures["inputs_bytes"] = inputs_bytes(directory, like)
        progress(f"building a ledger of {asked.rows} journal rows")
        path = directory / "large.db"
        figures["build_s"] = _seconds(lambda: build(path, asked.rows))
        counted = sqlite3.connect(path)
        rows, decisions = (counted.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("journal", "decisions"))
        counted.close()
        figures |= {"rows": rows, "bytes_per_decision": path.stat().st_size / decisions}
        progress(f"explaining {EXPLAINED} decisions")
        seeds = iter(range(asked.runs))
        figures |= repeat(lambda: reading(path, some_ids(path, EXPLAINED, next(seeds))), asked.runs)
        figures["retention_s"] = retention_s(path)
    return report(
        "ledger",
        figures,
        as_json=asked.json,
        packages=("sqlalchemy", "pydantic"),
        targets=[Target("explain_ms", 50.0)],
        notes={"sqlite": sqlite3.sqlite_version, "runs": asked.runs, "decisions_per_run": asked.decisions},
    )


if __name__ == "__main__":
    sys.exit(main())
