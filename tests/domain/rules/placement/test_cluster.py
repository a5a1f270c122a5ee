"""A cluster's book: what is feasible and why not, what changes it, and the choice among hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput, StateConflict, UnknownName
from domain.rules.placement.cluster import (
    Cluster,
    Host,
    Obstacle,
    choose,
    cluster_of,
    explain,
    hosts_of,
    layout,
    scored,
)
from domain.rules.placement.instance import MOST, Application, HostType, Instance, Request, Vector
from domain.rules.placement.policies import BF, DP, FF, HAND, OLDEST, RESERVE, TIERS, WF, Policy
from tests.oracles.placing import place_request
from tests.oracles.plain_placement import Reference

SIZE = (96, 512, 3000)
WEB = Application("web", (8, 16, 60), limit=2)
DATABASE = Application("database", (16, 64, 500), limit=1, excludes=frozenset({"batch"}))
BATCH = Application("batch", (4, 8, 60), excludes=frozenset({"database"}))
APPS = (WEB, DATABASE, BATCH)


def cluster(hosts: int = 3, *apps: Application, size: Vector = SIZE) -> Cluster:
    return Cluster([Host(f"h{k}", size) for k in range(hosts)], apps or APPS)


def put(where: Cluster, host: int, name: str, count: int = 1) -> None:
    for _ in range(count):
        where.place(host, where.application(name))


def test_first_fit_takes_an_open_host_before_an_empty_one_of_a_lower_index() -> None:
    """Hosts of 8 cores: place 8, place 2, release the first, place 2."""
    pool = cluster(2, Application("eight", (8, 1, 1)), Application("two", (2, 1, 1)), size=(8, 64, 64))
    put(pool, 0, "eight")
    put(pool, 1, "two")
    pool.release(0, pool.application("eight"))
    for policy in (FF, OLDEST):
        found = choose(pool, policy, pool.application("two"), 1)
        assert found is not None
        assert (found.host, found.is_new) == (1, False)


def test_a_host_that_ran_empty_and_opens_again_is_the_newest() -> None:
    pool = cluster()
    for host in (0, 1):
        put(pool, host, "batch")
    assert pool.opening.tolist() == [1, 2, 0]
    pool.release(0, pool.application("batch"))
    assert pool.opening.tolist() == [0, 2, 0]
    put(pool, 0, "batch")
    found = choose(pool, OLDEST, pool.application("batch"), 1)
    assert found is not None
    assert (pool.opening.tolist(), found.host) == ([3, 2, 0], 1)


def test_of_closed_hosts_alike_only_the_first_is_a_candidate() -> None:
    pool = cluster()
    assert pool.feasible(0).tolist() == [0]
    put(pool, 1, "web")
    assert pool.feasible(0).tolist() == [0, 1]
    put(pool, 0, "web")
    assert pool.feasible(0).tolist() == [0, 1, 2]
    pool.release(0, 0)
    assert pool.feasible(0).tolist() == [0, 1], "an empty host is closed again"
    assert (pool.opened, pool.open_hosts) == (2, 1)
    pool.drain(0)
    assert pool.feasible(0).tolist() == [1, 2], "the next closed host takes its place"
    pool.fail(2)
    assert pool.feasible(0).tolist() == [1]
    pool.resume(0)
    assert pool.feasible(0).tolist() == [0, 1]


def test_closed_hosts_that_differ_in_size_label_or_rack_are_candidates_each() -> None:
    sizes = [SIZE, SIZE, (64, 256, 3000)]
    hosts = [Host(f"{rack}{k}", size, rack=rack) for rack in "ab" for k, size in enumerate(sizes)]
    pool = Cluster([*hosts, Host("gpu", SIZE, label="gpu", rack="a")], APPS)
    assert pool.feasible(0).tolist() == [0, 2, 3, 5, 6]


def test_each_obstacle_is_counted_at_the_first_that_a_host_has() -> None:
    apps = (replace(DATABASE, rack_limit=1, label="ssd"), BATCH, Application("big", (92, 8, 60)), WEB)
    hosts = [Host(f"h{k}", SIZE, label="ssd", rack=f"r{k // 2}") for k in range(8)]
    pool = Cluster([*hosts, Host("plain", SIZE), Host("tiny", (96, 63, 3000), label="ssd")], apps)
    pool.fail(0)
    pool.drain(1)
    put(pool, 2, "big")
    put(pool, 3, "batch")
    put(pool, 4, "database")
    pool.resize(6, (96, 512, 400))
    assert pool.reasons(0) == {
        Obstacle.FAILED: 1,
        Obstacle.DRAINED: 1,
        Obstacle.LABEL: 1,
        Obstacle.CPU: 1,
        Obstacle.MEMORY: 1,
        Obstacle.DISK: 1,
        Obstacle.LIMIT: 1,
        Obstacle.EXCLUSION: 1,
        Obstacle.RACK: 1,
    }
    assert [pool.allows(host, 0) for host in (0, 1, 2, 3, 4, 5, 6, 7, 8)] == [
        *(Obstacle.FAILED, Obstacle.DRAINED, Obstacle.CPU, Obstacle.EXCLUSION, Obstacle.LIMIT, Obstacle.RACK),
        *(Obstacle.DISK, None, Obstacle.LABEL),
    ]
    assert pool.feasible(0).tolist() == [7]


def test_counters_of_headroom_follow_every_change() -> None:
    pool = cluster()
    put(pool, 0, "web", 2)
    assert pool.headroom == {4: 1, 8: 1, 16: 1, 32: 1}
    put(pool, 0, "batch", 15)
    assert pool.headroom == {4: 1, 8: 1, 16: 1, 32: 0}, "20 cores are free"
    pool.resize(0, (80, 512, 3000))
    assert pool.headroom == {4: 1, 8: 0, 16: 0, 32: 0}
    assert pool.mean_residual == 4 / 80
    pool.drain(0)
    assert (pool.headroom[4], pool.mean_residual) == (0, 0.0), "a drained host gives no room"
    pool.resume(0)
    assert pool.headroom[4] == 1
    pool.resize(0, (76, 512, 3000))
    assert pool.headroom[4] == 0


def test_a_host_below_its_use_is_over_committed_and_takes_nothing() -> None:
    pool = cluster(1)
    put(pool, 0, "web", 2)
    pool.resize(0, (12, 512, 3000))
    assert pool.free(0) == (-4, 480, 2880)
    assert pool.feasible(2).tolist() == []
    assert pool.reasons(2) == {Obstacle.CPU: 1}
    assert list(pool.violations()) == [(0, 0, Obstacle.CPU)]
    pool.release(0, 0)
    assert pool.feasible(2).tolist() == [0]


def test_containers_of_a_failed_host_are_returned_as_requests() -> None:
    pool = cluster(2)
    put(pool, 0, "web", 2)
    put(pool, 0, "batch", 3)
    assert pool.fail(0) == {0: 2, 2: 3}
    assert (pool.open_hosts, pool.free(0), pool.feasible(0).tolist()) == (0, SIZE, [1])
    assert pool.join(Host("h0", (64, 256, 3000))) == 0
    assert pool.feasible(0).tolist() == [0, 1]
    assert pool.free(0) == (64, 256, 3000)


def test_hosts_and_applications_join_at_any_time() -> None:
    pool = Cluster([], [])
    with pytest.raises(UnknownName, match="register it first"):
        pool.application("web")
    names = [pool.register(app) for app in APPS]
    assert (names, pool.feasible(0).tolist(), pool.reasons(0), pool.capacity_for(0)) == ([0, 1, 2], [], {}, 0)
    assert [pool.join(Host(f"h{k}", SIZE)) for k in range(40)] == list(range(40))
    assert (pool.feasible(0).tolist(), pool.capacity_for(0)) == ([0], 80)
    put(pool, 39, "database")
    assert pool.feasible(pool.application("batch")).tolist() == [0]
    with pytest.raises(StateConflict, match="h3"):
        pool.join(Host("h3", SIZE))
    with pytest.raises(BadInput, match="capacity"):
        pool.join(Host("h40", (0, 512, 3000)))
    assert pool.join(Host("h40", SIZE)) == 40


def test_racks_and_labels_that_no_longer_hold_are_violations() -> None:
    spread = Application("web", (8, 16, 60), rack_limit=2)
    pool = Cluster([Host(f"h{k}", SIZE, rack="ab"[k // 2]) for k in range(4)], [spread])
    for host, count in enumerate((1, 1, 2)):
        pool.restore(host, 0, count)
    assert list(pool.violations()) == []
    pool.restore(1, 0, 1)
    assert list(pool.violations()) == [(0, 0, Obstacle.RACK), (1, 0, Obstacle.RACK)]
    pool.change(2, Host("h2", SIZE, rack="a"))
    assert {host for host, _, _ in pool.violations()} == {0, 1, 2}
    pool.register(replace(spread, rack_limit=None, label="gpu"))
    pool.change(0, Host("h0", SIZE, label="gpu"))
    assert list(pool.violations()) == [(1, 0, Obstacle.LABEL), (2, 0, Obstacle.LABEL)]


def test_changed_rules_keep_what_runs_and_admit_nothing_new() -> None:
    pool = cluster(2)
    put(pool, 0, "web", 2)
    put(pool, 0, "batch")
    pool.register(replace(WEB, limit=1, excludes=frozenset({"batch"})))
    found = {(0, 0, Obstacle.LIMIT), (0, 0, Obstacle.EXCLUSION), (0, 2, Obstacle.EXCLUSION)}
    assert set(pool.violations()) == found
    assert pool.feasible(0).tolist() == [1]
    assert pool.applications[2].excludes == {"database", "web"}, "an exclusion holds for both sides"
    pool.register(replace(WEB, limit=3))
    assert list(pool.violations()) == []
    assert pool.applications[2].excludes == {"database"}
    with pytest.raises(StateConflict, match="containers of it run"):
        pool.register(replace(WEB, demand=(9, 16, 60)))


def test_an_infeasible_host_is_refused_and_nothing_changes() -> None:
    pool = cluster(1)
    put(pool, 0, "web", 2)
    before = pool.digest()
    with pytest.raises(StateConflict, match="limit"):
        pool.place(0, 0)
    with pytest.raises(StateConflict, match="no container of it runs on h0"):
        pool.release(0, 1)
    assert pool.digest() == before


def test_an_unlimited_application_stops_where_16_bits_end() -> None:
    pool = cluster(1, Application("tiny", (1, 1, 1)), size=(100_000, 100_000, 100_000))
    pool.restore(0, 0, MOST)
    assert pool.allows(0, 0) is Obstacle.LIMIT
    with pytest.raises(BadInput, match="32767"):
        pool.restore(0, 0, 1)


def test_capacity_for_counts_until_the_first_refusal() -> None:
    hosts = [Host(f"h{k}", (20, 64, 300), rack=f"r{k % 2}") for k in range(5)]
    apps = [WEB, replace(BATCH, excludes=frozenset()), replace(WEB, name="spread", rack_limit=3)]
    for app in range(3):
        pool = Cluster(hosts, apps)
        put(pool, 0, "batch", 2)
        pool.drain(4)
        expected = pool.capacity_for(app)
        placed = place_request(pool, FF, app, 1000, partial=True)
        assert len(placed) == expected > 0
        assert pool.capacity_for(app) == 0


def test_places_lost_are_shares_of_what_open_hosts_can_take_of_absent_applications() -> None:
    """Two open hosts run a web container each: there are 2 places for `database` and 44 for `batch`, by cores."""
    pool = cluster()
    for host in (0, 1):
        put(pool, host, "web")
    web, database, batch, hosts = *(pool.application(one.name) for one in APPS), np.arange(3)
    assert pool.places_lost(web, hosts).tolist() == [2 / 44, 2 / 44, 0.0]
    assert pool.places_lost(batch, hosts).tolist() == [0.5, 0.5, 0.0], "batch excludes database"
    assert pool.places_lost(database, hosts[1:]).tolist() == [0.5, 0.0]
    pool.drain(1)
    assert pool.places_lost(batch, hosts[:1]).tolist() == [1.0], "a drained host has no places"
    pool.resume(1)
    put(pool, 1, "database")
    assert pool.places_lost(batch, hosts[:1]).tolist() == [0.0], "database runs, so it is not waited for"


def test_a_request_is_placed_whole_or_not_at_all() -> None:
    pool = cluster(2)
    before = pool.digest()
    assert place_request(pool, BF, 0, 5) == []
    assert place_request(pool, BF, 0, 12) == []
    assert (pool.digest(), pool.opened, pool.largest, pool.large, pool.headroom[4]) == (before, 0, 1.0, 0, 0)
    assert [choice.host for choice in place_request(pool, BF, 0, 5, partial=True)] == [0, 0, 1, 1]
    assert (pool.largest, pool.large) == (5.0, 0)
    with pytest.raises(BadInput, match="1 container"):
        place_request(pool, BF, 0, 0)


def test_a_choice_names_the_second_best_and_how_many_were_feasible() -> None:
    pool = cluster()
    put(pool, 1, "web")
    choice = choose(pool, BF, 0, 1)
    assert choice is not None
    assert (choice.host, choice.runner_up, choice.feasible, choice.is_new) == (1, 0, 2, False)
    assert choice.score > choice.runner_up_score
    only = choose(pool, WF, 0, 1)
    assert only is not None
    assert (only.host, only.runner_up, only.runner_up_score) == (1, -1, -np.inf), "open hosts come first"
    rows = explain(scored(pool, BF, 0, 1))
    assert [row[0] for row in rows] == [1, 0]
    assert sum(rows[0][2].values()) == pytest.approx(rows[0][1])
    pool.drain(0), pool.drain(1), pool.drain(2)
    assert (choose(pool, BF, 0, 1), explain(scored(pool, BF, 0, 1))) == (None, [])


def test_a_copy_changes_apart() -> None:
    pool = cluster()
    put(pool, 0, "web")
    other = pool.copy()
    put(other, 0, "batch", 3)
    other.register(replace(WEB, limit=9))
    other.join(Host("h9", SIZE))
    assert (pool.free(0), pool.headroom, len(pool.hosts)) == ((88, 496, 2940), dict.fromkeys(TIERS, 1), 3)
    assert pool.applications[0].limit == 2
    assert pool.digest() != other.digest()


def test_types_of_hosts_take_turns_while_they_last() -> None:
    small, large, endless = HostType("s", SIZE, 3), HostType("l", SIZE, 1), HostType("e", SIZE)
    assert layout([small, large], 9) == [0, 1, 0, 0]
    assert layout([large, endless], 5) == [0, 1, 1, 1, 1]
    assert layout([], 5) == []
    requests = (Request("r", "web", 2),)
    instance = Instance("i", (small, large), APPS, requests, snapshot=(("l", {"web": 1}), ("s", {"batch": 2})))
    assert [host.name for host in hosts_of(instance)] == ["l-0", "s-1", "s-2", "s-3"]
    pool = cluster_of(instance)
    assert [pool.containers_on(host) for host in range(2)] == [{0: 1}, {2: 2}]
    assert pool.opened == 0


POLICIES = (FF, OLDEST, BF, WF, DP, RESERVE, HAND, Policy("tiers", "tiers17a", (0.3, -0.5) * 8 + (0.0,)))
OTHERS = (WEB, DATABASE, BATCH, Application("ssd", (4, 16, 100), 1, rack_limit=1, label="ssd"))
HOSTS = [Host(f"h{k}", SIZE if k < 6 else (40, 128, 900), label="ssd" * (k % 2), rack=f"r{k // 5}") for k in range(9)]
"""Some of them alike, so that one that is drained or failed must give way to the next."""
EVENTS = st.tuples(
    st.sampled_from(["place", "place", "place", "release", "drain", "resume", "fail", "join", "resize"]),
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(1, 4),
)


@given(st.lists(EVENTS, min_size=5, max_size=60), st.sampled_from(POLICIES))
def test_any_history_agrees_with_brute_force(events: list[tuple[str, int, int, int]], policy: Policy) -> None:
    pool = Cluster(HOSTS, OTHERS)
    plain = Reference({host.name: host for host in HOSTS}, {app.name: app for app in OTHERS})
    for event in events:
        step(pool, plain, policy, *event)
        for app, one in enumerate(OTHERS):
            names = [pool.hosts[host].name for host in pool.feasible(app).tolist()]
            assert names == plain.feasible(one.name, [host.name for host in HOSTS])
        assert pool.headroom == {q: plain.counts(q) for q in TIERS}
        assert pool.open_with(10) == plain.counts(10)
    blocked = [pool.instances[pool._excludes[app]].sum(axis=0).tolist() for app in range(len(OTHERS))]
    assert pool.blocking.tolist() == blocked


def step(pool: Cluster, plain: Reference, policy: Policy, kind: str, app: int, host: int, count: int) -> None:
    """Apply one event to both books."""
    name, change = OTHERS[app].name, HOSTS[host].name
    if kind == "place":
        for choice in place_request(pool, policy, app, count, partial=True):
            chosen = pool.hosts[choice.host].name
            assert plain.takes(chosen, name), f"{name} on {chosen}"
            plain.running.append((chosen, name))
    elif kind == "release" and (change, name) in plain.running:
        pool.release(host, app)
        plain.running.remove((change, name))
    elif kind == "fail":
        assert sum(pool.fail(host).values()) == len(plain.names_on(change))
        plain.running = [one for one in plain.running if one[0] != change]
        plain.failed.add(change)
    elif kind == "join" and change in plain.failed:
        pool.join(HOSTS[host])
        plain.failed.discard(change)
        plain.drained.discard(change)
        plain.hosts[change] = HOSTS[host]
    elif kind == "resize" and change not in plain.failed:
        capacity = (count * 20, 512, 3000)
        pool.resize(host, capacity)
        plain.hosts[change] = replace(plain.hosts[change], capacity=capacity)
    elif kind in ("drain", "resume"):
        flags: dict[str, tuple[Callable[[int], None], Callable[[str], None]]] = {
            "drain": (pool.drain, plain.drained.add),
            "resume": (pool.resume, plain.drained.discard),
        }
        flags[kind][0](host)
        flags[kind][1](change)
