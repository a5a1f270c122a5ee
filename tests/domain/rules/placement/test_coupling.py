"""Which hosts of a fleet's pool run empty: those that end soonest, as many as the fleet has too many, and none else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from domain.rules.placement.cluster import Cluster, Host
from domain.rules.placement.coupling import SOON_S, by_end, draining, left_s, resumed
from domain.rules.placement.instance import Application

NONE = np.zeros(0, dtype=np.int64)
CORES = 16


def pool_of(*lives_s: float | None, good: bool = True) -> Cluster:
    """A pool at second 0: host k has a container of 4 cores that was declared to live so long, None for no container.

    good: whether the containers before were declared well, else nothing is known of hints.
    """
    cluster = Cluster([Host(f"h{k}", (CORES, 64, 100)) for k in range(len(lives_s))], [Application("one", (4, 8, 10))])
    draws = np.random.default_rng(5)
    for x in draws.normal(8.0, 1.5, 3000).tolist() if good else ():
        cluster.lives.begin("before", 0, -math.exp(x), x)
        cluster.lives.end("before", 0.0)
    for host, life_s in enumerate(lives_s):
        if life_s is not None:
            cluster.declare(life_s, 0.0)
            cluster.place(host, 0, host)
    return cluster


def everyone(cluster: Cluster) -> np.typing.NDArray[np.int64]:
    return np.arange(len(cluster.hosts))


def test_the_host_that_ends_soonest_is_first_and_an_empty_one_before_it() -> None:
    cluster = pool_of(900.0, 300.0, None, 7200.0, None)
    assert by_end(cluster, everyone(cluster)).tolist() == [4, 2, 1, 0, 3]
    assert left_s(cluster, everyone(cluster)) == pytest.approx([900.0, 300.0, 0.0, 7200.0, 0.0], rel=0.1)


def test_the_end_of_a_host_is_not_known_while_a_container_has_no_hint() -> None:
    cluster = pool_of(900.0, 300.0)
    cluster.declare(None, 0.0)
    cluster.place(0, 0, "unhinted")
    assert left_s(cluster, everyone(cluster)) == pytest.approx([math.inf, 300.0], rel=0.1)
    # The hint of the other one counts for the host that a container chooses.
    assert cluster.lives.left_s(everyone(cluster), 0.0) == pytest.approx([900.0, 300.0], rel=0.1)
    cluster.lives.forget("unhinted", 0.0)
    assert left_s(cluster, everyone(cluster)) == pytest.approx([900.0, 300.0], rel=0.1)


def test_as_many_hosts_drain_as_the_fleet_has_too_many() -> None:
    cluster = pool_of(900.0, 300.0, None, 7200.0)
    found = {number: draining(cluster, everyone(cluster), NONE, number).tolist() for number in range(4)}
    assert found == {0: [], 1: [2], 2: [1, 2], 3: [0, 1, 2]}


def test_a_host_that_does_not_end_soon_takes_containers() -> None:
    cluster = pool_of(0.9 * SOON_S, 1.3 * SOON_S, 20.0 * SOON_S)
    assert draining(cluster, everyone(cluster), NONE, 9).tolist() == [0]
    # One that drains already goes on for twice the time; a later one takes containers again.
    assert draining(cluster, NONE, everyone(cluster), 9).tolist() == [0, 1]


def test_hosts_that_drain_come_before_those_that_take_containers() -> None:
    cluster = pool_of(300.0, 900.0, 600.0)
    assert draining(cluster, np.array([0, 2]), np.array([1]), 1).tolist() == [1]
    assert draining(cluster, np.array([0, 2]), np.array([1]), 2).tolist() == [0, 1]


def test_an_empty_host_that_drains_stays_out_while_any_vm_leaves() -> None:
    cluster = pool_of(None, None, 900.0)
    empty = np.array([0, 1])
    assert draining(cluster, np.array([2]), empty, 1).tolist() == [0, 1]
    assert draining(cluster, np.array([2]), empty, 0).tolist() == []


def test_without_hints_of_use_only_empty_hosts_drain() -> None:
    cluster = pool_of(60.0, None, 60.0, good=False)
    assert draining(cluster, everyone(cluster), NONE, 9).tolist() == [1]


def test_drained_hosts_take_containers_for_a_time_and_drain_again_without_any_more() -> None:
    cluster = pool_of(900.0, None, None)
    for host in range(3):
        cluster.drain(host)
    with resumed(cluster, [1, 2]):
        assert cluster.feasible(0).tolist() == [1]
        cluster.place(2, 0, "new")
    assert cluster.drained[:3].tolist() == [True, True, False]
    with pytest.raises(KeyError), resumed(cluster, [0, 1]):
        raise KeyError
    assert cluster.drained[:3].tolist() == [True, True, False]
