"""What learning needs of a minute: a row with each decision, small, kept longer, without names of VMs."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling import minutes
from agent.autoscaling.minutes import (
    CLOCK_SET,
    CLOUD,
    INPUTS,
    Boot,
    JobLengths,
    MinuteMeasurements,
    RecordedMinute,
    Refusals,
    decoded,
    encoded,
    minute_of,
    read_minutes,
)
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger, codec
from agent.rails.state import LoopState
from domain.decisions import CapacityShortage, Reason, Status
from domain.errors import BadInput, IntentConflict, LedgerError
from tests.agent.ledger.records import START, fleet_of, intent_of, made, outcome_of

DAY_S = 86400.0
MEASURED = MinuteMeasurements(
    finished=11,
    finished_core_s=612.5,
    waiting=3.456789,
    lengths=JobLengths(60.0, 20.0, 50.0, 90.0, 200.0),
    boots=(Boot(0, 71.23456), Boot(2, 64.0)),
    lost_core_s=12.5,
    interrupted={1: 2},
    refused={2: 1},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_decision_writes_its_minute_in_the_same_transaction(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        store = FleetStore(ledger)
        store.record([made(1, groups=("workers_2",))], measured={"web": MEASURED})
        with pytest.raises(IntentConflict):
            store.record([made(2, groups=("workers_2",))], measured={"web": MEASURED})
        (minute,) = read_minutes(ledger.database, "web")
    assert (minute.submitted, minute.finished, minute.waiting, minute.running) == (15, 11, 3.457, 12)
    assert minute.finished_core_s == 612.5
    assert (minute.requested, minute.warm, minute.policy) == ((5, 5, 5), (5, 5, 5), "queue-rule")
    assert minute.lengths == MEASURED.lengths
    assert minute.boots == (Boot(0, 71.23), Boot(2, 64))
    assert (minute.interrupted, minute.refused, minute.lost_core_s) == ({1: 2}, {2: 1}, 12.5)
    assert (minute.end_s, minute.epoch, minute.absent) == (round(START + 60.0 - 3.0), 1, ())


def test_neither_vms_nor_the_queue_are_named(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record([made(1)], measured={"web": MEASURED})
    connection = sqlite3.connect(path)
    bodies = [
        row[0] for table in ("minutes", "contexts") for row in connection.execute(f"SELECT body FROM learning_{table}")
    ]
    connection.close()
    text = b"".join(map(codec.unpack, bodies))
    assert b'"queue-rule"' in text
    assert b"i-0" not in text
    assert b"queue.example" not in text


def test_settings_that_minutes_share_are_stored_once_and_a_change_of_them_makes_another(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        for number in range(3):
            FleetStore(ledger).record([made(number)], measured={"web": MEASURED})
        inputs, decided = made(3)
        other = replace(inputs, limits=replace(inputs.limits, cooldown_out_s=77.0))
        FleetStore(ledger).record([(other, decided)], measured={"web": MEASURED})
        found = list(read_minutes(ledger.database, "web"))
    # A process that opens it anew knows none of them, and writes none twice.
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record([made(4)], measured={"web": MEASURED})
        assert [m.context.limits.cooldown_out_s for m in found] == [300.0, 300.0, 300.0, 77.0]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM learning_contexts").fetchone() == (2,)
    connection.close()


def test_settings_whose_transaction_failed_are_written_with_the_next_minute(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        store = FleetStore(ledger)
        with pytest.raises(BadInput, match="only finite numbers"):
            store.record([made(1)], states={"web": LoopState(last_busy_at=math.nan)})
        store.record([made(1)])
        assert [minute.policy for minute in read_minutes(ledger.database, "web")] == ["queue-rule"]


def test_a_row_takes_at_most_150_bytes(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        rows = [made(number) for number in range(2000)]
        usual = replace(MEASURED, boots=(), interrupted={}, refused={}, lost_core_s=0.0)
        FleetStore(ledger).record(rows, measured={"web": usual})
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM intents")
    tables = "'learning_minutes', 'learning_minutes_by_fleet'"
    size = f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({tables})"
    try:
        (taken,) = connection.execute(size).fetchone()
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no dbstat")
    finally:
        connection.close()
    assert taken / 2000 <= 150


def test_minutes_stay_when_their_decisions_go_and_go_in_their_own_time(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record([made(day, at=START + day * DAY_S) for day in range(10)])
        kept = (minutes.KEPT,)
        assert ledger.compact(START + 10 * DAY_S, 2 * DAY_S, kept, longer_s={"learning": 5 * DAY_S}).finished
        assert len(FleetStore(ledger).decisions("web")) == 2
        assert [round((m.end_s - START) / DAY_S) for m in read_minutes(ledger.database, "web")] == [6, 7, 8, 9]


def test_a_minute_whose_groups_could_not_be_read_says_so() -> None:
    inputs, decided = made(7)
    minute = minute_of(replace(inputs, snapshot=None), decided.decision, MinuteMeasurements(clock_set=True))
    assert minute.absent == (CLOUD, CLOCK_SET)
    assert (minute.submitted, minute.requested) == (None, ())
    assert minute.end_s == (START + 420.0) // 60.0 * 60.0


def test_what_was_not_measured_is_not_taken_for_none() -> None:
    inputs, decided = made(1)
    assert minute_of(inputs, decided.decision, None).boots is None
    assert minute_of(inputs, decided.decision, MinuteMeasurements()).boots == ()
    assert minute_of(inputs, decided.decision, None).lengths == JobLengths(55.25)


counts = st.integers(0, 10**6)
positive = st.floats(0.001, 1e6)


@given(
    jobs=st.tuples(counts, st.none() | counts, positive, counts),
    groups=st.lists(st.tuples(counts, counts, counts, st.none() | positive), max_size=12),
    boots=st.none() | st.lists(st.builds(Boot, st.integers(0, 11), positive), max_size=3),
    absent=st.sets(st.sampled_from(INPUTS)),
)
def test_a_row_reads_back_as_what_was_written_to_four_digits(jobs, groups, boots, absent) -> None:
    inputs, decided = made(1)
    written = replace(
        minute_of(inputs, decided.decision, None),
        submitted=jobs[0],
        finished=jobs[1],
        waiting=jobs[2],
        running=jobs[3],
        requested=tuple(group[0] for group in groups),
        warm=tuple(group[1] for group in groups),
        draining=tuple(group[2] for group in groups),
        busy_cores=tuple(group[3] for group in groups),
        boots=None if boots is None else tuple(boots),
        absent=tuple(name for name in INPUTS if name in absent),
    )
    read = decoded(written.end_s, written.epoch, written.context, encoded(written))
    assert near(read) == near(written)


def near(minute: RecordedMinute) -> RecordedMinute:
    def short(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.4g}" if value < 1e4 else f"{value:.0f}")

    boots = minute.boots and tuple(Boot(boot.group, short(boot.seconds)) for boot in minute.boots)
    return replace(minute, waiting=short(minute.waiting), busy_cores=tuple(map(short, minute.busy_cores)), boots=boots)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"j":[1]}', b'{"l":[]', b'{"b":[[1]]}'])
def test_a_damaged_row_is_an_error_and_no_minute_of_zeros(body: bytes) -> None:
    inputs, decided = made(1)
    context = minute_of(inputs, decided.decision, None).context
    with pytest.raises(LedgerError, match="it is damaged"):
        decoded(START, 1, context, body)


def test_an_intent_that_meets_one_shortage_for_minutes_counts_once() -> None:
    refusals, fleet = Refusals(), fleet_of("web")
    intent = intent_of("web-1", "web", "workers_4")
    here, there = CapacityShortage("m5a.xlarge", "a"), CapacityShortage("m5a.xlarge", "b")
    for shortages in ((), (here,), (here,), (here, there)):
        outcome = outcome_of(intent, Status.IN_PROGRESS, Reason.ACCEPTED)
        refusals.note(intent, replace(outcome, shortages=shortages))
    assert refusals.of(fleet) == {1: 2}
    refusals.recorded(["web"])
    refusals.note(intent, replace(outcome_of(intent, Status.FAILED, Reason.NO_CAPACITY), shortages=(here, there)))
    assert refusals.of(fleet) == {}
