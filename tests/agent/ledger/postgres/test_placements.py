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


def test_two_agents_share_one_calibration_and_decide_alike(open_ledger: Callable[..., Ledger]) -> None:
    clock = VirtualClock(START)
    document = inventory(app("shop"), app("wide", 60), hosts=[kind(cores=64, count=4)])
    pools = [made(open_ledger(), clock, document), made(open_ledger(), clock)]
    for n, life_s in enumerate((60.0, 3600.0, 600.0, 86_400.0) * 5):
        pools[n % 2].request(ask(f"r{n}", count=10, lifetime_s=life_s / 60.0))
        pools[(n + 1) % 2].confirm(f"r{n}")
        clock.advance(life_s)
        pools[n % 2].release(f"r{n}")
    one, other = (pool.view() for pool in pools)
    assert one.lifetimes == other.lifetimes
    assert one.lifetimes.r2 > 0.5
    assert (one.host_hours, one.head.hinted) == (other.host_hours, 20)
    ended = [pool.store.lives_between("main", 0.0, clock.now() + 1.0)[0] for pool in pools]
    assert ended[0] == ended[1]
    assert [(each.ended - (each.began or 0.0), each.lifetime_s) for each in ended[0][:2]] == [
        (60.0, 1.0),
        (3600.0, 60.0),
    ]
    for name, life_s in (("late", 2000.0), ("soon", 20.0)):
        pools[0].request(ask(name, "wide", lifetime_s=life_s))
        pools[1].confirm(name)
    asked = [ask("what-if", lifetime_s=life_s) for life_s in (2.0, 2000.0)]
    assert pools[0].what_if(asked).requests == pools[1].what_if(asked).requests
