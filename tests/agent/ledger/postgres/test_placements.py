"""Placement pools on PostgreSQL: two agents that are asked at once give no room twice and answer an id alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.ledger import Ledger
from agent.placement.records import PlacementDecision
from domain.clock import VirtualClock
from tests.agent.placement.hosts import START, app, ask, held, inventory, kind, made

pytestmark = pytest.mark.needs_postgresql


def test_two_agents_asked_at_once_give_no_host_twice(open_ledger: Callable[..., Ledger]) -> None:
    clock = VirtualClock(START)
    document = inventory(app("shop", limit=1), hosts=[kind(count=6)])
    pools = [made(open_ledger(busy_timeout_s=30.0), clock, document), made(open_ledger(busy_timeout_s=30.0), clock)]

    def asked(n: int) -> PlacementDecision:
        # Every request id is asked of both agents; some are confirmed by the other one.
        decision = pools[n % 2].request(ask(f"r{n // 2}"))
        if decision.containers and n % 3 == 0:
            pools[(n + 1) % 2].confirm(decision.request_id)
        return decision

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(asked, range(20)))
    assert [answers[n] == answers[n + 1] for n in range(0, 20, 2)] == [True] * 10
    placed = {one.request_id: one.containers[0].host for one in answers if one.containers}
    assert Counter(placed.values()) == Counter([f"large-{n}" for n in range(1, 7)])
    assert held(pools[0]) == held(pools[1]) == {name: [host] for name, host in placed.items()}
