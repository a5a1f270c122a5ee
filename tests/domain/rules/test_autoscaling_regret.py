"""The twin of the rule's fleet: jobs keep their length, VMs boot and go, and a dear scorer hands over for hours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rules import autoscaling_regret as regret
from domain.rules.autoscaling_regret import (
    AHEAD,
    APART,
    APART_MIN,
    COST,
    HELD,
    HELD_MIN,
    JOBS,
    LIVED,
    LOOK_MIN,
    RUNNING,
)

CORES, PRICES, FLOOR, LIMITS = [2, 8], [0.1, 0.4], [1, 0], [10, 10]
HORIZON_S, WAITING_PRICE, COOLDOWN_S = 300.0, 0.05, 120.0


def empty() -> list[float]:
    return [0.0] * regret.twin_size(len(CORES))


def take_in(twin: Any, requested: list[int], waiting: float = 0.0, arrived: float = 0.0, busy: float = 0.0) -> bool:
    """A minute with jobs of 600 core-seconds each."""
    work, came = 600.0 * waiting, 600.0 * arrived
    return regret.take_in(twin, waiting, work, arrived, came, busy, CORES, PRICES, requested, WAITING_PRICE)


def take_orders(
    twin: Any, rule: list[int], chose_rule: bool, ready: list[int], booting: list[int] | None = None
) -> None:
    coming = booting or [0, 0]
    requested = [a + b for a, b in zip(ready, coming, strict=True)]
    fleet = (CORES, ready, coming, requested, [0, 0], FLOOR, LIMITS, [0.0, 0.0], [0.0, 0.0], [100.0] * 2, [140.0] * 2)
    regret.take_orders(twin, rule, chose_rule, 0.0, HORIZON_S, 0.0, *fleet, COOLDOWN_S)


@given(st.floats(0.6, 400.0), st.sampled_from([LIVED, RUNNING]))
def test_a_core_is_busy_for_the_length_of_its_job(minutes: float, at: int) -> None:
    twin = empty()
    regret.start(twin, at, 1.0, 60.0 * minutes, 1.0)
    busy = 0.5 * regret.running(twin, at)
    for _ in range(20_000):
        busy += 0.5 * regret.running(twin, at)
        regret.drain(twin, at)
        busy += 0.5 * regret.running(twin, at)
    # The half minute before the first look is over; the steps are coarse.
    assert busy == pytest.approx(minutes, rel=0.35, abs=1.0)


def test_while_the_scorer_decides_as_the_rule_does_nothing_is_ahead() -> None:
    twin = empty()
    for minute in range(100):
        assert not take_in(twin, [1, 0], waiting=minute % 7, arrived=3.0, busy=2.0)
        take_orders(twin, [1, 0], True, [1, 0])
    assert (twin[AHEAD], twin[APART]) == (0.0, 0.0)
    # 0.1 $ of rent and 3 waiting jobs in the mean, an hour and 40 minutes, of which the first forget 3 %.
    assert twin[COST] == pytest.approx(100 / 60 * (0.1 + 3.0 * WAITING_PRICE), rel=0.06)


def lived(minutes: int, bought: list[int], twin: Any) -> list[bool]:
    """Two small VMs do; a scorer buys what the rule would not. Return in which minutes the rule decides."""
    found: list[bool] = []
    for _ in range(minutes):
        held = take_in(twin, [1, 0] if found and found[-1] else bought)
        take_orders(twin, [1, 0], held, [1, 0] if held else bought)
        found.append(held)
    return found


def test_a_scorer_that_costs_more_hands_over_at_a_look_and_decides_again_after_hours() -> None:
    twin = empty()
    held = lived(int(LOOK_MIN + HELD_MIN), [1, 5], twin)
    first = held.index(True) + 1
    assert first == LOOK_MIN
    assert all(held[first:])
    assert twin[AHEAD] > regret.SHARE * twin[COST]
    # The rule alone lowers the share of the excess until it is half of the share that hands over.
    for _ in range(20_000):
        if not take_in(twin, [1, 0]):
            break
        take_orders(twin, [1, 0], True, [1, 0])
    assert twin[HELD] == 0.0
    assert twin[AHEAD] <= 0.5 * regret.SHARE * twin[COST]


def test_a_scorer_that_costs_less_never_hands_over() -> None:
    twin = empty()
    for _ in range(300):
        assert not take_in(twin, [1, 0])
        # The rule would hold a large VM that this scorer does not.
        take_orders(twin, [1, 1], False, [1, 0])
    assert twin[AHEAD] < 0.0


def test_the_rule_s_fleet_boots_takes_up_jobs_and_gives_idle_vms_back() -> None:
    twin = empty()
    take_in(twin, [1, 0], waiting=40.0, arrived=40.0)
    # The scorer does nothing, the rule buys ten large VMs: 80 cores for 40 jobs of ten minutes.
    take_orders(twin, [1, 10], False, [1, 0])
    waiting = []
    for _ in range(40):
        take_in(twin, [1, 0], waiting=40.0)
        take_orders(twin, [1, 0], False, [1, 0])
        waiting.append(twin[JOBS])
    assert waiting[0] == 38.0
    assert waiting[1:3] == [0.0, 0.0]
    types = regret.TYPES
    assert twin[types + regret.READY] == 1.0
    assert twin[types + regret.TYPE_WIDTH + regret.READY] == 0.0
    assert twin[RUNNING : RUNNING + regret.BINS] != [0.0] * regret.BINS


def test_the_rule_s_fleet_ends_when_it_is_old_and_when_both_are_alike() -> None:
    old, alike = empty(), empty()
    for twin in (old, alike):
        take_in(twin, [1, 1])
        take_orders(twin, [1, 0], False, [1, 1])
        assert twin[APART] == 1.0
    ages = []
    for _ in range(int(APART_MIN) + 2):
        take_in(old, [1, 1])
        take_orders(old, [1, 0], True, [1, 1])
        ages.append(old[APART])
    assert max(ages) > APART_MIN
    assert ages[-1] == 0.0
    assert old[RUNNING:] == [0.0] * (len(old) - RUNNING)
    take_in(alike, [1, 0])
    take_orders(alike, [1, 0], True, [1, 0])
    # The rule's removal of a large VM is done at once in both.
    assert alike[APART] == 0.0 or alike[regret.TYPES + regret.TYPE_WIDTH] == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans()), min_size=1, max_size=120),
    st.integers(0, 4),
)
def test_plain_lists_give_the_same_numbers_as_arrays_and_all_are_finite(
    minutes: list[tuple[int, int, bool]], large: int
) -> None:
    plain, arrays = empty(), np.array(empty())
    for waiting, arrived, chose_rule in minutes:
        for twin, kind in ((plain, list), (arrays, np.array)):
            vms = ([1, large], [0, 1], [1, large + 1], [0, large])
            counts: Any = [kind(values) for values in (CORES, *vms, FLOOR, LIMITS)]
            times: Any = [kind(values) for values in ([0.0, 60.0], [0.0, 0.0], [45.0] * 2, [97.0] * 2)]
            busy = float(min(2 + 8 * large, 5))
            came = 600.0 * arrived
            regret.take_in(
                twin, waiting, 600.0 * waiting, arrived, came, busy, counts[0], PRICES, counts[3], WAITING_PRICE
            )
            rule, world = kind([1, 3]), (*counts, *times, COOLDOWN_S)
            regret.take_orders(twin, rule, chose_rule, 50.0, HORIZON_S, 180.0, *world)
    np.testing.assert_array_equal(arrays, np.array(plain))
    assert np.isfinite(arrays).all()
    assert (arrays[LIVED:] >= 0.0).all()
