"""A ledger that the schema before wrote is taken over with all that it holds."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import inspect

from agent.autoscaling.state import FleetStore
from agent.ledger import Kind, Ledger
from agent.ledger.schema import REVISIONS, metadata
from domain.controls import Controls, PauseScope
from domain.decisions import Event, Reason
from domain.subject import AGENT, Subject, fleet_subject
from tests.agent.ledger.old_rows import write_old
from tests.agent.ledger.records import START

WEB, POOL = fleet_subject("web"), Subject("deferral", "web")


def check_taken_over(ledger: Ledger) -> None:
    """Assert that everything of the old ledger is read, and that it is written on."""
    assert ledger.schema() == REVISIONS[-1]
    assert (FleetStore(ledger).loop_state("web").decisions, FleetStore(ledger).fleets()) == (2, ("web",))
    scopes = {
        decision: [pause.scope for pause in ledger.controls(decision, "web").pauses]
        for decision in ("autoscaling", "deferral", "placement")
    }
    assert scopes == {"autoscaling": [PauseScope.IN], "deferral": [PauseScope.ALL], "placement": []}
    assert ledger.controls("placement", "web") == Controls()
    old = ledger.journal()
    # An event from before names no decision: a fleet and a pool of one name both show it.
    assert [(entry.kind.value, entry.subject) for entry in old[:3]] == [
        ("decision", WEB),
        ("intent", WEB),
        ("event", Subject("", "web")),
    ]
    assert [entry.body["detail"] for entry in old if entry.reason == "drift_adopted"] == ["drift"]
    ledger.record_events([Event(WEB, START + 90, Reason.DRIFT_ADOPTED, "the fleet's", "s")])
    ledger.record_events([Event(POOL, START + 91, Reason.JOB_SUBMITTED, "the pool's", "j2")])
    ledger.record_events([Event(AGENT, START + 92, Reason.STOPPED, "the agent's")])

    def details(subject: Subject) -> list[str]:
        rows = ledger.latest((Kind.EVENT,), up_to_seq=ledger.newest_seq(), subject=subject)
        return [str(row.body["detail"]) for row in rows if row.reason != "operator"]

    shared = ["main-a1 is admitted", "j1: 4 cores", "act mode", "drift"]
    assert details(WEB) == ["the agent's", "the fleet's", *shared]
    assert details(POOL) == ["the agent's", "the pool's", *shared]
    with ledger.database.read() as connection:
        there = inspect(connection)
        assert not there.has_table("placement_changes")
        for table in ("journal", "state"):
            assert {column["name"] for column in there.get_columns(table)} == {
                column.name for column in metadata.tables[table].columns
            }


def test_a_sqlite_ledger_of_the_schema_before(path: Path, url: str) -> None:
    path.parent.mkdir()
    write_old(url)
    with Ledger.open(url) as ledger:
        check_taken_over(ledger)
    with Ledger.open(url) as again:
        assert [entry.reason for entry in again.journal()][-1] == "stopped"
