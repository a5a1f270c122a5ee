"""The lease on a subject: one leader at any time, wherever the network is cut, and another one soon after."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.event import listen

from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.ledger.leases import AgentRecord
from agent.ledger.schema import REVISIONS
from agent.service.leader import LeaseLeader
from agent.service.shares import Managed, owner, units
from domain.clock import VirtualClock
from domain.errors import Fenced, LedgerUnavailable
from domain.subject import fleet_subject
from tests.agent.ledger.postgres.server import Proxy, Server
from tests.agent.ledger.postgres.sharing import MANAGED, WEB, leader_of_web
from tests.golden import figures

pytestmark = pytest.mark.needs_postgresql

LEASE_S, RENEW_S = 1.0, 0.3
LONG_S = 3.0
"""The lease where a leader must not lose it: a busy machine may hold up its renewal for a second."""
_names = itertools.count(1)


def whose(names: Sequence[str], *, first: bool) -> str:
    """Return which of these agents leads `web` where all are there, or one that does not."""
    share = owner(frozenset({WEB}), names)
    return next(name for name in names if (name == share) is first)


class Agent:
    """A leader of the subject `web`, or of those of `managed`."""

    def __init__(
        self, ledger: Ledger, name: str, clock: VirtualClock, lease_s: float, managed: Managed = MANAGED
    ) -> None:
        self.name = name
        self.leader = leader_of_web(ledger, name, clock, lease_s, RENEW_S, managed)

    def epoch(self) -> int | None:
        return self.leader.leads().of(WEB)


@dataclass
class Rival:
    """An agent as far as the lease goes: its own way to the database, its own clock, its own leader thread."""

    proxy: Proxy
    ledger: Ledger
    agent: Agent

    def epoch(self) -> int | None:
        return self.agent.epoch()

    @property
    def leader(self) -> LeaseLeader:
        return self.agent.leader


@dataclass
class Rivals:
    """Agents on one database."""

    server: Server
    made: list[Rival] = field(default_factory=list)

    def add(self, url: str, clock_error_s: float = 0.0, lease_s: float = LEASE_S, name: str = "") -> Rival:
        proxy = Proxy(self.server.port)
        ledger = Ledger.open(url.replace(str(self.server.port), str(proxy.port)), busy_timeout_s=0.5)
        clock = VirtualClock(1_772_366_400.0 + clock_error_s)
        rival = Rival(proxy, ledger, Agent(ledger, name or f"agent-{next(_names)}", clock, lease_s))
        self.made.append(rival)
        rival.leader.start()
        return rival

    def close(self) -> None:
        for rival in self.made:
            rival.proxy.close()
            rival.leader.stop()
            rival.ledger.close()


@pytest.fixture
def rivals(server: Server) -> Iterator[Rivals]:
    made = Rivals(server)
    yield made
    made.close()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait for a condition and return the monotonic time at which it was seen."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the awaited condition did not come"
        time.sleep(0.002)
    return time.monotonic()


FIRST = whose(["ana", "ben"], first=True)
SECOND = whose(["ana", "ben"], first=False)


def pair(url: str, rivals: Rivals, lease_s: float = LEASE_S, error_s: float = 0.0) -> tuple[Rival, Rival]:
    """Return the agent whose share `web` is, and the other one."""
    return rivals.add(url, lease_s=lease_s, name=FIRST), rivals.add(url, error_s, lease_s, SECOND)


def test_the_one_whose_share_it_is_leads_and_the_other_stands_by(url: str, rivals: Rivals) -> None:
    first, second = pair(url, rivals, LONG_S)
    assert (first.epoch(), second.epoch()) == (1, None)
    time.sleep(1.5 * LONG_S)
    assert (first.epoch(), second.epoch()) == (1, None)
    assert second.leader.leaders() == {WEB: FIRST}
    first.leader.fence([1])
    with pytest.raises(Fenced, match="the lease under epoch 1 is over"):
        second.leader.fence([1])


def test_a_subject_moves_to_the_agent_whose_share_it_becomes(url: str, rivals: Rivals) -> None:
    second = rivals.add(url, lease_s=LONG_S, name=SECOND)
    assert second.epoch() == 1
    first = rivals.add(url, lease_s=LONG_S, name=FIRST)
    joined = time.monotonic()
    assert wait_for(lambda: first.epoch() == 2) - joined <= 2 * RENEW_S + 3.0
    assert second.epoch() is None
    with pytest.raises(Fenced, match="leader epoch 1 of autoscaling/web is over"):
        FleetStore(second.ledger).record((), states={}, epochs=[1])


def test_of_many_that_start_at_once_one_leads(url: str, rivals: Rivals) -> None:
    Ledger.open(url).close()
    threads = [threading.Thread(target=rivals.add, args=(url, 0.0, LONG_S)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    share = owner(frozenset({WEB}), [rival.agent.name for rival in rivals.made])
    wait_for(lambda: [rival.agent.name for rival in rivals.made if rival.epoch()] == [share])


@pytest.mark.parametrize("error_s", [-3600.0, 3600.0])
def test_agents_whose_clocks_differ_by_an_hour_agree(url: str, rivals: Rivals, error_s: float) -> None:
    first, second = pair(url, rivals, LONG_S, error_s)
    time.sleep(LONG_S)
    assert (first.epoch(), second.epoch()) == (1, None)


def test_a_lead_given_up_is_taken_at_the_next_look(url: str, rivals: Rivals) -> None:
    first, second = pair(url, rivals)
    first.leader.stop()
    given_up = time.monotonic()
    assert wait_for(lambda: second.epoch() == 2) - given_up <= RENEW_S + 3.0
    with pytest.raises(Fenced, match="stopping"):
        first.leader.fence([1])


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_leader_that_is_cut_off_stops_before_another_takes_over_and_that_within_the_lease(
    url: str, rivals: Rivals, how: str
) -> None:
    first, second = pair(url, rivals)
    getattr(first.proxy, how)()
    cut_at = time.monotonic()
    stopped_at = wait_for(lambda: first.epoch() is None)
    assert second.epoch() is None
    with pytest.raises((Fenced, LedgerUnavailable)):
        first.leader.fence([1])
    taken_at = wait_for(lambda: second.epoch() == 2)
    assert stopped_at < taken_at <= cut_at + LEASE_S + 3.0
    first.proxy.mend()
    # Its share again, under a newer epoch.
    wait_for(lambda: first.epoch() == 3)
    wait_for(lambda: second.epoch() is None)
    with pytest.raises(Fenced):
        first.leader.fence([1])


def test_a_leader_that_comes_back_in_time_goes_on_under_its_epoch(url: str, rivals: Rivals) -> None:
    first, second = pair(url, rivals, LONG_S)
    first.proxy.reset()
    time.sleep(0.3)
    first.proxy.mend()
    wait_for(lambda: not first.leader.failure)
    time.sleep(LONG_S)
    assert (first.epoch(), second.epoch()) == (1, None)


def test_while_the_database_is_away_nobody_leads_and_afterwards_one_does(
    server: Server, url: str, rivals: Rivals
) -> None:
    first, second = pair(url, rivals)
    server.freeze()
    try:
        wait_for(lambda: first.epoch() is None)
        assert second.epoch() is None
    finally:
        server.thaw()
    wait_for(lambda: first.epoch() is not None and second.epoch() is None)


def test_an_agent_that_slept_is_fenced_although_it_never_learnt_that_time_passed(url: str, rivals: Rivals) -> None:
    """A machine that is suspended may come back in the middle of a turn, its lease long gone."""
    first, second = pair(url, rivals)
    first.leader._ended.set()
    wait_for(lambda: second.epoch() == 2)
    with pytest.raises(Fenced):
        first.leader.fence([1])
    with pytest.raises(Fenced, match="leader epoch 1 of autoscaling/web is over"):
        first.ledger.check_epoch(1)
    with pytest.raises(Fenced, match="leader epoch 1 of autoscaling/web is over"):
        FleetStore(first.ledger).record((), states={}, epochs=[1])


def test_a_database_that_answers_when_the_lease_is_over_lets_nothing_through(server: Server, url: str) -> None:
    """Nobody else leads yet, so the epoch alone would be in order."""
    with Ledger.open(url, busy_timeout_s=30.0) as ledger:
        agent = Agent(ledger, "slow", VirtualClock(1_772_366_400.0), 2.0 * LEASE_S)
        leader = agent.leader
        leader.start()
        leader._ended.set()
        refused: list[BaseException] = []

        def ask() -> None:
            try:
                leader.fence([1])
            except (Fenced, LedgerUnavailable) as error:
                refused.append(error)

        server.freeze()
        try:
            asking = threading.Thread(target=ask)
            asking.start()
            wait_for(lambda: agent.epoch() is None)
            assert asking.is_alive(), "the database has answered although it is stopped"
        finally:
            server.thaw()
        asking.join(30.0)
        ledger.check_epoch(1)
        assert [figures(str(error)) for error in refused] == [[1]]
        leader.stop()


def test_a_second_process_of_one_name_leads_nothing_and_names_both(url: str, rivals: Rivals) -> None:
    first = rivals.add(url, lease_s=LONG_S, name="ana")
    with Ledger.open(url) as ledger:
        me = AgentRecord("ana", "another-process", REVISIONS[-1])
        second = LeaseLeader(ledger, me, VirtualClock(0.0), LONG_S, RENEW_S, lambda: MANAGED)
        second.start()
        assert second.leads() == Leads()
        assert "process-of-ana" in second.failure
        assert "another-process" in second.failure
        time.sleep(LONG_S)
        assert (first.epoch(), second.leads()) == (1, Leads())
        first.leader.stop()
        wait_for(lambda: second.leads().of(WEB) == 2)
        second.stop()


def test_a_restart_under_its_name_never_goes_on_under_the_old_epoch(url: str) -> None:
    with Ledger.open(url) as ledger:
        agents = [Agent(ledger, "ana", VirtualClock(0.0), LEASE_S) for _ in range(2)]
        agents[0].leader._beat()
        assert agents[0].epoch() == 1
        # The same process as far as the ledger can tell, without the memory of the first one.
        agents[1].leader._beat()
        assert agents[1].epoch() == 2
        with pytest.raises(Fenced, match="leader epoch 1 of autoscaling/web is over"):
            ledger.check_epoch(1)


def test_a_thousand_subjects_are_taken_renewed_and_given_up_in_one_transaction_each(url: str) -> None:
    subjects = [fleet_subject(f"f{n}") for n in range(1000)]
    managed = Managed(dict.fromkeys(subjects, "d"), units(subjects, []))
    with Ledger.open(url) as ledger, Ledger.open(url) as other:
        agent = Agent(ledger, "ana", VirtualClock(0.0), 60.0, managed)
        statements: list[str] = []
        listen(ledger.database._engine, "before_cursor_execute", lambda *about: statements.append(about[2]))
        agent.leader._beat()
        assert sorted(agent.leader.leads().numbers) == list(range(1, 1001))
        taken = len(statements)
        agent.leader._beat()
        renewed = len(statements) - taken
        ledger.check_epoch(*agent.leader.leads().numbers)
        agent.leader.stop()
        assert other.roster().leases == {}
        # An insert of a thousand rows is sent in a few parts.
        assert (taken <= 24, renewed <= 10) == (True, True), (taken, renewed)


def test_an_agent_of_the_schema_before_leads_everything_until_its_lease_is_over(url: str, rivals: Rivals) -> None:
    """A rolling upgrade: the new version has migrated the ledger while the old one leads it by its own statements."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as old:
        now = "extract(epoch FROM clock_timestamp())::float8"
        old.execute("INSERT INTO leader (epoch, owner, since) VALUES (7, 'old:1', 0)")
        old.execute(f"INSERT INTO lease (epoch, owner, expires_at) VALUES (7, 'old:1', {now} + 1.5)")
        new = rivals.add(url)
        assert new.epoch() is None
        assert "old:1" in new.leader.failure
        wait_for(lambda: new.epoch() == 8)
        # The statements by which the old version renews, and by which its standby looks for a free lease.
        assert old.execute("SELECT max(epoch) FROM leader").fetchone() == (8,)
        rows = old.execute(f"SELECT owner, expires_at > {now} FROM lease ORDER BY epoch").fetchall()
        assert (f"process-of-{new.agent.name}", True) in rows


@pytest.mark.exhaustive
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_wherever_the_network_is_cut_never_do_two_lead_at_once(server: Server, seed: int) -> None:
    dice = random.Random(seed)
    url = server.new_database(f"cuts_{next(_names)}")
    rivals = Rivals(server)
    try:
        for _ in range(3):
            rivals.add(url)
        together: list[list[int]] = []
        stopping = threading.Event()

        def look() -> None:
            while not stopping.is_set():
                leading = [epoch for rival in rivals.made if (epoch := rival.epoch()) is not None]
                if len(leading) > 1:
                    together.append(leading)

        watcher = threading.Thread(target=look)
        watcher.start()
        for _ in range(6):
            rival = dice.choice(rivals.made)
            getattr(rival.proxy, dice.choice(["cut", "reset", "mend"]))()
            time.sleep(dice.uniform(0.05, 0.8))
        for rival in rivals.made:
            rival.proxy.mend()
        wait_for(lambda: any(rival.epoch() for rival in rivals.made))
        stopping.set()
        watcher.join()
        assert together == []
    finally:
        rivals.close()
