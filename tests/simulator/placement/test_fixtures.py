"""Figures that the specification of placement states as integers (placement §6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from domain.rules.placement.policies import BF, BF_CPU, DP, FF, RESERVE, WF, Policy
from simulator.placement.engine import arrays_of, play, play_orders
from simulator.placement.instances import instance_of, s1, shuffle_order, small
from tests.simulator.placement.vectors import FIRST, SECOND

ADAPTIVE = replace(FIRST, family="tiers17a")


def hosts(name: str, policy: Policy) -> int:
    outcome = play(instance_of(name), policy)
    assert outcome.rejected == 0
    return outcome.hosts


def test_s1_takes_the_stated_hosts() -> None:
    assert [play(s1(), policy).hosts for policy in (FF, BF, DP, WF, BF_CPU)] == [20, 20, 17, 17, 20]


def test_simple_policies_hold_15_hosts_until_the_last_three_requests_of_s1() -> None:
    first = replace(s1(), requests=s1().requests[:-3])
    assert [play(first, policy).hosts for policy in (BF, DP, WF)] == [15, 15, 15]


def test_seed_11_of_the_small_generator() -> None:
    assert [play(small(11), policy).hosts for policy in (FF, BF, DP, WF)] == [21, 20, 17, 17]


@pytest.mark.exhaustive
def test_56_of_400_small_seeds_have_20_hosts_by_best_fit() -> None:
    assert sum(play(small(seed), BF).hosts == 20 for seed in range(400)) == 56


@pytest.mark.parametrize(("name", "expected"), [("L219", [289, 289, 292, 289]), ("L157", [290, 290, 274, 272])])
def test_large_instances_take_the_stated_hosts(name: str, expected: list[int]) -> None:
    assert [hosts(name, policy) for policy in (FF, BF, DP, WF)] == expected


@pytest.mark.parametrize(
    ("name", "policy", "expected"),
    [("L219", FIRST, 271), ("L157", FIRST, 267), ("L157", SECOND, 268), ("L219", SECOND, 273), ("L219", RESERVE, 272),
     ("L157", RESERVE, 278)],
    ids=lambda value: value.name if isinstance(value, Policy) else str(value),
)  # fmt: skip
def test_reference_vectors_take_the_stated_hosts(name: str, policy: Policy, expected: int) -> None:
    assert hosts(name, policy) == expected


@pytest.mark.parametrize(
    ("seed", "expected"),
    list(enumerate([(258, 263, 256), (295, 300, 294), (255, 259, 253), (251, 258, 251), (308, 316, 309)])),
)
def test_stream_takes_the_stated_hosts(seed: int, expected: tuple[int, int, int]) -> None:
    assert tuple(hosts(f"stream-{seed}", policy) for policy in (BF, FIRST, ADAPTIVE)) == expected


ORDERS = {
    ("L219", "BF"): (BF, 286.3, 266, 311, 53, 36, 92.71),
    ("L157", "BF"): (BF, 288.2, 266, 310, 50, 48, 92.10),
    ("L219", "DP"): (DP, 281.7, 269, 316, 55, 40, 94.24),
    ("L157", "DP"): (DP, 283.9, 270, 309, 51, 39, 93.50),
    ("L219", "WF"): (WF, 280.5, 268, 310, 45, 40, 94.59),
    ("L157", "WF"): (WF, 284.5, 269, 307, 51, 47, 93.31),
    ("L219", "RESERVE"): (RESERVE, 274.4, 267, 288, 44, 36, 96.57),
    ("L157", "RESERVE"): (RESERVE, 274.6, 268, 294, 30, 6, 96.56),
    ("L219", "first"): (FIRST, 271.8, 268, 278, 28, 26, 97.42),
    ("L157", "first"): (FIRST, 273.0, 268, 287, 30, 6, 97.08),
    ("L219", "second"): (SECOND, 271.3, 268, 276, 15, 15, 97.56),
    ("L157", "second"): (SECOND, 272.6, 269, 284, 27, 6, 97.22),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", ORDERS, ids="-".join)
def test_fifty_orders_are_those_of_the_table(key: tuple[str, str]) -> None:
    policy, mean, p5, p95, wide, wide_of_ten, rate = ORDERS[key]
    instance = instance_of(key[0])
    arrays = arrays_of(instance)
    orders = np.stack([shuffle_order(len(instance.requests), k) for k in range(50)])
    found = play_orders(instance, policy, orders, arrays)[:, 0]
    cores = int(arrays.demand[arrays.apps, 0] @ arrays.counts)
    assert round(float(found.mean()), 1) == mean
    assert [round(float(value)) for value in np.percentile(found, (5, 95))] == [p5, p95]
    assert (int(np.ptp(found)), int(np.ptp(found[:10]))) == (wide, wide_of_ten)
    assert round(float((100.0 * cores / (96 * found)).mean()), 2) == rate
