"""Decisions of every part are written, found, listed and numbered in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text, update

from agent.kernel.store import NOTHING, DecisionStore, Record, add, decoded, nearby
from agent.ledger import Ledger
from agent.ledger.database import Clash
from agent.ledger.identity import INCARNATION, NUMBERS
from agent.ledger.schema import identity
from domain.errors import UnknownName

FULL = Record(
    "c1-h7",
    "admission",
    "c1",
    at=60.5,
    body=b'{"sentence":"' + b"long " * 200 + b'"}',
    inputs=b'{"moments":[' + b"1.5," * 300 + b"2]}",
    kind="hour",
    number=7,
    request_id="r-1",
    about="deployment-3",
    changed=True,
)


def a_record(name: str, at: float = 0.0, **other: object) -> Record:
    fields: dict[str, object] = {"decision": "tokens", "subject": "desk", "body": b"{}"}
    return Record(decision_id=name, at=at, **(fields | other))  # type: ignore[arg-type]


@pytest.fixture
def store(ledger: Ledger) -> DecisionStore:
    return DecisionStore(ledger.database)


def write(ledger: Ledger, *records: Record) -> None:
    with ledger.database.write() as connection:
        add(connection, records)


def ids(records: Sequence[Record]) -> list[str]:
    return [record.decision_id for record in records]


def test_a_decision_is_found_as_it_was_written(ledger: Ledger, store: DecisionStore) -> None:
    small = a_record("desk-t1")
    write(ledger, FULL, small)
    assert store.find("c1-h7") == store.get("c1-h7") == FULL
    assert store.get("desk-t1") == small
    assert (small.kind, small.number, small.request_id, small.changed, small.inputs) == ("", None, "", False, NOTHING)


def test_bodies_and_inputs_are_packed_and_an_absent_request_is_null() -> None:
    row = FULL.row()
    assert len(row["body"]) < len(FULL.body)
    assert len(row["inputs"]) < len(FULL.inputs)
    assert (row["changed"], row["request_id"]) == (1, "r-1")
    assert (a_record("x").row()["changed"], a_record("x").row()["request_id"]) == (0, None)
    assert a_record("x").row()["inputs"] == NOTHING


def test_writing_no_decisions_is_nothing(ledger: Ledger, store: DecisionStore) -> None:
    write(ledger)
    assert store.newest() == ()


def test_an_unknown_id_is_said_with_the_two_ids_on_each_side(ledger: Ledger, store: DecisionStore) -> None:
    assert store.find("d5") is None
    with pytest.raises(UnknownName, match="no decision is recorded yet"):
        store.get("d5")
    write(ledger, *(a_record(f"d{number}") for number in (1, 2, 3, 4, 6, 7, 8, 9)))
    with pytest.raises(UnknownName, match=r"near it are d3, d4, d6, d7$") as caught:
        store.get("d5")
    assert caught.value.field == "decision"
    with ledger.database.read() as connection:
        assert nearby(connection, "d0").endswith("near it are d1, d2")
        assert nearby(connection, "d99").endswith("near it are d8, d9")


def test_a_list_is_narrowed_by_each_of_its_words(ledger: Ledger, store: DecisionStore) -> None:
    write(
        ledger,
        a_record("a", 1.0),
        a_record("b", 2.0, subject="counter"),
        a_record("c", 3.0, decision="other"),
        a_record("d", 4.0, kind="hour"),
        a_record("e", 5.0, about="tenant"),
        a_record("f", 6.0, changed=True),
    )
    assert ids(store.newest()) == ["f", "e", "d", "c", "b", "a"]
    assert ids(store.newest("other")) == ["c"]
    assert ids(store.newest("tokens")) == ["f", "e", "d", "b", "a"]
    assert ids(store.newest(subject="counter")) == ["b"]
    assert ids(store.newest(kind="hour")) == ["d"]
    assert ids(store.newest(kind="")) == ["f", "e", "c", "b", "a"]
    assert ids(store.newest(about="tenant")) == ["e"]
    assert ids(store.newest(changed_only=True)) == ["f"]
    assert ids(store.newest(since=2.0, until=5.0)) == ["d", "c", "b"]
    assert ids(store.newest(limit=2)) == ["f", "e"]


def test_a_list_holds_twenty_unless_asked_for_more(ledger: Ledger, store: DecisionStore) -> None:
    write(ledger, *(a_record(f"d{number:02}", float(number)) for number in range(25)))
    assert ids(store.newest()) == [f"d{number:02}" for number in range(24, 4, -1)]
    assert len(store.newest(limit=30)) == 25


def test_a_lists_next_page_begins_after_the_last_of_this_one(ledger: Ledger, store: DecisionStore) -> None:
    write(ledger, a_record("a", 1.0), a_record("b", 2.0), a_record("c", 2.0), a_record("d", 3.0))
    assert ids(store.newest(before=store.get("c"))) == ["b", "a"]
    assert ids(store.newest(before=store.get("a"))) == []
    pages, last = [], None
    while page := store.newest(limit=1, before=last):
        pages += ids(page)
        last = page[-1]
    assert pages == ["d", "c", "b", "a"]


def test_of_one_numbered_subject_the_highest_number_comes_first_whatever_the_clock_said(
    ledger: Ledger, store: DecisionStore
) -> None:
    write(ledger, a_record("x1", 100.0, number=1), a_record("x2", 50.0, number=2), a_record("x3", 75.0, number=3))
    assert ids(store.newest("tokens", "desk")) == ["x3", "x2", "x1"]
    by_time = ["x1", "x3", "x2"]
    assert ids(store.newest("tokens")) == by_time
    assert ids(store.newest(subject="desk")) == by_time
    assert ids(store.newest("tokens", "desk", since=0.0)) == by_time
    assert ids(store.newest("tokens", "desk", until=1000.0)) == by_time
    assert ids(store.newest("tokens", "desk", before=a_record("z", 1000.0))) == by_time


def test_lists_and_answers_leave_the_inputs_where_they_are(ledger: Ledger, store: DecisionStore) -> None:
    write(ledger, FULL)
    assert store.newest() == (replace(FULL, inputs=NOTHING),)
    assert store.answer("admission", "c1", "r-1") == replace(FULL, inputs=NOTHING)


def test_an_answer_belongs_to_one_part_subject_and_request(ledger: Ledger, store: DecisionStore) -> None:
    write(
        ledger,
        a_record("a", request_id="r"),
        a_record("b", request_id="r", subject="counter"),
        a_record("c", request_id="r", decision="other"),
        a_record("d", request_id="s"),
        a_record("e"),
    )
    for name, asked in {
        "a": ("tokens", "desk", "r"),
        "b": ("tokens", "counter", "r"),
        "c": ("other", "desk", "r"),
    }.items():
        found = store.answer(*asked)
        assert found is not None
        assert found.decision_id == name
    assert store.answer("tokens", "desk", "t") is None


@pytest.mark.parametrize("twice", [{"number": 1}, {"request_id": "r"}])
def test_a_number_and_a_request_are_given_once(ledger: Ledger, store: DecisionStore, twice: dict[str, object]) -> None:
    write(ledger, a_record("a", **twice))
    with pytest.raises(Clash):
        write(ledger, a_record("b", **twice), a_record("c"))
    assert ids(store.newest()) == ["a"]
    write(ledger, a_record("b", subject="counter", **twice), a_record("c", decision="other", **twice))
    assert len(store.newest()) == 3


def test_the_newest_number_is_a_subjects_own(ledger: Ledger, store: DecisionStore) -> None:
    assert store.newest_number("tokens", "desk") == 0
    write(ledger, a_record("a", number=3), a_record("b", subject="counter", number=8), a_record("c"))
    write(ledger, a_record("d", decision="other", number=5))
    assert store.newest_number("tokens", "desk") == 3
    assert store.newest_number("tokens", "counter") == 8
    assert store.newest_number("other", "desk") == 5


def test_after_a_restore_numbers_go_on_above_those_that_may_have_been_given(
    ledger: Ledger, store: DecisionStore
) -> None:
    write(ledger, a_record("a", number=3))
    with ledger.database.write() as connection:
        connection.execute(update(identity).values(generation=identity.c.generation + INCARNATION))
    assert store.newest_number("tokens", "desk") == NUMBERS
    write(ledger, a_record("b", number=NUMBERS + 1))
    assert store.newest_number("tokens", "desk") == NUMBERS + 1


def test_subjects_are_named_once_and_in_order(ledger: Ledger, store: DecisionStore) -> None:
    write(ledger, a_record("a", subject="z"), a_record("b", subject="y"), a_record("c", subject="z"))
    write(ledger, a_record("d", subject="x", decision="other"))
    assert store.subjects("tokens") == ("y", "z")
    assert store.subjects("nobody") == ()


@dataclass(frozen=True)
class Given:
    tokens: int


def test_a_record_is_decoded_as_its_parts_type() -> None:
    assert decoded(Given, a_record("a", body=b'{"tokens":3}'), "a", "look elsewhere") == Given(3)
    with pytest.raises(UnknownName, match=r"decision_id is 'a': look elsewhere"):
        decoded(Given, None, "a", "look elsewhere")


_texts = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=8)
_records = st.builds(
    Record,
    decision_id=_texts,
    decision=_texts,
    subject=_texts,
    at=st.floats(-1e9, 1e12),
    body=st.integers(0, 2000).map(lambda size: b'{"a":"' + b"x" * size + b'"}'),
    inputs=st.one_of(st.just(NOTHING), st.integers(0, 2000).map(lambda size: b'{"b":"' + b"y" * size + b'"}')),
    kind=st.one_of(st.just(""), _texts),
    number=st.one_of(st.none(), st.integers(0, 2**40)),
    request_id=st.one_of(st.just(""), _texts),
    about=_texts,
    changed=st.booleans(),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(made=_records)
def test_any_decision_comes_back(ledger: Ledger, store: DecisionStore, made: Record) -> None:
    with ledger.database.write() as connection:
        connection.execute(text("DELETE FROM decisions"))
        add(connection, [made])
    assert store.get(made.decision_id) == made
