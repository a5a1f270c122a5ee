"""Several agents and readers on one PostgreSQL: nothing is missed, and a server that says nothing holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.postgresql import new_engine, take_turn
from domain.clock import VirtualClock
from domain.decisions import Event, Reason
from domain.errors import LedgerUnavailable
from domain.rules.admission.cluster import PolicyKind
from domain.subject import fleet_subject
from tests.agent.admission.clusters import ask, rules
from tests.agent.ledger.postgres.server import Proxy, Server
from tests.agent.ledger.records import START, made

pytestmark = pytest.mark.needs_postgresql


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


def event(subject: str) -> Event:
    return Event(fleet_subject("web"), START, Reason.OPERATOR, "said", subject)


def test_a_reader_that_resumes_after_the_last_row_misses_none_of_writers_side_by_side(
    open_ledger: Callable[..., Ledger],
) -> None:
    writers, rows = 4, 60
    ledgers = [open_ledger() for _ in range(writers + 1)]

    def write(number: int) -> None:
        for row in range(rows):
            ledgers[number].record_events([event(f"{number}-{row}"), event(f"{number}-{row}-again")])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    seen: list[str] = []
    last = 0
    while any(thread.is_alive() for thread in threads) or ledgers[-1].journal(last, limit=1):
        for entry in ledgers[-1].journal(last, limit=7):
            last = entry.seq
            seen.append(entry.ref)
    assert sorted(seen) == sorted(
        f"{number}-{row}{tail}" for number in range(writers) for row in range(rows) for tail in ("", "-again")
    )


def test_a_writer_waits_for_the_one_before_so_that_numbers_appear_in_order(
    url: str, open_ledger: Callable[..., Ledger]
) -> None:
    ledger = open_ledger(busy_timeout_s=5.0)
    with psycopg.connect(plain(url)) as slow:
        slow.execute("SELECT pg_advisory_xact_lock(7214511)")
        done: list[float] = []

        def write() -> None:
            FleetStore(ledger).record((), events=[event("later")])
            done.append(time.monotonic())

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        slow.rollback()
        thread.join(60.0)
    assert [entry.ref for entry in ledger.journal()] == ["later"]


def test_a_writer_that_waits_too_long_says_so_and_works_again_afterwards(
    url: str, open_ledger: Callable[..., Ledger]
) -> None:
    ledger = open_ledger(busy_timeout_s=0.5)
    with psycopg.connect(plain(url)) as slow:
        slow.execute("SELECT pg_advisory_xact_lock(7214511)")
        # The server's own limit; on a busy machine the client's, of the same length, may end the wait first.
        with pytest.raises(LedgerUnavailable, match=r"lock timeout|did not answer within 0\.5 s"):
            FleetStore(ledger).record([made(1)])
    FleetStore(ledger).record([made(1)])
    assert len(FleetStore(ledger).decisions("web")) == 1


def test_the_server_itself_ends_a_wait_before_the_agent_gives_up(url: str) -> None:
    engine = new_engine(make_url(url), 30.0)
    with psycopg.connect(plain(url)) as slow, engine.connect() as connection:
        slow.execute("SELECT pg_advisory_xact_lock(7214511)")
        with pytest.raises(OperationalError, match="lock timeout"):
            take_turn(connection, 0.1)
    engine.dispose()


def test_what_one_transaction_reads_is_one_state(url: str, open_ledger: Callable[..., Ledger]) -> None:
    ledger, other = open_ledger(), open_ledger()
    FleetStore(ledger).record((), events=[event("first")])
    with ledger.database.read() as connection:
        first = connection.exec_driver_sql("SELECT count(*) FROM journal").scalar()
        other.record_events([event("second")])
        assert connection.exec_driver_sql("SELECT count(*) FROM journal").scalar() == first == 1


@pytest.fixture
def frozen(server: Server) -> Iterator[Callable[[], None]]:
    yield server.freeze
    server.thaw()


def test_a_server_that_stopped_answering_costs_a_timeout_and_no_more(
    server: Server, frozen: Callable[[], None], open_ledger: Callable[..., Ledger]
) -> None:
    ledger = open_ledger(busy_timeout_s=0.6)
    FleetStore(ledger).record([made(1)])
    frozen()
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"did not answer within 0\.6 s|timeout expired"):
            FleetStore(ledger).record([made(2)])
        assert time.monotonic() - began <= 30.0
    server.thaw()
    FleetStore(ledger).record([made(2)])
    assert len(FleetStore(ledger).decisions("web")) == 2


def test_a_connection_that_swallows_everything_costs_a_timeout_and_no_more(
    url: str, server: Server, make_proxy: Callable[[], Proxy], open_ledger: Callable[..., Ledger]
) -> None:
    proxy = make_proxy()
    ledger = open_ledger(url.replace(str(server.port), str(proxy.port)), busy_timeout_s=0.6)
    FleetStore(ledger).record([made(1)])
    proxy.cut()
    began = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=r"did not answer within 0\.6 s|timeout expired"):
        ledger.open_intents()
    assert time.monotonic() - began <= 30.0
    proxy.mend()
    FleetStore(ledger).record([made(2)])
    assert len(FleetStore(ledger).decisions("web")) == 2


def test_a_writer_cut_off_in_the_middle_of_a_transaction_does_not_keep_the_others_waiting_for_ever(
    open_ledger: Callable[..., Ledger],
) -> None:
    with open_ledger().database.write() as connection:
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "10s"


def test_a_password_is_in_no_error(server: Server) -> None:
    with pytest.raises(LedgerUnavailable) as raised:
        Ledger.open(f"postgresql://trimtab:open-sesame@127.0.0.1:{server.port}/no_such_database")
    assert "no_such_database" in str(raised.value)
    assert "open-sesame" not in str(raised.value)
    assert "open-sesame" not in repr(raised.value.__cause__)


@pytest.mark.parametrize("ahead_s", [7200.0, -7200.0])
def test_two_agents_whose_clocks_differ_do_not_end_each_other_s_admissions(
    open_ledger: Callable[..., Ledger], ahead_s: float
) -> None:
    clocks = VirtualClock(START), VirtualClock(START + ahead_s)
    given = rules(capacity_cores=100, policy=PolicyKind.ZEROTH, kappa=None, threshold_cores=101.0)
    one, other = (AdmissionService(given, AdmissionStore(open_ledger()), clock) for clock in clocks)
    assert one.answer([ask("a", 50)])[0].admit
    assert other.answer([ask("b", 40)])[0].admit
    answers = [service.answer([ask(f"c{n}", 90)])[0].reason for n, service in enumerate((one, other))]
    assert answers == [Reason.REJECTED_FEASIBILITY, Reason.REJECTED_FEASIBILITY]
    for clock in clocks:
        clock.advance(3601.0)
    assert other.answer([ask("d", 90)])[0].admit
    assert {deployment.deployment_id for deployment in one.deployments()} == {"d"}
