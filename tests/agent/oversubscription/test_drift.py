"""Drift in usage: seldom found where there is none, soon where there is one; and what VMs do at once is measured."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from agent.oversubscription.profiles import correlation_of
from tests.agent.oversubscription.streams import Stream

WARM_UP_H = 14 * 24
EVERYONE = {f"s{n}" for n in range(8)}


def alarms(stream: Stream, hours: int) -> list[tuple[int, str]]:
    """Hours, from 0, in which a drift was found, and in whom."""
    return [(hour, name) for hour, folded in enumerate(stream.hours(hours)) for name in folded.drifted]


@pytest.mark.parametrize(
    ("vms_each", "subscribers", "days"),
    [*(pytest.param(n, 6, 60, marks=pytest.mark.exhaustive) for n in (48, 5)), (5, 3, 30)],
)
def test_usage_that_stays_as_it_is_raises_less_than_one_alarm_in_90_days(
    vms_each: int, subscribers: int, days: int
) -> None:
    # VMs keep levels of their own and live for 40 h, so that the subscriber's mean strays for days.
    found = alarms(Stream(vms_each=vms_each, subscribers=subscribers), days * 24)
    assert len(found) <= subscribers * days // 90


@pytest.mark.exhaustive
@pytest.mark.parametrize("wander_h", [24.0, 240.0])
def test_levels_that_wander_but_stay_about_the_same_raise_few_alarms(wander_h: float) -> None:
    # Days as a whole stray then, which the hours alone do not tell: judged by hours there are a dozen and more.
    found = alarms(Stream(vms_each=24, subscribers=4, life_h=0.0, wander_h=wander_h), 45 * 24)
    assert len(found) <= 4 * 45 * 3 // 90


@pytest.mark.exhaustive
def test_a_large_shift_is_mostly_found_within_a_day_where_levels_wander() -> None:
    stream = Stream(vms_each=24, life_h=0.0, wander_h=72.0, seed=6)
    alarms(stream, 2 * WARM_UP_H)
    drifting = {name for name, memory in stream.memory.subscribers.items() if memory.drifting}
    assert len(drifting) <= 1
    stream.shift = 2.0
    # The VMs' own beliefs follow the shift too, and after a day little of it is left to be seen.
    assert len(drifting | {name for _, name in alarms(stream, 24)}) >= 7


@pytest.fixture
def settled() -> Stream:
    """Two weeks of eight subscribers in whom no drift was found."""
    stream = Stream(seed=6)
    assert alarms(stream, WARM_UP_H) == []
    return stream


@pytest.mark.exhaustive
def test_a_shift_of_every_vm_by_a_standard_deviation_is_found_within_hours(settled: Stream) -> None:
    settled.shift = 1.0
    found = {name: hour for hour, name in reversed(alarms(settled, 6))}
    assert set(found) == EVERYONE
    assert sorted(found.values())[4] <= 2


@pytest.mark.exhaustive
def test_half_of_that_is_found_within_a_day_and_a_fall_as_a_rise_is(settled: Stream) -> None:
    settled.shift = -0.5
    assert {name for _, name in alarms(settled, 24)} == EVERYONE


@pytest.mark.exhaustive
def test_new_vms_alone_that_use_more_are_found_within_a_day(settled: Stream) -> None:
    draws, first = np.random.default_rng(1), settled.memory.hour + 1
    for name, hour, k in itertools.product(EVERYONE, range(first, first + 24), range(10)):
        settled.own[f"{name}-{hour}-{k}"] = 2.0 + draws.normal()
    assert {name for _, name in alarms(settled, 24)} == EVERYONE


@pytest.mark.exhaustive
def test_usage_that_becomes_twice_as_unsteady_is_found_within_twelve_hours(settled: Stream) -> None:
    settled.louder = 2.0
    assert {name for _, name in alarms(settled, 12)} == EVERYONE


@pytest.mark.parametrize("rho", [0.1, *(pytest.param(rho, marks=pytest.mark.exhaustive) for rho in (0.0, 0.3))])
def test_the_share_that_vms_have_in_common_is_measured(rho: float) -> None:
    stream = Stream(subscribers=3, vms_each=20, life_h=100.0, persistence=0.6, rho=rho)
    alarms(stream, 2 * WARM_UP_H)
    found = [correlation_of(memory) for memory in stream.memory.subscribers.values()]
    assert np.mean(found) == pytest.approx(rho, abs=0.05)
    assert found == pytest.approx([rho] * 3, abs=0.1)
