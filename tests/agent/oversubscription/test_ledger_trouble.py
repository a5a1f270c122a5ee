"""The ledger cannot be written at the hour's turn: no reading, no hot hour and no event is lost by it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.ledger import Ledger
from agent.oversubscription.state import OversubscriptionStore
from agent.oversubscription.usage import MOST_UNWRITTEN_HOURS, UsageBook
from domain.decisions import Reason
from domain.errors import LedgerUnavailable
from tests.agent.oversubscription.pools import HOUR_S, START, House, rules, vm

HOT = 0.95
"""All VMs of a machine of 48 cores together use 45.6 of them: its threshold is below that."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A pool of one machine full of VMs, whose ledger gives up a blocked write at once."""
    made = House(tmp_path, rules(), [vm(f"v{k}", machine="m1") for k in range(12)])
    made.ledger.close()
    made.ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", busy_timeout_s=0.05)
    made.open()
    yield made
    made.ledger.close()


@contextmanager
def written_by_another(house: House) -> Iterator[None]:
    """Another process holds the ledger's write lock."""
    holder = sqlite3.connect(house.file.with_name("ledger.db"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


def hot_hours(house: House) -> tuple[int, ...]:
    return tuple(int(hour - START // HOUR_S) for hour in house.pool.memory.hot_hours)


def test_a_hot_hour_that_could_not_be_written_at_once_is_written_by_the_next_turn(house: House) -> None:
    house.hour(0.2)
    with written_by_another(house), pytest.raises(LedgerUnavailable):
        house.hour(HOT)
    house.clock.advance(60.0)
    told = house.turn()
    assert hot_hours(house) == (1,)
    assert [event.reason for event in told].count(Reason.MACHINE_HOT) == 1
    assert [entry.reason for entry in house.ledger.journal()].count(Reason.MACHINE_HOT) == 1


def test_hours_in_which_nothing_could_be_written_are_all_folded_in_their_order(house: House) -> None:
    house.hour(0.2)
    with written_by_another(house):
        for usage in (HOT, 0.2, HOT, 0.2, 0.2):
            with pytest.raises(LedgerUnavailable):
                house.hour(usage)
    told = house.hour(HOT)
    assert hot_hours(house) == (1, 3, 6)
    assert [event.reason for event in told].count(Reason.MACHINE_HOT) == 3
    hours = [
        row.hour - int(START // HOUR_S)
        for row in reversed(OversubscriptionStore(house.ledger).newest("main", 20, "hour"))
    ]
    assert hours == [0, 1, 2, 3, 4, 5, 6]


def test_what_could_not_be_recorded_of_an_inventory_is_said_again(house: House) -> None:
    house.hour(0.2)
    house.file.write_text("no inventory\n")
    house.clock.advance(60.0)
    with written_by_another(house), pytest.raises(LedgerUnavailable):
        house.turn()
    assert [event.reason for event in house.turn()] == [Reason.METRICS_LOST]
    assert house.turn() == ()
    assert [entry.reason for entry in house.ledger.journal()].count(Reason.METRICS_LOST) == 1


def test_readings_that_wait_for_the_ledger_take_no_room_without_end() -> None:
    book, first = UsageBook(), int(START // HOUR_S)
    book.hold(first)
    for hour in range(first, first + 30):
        at = hour * HOUR_S + 60.0
        book.add("web", "v1", 20.0, at, at)
    assert book.hours() == tuple(range(first + 30 - MOST_UNWRITTEN_HOURS, first + 30))
    book.written(first + 29, (first + 33) * HOUR_S + 60.0)
    assert (book.hours(), book.newest()) == ((), float("-inf"))


def test_an_agent_that_never_led_holds_three_hours() -> None:
    book, first = UsageBook(), int(START // HOUR_S)
    for hour in range(first, first + 30):
        book.add("web", "v1", 20.0, hour * HOUR_S + 60.0, hour * HOUR_S + 60.0)
    assert book.hours() == tuple(range(first + 27, first + 30))
