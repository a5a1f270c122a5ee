"""What a ledger on a server says of itself, and whose lease it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.dictionaries import DECISIONS_EACH
from agent.ledger.identity import NUMBERS, LedgerOwner
from agent.ledger.leases import OBSERVERS_WAIT_S, OBSERVES, AgentRecord, Moves, Roster
from agent.ledger.restore import restore
from agent.ledger.schema import REVISIONS
from domain.errors import BadInput, Fenced, LedgerUnavailable
from domain.subject import Subject, fleet_subject
from tests.agent.ledger.records import START, made

pytestmark = pytest.mark.needs_postgresql

WEB, API = fleet_subject("web"), fleet_subject("api")


def test_its_room_is_asked_of_the_server_and_it_looks_after_itself(ledger: Ledger) -> None:
    assert ledger.size_bytes() > 1_000_000
    assert ledger.damage() == ""
    assert ledger.shared
    ledger.check_writable()


def test_inputs_share_dictionaries_that_go_with_the_last_decision_that_uses_them(ledger: Ledger) -> None:
    store, count = FleetStore(ledger), DECISIONS_EACH + 2
    store.record([made(n, name) for n in range(count) for name in ("web", "other")])
    assert [inputs for inputs, _ in store.inputs("web")] == [made(n)[0] for n in range(count)]
    assert store.decision("other-00000031").inputs == made(31, "other")[0]

    def dictionaries() -> list[int]:
        with ledger.database.read() as connection:
            return list(connection.execute(text("SELECT dictionary_id FROM dictionaries ORDER BY 1")).scalars())

    assert dictionaries() == [1, 2, 3, 4]
    ledger.compact(START + 60.0 * count, 60.0 * 2)
    assert dictionaries() == [3, 4]
    assert [inputs for inputs, _ in store.inputs("web")] == [made(n)[0] for n in range(DECISIONS_EACH, count)]
    ledger.compact(START + 60.0 * 2 * count, 60.0)
    assert dictionaries() == []


def beat(ledger: Ledger, name: str, known: tuple[int, ...] = (), lease_s: float = 60.0, **moves: Any) -> Roster:
    me = AgentRecord(name, f"process-of-{name}", REVISIONS[-1], settings={WEB: "d", API: "e"})
    return ledger.beat(me, known, lease_s, START, lambda there: Moves(**moves))


def led(there: Roster) -> dict[Subject, tuple[str, int]]:
    return {subject: (lease.agent, lease.epoch) for subject, lease in there.leases.items()}


@pytest.mark.smoke
def test_a_lease_is_of_one_subject_and_lasts_as_long_as_the_heartbeat_of_its_process(ledger: Ledger) -> None:
    assert led(beat(ledger, "ana", take=frozenset({WEB, API}))) == {API: ("ana", 1), WEB: ("ana", 2)}
    # What another process leads is not taken.
    there = beat(ledger, "ben", take=frozenset({WEB}))
    assert led(there) == {API: ("ana", 1), WEB: ("ana", 2)}
    assert {name: (one.process, one.ready, one.settings) for name, one in there.agents.items()} == {
        name: (f"process-of-{name}", True, {WEB: "d", API: "e"}) for name in ("ana", "ben")
    }
    assert 0.0 < there.ends_in_s["ana"] <= 60.0
    ledger.check_epoch(1, 2)
    assert led(beat(ledger, "ana", (1, 2), give=frozenset({WEB}))) == {API: ("ana", 1)}
    assert led(beat(ledger, "ben", take=frozenset({WEB}))) == {API: ("ana", 1), WEB: ("ben", 3)}
    ledger.check_epoch(1)
    ledger.check_epoch(3)
    for over in (2,), (1, 2, 3):
        with pytest.raises(Fenced, match="leader epoch 2 of autoscaling/web is over"):
            ledger.check_epoch(*over)
        with pytest.raises(Fenced, match="process-of-ben leads since epoch 3"):
            FleetStore(ledger).record((), states={}, epochs=over)
    # A lease under an epoch that its process does not know is not resumed.
    assert led(beat(ledger, "ana", ())) == {WEB: ("ben", 3)}
    assert led(ledger.roster()) == {WEB: ("ben", 3)}
    ledger.give_up("process-of-ben")
    assert ledger.roster().agents.keys() == {"ana"}
    assert led(beat(ledger, "ana", (), take=frozenset({WEB}))) == {WEB: ("ana", 4)}


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_subjects_of_an_agent_that_acted_are_known_for_a_while_after_its_end(ledger: Ledger, ends: str) -> None:
    beat(ledger, "ana", lease_s=60.0 if ends == "stopped" else 0.0)
    if ends == "stopped":
        assert ledger.roster().ended == {}
        ledger.give_up("process-of-ana")
    assert beat(ledger, "ben").ended == {WEB: "ana", API: "ana"}
    # A new process under the name has it again; one that observes leaves nothing to wait for.
    assert beat(ledger, "ana").ended == {}
    observer = AgentRecord("cleo", "process-of-cleo", REVISIONS[-1], settings={WEB: f"{OBSERVES}d"})
    ledger.beat(observer, (), 0.0, START, lambda there: Moves())
    assert ledger.roster().ended == {}
    ledger.give_up("process-of-ana")
    with ledger.database.write() as connection:
        connection.execute(text("UPDATE agent SET expires_at = expires_at - :s"), {"s": 2.0 * OBSERVERS_WAIT_S})
    assert ledger.roster().ended == {}


def test_leases_end_with_the_heartbeat_by_the_servers_clock(ledger: Ledger) -> None:
    beat(ledger, "ana", lease_s=0.0, take=frozenset({WEB}))
    assert led(beat(ledger, "ben", take=frozenset({WEB}))) == {WEB: ("ben", 2)}
    # Its heartbeat again, without the subjects that it led before.
    assert led(beat(ledger, "ana", (1,))) == {WEB: ("ben", 2)}


def test_a_restore_ends_every_epoch(ledger: Ledger) -> None:
    beat(ledger, "ana", take=frozenset({WEB}))
    newest = ledger.take_epoch("restore", START)
    with pytest.raises(Fenced, match="leader epoch 1 is over: restore leads since epoch 2"):
        ledger.check_epoch(1)
    assert (newest, led(ledger.roster())) == (2, {})
    assert led(beat(ledger, "ana", (1,), take=frozenset({WEB}))) == {WEB: ("ana", 3)}
    ledger.check_epoch(3)


def test_a_restored_server_goes_on_beyond_all_that_is_known_once_nobody_leads(url: str, tmp_path: Path) -> None:
    with Ledger.open(url, witness_in=tmp_path) as ledger:
        ledger.bind(LedgerOwner("1111", "us-east-1", "prod"))
        beat(ledger, "ana", take=frozenset({WEB}))
        with pytest.raises(BadInput, match="run this without FILE"):
            restore(url, tmp_path / "copy.db", (), START, ())
        with pytest.raises(LedgerUnavailable, match="is in use by process-of-ana: stop the agents first"):
            restore(url, None, (tmp_path,), START, ())
        ledger.give_up("process-of-ana")
        before = ledger.identity()
    done = restore(url, None, (tmp_path,), START, ())
    assert done is not None
    assert (done.kept, done.epoch, done.numbers_from, done.open_intents, done.lost) == (None, 2, NUMBERS, (), None)
    with Ledger.open(url) as ledger:
        after = ledger.identity()
        assert (after.ledger_id, after.incarnation) == (before.ledger_id, 1)
        assert ledger.owned_by() == LedgerOwner("1111", "us-east-1", "prod")
        assert [entry.reason for entry in ledger.journal()] == ["ledger_restored"]
    again = restore(url, None, (), START, (), is_another=True)
    assert again is not None
    assert (again.epoch, again.numbers_from) == (3, 2 * NUMBERS)
    with Ledger.open(url) as ledger:
        assert ledger.owned_by() == LedgerOwner(None, None, None)
