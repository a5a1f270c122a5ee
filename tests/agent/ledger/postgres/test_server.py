"""What a ledger on a server says of itself, and whose lease it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.dictionaries import DECISIONS_EACH
from agent.ledger.identity import NUMBERS, LedgerOwner
from agent.ledger.postgresql import OtherLease, OwnLease
from agent.ledger.restore import restore
from domain.errors import BadInput, LedgerUnavailable
from tests.agent.ledger.records import START, made

pytestmark = pytest.mark.needs_postgresql


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


@pytest.mark.smoke
def test_a_lease_is_renewed_by_the_epoch_that_has_it_and_by_no_other(ledger: Ledger) -> None:
    assert ledger.take_lease("ana", 60.0, START) == OwnLease(1)
    held = ledger.take_lease("ben", 60.0, START)
    assert isinstance(held, OtherLease)
    assert held.owner == "ana"
    assert 0.0 < held.remaining_s <= 60.0
    assert ledger.renew_lease(1, 90.0)
    longer = ledger.take_lease("ben", 60.0, START)
    assert isinstance(longer, OtherLease)
    assert longer.remaining_s > held.remaining_s
    # Who has it may take it anew, under a newer epoch.
    assert ledger.take_lease("ana", 60.0, START) == OwnLease(2)
    assert ledger.renew_lease(1, 60.0) is False
    assert ledger.renew_lease(2, 60.0) is True
    ledger.give_up_lease(1)
    assert isinstance(ledger.take_lease("ben", 60.0, START), OtherLease)
    ledger.give_up_lease(2)
    assert ledger.renew_lease(2, 60.0) is False
    assert ledger.take_lease("ben", 60.0, START) == OwnLease(3)


def test_a_lease_ends_by_the_servers_clock(ledger: Ledger) -> None:
    assert ledger.take_lease("ana", 0.0, START) == OwnLease(1)
    assert ledger.take_lease("ben", 60.0, START) == OwnLease(2)


def test_a_restored_server_goes_on_beyond_all_that_is_known_once_nobody_leads(url: str, tmp_path: Path) -> None:
    with Ledger.open(url, witness_in=tmp_path) as ledger:
        ledger.bind(LedgerOwner("1111", "us-east-1", "prod"))
        ledger.take_lease("ana", 60.0, START)
        with pytest.raises(BadInput, match="run this without FILE"):
            restore(url, tmp_path / "copy.db", (), START, ())
        with pytest.raises(LedgerUnavailable, match="is led by ana: stop the agents first"):
            restore(url, None, (tmp_path,), START, ())
        ledger.give_up_lease(1)
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
