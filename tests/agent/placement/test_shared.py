"""Two agents on one pool's ledger agree, whoever is asked; an agent that no longer leads writes no turn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agent.kernel.parts import kept
from agent.kernel.transaction import Conflict
from agent.ledger import Ledger, state
from agent.placement.records import PlacementDecision, PoolHead
from agent.placement.state import Change
from domain.clock import VirtualClock
from domain.errors import Fenced, StateConflict
from domain.units import DAY_S
from tests.agent.placement.hosts import app, ask, broken, held, host, inventory, kind, made

DOCUMENT = inventory(app("shop", limit=1), hosts=[kind(count=6)])
HOSTS = {f"large-{n}": "large" for n in range(1, 7)}


@pytest.fixture
def other(path: Path, ledger: Ledger) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{path}", busy_timeout_s=30.0) as opened:
        yield opened


def test_what_one_reserves_the_other_confirms_and_releases(ledger: Ledger, other: Ledger, clock: VirtualClock) -> None:
    one, two = made(ledger, clock, DOCUMENT), made(other, clock)
    first = one.request(ask("r1", count=2))
    assert two.request(ask("r1", count=2)) == first
    assert [each.host for each in two.request(ask("r2", count=2)).containers] == ["large-3", "large-4"]
    two.confirm("r1")
    one.release("r1", [0])
    assert held(one) == held(two) == {"r1": ["large-2"], "r2": ["large-3", "large-4"]}
    two.drain("large-1")
    assert [each.host for each in one.request(ask("r3")).containers] == ["large-5"]


def test_many_that_ask_at_once_never_share_what_one_of_them_has(
    ledger: Ledger, other: Ledger, clock: VirtualClock
) -> None:
    pools = [made(ledger, clock, DOCUMENT), made(other, clock)]

    def asked(n: int) -> PlacementDecision:
        # Every request id is asked of both agents.
        return pools[n % 2].request(ask(f"r{n // 2}"))

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(asked, range(20)))
    assert [answers[n] == answers[n + 1] for n in range(0, 20, 2)] == [True] * 10
    placed = {one.request_id: one.containers[0].host for one in answers if one.containers}
    assert Counter(placed.values()) == Counter(list(HOSTS))
    assert broken(DOCUMENT, pools[0].reservations(), HOSTS) == []
    numbers = sorted(int(one.decision_id.rpartition("p")[2]) for one in answers[::2])
    assert numbers == list(range(1, 11))


def test_a_write_from_a_state_that_has_moved_is_not_made(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, DOCUMENT)
    before = pool.store.read("main")
    pool.drain("large-1")
    late = replace(before.head, revision=before.head.revision + 1), Change(hosts={"large-2": host("large-2")})
    with pytest.raises(Conflict):
        pool.store.write("main", before.stored, *late)
    assert set(pool.store.read("main").hosts) == {"large-1"}
    fresh = made(ledger, clock, name="other").store
    fresh.write("other", None, PoolHead(revision=1), Change())
    with pytest.raises(Conflict):
        fresh.write("other", None, PoolHead(revision=1), Change())


def test_a_state_that_moved_is_known_as_such_also_once_what_moved_it_is_forgotten(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = made(ledger, clock, DOCUMENT)
    before = pool.store.read("main")
    pool.drain("large-1")
    clock.advance(100 * DAY_S)
    ledger.compact(clock.now(), 90 * DAY_S, kept())
    late = replace(before.head, revision=before.head.revision + 1), Change(hosts={"large-2": host("large-2")})
    with pytest.raises(Conflict):
        pool.store.write("main", before.stored, *late)
    assert set(pool.store.read("main").hosts) == {"large-1"}


def test_an_agent_that_no_longer_leads_writes_no_turn(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, DOCUMENT, confirm_within_s=1.0)
    pool.request(ask("r1"))
    with ledger.database.write() as connection:
        state.add_epoch(connection, "another", clock.now(), at_least=7)
    clock.advance(10.0)
    other = json.loads(json.dumps({**DOCUMENT, "name": "other"}))
    for act in (lambda: pool.lapse(epoch=6), lambda: pool.adopt(other, "digest", epoch=6)):
        with pytest.raises(Fenced):
            act()
    assert held(made(ledger, clock)) == {"r1": ["large-1"]}
    assert made(ledger, clock).view().head.inventory != "digest"
    pool.lapse(epoch=7)
    assert held(pool) == {}


def test_old_decisions_go_and_what_runs_stays(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, DOCUMENT)
    pool.request(ask("runs"))
    pool.confirm("runs")
    pool.request(ask("ended"))
    pool.cancel("ended")
    clock.advance(100 * DAY_S)
    ledger.compact(clock.now(), 90 * DAY_S, kept())
    again = made(ledger, clock)
    assert held(again) == {"runs": ["large-1"]}
    assert again.store.decision("main", "ended") is None
    with pytest.raises(StateConflict, match="its containers still run"):
        again.request(ask("runs"))
    assert again.request(ask("next")).decision_id == "main-p3"
    again.release("runs")
    assert held(again).keys() == {"next"}
