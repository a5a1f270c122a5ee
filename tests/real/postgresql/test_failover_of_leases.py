"""Three agents whose server crashes and is replaced by its replica: each subject has one leader again, never two."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent.ledger import Ledger
from agent.service.leader import LeaseLeader
from agent.service.shares import Managed, units
from domain.clock import VirtualClock
from domain.errors import Fenced, LedgerUnavailable
from domain.subject import Subject, fleet_subject
from tests.agent.ledger.postgres.server import Proxy, running_replica, running_server
from tests.agent.ledger.postgres.sharing import leader_of_web
from tests.waiting import until

pytestmark = pytest.mark.needs_postgresql

LEASE_S, RENEW_S = 6.0, 0.5
NAMES = ("north", "east", "west")
SUBJECTS = frozenset(fleet_subject(f"f{n}") for n in range(12))
MANAGED = Managed(dict.fromkeys(SUBJECTS, "same"), units(SUBJECTS, []))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Watch:
    """Looks at the leads of all agents all the time: subjects that two of them led at once."""

    def __init__(self, leaders: list[LeaseLeader]) -> None:
        self.leaders, self.twice = leaders, set[Subject]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def led(self) -> list[set[Subject]]:
        return [set(one.leads().epochs) for one in self.leaders]

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for one, other in itertools.combinations(self.led(), 2):
                self.twice |= one & other

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("is_longer_than_a_lease", [False, True])
def test_leases_follow_the_replica_that_is_promoted(stack: ExitStack, is_longer_than_a_lease: bool) -> None:
    primary = stack.enter_context(running_server())
    url = primary.new_database("ledger")
    Ledger.open(url).close()
    replica = stack.enter_context(running_replica(primary))
    proxies: list[Proxy] = []
    leaders: list[LeaseLeader] = []
    ledgers: list[Ledger] = []
    for name in NAMES:
        proxies.append(Proxy(primary.port))
        stack.callback(proxies[-1].close)
        ledgers.append(Ledger.open(url.replace(str(primary.port), str(proxies[-1].port)), busy_timeout_s=2.0))
        stack.callback(ledgers[-1].close)
        leaders.append(leader_of_web(ledgers[-1], name, VirtualClock(0.0), LEASE_S, RENEW_S, MANAGED))
        leaders[-1].start()
        stack.callback(leaders[-1].stop)
    watch = Watch(leaders)
    stack.callback(watch.stop)
    until(lambda: all(watch.led()) and set[Subject]().union(*watch.led()) == SUBJECTS)
    before = _numbers(leaders)

    primary.stop()
    if is_longer_than_a_lease:
        # Nobody can renew: every lead ends before another agent could take it.
        until(lambda: not any(watch.led()))
        with pytest.raises(LedgerUnavailable):
            ledgers[0].roster()
    replica.promote()
    for proxy in proxies:
        proxy.lead_to(replica.port)

    until(lambda: set[Subject]().union(*watch.led()) == SUBJECTS)
    watch.stop()
    assert watch.twice == set()
    until(lambda: all(map(_may_act, leaders)))
    if is_longer_than_a_lease:
        assert not before & _numbers(leaders)


def _may_act(leader: LeaseLeader) -> bool:
    """Return whether the ledger lets it act now; a subject may move between the two readings."""
    try:
        leader.fence(leader.leads().numbers)
    except Fenced:
        return False
    return True


def _numbers(leaders: list[LeaseLeader]) -> set[int]:
    return {number for one in leaders for number in one.leads().numbers}
