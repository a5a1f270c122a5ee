"""The mix of requests and hosts: classes, distances, and its part of a policy's file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import ConfigurationError
from domain.rules.placement.instance import Application
from domain.rules.placement.mix import (
    Mix,
    distances,
    limit_class,
    mix_of,
    outside,
    shape_class,
    shares_of,
    size_class,
    total_variation,
)
from domain.rules.placement.policies import BF, Training, parse_policy, policy_document

SHOP, MAIL = Application("shop", (4, 8, 60), 1), Application("mail", (6, 24, 60))
COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100), min_size=1)


def mixed() -> Mix:
    return mix_of([(SHOP, 3), (MAIL, 1)], [((96, 512, 3000), 3.0), ((64, 256, 900), 1.0)])


def test_classes() -> None:
    assert [shape_class(size) for size in ((4, 8, 1), (6, 24, 1), (7, 7, 1), (8, 4, 1))] == [
        *("4c 2g", "4c 4g", "4c 1g", "8c 0.5g")
    ]
    assert [size_class(count) for count in (1, 2, 9, 10, 5000)] == ["1", "2-9", "2-9", "10+", "10+"]
    assert [limit_class(limit) for limit in (1, 2, 999, 1000)] == ["1", "2+", "2+", "none"]


def test_shares_are_of_containers_requests_and_hosts() -> None:
    assert mixed() == Mix(
        demands={"4c 2g": 0.75, "4c 4g": 0.25},
        sizes={"2-9": 0.5, "1": 0.5},
        limits={"1": 0.75, "none": 0.25},
        hosts={"64c 4g": 1.0},
    )


@given(COUNTS, COUNTS)
def test_the_distance_is_a_metric_from_0_to_1(one: dict[str, int], other: dict[str, int]) -> None:
    first, second = shares_of(one), shares_of(other)
    far = total_variation(first, second)
    assert 0.0 <= far <= 1.0 + 1e-12
    assert far == pytest.approx(total_variation(second, first))
    assert total_variation(first, first) == 0.0
    if not set(one) & set(other):
        assert far == pytest.approx(1.0)


def test_a_part_of_which_nothing_is_known_has_no_distance() -> None:
    assert distances(mix_of((), [((96, 512, 3000), 1.0)]), mixed()) == {"hosts": 0.0}


def test_what_training_saw_none_of() -> None:
    assert outside(SHOP, 3, mixed()) == ()
    assert outside(replace(SHOP, demand=(32, 64, 1), limit=5), 40, mixed()) == (
        *("containers of 32c 2g", "requests of containers: 10+", "containers with limit 2+"),
    )


def test_a_policy_file_gives_it_back() -> None:
    policy = replace(BF, training=Training(instances=("abc",), mix=mixed()))
    assert parse_policy(policy_document(policy)) == policy
    hash(policy)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        {"demands": {"4c 2g": 0.7}, "sizes": {}, "limits": {}, "hosts": {}},
        {"demands": {"4c 2g": 2.0, "8c 2g": -1.0}, "sizes": {}, "limits": {}, "hosts": {}},
        {"demands": {"4c 2g": True}, "sizes": {}, "limits": {}, "hosts": {}},
        {"demands": {"4c 2g": float("nan")}, "sizes": {}, "limits": {}, "hosts": {}},
        {"demands": 1, "sizes": {}, "limits": {}, "hosts": {}},
    ],
)
def test_one_that_is_none_is_refused(wrong: Any) -> None:
    document = policy_document(BF)
    document["trained_on"]["mix"] = wrong
    with pytest.raises(ConfigurationError, match=r"trained_on.*mix \(shares that sum to 1\)"):
        parse_policy(document)
