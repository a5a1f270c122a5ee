"""An effect is on disk before its first call, and a process that no longer leads writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from agent.kernel.effects import EffectStore
from agent.ledger import Ledger, codec, state
from agent.ledger.journal import Kind
from agent.rails.state import Breaker, GuardState
from domain.decisions import Event, Reason
from domain.errors import Fenced
from domain.subject import AGENT, Subject


@dataclass(frozen=True)
class Parameter:
    """A value that is put somewhere."""

    at: float
    value: str
    open: bool


FAILING = GuardState(breakers=(Breaker("level", 3, 60.0, 30.0),))
EVENT = Event(Subject("oversubscription", "pool"), 5.0, Reason.RATES_PUBLISHED, "published", "level")


@pytest.fixture
def effects(ledger: Ledger) -> EffectStore[Parameter]:
    return EffectStore(ledger, Parameter, "rates.", ("{}", "guards"))


def test_a_thing_has_one_record_the_latest(effects: EffectStore[Parameter]) -> None:
    assert effects.latest("level") is None
    effects.write({"level": Parameter(1.0, "a", True)}, epoch=1)
    effects.write({"level": Parameter(2.0, "b", False), "size": Parameter(1.5, "c", True)}, epoch=1)
    assert effects.latest("level") == Parameter(2.0, "b", False)
    assert effects.latest("size") == Parameter(1.5, "c", True)
    assert effects.latest("lev") is None


def test_all_are_read_in_the_order_in_which_they_were_begun(effects: EffectStore[Parameter]) -> None:
    assert effects.read() == ({}, {})
    made = {"a": Parameter(3.0, "", True), "b": Parameter(1.0, "", True), "c": Parameter(2.0, "", False)}
    effects.write(made, epoch=1)
    found, damaged = effects.read()
    assert list(found.items()) == [("b", made["b"]), ("c", made["c"]), ("a", made["a"])]
    assert damaged == {}


def test_effects_of_another_kind_are_not_read(ledger: Ledger, effects: EffectStore[Parameter]) -> None:
    other = EffectStore(ledger, Parameter, "rates_", ("{}", "guards"))
    other.write({"x": Parameter(1.0, "", True)}, epoch=1)
    assert effects.read() == ({}, {})
    wild = EffectStore(ledger, Parameter, "rate_.", ("{}", "guards"))
    effects.write({"y": Parameter(1.0, "", True)}, epoch=1)
    assert list(wild.read()[0]) == []
    assert list(effects.read()[0]) == ["y"]


def test_a_damaged_record_is_named_and_keeps_no_other_from_being_read(
    ledger: Ledger, effects: EffectStore[Parameter]
) -> None:
    effects.write({"good": Parameter(1.0, "", True)}, epoch=1)
    with ledger.database.write() as connection:
        state.put(connection, [(AGENT.name, "rates.bad", b'{"at":"yesterday"}')])
    found, damaged = effects.read()
    assert list(found) == ["good"]
    assert list(damaged) == ["bad"]
    assert "a stored Parameter cannot be read" in damaged["bad"]


def test_guards_remember_by_subject(ledger: Ledger, effects: EffectStore[Parameter]) -> None:
    assert effects.memory("pool") == GuardState()
    effects.write({}, memories={"pool": FAILING}, epoch=1)
    assert effects.memory("pool") == FAILING
    assert effects.memory("another") == GuardState()
    with ledger.database.read() as connection:
        assert state.get(connection, "pool", "guards") == codec.encode(FAILING)


def test_memories_may_stand_under_the_agent(ledger: Ledger) -> None:
    effects = EffectStore(ledger, Parameter, "rates.", (AGENT.name, "guards.{}"))
    effects.write({}, memories={"pool": FAILING}, epoch=1)
    with ledger.database.read() as connection:
        assert state.get(connection, AGENT.name, "guards.pool") == codec.encode(FAILING)
    assert effects.memory("pool") == FAILING


def test_events_go_to_the_journal_with_the_records(ledger: Ledger, effects: EffectStore[Parameter]) -> None:
    effects.write({"level": Parameter(1.0, "a", True)}, [EVENT], epoch=1)
    (entry,) = ledger.journal()
    assert (entry.kind, entry.subject.name, entry.ref, entry.reason) == (Kind.EVENT, "pool", "level", "rates_published")


def test_who_no_longer_leads_writes_nothing_at_all(ledger: Ledger, effects: EffectStore[Parameter]) -> None:
    old = ledger.take_epoch("first", 0.0)
    new = ledger.take_epoch("second", 1.0)
    before = ledger.newest_seq()
    with pytest.raises(Fenced, match="second leads"):
        effects.write({"level": Parameter(1.0, "a", True)}, [EVENT], {"pool": FAILING}, epoch=old)
    assert effects.read() == ({}, {})
    assert effects.memory("pool") == GuardState()
    assert ledger.newest_seq() == before
    effects.write({"level": Parameter(1.0, "a", True)}, epoch=new)
    assert effects.latest("level") is not None
