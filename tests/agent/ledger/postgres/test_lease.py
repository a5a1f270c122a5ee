"""The lease on the lead: one leader at any time, wherever the network is cut, and another one soon after."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.service.leader import LeaseLeader
from domain.clock import VirtualClock
from domain.errors import Fenced, LedgerUnavailable
from tests.agent.ledger.postgres.server import Proxy, Server
from tests.golden import figures

pytestmark = pytest.mark.needs_postgresql

LEASE_S, RENEW_S = 1.0, 0.3
LONG_S = 3.0
"""The lease where a leader must not lose it: a busy machine may hold up its renewal for a second."""
_names = itertools.count(1)


@dataclass
class Rival:
    """An agent as far as the lease goes: its own way to the database, its own clock, its own leader thread."""

    proxy: Proxy
    ledger: Ledger
    leader: LeaseLeader


@dataclass
class Rivals:
    """Agents on one database."""

    server: Server
    made: list[Rival] = field(default_factory=list)

    def add(self, url: str, clock_error_s: float = 0.0, lease_s: float = LEASE_S) -> Rival:
        proxy = Proxy(self.server.port)
        ledger = Ledger.open(url.replace(str(self.server.port), str(proxy.port)), busy_timeout_s=0.5)
        clock = VirtualClock(1_772_366_400.0 + clock_error_s)
        rival = Rival(proxy, ledger, LeaseLeader(ledger, f"agent-{next(_names)}", clock, lease_s, RENEW_S))
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


def test_the_first_leads_and_the_second_stands_by(url: str, rivals: Rivals) -> None:
    first, second = rivals.add(url, lease_s=LONG_S), rivals.add(url, lease_s=LONG_S)
    assert (first.leader.epoch(), second.leader.epoch()) == (1, None)
    assert second.leader.rival.startswith("agent-")
    time.sleep(1.5 * LONG_S)
    assert (first.leader.epoch(), second.leader.epoch()) == (1, None)
    first.leader.fence(1)
    with pytest.raises(Fenced, match="the lease under epoch 1 is over"):
        second.leader.fence(1)


def test_of_many_that_start_at_once_one_leads(url: str, rivals: Rivals) -> None:
    Ledger.open(url).close()
    threads = [threading.Thread(target=rivals.add, args=(url,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rival.leader.epoch() or 0 for rival in rivals.made) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("error_s", [-3600.0, 3600.0])
def test_agents_whose_clocks_differ_by_an_hour_agree(url: str, rivals: Rivals, error_s: float) -> None:
    first, second = rivals.add(url, lease_s=LONG_S), rivals.add(url, error_s, LONG_S)
    time.sleep(LONG_S)
    assert (first.leader.epoch(), second.leader.epoch()) == (1, None)


def test_a_lead_given_up_is_taken_at_the_next_look(url: str, rivals: Rivals) -> None:
    first, second = rivals.add(url), rivals.add(url)
    first.leader.stop()
    given_up = time.monotonic()
    assert wait_for(lambda: second.leader.epoch() == 2) - given_up <= RENEW_S + 3.0
    with pytest.raises(Fenced, match="stopping"):
        first.leader.fence(1)


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_leader_that_is_cut_off_stops_before_another_takes_over_and_that_within_the_lease(
    url: str, rivals: Rivals, how: str
) -> None:
    first, second = rivals.add(url), rivals.add(url)
    getattr(first.proxy, how)()
    cut_at = time.monotonic()
    stopped_at = wait_for(lambda: first.leader.epoch() is None)
    assert second.leader.epoch() is None
    with pytest.raises((Fenced, LedgerUnavailable)):
        first.leader.fence(1)
    taken_at = wait_for(lambda: second.leader.epoch() == 2)
    assert stopped_at < taken_at <= cut_at + LEASE_S + 3.0
    first.proxy.mend()
    wait_for(lambda: first.leader.rival == second.leader._owner)
    assert first.leader.epoch() is None
    with pytest.raises(Fenced):
        first.leader.fence(1)


def test_a_leader_that_comes_back_in_time_goes_on_under_its_epoch(url: str, rivals: Rivals) -> None:
    first, second = rivals.add(url, lease_s=LONG_S), rivals.add(url, lease_s=LONG_S)
    first.proxy.reset()
    time.sleep(0.3)
    first.proxy.mend()
    wait_for(lambda: not first.leader.failure)
    time.sleep(LONG_S)
    assert (first.leader.epoch(), second.leader.epoch()) == (1, None)


def test_while_the_database_is_away_nobody_leads_and_afterwards_one_does(
    server: Server, url: str, rivals: Rivals
) -> None:
    first, second = rivals.add(url), rivals.add(url)
    server.freeze()
    try:
        wait_for(lambda: first.leader.epoch() is None)
        assert second.leader.epoch() is None
    finally:
        server.thaw()
    wait_for(lambda: first.leader.epoch() or second.leader.epoch())
    assert (first.leader.epoch() is None) != (second.leader.epoch() is None)


def test_an_agent_that_slept_is_fenced_although_it_never_learnt_that_time_passed(url: str, rivals: Rivals) -> None:
    """A machine that is suspended may come back in the middle of a turn, its lease long gone."""
    first, second = rivals.add(url), rivals.add(url)
    first.leader._ended.set()
    wait_for(lambda: second.leader.epoch() == 2)
    with pytest.raises(Fenced):
        first.leader.fence(1)
    with pytest.raises(Fenced, match="leader epoch 1 is over"):
        FleetStore(first.ledger).record((), states={}, epoch=1)


def test_a_database_that_answers_when_the_lease_is_over_lets_nothing_through(server: Server, url: str) -> None:
    """Nobody else leads yet, so the epoch alone would be in order."""
    with Ledger.open(url, busy_timeout_s=30.0) as ledger:
        leader = LeaseLeader(ledger, "slow", VirtualClock(1_772_366_400.0), 2.0 * LEASE_S, RENEW_S)
        leader.start()
        leader._ended.set()
        refused: list[BaseException] = []

        def ask() -> None:
            try:
                leader.fence(1)
            except (Fenced, LedgerUnavailable) as error:
                refused.append(error)

        server.freeze()
        try:
            asking = threading.Thread(target=ask)
            asking.start()
            wait_for(lambda: leader.epoch() is None)
            assert asking.is_alive(), "the database has answered although it is stopped"
        finally:
            server.thaw()
        asking.join(30.0)
        ledger.check_epoch(1)
        assert [figures(str(error)) for error in refused] == [[1]]
        leader.stop()


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
                leading = [epoch for rival in rivals.made if (epoch := rival.leader.epoch()) is not None]
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
        wait_for(lambda: any(rival.leader.epoch() for rival in rivals.made))
        stopping.set()
        watcher.join()
        assert together == []
    finally:
        rivals.close()
