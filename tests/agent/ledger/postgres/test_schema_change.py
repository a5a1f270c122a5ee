"""Going back to an older schema and forward again with intents open, on PostgreSQL (row 21 of the fault plan)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from agent.admission.service import AdmissionService
from agent.admission.store import AdmissionStore
from agent.autoscaling.store import FleetStore
from agent.decisions.parts import kept
from agent.ledger import Ledger
from agent.ledger.schema import REVISIONS
from agent.service.leader import LeaseLeader
from domain.clock import VirtualClock
from domain.errors import BadInput, LedgerUnavailable
from domain.rules.admission.cluster import PolicyKind
from tests.agent.admission.clusters import ask, rules
from tests.agent.ledger.records import START, made

pytestmark = pytest.mark.needs_postgresql


def tables(url: str) -> set[str]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows}


def test_open_intents_and_history_survive_the_way_back_and_forth(url: str, open_ledger: Callable[..., Ledger]) -> None:
    ledger = open_ledger()
    ledger.take_epoch("before", START)
    FleetStore(ledger).record([made(1, groups=("workers_2", "workers_8"))])
    before = ledger.open_intents(), ledger.journal(), FleetStore(ledger).loop_state("web"), ledger.epoch()
    assert "lease" in tables(url)
    ledger.downgrade("0001")
    assert "lease" not in tables(url)
    again = open_ledger()
    assert again.schema() == REVISIONS[-1]
    assert (again.open_intents(), again.journal(), FleetStore(again).loop_state("web"), again.epoch()) == before


def test_while_an_agent_leads_the_schema_stays(open_ledger: Callable[..., Ledger]) -> None:
    ledger = open_ledger()
    leader = LeaseLeader(ledger, "host:1:a", VirtualClock(START), 30.0, 10.0)
    leader.start()
    other = open_ledger()
    with pytest.raises(LedgerUnavailable, match="is led by host:1:a: stop the agents first"):
        other.downgrade("0001")
    leader.stop()
    other.downgrade("0001")


def test_a_downgrade_exports_what_it_loses_and_an_import_brings_it_back(
    tmp_path: Path, open_ledger: Callable[..., Ledger]
) -> None:
    ledger, export = open_ledger(), tmp_path / "lost.jsonl"
    given = rules(capacity_cores=100, policy=PolicyKind.ZEROTH, kappa=None, threshold_cores=101.0)
    service = AdmissionService(given, AdmissionStore(ledger), VirtualClock(START))
    service.admit(ask("a", 90))
    before = service.deployments(), service.newest()
    with pytest.raises(BadInput, match="add --lose admission to export"):
        ledger.downgrade("0002", kept(), export_to=export)
    ledger.downgrade("0002", kept(), lose=["admission"], export_to=export)
    again = open_ledger()
    assert again.take_in(export, kept()) == 3
    service = AdmissionService(given, AdmissionStore(again), VirtualClock(START))
    assert (service.deployments(), service.newest()) == before
