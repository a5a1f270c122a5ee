"""A plan of moves empties hosts within its budget, and may be stopped after any move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.placement import repacking
from domain.rules.placement.cluster import Cluster, Host, cluster_of
from domain.rules.placement.instance import Application
from domain.rules.placement.policies import BF, WF
from domain.rules.placement.repacking import Move, plan_repacking
from simulator.placement import instances
from tests.oracles.placing import place_request

SIZE = (8, 64, 100)
APPS = (
    Application("a", (4, 1, 1)),
    Application("b", (2, 1, 1), 1, frozenset({"c"})),
    Application("c", (3, 1, 1), 2, frozenset({"b"})),
    Application("d", (1, 1, 1), 1),
)


def cluster(*hosts: str) -> Cluster:
    """Hosts of eight cores by what runs on them, a letter a container."""
    made = Cluster([Host(f"h{k}", SIZE, "h") for k in range(len(hosts) + 1)], APPS)
    for k, held in enumerate(hosts):
        for name in held:
            made.restore(k, made.application(name), 1)
    return made


def carried(made: Cluster, moves: tuple[Move, ...]) -> None:
    """Carry a plan out; the rules of the cluster refuse a move that is not feasible when its turn comes."""
    for move in moves:
        made.place(move.target, move.application)
        made.release(move.source, move.application)


def test_a_search_ends_with_the_lightest_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large pool that is full every host would be tried, each with hundreds of chains."""
    made = cluster("aa", "aa", "aa", "aa")
    made.drain(4)
    tried: list[int] = []
    emptied = repacking._emptied
    monkeypatch.setattr(repacking, "_emptied", lambda pool, host, left: tried.append(host) or emptied(pool, host, left))
    assert plan_repacking(made).moves == ()
    assert tried == [0, 1, 2, 3]
    monkeypatch.setattr(repacking, "LIGHTEST", 2)
    assert plan_repacking(made).moves == ()
    assert tried[4:] == [0, 1]


def test_a_plan_where_hosts_joined_one_by_one() -> None:
    """Arrays grow ahead of the hosts: what lies beyond these is none."""
    made = cluster("c", "a", "bd")
    for n in range(10):
        made.join(Host(f"late{n}", SIZE, "h"))
    made.drain(0)
    made.restore(1, made.application("a"), 1)
    assert plan_repacking(made).hosts == 3


def test_the_lightest_host_is_emptied_into_the_fullest_that_has_room() -> None:
    """Three hosts become two; the plan says which move closes one, and the cluster is left as it is."""
    made = cluster("c", "a", "bd")
    plan = plan_repacking(made)
    assert plan.moves == (Move(2, 0, 1, "empty", 1),)
    assert (plan.hosts, plan.cured, plan.violations) == (3, 0, 0)
    assert made.open_hosts == 3
    carried(made, plan.moves)
    assert made.open_hosts == 2


def test_a_host_that_cannot_be_emptied_within_the_budget_keeps_its_containers() -> None:
    """Two containers need two moves; with one of them nothing would be saved, so none is made."""
    made = cluster("dc", "aa", "ad", "aa")
    assert plan_repacking(made, 1).moves == ()
    assert plan_repacking(made, 0).moves == ()
    with pytest.raises(BadInput, match="give 0 or more moves"):
        plan_repacking(made, -1)


def test_another_container_makes_room() -> None:
    """No host has four cores free for a: d goes first, and costs a move of the budget."""
    made = cluster("a", "ac", "ad")
    plan = plan_repacking(made)
    assert plan.moves == (Move(3, 2, 1, "room", 0), Move(0, 0, 2, "empty", 1))
    carried(made, plan.moves)
    assert made.open_hosts == 2
    assert plan_repacking(cluster("a", "ac", "ad"), 1).moves == ()


def test_moves_that_make_room_count_against_the_budget() -> None:
    """Two containers would leave with a third that makes room: three moves, and none where only two are allowed."""
    hosts = ("ad", "ac", "ac", "ad")
    assert plan_repacking(cluster(*hosts), 2).moves == ()
    assert [move.why for move in plan_repacking(cluster(*hosts), 3).moves] == ["room", "empty", "empty"]


def test_what_runs_against_a_rule_is_moved_first() -> None:
    """§12: a limit that was lowered while two instances run, an exclusion that came later."""
    made = cluster("bbb", "a", "a", "a")
    plan = plan_repacking(made, 2)
    assert [(move.source, move.why) for move in plan.moves] == [(0, "cure"), (0, "cure")]
    assert (plan.cured, plan.violations) == (2, 0)
    carried(made, plan.moves)
    assert list(made.violations()) == []
    stuck = plan_repacking(cluster("bb", "ca"))
    assert (stuck.cured, stuck.violations) == (0, 1)


def test_a_drained_host_is_emptied_before_a_lighter_one() -> None:
    made = cluster("d", "aa", "a", "a")
    made.drain(1)
    plan = plan_repacking(made, 2)
    assert {move.source for move in plan.moves} == {1}
    assert plan.closed == 1


def test_hours_of_a_plan_hold_a_limited_number_of_moves() -> None:
    plan = plan_repacking(after(WF, 1))
    hours = list(plan.per_hour(5))
    assert [len(hour) for hour in hours[:-1]] == [5] * (len(hours) - 1)
    assert tuple(move for hour in hours for move in hour) == plan.moves
    with pytest.raises(BadInput, match="1 or more moves an hour"):
        list(plan.per_hour(0))


def after(policy: object, seed: int) -> Cluster:
    """The cluster of a small instance once a policy has placed all of it."""
    made = instances.small(seed)
    found = cluster_of(made, 60)
    for request in made.requests:
        place_request(found, policy, found.application(request.application), request.count)
    return found


def test_best_fit_is_repacked_to_nearly_the_optimum() -> None:
    """§9.3: without a budget 15.1 to 15.8 hosts of the optimum's 15; a budget saves part of that."""
    clusters = [after(BF, seed) for seed in range(3)]
    whole = [one.open_hosts - plan_repacking(one).closed for one in clusters]
    twenty = [plan_repacking(one, 20).closed for one in clusters]
    assert np.mean([one.open_hosts for one in clusters]) > 20.0
    assert np.mean(whole) <= 15.8
    assert np.mean(twenty) >= 1.2
    assert min(whole) >= 15


@settings(max_examples=30)
@given(
    st.lists(st.text("abcd", min_size=1, max_size=4), min_size=1, max_size=7),
    st.none() | st.integers(0, 8),
    st.sets(st.integers(0, 6), max_size=2),
)
def test_every_beginning_of_a_plan_keeps_the_rules(hosts: list[str], budget: int | None, drained: set[int]) -> None:
    """Whatever runs where: no violation is added, the budget holds, and hosts close when the plan says so."""
    made = cluster(*hosts)
    for host in drained & set(range(len(hosts))):
        made.drain(host)
    before, violations, digest = made.open_hosts, set(made.violations()), made.digest()
    plan = plan_repacking(made, budget)
    assert made.digest() == digest
    assert budget is None or len(plan.moves) <= budget
    for move in plan.moves:
        carried(made, (move,))
        assert set(made.violations()) <= violations
        assert before - made.open_hosts >= move.closed
    assert before - made.open_hosts >= plan.closed
    assert sum(move.why == "cure" for move in plan.moves) == plan.cured
    assert len({(host, app) for host, app, _ in made.violations()}) == plan.violations
