"""The checker finds every broken rule of a packing, and none in one that keeps them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.placement.instance import Application, HostType, Instance, Release, Request
from tests.golden import figures
from trainer.placement.exact import REJECTED, Packing, violations

WEB = Application("web", (4, 8, 60), 2, frozenset({"db"}))
DB = Application("db", (8, 16, 60), 1000, frozenset(), rack_limit=1)
FAST = Application("fast", (1, 1, 1), 1000, label="ssd")
HOSTS = (HostType("plain", (8, 20, 1000)), HostType("quick", (16, 32, 1000), 1, "ssd"))


def instance(*requests: tuple[str, int], **changes: object) -> Instance:
    made = tuple(Request(f"r{k}", app, count, float(k)) for k, (app, count) in enumerate(requests))
    return replace(Instance("i", HOSTS, (WEB, DB, FAST), made), **changes)


@pytest.mark.parametrize(
    ("requests", "kinds", "hosts", "broken"),
    [
        ((("web", 2),), ("plain",), (0, 0), []),
        ((("web", 2), ("fast", 1)), ("plain", "quick"), (0, 0, 1), []),
        ((("web", 2),), ("plain",), (0,), ["1 containers are placed, the requests have 2"]),
        ((("web", 1),), ("plain",), (REJECTED,), ["r0[0] of web is on no host"]),
        ((("web", 1),), ("plain",), (1,), ["host 1 does not exist: there are 1"]),
        ((("web", 1),), ("huge",), (0,), ["1 hosts are of type huge, which the instance does not have"]),
        ((), ("quick", "quick"), (), ["2 hosts are of type quick, of which there are 1"]),
        ((("web", 1), ("db", 1)), ("quick",), (0, 0), ["r1[0] of db on host 0: web runs there, which it excludes"]),
        ((("web", 3),), ("quick",), (0, 0, 0), ["r0[2] of web on host 0: 3 instances, the limit is 2"]),
        ((("web", 1), ("fast", 9)), ("quick",), (0,) * 10, []),
        ((("fast", 17),), ("quick",), (0,) * 17, ["r0[16] of fast on host 0: cores 17 of 16"]),
        ((("fast", 1),), ("plain",), (0,), ["the host's label is none, it needs ssd"]),
    ],
)
def test_each_broken_rule_is_a_sentence(
    requests: tuple[tuple[str, int], ...], kinds: tuple[str, ...], hosts: tuple[int, ...], broken: list[str]
) -> None:
    found = violations(instance(*requests), Packing(kinds, hosts))
    assert len(found) == len(broken)
    assert all(text in sentence for text, sentence in zip(broken, found, strict=True))


def test_an_exclusion_holds_for_both_whoever_names_it_and_comes_first() -> None:
    made = instance(("db", 1), ("web", 1))
    (wrong,) = violations(made, Packing(("quick",), (0, 0)))
    assert wrong.startswith("r1[0] of web on host 0: db ")


def test_a_rack_counts_over_its_hosts() -> None:
    made, kinds = instance(("db", 2)), ("plain", "plain")
    assert violations(made, Packing(kinds, (0, 1), ("a", "b"))) == []
    assert violations(made, Packing(kinds, (0, 1))) == []
    wrong = violations(made, Packing(kinds, (0, 1), ("a", "a")))
    assert [*map(figures, wrong)] == [[0, 1, 1, 2, 1]]
    own = violations(instance(("db", 2)), Packing(("quick",), (0, 0), ("",)))
    assert [*map(figures, own)] == [[0, 1, 0, 2, 0, 1]]
    assert violations(made, Packing(kinds, (0, 1), ("a",))) == ["1 racks are given for 2 hosts"]


def test_a_released_container_makes_room_and_not_before() -> None:
    made = instance(("db", 1), ("db", 1), releases=(Release("r0", 0, 1.0),))
    assert violations(made, Packing(("plain",), (0, 0))) == []
    late = replace(made, releases=(Release("r0", 0, 1.5),))
    assert [text.partition(": ")[2] for text in violations(late, Packing(("plain",), (0, 0)))] == [
        *("cores 16 of 8", "memory_gib 32 of 20", "2 instances in rack host 0, the limit is 1"),
    ]


def test_what_ran_at_the_begin_counts() -> None:
    made = instance(("web", 1), snapshot=(("plain", {"web": 2}),))
    assert "cores 12 of 8" in violations(made, Packing(("plain",), (0,)))[0]
    assert violations(made, Packing(("plain", "plain"), (1,))) == []
    (wrong,) = violations(made, Packing(("quick",), (0,)))
    assert "of the snapshot" in wrong


def test_a_container_may_be_rejected_where_that_is_allowed() -> None:
    packing = Packing(("plain",), (REJECTED, 0))
    assert violations(instance(("web", 2)), packing, may_reject=True) == []
    assert (packing.rejected, packing.opened) == (1, 1)


@given(st.lists(st.tuples(st.sampled_from(["web", "db", "fast"]), st.integers(0, 3)), max_size=12))
def test_it_agrees_with_rules_stated_once_more(placed: list[tuple[str, int]]) -> None:
    """Sums at the end, over a pool of two plain hosts and one quick: without releases nothing ever gets better."""
    kinds = ("plain", "plain", "quick", "plain")
    made = instance(*((name, 1) for name, _ in placed))
    on = [[name for name, host in placed if host == h] for h in range(4)]
    sizes = {host.name: host.capacity for host in HOSTS}
    demand = {app.name: app.demand for app in (WEB, DB, FAST)}
    fine = all(
        all(sum(demand[name][k] for name in names) <= sizes[kind][k] for k in range(3))
        and names.count("web") <= 2
        and names.count("db") <= 1
        and not {"web", "db"} <= set(names)
        and (kind == "quick" or "fast" not in names)
        for names, kind in zip(on, kinds, strict=True)
    )
    assert (violations(made, Packing(kinds, tuple(host for _, host in placed))) == []) == fine
