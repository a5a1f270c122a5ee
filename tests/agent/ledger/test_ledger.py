"""The ledger's own doors: whom it belongs to, what is read of its journal, retention to the row, and its locks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from agent.kernel.store import DecisionStore, Record, add
from agent.ledger import Kind, Ledger, codec, state
from agent.ledger.identity import LedgerOwner
from agent.ledger.kept import StoredState
from agent.ledger.lock import LOCK_NAME, lock_directory, lock_ledger
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.decisions import Event, Reason
from domain.errors import BadInput, Fenced, LedgerError, LedgerForeign, LedgerUnavailable
from domain.subject import AGENT, fleet_subject
from tests.agent.ledger.records import START

OURS = LedgerOwner("1111", "us-east-1", "prod")
NOBODY = LedgerOwner(None, None, None)


def event(name: str, at: float = START, fleet: str = "web", reason: Reason = Reason.STARTED) -> Event:
    return Event(fleet_subject(fleet), at, reason, name, name)


def refs(ledger: Ledger, **asked: object) -> list[str]:
    return [entry.ref for entry in ledger.journal(**asked)]  # type: ignore[arg-type]


# Whom it belongs to


def test_a_new_ledger_belongs_to_nobody_and_is_bound_once(ledger: Ledger) -> None:
    assert ledger.owned_by() == NOBODY
    assert ledger.refuse_unless_owned(OURS) == NOBODY
    ledger.bind(OURS)
    assert ledger.owned_by() == OURS
    assert ledger.refuse_unless_owned(OURS) == OURS
    ledger.bind(OURS)
    assert ledger.owned_by() == OURS


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (LedgerOwner("2222", "us-east-1", "prod"), "AWS account 1111, not 2222"),
        (LedgerOwner("1111", "eu-west-1", "prod"), "region us-east-1, not eu-west-1"),
        (LedgerOwner("1111", "us-east-1", "test"), "deployment prod, not test"),
        (LedgerOwner("2222", None, "test"), "AWS account 1111, not 2222; deployment prod, not test"),
    ],
)
def test_a_ledger_of_others_is_refused_by_what_differs(ledger: Ledger, other: LedgerOwner, words: str) -> None:
    ledger.bind(OURS)
    for refuse in (ledger.refuse_unless_owned, ledger.bind):
        with pytest.raises(LedgerForeign, match=re.escape(f"belongs to {words}: give this agent a separate ledger")):
            refuse(other)
    assert ledger.owned_by() == OURS


def test_what_is_not_known_on_either_side_differs_from_nothing(ledger: Ledger) -> None:
    ledger.bind(LedgerOwner(None, None, "prod"))
    assert ledger.owned_by() == LedgerOwner(None, None, "prod")
    assert ledger.refuse_unless_owned(LedgerOwner("1111", "us-east-1", None)).deployment == "prod"
    # What was open is filled in, and what stood there stays.
    ledger.bind(LedgerOwner("1111", None, None))
    assert ledger.owned_by() == LedgerOwner("1111", None, "prod")
    ledger.bind(NOBODY)
    assert ledger.owned_by() == LedgerOwner("1111", None, "prod")


# Epochs


def test_each_epoch_is_one_above_the_last_and_fences_those_before(ledger: Ledger) -> None:
    assert ledger.epoch() == 0
    assert not ledger.shared
    first = ledger.take_epoch("ana", START)
    assert (first, ledger.epoch()) == (1, 1)
    ledger.check_epoch(first)
    ledger.record_events([event("a")], epoch=first)
    second = ledger.take_epoch("ben", START)
    assert second == 2
    with pytest.raises(Fenced):
        ledger.check_epoch(first)
    with pytest.raises(Fenced):
        ledger.record_events([event("b")], epoch=first)
    ledger.record_events([event("c")], epoch=second)
    ledger.record_events([event("d")])
    assert refs(ledger) == ["a", "c", "d"]


# Switches


def test_switches_are_a_fleets_own_and_reported_in_the_journal(ledger: Ledger) -> None:
    pause = Pause(PauseScope.OUT, "ana", "deploying", START, START + 60.0)
    pin = Pin({"b": 2, "a": 1}, "ben", "load test", START + 1.0, START + 120.0)
    ledger.pause("autoscaling", "web", pause)
    ledger.pin("autoscaling", "web", pin)
    assert ledger.controls("autoscaling", "web") == Controls((pause,), pin)
    assert ledger.controls("autoscaling", "api") == Controls()
    assert ledger.all_controls("autoscaling", ["web", "api"]) == {"web": Controls((pause,), pin), "api": Controls()}
    assert ledger.all_controls("autoscaling", []) == {}
    assert ledger.resume("autoscaling", "web", PauseScope.IN, at=START + 2.0, owner="cy") is False
    assert ledger.resume("autoscaling", "web", PauseScope.OUT, at=START + 2.0, owner="cy") is True
    assert ledger.unpin("autoscaling", "web", at=START + 3.0, owner="cy") is True
    assert ledger.unpin("autoscaling", "web", at=START + 3.0, owner="cy") is False
    assert ledger.controls("autoscaling", "web") == Controls()
    said = [
        (entry.at - START, entry.kind, entry.subject.name, entry.ref, entry.body["detail"])
        for entry in ledger.journal()
    ]
    assert [(at, kind, fleet, ref) for at, kind, fleet, ref, _ in said] == [
        (0.0, Kind.EVENT, "web", "pause.autoscaling.out"),
        (1.0, Kind.EVENT, "web", "pin.autoscaling"),
        (2.0, Kind.EVENT, "web", "pause.autoscaling.out"),
        (3.0, Kind.EVENT, "web", "pin.autoscaling"),
    ]
    assert said[0][-1].startswith("ana paused scale-out ")
    assert said[0][-1].endswith(": deploying")
    assert said[1][-1].startswith("ben pinned a at 1, b at 2 until 20")
    assert [each[-1] for each in said[2:]] == ["cy resumed scale-out of autoscaling", "cy lifted the pin"]


# Reading


def test_the_journal_is_read_after_a_number_of_one_fleet_or_of_all(ledger: Ledger) -> None:
    assert ledger.newest_seq() == 0
    ledger.record_events([event(str(n), fleet="web" if n % 2 else "api") for n in range(1, 7)])
    assert ledger.newest_seq() == 6
    assert refs(ledger) == ["1", "2", "3", "4", "5", "6"]
    assert refs(ledger, since_seq=4) == ["5", "6"]
    assert refs(ledger, subject="api") == ["2", "4", "6"]
    assert refs(ledger, since_seq=2, decision="autoscaling", subject="api", limit=1) == ["4"]


def test_the_newest_rows_of_some_kinds_are_looked_for_within_a_span(ledger: Ledger) -> None:
    ledger.record_events([event(str(n), fleet="web" if n % 2 else "api") for n in range(1, 7)])
    ledger.record_settings(START, {"a": 1})

    def latest(*kinds: Kind, up_to: int = 7, **asked: object) -> list[int]:
        return [entry.seq for entry in ledger.latest(kinds, up_to_seq=up_to, **asked)]  # type: ignore[arg-type]

    assert latest(Kind.EVENT) == [6, 5, 4, 3, 2, 1]
    assert latest(Kind.SETTINGS) == [7]
    assert latest(Kind.EVENT, Kind.SETTINGS, limit=2) == [7, 6]
    assert latest(Kind.EVENT, up_to=4) == [4, 3, 2, 1]
    assert latest(Kind.EVENT, up_to=4, span=2) == [4, 3]
    assert latest(Kind.EVENT, subject=fleet_subject("api")) == [6, 4, 2]
    assert latest(Kind.OUTCOME) == []


def test_what_is_stored_of_whom_is_named(ledger: Ledger) -> None:
    with ledger.database.write() as connection:
        state.put(
            connection, [("web", "b", b"{}"), ("api", "a", b"{}"), ("web", "a", b'{"x":1}'), (AGENT.name, "c", b"{}")]
        )
        state.put(connection, [])
    with ledger.database.read() as connection:
        assert state.get(connection, "web", "a") == b'{"x":1}'
        assert state.get(connection, "web", "c") is None
    with ledger.database.write() as connection:
        state.put(connection, [("web", "a", b'{"x":2}')])
        assert state.remove(connection, "web", "b") is True
        assert state.remove(connection, "web", "b") is False
    with ledger.database.read() as connection:
        assert state.get(connection, "web", "a") == b'{"x":2}'


# Upkeep


def test_each_transaction_that_writes_is_reported_with_its_time_and_its_end(ledger: Ledger) -> None:
    told: list[tuple[float, bool]] = []
    ledger.watch_writes(lambda seconds, ended: told.append((seconds, ended)))
    ledger.record_events([event("a")])
    ledger.journal()
    with pytest.raises(ZeroDivisionError), ledger.database.write():
        raise ZeroDivisionError
    assert [ended for _, ended in told] == [True, False]
    assert all(0.0 <= seconds < 60.0 for seconds, _ in told)


def test_a_look_whether_it_can_be_written_leaves_nothing(ledger: Ledger) -> None:
    ledger.check_writable()
    with ledger.database.read() as connection:
        assert state.get(connection, AGENT.name, state.PROBE) is None
    assert ledger.newest_seq() == 0
    assert ledger.damage() == ""
    assert ledger.size_bytes() > 0


# Retention


def a_decision(name: str, at: float, *, body: bytes = b"{}") -> Record:
    return Record(name, "tokens", "desk", at, body)


def test_rows_of_just_the_kept_age_stay(ledger: Ledger) -> None:
    ledger.record_events([event("old", START - 0.001), event("kept", START)])
    with ledger.database.write() as connection:
        add(connection, [a_decision("d-old", START - 0.001), a_decision("d-kept", START)])
    done = ledger.compact(START + 60.0, 60.0)
    assert (done.rows, done.finished) == (2, True)
    assert refs(ledger) == ["kept"]
    assert [each.decision_id for each in DecisionStore(ledger.database).newest()] == ["d-kept"]


def test_one_batch_of_rows_goes_at_a_time_the_oldest_first_over_all_that_is_kept(ledger: Ledger) -> None:
    ledger.record_events([event(str(n), START + n) for n in range(3)])
    with ledger.database.write() as connection:
        add(connection, [a_decision(f"d{n}", START + n) for n in range(3)])
    asked: list[int] = []

    def forget(connection: object, before: float, most: int) -> int:
        assert before == START + 100.0
        asked.append(most)
        return min(most, 2) if len(asked) == 1 else 0

    kept = (StoredState("toy", forget=forget),)
    first = ledger.compact(START + 160.0, 60.0, kept, batch=4, batches=1)
    assert (first.rows, first.finished, asked) == (4, False, [])
    assert refs(ledger) == []
    assert [each.decision_id for each in DecisionStore(ledger.database).newest()] == ["d2", "d1"]
    second = ledger.compact(START + 160.0, 60.0, kept, batch=4, batches=1)
    assert (second.rows, second.finished, asked) == (4, False, [2])
    third = ledger.compact(START + 160.0, 60.0, kept, batch=4)
    assert (third.rows, third.finished, asked) == (0, True, [2, 4])


@pytest.mark.parametrize("keep_s", [0.0, -1.0, float("nan")])
def test_no_history_at_all_cannot_be_asked_for(ledger: Ledger, keep_s: float) -> None:
    with pytest.raises(BadInput, match="keep_s"):
        ledger.compact(START, keep_s)
    with pytest.raises(BadInput, match="batch"):
        ledger.compact(START, 1.0, batch=0)
    assert ledger.compact(START, 1.0, batch=1).finished


# Bytes


@pytest.mark.parametrize(("length", "packed"), [(codec.PACK_FROM_BYTES - 1, False), (codec.PACK_FROM_BYTES, True)])
def test_a_body_is_packed_from_a_length_on(length: int, packed: bool) -> None:
    text = b'{"a":"' + b"x" * (length - 8) + b'"}'
    assert len(text) == length
    assert (codec.pack(text) != text) is packed
    assert codec.unpack(codec.pack(text)) == text


def test_a_mapping_is_written_in_the_order_of_its_keys_at_every_depth() -> None:
    assert (
        codec.encode_mapping({"b": {"d": 1, "c": "ü"}, "a": [1.5, None]})
        == '{"a":[1.5,null],"b":{"c":"ü","d":1}}'.encode()
    )
    assert codec.decode_mapping(b'{"a":1}') == {"a": 1}
    for wrong, words in ((b"{", "a stored body is not JSON"), (b"[1]", "a stored body is not a JSON object")):
        with pytest.raises(LedgerError, match=words):
            codec.decode_mapping(wrong)
    with pytest.raises(BadInput, match="body for the ledger is"):
        codec.encode_mapping({"a": object()})
    assert codec.plain(event("a")) == {
        "subject": ["autoscaling", "web"],
        "at": START,
        "reason": "started",
        "detail": "a",
        "about": "a",
        "data": {},
    }


# Locks


def test_a_directory_and_a_ledger_are_held_by_one_process_that_is_named(tmp_path: Path) -> None:
    directory, ledger = tmp_path / "a" / "state", tmp_path / "b" / "ledger.db"
    link = tmp_path / "link.db"
    with lock_directory(directory), lock_ledger(ledger):
        assert (directory / LOCK_NAME).read_text() == f"{os.getpid()}\n"
        assert (ledger.parent / "ledger.db.lock").read_text() == f"{os.getpid()}\n"
        with (
            pytest.raises(LedgerUnavailable, match=f"process {os.getpid()}"),
            lock_directory(directory),
        ):
            pass
        link.symlink_to(ledger)
        with pytest.raises(LedgerUnavailable), lock_ledger(link):
            pass
    with lock_directory(directory), lock_ledger(ledger):
        pass


def test_a_holder_that_left_no_name_is_unknown_and_a_longer_name_is_not_left_over(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("9" * 30)
    with lock_directory(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
        (tmp_path / LOCK_NAME).write_text("")
        with pytest.raises(LedgerUnavailable, match="in use by process unknown"), lock_directory(tmp_path):
            pass


def test_a_directory_that_cannot_be_made_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / "file" / "state"
    with pytest.raises(LedgerUnavailable), lock_directory(state):
        pass
    with pytest.raises(LedgerUnavailable), lock_ledger(state / "ledger.db"):
        pass
    (tmp_path / "taken" / LOCK_NAME).mkdir(parents=True)
    with pytest.raises(LedgerUnavailable, match="cannot be used"), lock_directory(tmp_path / "taken"):
        pass
