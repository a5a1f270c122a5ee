"""With full knowledge: bounds hold, and packings are checked and known to be the best where that is claimed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.placement.instance import Application, HostType, Instance, Release, Request, symmetric
from simulator.placement import instances
from trainer.placement import exact
from trainer.placement.exact import Bound, cliques, lower_bound, violations


@pytest.mark.parametrize("method", [exact.CP_SAT, exact.COLUMNS])
def test_fifteen_hosts_are_proven_for_s1(method: str) -> None:
    """B2: the packing keeps every rule, and no packing has fewer hosts: 1360 cores fill 14.2."""
    s1 = instances.s1()
    found = exact.solve(s1, method)
    assert (found.hosts, found.bound, found.optimal, found.method) == (15, 15, True, method)
    assert violations(s1, found.packing) == []
    assert len(set(found.packing.hosts)) == found.packing.opened == 15


@pytest.mark.parametrize("seed", [219, 157])
def test_sorted_packing_meets_the_bound_of_the_large_instances(seed: int) -> None:
    """§6.3: the optimum of both is 265."""
    found = exact.solve(instances.large(seed))
    assert (found.hosts, found.bound, found.method) == (265, 265, exact.SORTED)


def test_bounds_name_what_asks_for_the_hosts() -> None:
    """Cores, the limit of one application, applications that exclude each other, and the snapshot."""
    hosts = (HostType("h", (10, 100, 1000)),)
    apps, _ = symmetric(
        [
            Application("a", (2, 1, 1), 1, frozenset({"b", "c"})),
            Application("b", (1, 1, 1), 2, frozenset({"c"})),
            Application("c", (1, 1, 1), 1),
            Application("d", (9, 1, 1)),
        ]
    )

    def bound(snapshot: int = 0, **counts: int) -> Bound:
        requests = tuple(Request(f"r-{name}", name, count) for name, count in counts.items())
        return lower_bound(Instance("i", hosts, apps, requests, snapshot=(("h", {}),) * snapshot))

    assert bound(d=4) == Bound(4, "cores")
    assert bound(a=5) == Bound(5, "limit")
    assert bound(a=2, b=3, c=1) == Bound(5, "exclusion")
    assert bound(snapshot=3, a=1) == Bound(3, "snapshot")
    assert cliques(Instance("i", hosts, apps, ())) == [(0, 1, 2)]
    with pytest.raises(BadInput, match="add hosts"):
        lower_bound(Instance("i", (HostType("h", (10, 100, 1000), 0),), apps, ()))


def test_the_bound_counts_what_runs_at_the_same_time() -> None:
    """Three containers one after the other need one host, two at once need two."""
    app = Application("a", (6, 1, 1))
    requests = tuple(Request(f"r{k}", "a", 1, float(k)) for k in range(3))
    ends = tuple(Release(f"r{k}", 0, k + 1.0) for k in range(2))
    made = Instance("i", (HostType("h", (10, 10, 10)),), (app,), requests, ends)
    assert lower_bound(made).hosts == 1
    assert lower_bound(replace(made, releases=ends[1:])).hosts == 2


def fewest_hosts(counts: list[int], apps: list[Application], capacity: int) -> int:
    """The optimum by trying every way to put containers on hosts, for a handful of them."""
    containers = [k for k, count in enumerate(counts) for _ in range(count)]
    for hosts in itertools.count(0):
        for way in itertools.product(range(hosts), repeat=len(containers)):
            on = [[containers[c] for c, host in enumerate(way) if host == h] for h in range(hosts)]
            if all(
                sum(apps[k].demand[0] for k in held) <= capacity
                and all(held.count(k) <= apps[k].limit for k in held)
                and not any(f"a{b}" in apps[a].excludes for a in held for b in held)
                for held in on
            ):
                return hosts
    raise AssertionError


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(1, 2)), min_size=1, max_size=3),
    st.sets(st.sampled_from([(0, 1), (0, 2), (1, 2)])),
)
def test_no_bound_is_above_the_optimum_and_columns_find_it(
    rows: list[tuple[int, int, int]], pairs: set[tuple[int, int]]
) -> None:
    """Against every way to place up to six containers on hosts of six cores."""
    apps, _ = symmetric(
        [
            Application(f"a{k}", (cores, 1, 1), limit, frozenset(f"a{b}" for a, b in pairs if a == k and b < len(rows)))
            for k, (cores, limit, _) in enumerate(rows)
        ]
    )
    counts = [count for _, _, count in rows]
    requests = tuple(Request(f"r{k}", f"a{k}", count) for k, count in enumerate(counts))
    made = Instance("i", (HostType("h", (6, 100, 100)),), apps, requests)
    best = fewest_hosts(counts, list(apps), 6)
    assert lower_bound(made).hosts <= best
    columns = exact.solve(made, exact.COLUMNS)
    assert columns.bound <= best <= columns.hosts <= exact.solve(made, exact.SORTED).hosts
    assert columns.hosts - columns.bound <= 1


def test_columns_reach_the_optimum_of_a_medium_instance() -> None:
    """Sorted best fit takes more hosts here; patterns priced anew on the way down do not."""
    made = instances.small(1)
    assert exact.solve(made, exact.SORTED).hosts == 16
    assert exact.solve(made, exact.COLUMNS, limit_s=20.0).hosts == 15


def test_instances_beyond_the_methods_are_refused() -> None:
    """Several types of hosts, releases and the like, each by name; and a method that there is not."""
    with pytest.raises(BadInput, match="several types of hosts"):
        exact.solve(instances.hetero(1))
    with pytest.raises(BadInput, match="bounded number of hosts"):
        exact.solve(instances.tight())
    with pytest.raises(BadInput, match="releases"):
        exact.solve(instances.churn(1))
    with pytest.raises(BadInput, match="cp-sat, columns, sorted"):
        exact.solve(instances.s1(), "magic")


def test_a_wrong_packing_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that puts too much on a host meets the checker."""
    s1 = instances.s1()
    wanted = {one.application: one.count for one in s1.requests}
    everything = [tuple(wanted[app.name] for app in s1.applications)]
    monkeypatch.setattr(exact, "sorted_packing", lambda problem: everything)
    with pytest.raises(exact.PackingWrong, match=r"S1: .* limit is 1"):
        exact.solve(s1, exact.SORTED)


def test_the_same_instance_gives_the_same_packing() -> None:
    """Columns and sorted packings draw nothing."""
    made = instances.small(11)
    assert exact.solve(made, exact.COLUMNS).packing == exact.solve(made, exact.COLUMNS).packing
    assert np.bincount(exact.solve(made, exact.SORTED).packing.hosts).sum() == made.containers
