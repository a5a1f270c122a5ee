"""Agents behind pgbouncer in transaction mode: each transaction has another connection, and nothing depends on one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.errors import Fenced, LedgerUnavailable
from tests.agent.ledger.postgres.sharing import WEB, leader_of_web
from tests.agent.ledger.records import START, made
from tests.real.postgresql.pooler import Pooler
from tests.waiting import until

pytestmark = [pytest.mark.needs_postgresql, pytest.mark.needs_pgbouncer]

ROOT = Path(__file__).parents[3]
LEASE_S = 2.0


@pytest.fixture
def pooler(make_pooler: Callable[[int], Pooler]) -> Pooler:
    return make_pooler(1)


@pytest.fixture
def agents(pooler: Pooler) -> Iterator[tuple[Ledger, Ledger]]:
    """The ledgers of two agents that share one connection to the server."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(Ledger.open(pooler.url, busy_timeout_s=2.0)) for _ in range(2))
        yield one, two


def test_statements_of_several_agents_do_not_collide(agents: tuple[Ledger, Ledger]) -> None:
    one, two = agents
    epoch = one.take_epoch("host-a:1", START)
    for number in range(12):
        one.check_epoch(epoch)
        two.check_epoch(epoch)
        FleetStore(agents[number % 2]).record([made(number, epoch=epoch)])
    assert [len(FleetStore(ledger).decisions("web")) for ledger in agents] == [12, 12]


def test_the_limits_of_a_writer_hold_and_are_left_to_no_other_client(
    pooler: Pooler, agents: tuple[Ledger, Ledger]
) -> None:
    with agents[0].database.write() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout")
        ]
    assert shown == ["1600ms", "10s"]
    with psycopg.connect(pooler.url.replace("+psycopg", "")) as other:
        assert other.execute("SHOW lock_timeout").fetchone() == ("0",)
        assert other.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)


def test_a_writer_that_waits_too_long_for_another_gives_up(url: str, make_pooler: Callable[[int], Pooler]) -> None:
    with (
        Ledger.open(make_pooler(2).url, busy_timeout_s=0.5) as ledger,
        psycopg.connect(url.replace("+psycopg", "")) as slow,
    ):
        slow.execute("SELECT pg_advisory_xact_lock(7214511)")
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable):
            FleetStore(ledger).record([made(0)])
        assert time.monotonic() - began < 30.0
        slow.rollback()
        FleetStore(ledger).record([made(0)])


def test_when_the_leader_is_killed_the_other_one_leads(make_pooler: Callable[[int], Pooler]) -> None:
    url = make_pooler(2).url
    command = [sys.executable, "-m", "tests.agent.ledger.postgres.deposed_caller", url, "http://127.0.0.1:1"]
    first = subprocess.Popen(
        [*command, str(LEASE_S)], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first.stderr is not None
        assert first.stderr.readline() == "leading\n"
        with Ledger.open(url, busy_timeout_s=2.0) as ledger:
            second = leader_of_web(ledger, "heir", VirtualClock(START), LEASE_S, LEASE_S / 4.0)
            second.start()
            try:
                time.sleep(LEASE_S)
                assert (second.leads().numbers, second.leaders()) == ((), {WEB: "first"})
                with pytest.raises(Fenced):
                    second.fence([1])
                first.kill()
                until(lambda: second.leads().numbers == (2,))
                FleetStore(ledger).record([made(0, epoch=2)])
            finally:
                second.stop()
    finally:
        first.kill()
        first.communicate()
