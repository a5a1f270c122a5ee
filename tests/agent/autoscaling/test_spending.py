"""The day's account: what ran is charged for as long as it ran, and a new UTC day starts at zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.spending import DAY_S, account, dollars_per_hour
from agent.autoscaling.state import Spend
from tests.agent.rails.scenes import NOON, scene

MIDNIGHT = NOON - 43_200.0
RATE = 2 * 0.086 + 0.172 + 3 * 0.344


def charged(spend: Spend, now: float, sizes: tuple[int, ...] = (2, 1, 3), **groups: dict[str, int]) -> Spend:
    context = scene(sizes, groups)
    return account(spend, context.fleet, context.snapshot, now)


def test_the_rate_is_the_price_of_every_vm() -> None:
    assert dollars_per_hour(scene().fleet, (2, 1, 3)) == pytest.approx(RATE)


def test_an_account_begins_at_its_first_minute_without_a_past() -> None:
    assert charged(Spend(), NOON) == Spend(MIDNIGHT, 0.0, NOON)


def test_time_is_charged_at_the_present_size_draining_vms_included() -> None:
    before = Spend(MIDNIGHT, 1.0, NOON)
    assert charged(before, NOON + 1800.0) == Spend(MIDNIGHT, pytest.approx(1.0 + RATE / 2), NOON + 1800.0)
    draining = charged(before, NOON + 3600.0, workers_m={"draining": 2})
    assert draining.dollars == pytest.approx(1.0 + RATE + 2 * 0.086)


def test_a_new_day_starts_at_zero_and_is_charged_from_midnight() -> None:
    late = Spend(MIDNIGHT, 50.0, MIDNIGHT + DAY_S - 1800.0)
    morning = charged(late, MIDNIGHT + DAY_S + 1800.0)
    assert morning == Spend(MIDNIGHT + DAY_S, pytest.approx(RATE / 2), MIDNIGHT + DAY_S + 1800.0)


def test_a_clock_set_back_charges_nothing() -> None:
    assert charged(Spend(MIDNIGHT, 5.0, NOON), NOON - 3600.0) == Spend(MIDNIGHT, 5.0, NOON - 3600.0)


@given(st.lists(st.floats(0.0, 7200.0), min_size=1, max_size=20))
def test_any_division_of_a_day_into_minutes_costs_the_same(gaps: list[float]) -> None:
    spend, now = Spend(MIDNIGHT, 0.0, MIDNIGHT + 1.0), MIDNIGHT + 1.0
    for gap in gaps:
        now = min(now + gap, MIDNIGHT + DAY_S - 1.0)
        spend = charged(spend, now)
    assert spend.dollars == pytest.approx(RATE * (now - MIDNIGHT - 1.0) / 3600.0)
    assert spend.day_start == MIDNIGHT
