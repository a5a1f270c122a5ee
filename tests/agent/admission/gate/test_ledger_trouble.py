"""The ledger cannot be written when the gate has something to record: the next turn records it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from domain.decisions import Mode
from domain.errors import LedgerUnavailable
from tests.agent.admission.gate.yard import MakeYard, Yard


@contextmanager
def written_by_another(yard: Yard) -> Iterator[None]:
    """Another process holds the ledger's write lock."""
    holder = sqlite3.connect(yard.directory / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


def test_a_scale_out_in_vain_that_could_not_be_recorded_is_reported_by_the_next_turn(make_yard: MakeYard) -> None:
    yard = make_yard(busy_timeout_s=0.05)
    yard.ask("batch-a", 2)
    yard.turn(3)
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.world.desire(5, "batch-a")
    with written_by_another(yard), pytest.raises(LedgerUnavailable):
        yard.turn()
    yard.turn(2)
    assert [kind for kind in yard.kinds() if kind[1] == "refused"] == [("batch-a.1", "refused", 12)]


def test_advice_that_could_not_be_recorded_is_given_by_the_next_turn(make_yard: MakeYard) -> None:
    yard = make_yard(busy_timeout_s=0.05, mode=Mode.OBSERVE)
    yard.turn()
    yard.ask("batch-a", 2)
    with written_by_another(yard), pytest.raises(LedgerUnavailable):
        yard.turn()
    yard.turn()
    assert [decision.advice for decision in yard.decisions()] == [True]
