"""A ledger's server that crashes, and its replica that is promoted in its place: the agent goes on without a gap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.alarms.book import alarms
from agent.autoscaling.report import with_fleets
from agent.autoscaling.state import FleetStore
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger
from domain.decisions import Reason
from tests.agent.ledger.postgres.server import Server, running_replica, running_server
from tests.faults.world import Plan, World
from tests.real.postgresql.pooler import Pooler, running_pooler

pytestmark = [pytest.mark.needs_postgresql, pytest.mark.needs_pgbouncer]


@pytest.fixture
def primary() -> Iterator[Server]:
    """A server that may be ended, unlike the one that tests share."""
    with running_server() as server:
        server.new_database("ledger")
        yield server


@pytest.fixture
def replica(primary: Server) -> Iterator[Server]:
    with running_replica(primary) as server:
        yield server


@pytest.fixture
def pooler(primary: Server) -> Iterator[Pooler]:
    with running_pooler(primary.port, "ledger", 5) as made:
        yield made


def test_after_a_promotion_decisions_are_numbered_on_and_nothing_was_executed_in_between(
    primary: Server, replica: Server, pooler: Pooler, tmp_path: Path
) -> None:
    world = World(tmp_path, Plan(ledger_url=pooler.url))
    try:
        world.submit(8)
        world.tick(2)
        calls = world.mutations
        assert calls
        with Ledger.open(replica.url("ledger", replica.port), read_only=True) as copy:
            assert len(FleetStore(copy).decisions("web")) == 2

        primary.stop()
        world.submit(40)
        for _ in range(2):
            (alarm,) = alarms(with_fleets(TurnReport(0.0), world.tick()), lasting=True).values()
            assert alarm.reason is Reason.LEDGER_UNAVAILABLE
        assert world.mutations == calls

        replica.promote()
        pooler.lead_to(replica.port)
        world.tick(3)
        assert world.reports[-1].failure is None
        assert len(world.mutations) > len(calls)
        rows = FleetStore(world.ledger).decisions("web", newest_first=False)
        assert [row.decision.decision_id for row in rows] == [f"web-{n + 1}" for n in range(len(rows))]
        assert len(rows) >= 4
        assert world.ledger.epoch() == 1
    finally:
        world.close()
