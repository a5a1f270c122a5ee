"""Inputs are compressed with those of an earlier decision: small, readable at any age, and damaged one by one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.kernel.store import DecisionStore
from agent.ledger import Ledger, codec
from agent.ledger.dictionaries import DECISIONS_EACH, Dictionaries
from domain.decisions import Reason, Status
from domain.errors import Fenced, LedgerError
from tests.agent.ledger.records import START, made, outcome_of

DAY_S = 86400.0


def query(path: Path, words: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(words).fetchall()
    finally:
        connection.close()


def used(path: Path) -> list[object]:
    return [row[0] for row in query(path, "SELECT dictionary FROM decisions ORDER BY at, subject")]


def same(store: FleetStore, numbers: range, fleet: str = "web") -> bool:
    return [inputs for inputs, _ in store.inputs(fleet)] == [made(n, fleet)[0] for n in numbers]


def test_a_dictionary_serves_a_number_of_decisions_of_one_fleet(path: Path, ledger: Ledger) -> None:
    store, count = FleetStore(ledger), DECISIONS_EACH + 2
    for n in range(count):
        store.record([made(n, "other"), made(n)])
    assert used(path) == [1, 2] * DECISIONS_EACH + [3, 4] * 2
    assert same(store, range(count))
    assert same(FleetStore(ledger), range(count), "other")
    record = DecisionStore(ledger.database).get("web-00000031")
    assert record.inputs == codec.encode(made(31)[0])
    assert store.inputs_of(["web-00000031"]) == {"web-00000031": made(31)[0]}
    alone, shared = len(codec.pack(record.inputs)), query(path, "SELECT avg(length(inputs)) FROM decisions")[0][0]
    assert isinstance(shared, float)
    assert shared < 0.4 * alone


def test_a_clock_that_was_set_back_and_another_process_begin_a_new_one(path: Path, ledger: Ledger) -> None:
    store = FleetStore(ledger)
    for n in (5, 6, 1):
        store.record([made(n)])
    FleetStore(ledger).record([made(7)])
    store.record([made(2)])
    assert used(path) == [2, 2, 1, 1, 3]
    assert {inputs.decision_id for inputs, _ in store.inputs("web")} == {f"web-{n:08d}" for n in (1, 2, 5, 6, 7)}


def test_nothing_is_left_of_a_dictionary_whose_transaction_failed(path: Path, ledger: Ledger) -> None:
    store = FleetStore(ledger)
    store.record([made(0)])
    ledger.take_epoch("other", START)
    newest = ledger.take_epoch("another", START)
    with pytest.raises(Fenced):
        store.record([made(1)])
    with pytest.raises(Fenced):
        store.record([made(2, "new")])
    store.record([made(3, epoch=newest), made(3, "new", epoch=newest)])
    assert used(path) == [1, 3, 2]
    assert query(path, "SELECT count(*) FROM dictionaries") == [(3,)]


def test_a_dictionary_is_kept_as_long_as_a_decision_uses_it(path: Path, ledger: Ledger) -> None:
    store = FleetStore(ledger)
    store.record([made(0), made(1, groups=("workers_2",))])
    store.record([made(n) for n in range(2, DECISIONS_EACH + 5)])
    (intent,) = ledger.open_intents()
    ledger.compact(START + 400 * DAY_S, DAY_S)
    assert query(path, "SELECT dictionary_id FROM dictionaries") == [(1,)]
    assert store.decision("web-00000001").inputs == made(1)[0]
    with pytest.raises(sqlite3.IntegrityError):
        _delete_dictionaries(path)
    store.record((), outcomes=[(intent, outcome_of(intent, Status.DONE, Reason.DONE, at=START + 400 * DAY_S))])
    assert ledger.compact(START + 500 * DAY_S, DAY_S).finished
    assert query(path, "SELECT count(*) FROM dictionaries") == [(0,)]
    # What the store remembers is gone, and too old to be used.
    store.record([made(0, at=START + 500 * DAY_S)])
    assert store.decision("web-00000000").inputs == made(0, at=START + 500 * DAY_S)[0]


def _delete_dictionaries(path: Path) -> None:
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("DELETE FROM dictionaries")
    finally:
        connection.close()


def test_unused_dictionaries_go_in_pieces(path: Path, ledger: Ledger) -> None:
    for n in range(10):
        FleetStore(ledger).record([made(n)])
    assert ledger.compact(START + DAY_S, 60.0, batch=4, batches=3).finished is False
    assert query(path, "SELECT count(*) FROM dictionaries") == [(8,)]
    assert ledger.compact(START + DAY_S, 60.0, batch=4).finished
    assert query(path, "SELECT count(*) FROM dictionaries") == [(0,)]


def test_a_text_longer_than_the_window_has_no_dictionary() -> None:
    owned = Dictionaries()
    text = bytes(range(256)) * (codec.WINDOW_BYTES // 256 + 1)
    packed, used = owned.pack("web", START, text)
    assert (codec.unpack(packed), used) == (text, None)
    assert owned.pack("web", START, text[: codec.WINDOW_BYTES])[1] is not None


def test_the_page_and_the_status_leave_damaged_inputs_out(path: Path, ledger: Ledger) -> None:
    store = FleetStore(ledger)
    for n in range(DECISIONS_EACH + 1):
        store.record([made(n), made(n, "other")])
    query(path, "UPDATE dictionaries SET body = x'0102' WHERE dictionary_id IN (1, 4)")
    fresh = FleetStore(ledger)
    assert fresh.newest_of(["web", "other"]).keys() == {"web"}
    assert fresh.inputs_of(["web-00000000", f"web-{DECISIONS_EACH:08d}"]).keys() == {f"web-{DECISIONS_EACH:08d}"}
    assert [made_.decision_id for _, made_ in fresh.inputs("web", skip_damaged=True)] == [f"web-{DECISIONS_EACH:08d}"]
    assert [made_.decision_id for _, made_ in fresh.inputs_since(["web"], 0.0)] == [f"web-{DECISIONS_EACH:08d}"]
    with pytest.raises(LedgerError, match="web-00000000"):
        list(fresh.inputs("web"))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE dictionaries SET body = x'0102' WHERE dictionary_id = 1",
        "UPDATE dictionaries SET body = (SELECT max(body) FROM dictionaries WHERE dictionary_id = 2)",
        "DELETE FROM dictionaries WHERE dictionary_id = 1",
    ],
)
def test_a_damaged_dictionary_names_the_decision_and_costs_no_other(path: Path, url: str, damage: str) -> None:
    with Ledger.open(url) as ledger:
        store = FleetStore(ledger)
        for n in range(2):
            store.record([made(n), made(n, "other")])
    query(path, damage)
    with Ledger.open(url, read_only=True) as ledger:
        store = FleetStore(ledger)
        for read in (store.decision, DecisionStore(ledger.database).get):
            with pytest.raises(LedgerError, match=r"decision web-00000001 .* row 1 .*ledger restore FILE"):
                read("web-00000001")
        assert [row.decision for row in store.decisions("web")] == [made(n)[1].decision for n in (1, 0)]
        assert same(store, range(2), "other")


def test_inputs_that_were_stored_alone_are_read(path: Path, ledger: Ledger) -> None:
    FleetStore(ledger).record([made(0)])
    alone = codec.pack(codec.encode(made(0)[0])).hex()
    query(path, f"UPDATE decisions SET dictionary = NULL, inputs = x'{alone}'")
    assert FleetStore(ledger).decision("web-00000000").inputs == made(0)[0]
