"""The lower bound of what runs: totals with the largest hosts first, limits, exclusions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.placement.bounds import Bound, least_hosts, needs_of
from domain.rules.placement.instance import UNLIMITED, Application

HOSTS = np.array([[16, 4, 16], [64, 64, 64], [100, 100, 100]])
"""Three hosts, of 16, 4 and 16 cores."""


def app(name: str, cores: int = 4, limit: int = UNLIMITED) -> Application:
    return Application(name, (cores, 1, 1), limit)


@pytest.mark.parametrize(
    ("count", "hosts"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (10, 4), (13, 4), (14, 5)]
)
def test_totals_fill_the_largest_hosts_first_and_then_more_of_them(count: int, hosts: int) -> None:
    assert least_hosts(np.array([count]), needs_of([app("a")]), HOSTS).hosts == hosts


def test_limits_and_exclusions_ask_for_more() -> None:
    apps = [app("a", 1, limit=2), app("b", 1), app("c", 1, limit=3)]
    running = np.array([5, 1, 3])
    assert least_hosts(running, needs_of(apps), HOSTS) == Bound(3, "limit")
    assert least_hosts(running, needs_of(apps, [(0, 1), (0, 1, 2)]), HOSTS) == Bound(5, "exclusion")
    assert least_hosts(np.zeros(3, dtype=int), needs_of(apps, [(0, 1)]), HOSTS).hosts == 0


def test_no_limit_is_none_even_for_many() -> None:
    few = np.array([[10**6], [10**6], [10**6]])
    assert least_hosts(np.array([2 * UNLIMITED]), needs_of([app("a", 1)]), few).hosts == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 400))
def test_it_is_the_least_number_of_the_largest_hosts(cores: list[int], count: int) -> None:
    sizes = np.array([cores, [10**6] * len(cores), [10**6] * len(cores)])
    found = least_hosts(np.array([count]), needs_of([app("a", 1)]), sizes).hosts
    largest = sorted(cores, reverse=True) + [max(cores)] * 400
    assert sum(largest[:found]) >= count
    assert found == 0 or sum(largest[: found - 1]) < count
