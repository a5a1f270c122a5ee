"""What learning needs of each minute, on PostgreSQL: written by several agents, read in a stream, kept and exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.autoscaling import minutes
from agent.autoscaling.minutes import Boot, Measured, read_minutes
from agent.autoscaling.store import FleetStore
from agent.decisions.parts import kept
from agent.ledger import Ledger
from tests.agent.ledger.records import START, made

pytestmark = pytest.mark.needs_postgresql
DAY_S = 86400.0
MEASURED = {"web": Measured(finished=3, boots=(Boot(1, 70.5),))}


def test_two_agents_write_one_recording_and_share_its_settings(open_ledger: Callable[..., Ledger]) -> None:
    first, second = open_ledger(), open_ledger()
    FleetStore(first).record([made(1, epoch=0)], measured=MEASURED)
    FleetStore(second).record([made(2, epoch=0)], measured=MEASURED)
    found = list(read_minutes(first.database, "web"))
    assert [(one.finished, one.boots, one.submitted is None) for one in found] == [(3, (Boot(1, 70.5),), False)] * 2
    with first.database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM learning_contexts").scalar() == 1


def test_it_is_kept_longer_than_decisions_and_comes_back_after_a_downgrade(
    open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    ledger, export = open_ledger(), tmp_path / "lost.jsonl"
    FleetStore(ledger).record([made(day, at=START + day * DAY_S, epoch=0) for day in range(4)], measured=MEASURED)
    ledger.compact(START + 4 * DAY_S, DAY_S, (minutes.KEPT,), longer_s={"learning": 3 * DAY_S})
    before = list(read_minutes(ledger.database, "web"))
    assert len(before) == 2
    assert ledger.downgrade("0006", kept(), export_to=export) == export
    again = open_ledger()
    assert list(read_minutes(again.database, "web")) == []
    again.take_in(export, kept())
    assert list(read_minutes(again.database, "web")) == before
