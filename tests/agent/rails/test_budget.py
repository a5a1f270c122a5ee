"""Rail 10 keeps to the budget, and the day's account charges what ran for as long as it ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rails.budget import account, budget, dollars_per_hour, forecast
from agent.rails.state import Breaker, Spend
from domain.decisions import Origin, Reason, Verdict
from domain.units import DAY_S
from tests.agent.rails.scenes import NOON, TYPES, ask, fleet, passes, proposal, scene

MIDNIGHT = NOON - 12 * 3600.0
# 4 m5a.large, 4 m5a.xlarge and 4 m5a.2xlarge
RATE = 4 * (0.086 + 0.172 + 0.344)


def spent(dollars: float, at: float = NOON) -> dict[str, object]:
    return {"spend": Spend(MIDNIGHT, dollars, at)}


def test_without_a_budget_everything_passes():
    assert passes(budget, proposal(20, 20, 20), scene())


def test_a_bill_of_exactly_the_budget_passes():
    assert passes(budget, proposal(5, 4, 4), scene(limits={"budget_per_hour": RATE + 0.086}))


def test_the_most_expensive_increase_gives_way_first():
    context = scene(limits={"budget_per_hour": RATE + 0.344 + 0.172})
    effect = ask(budget, proposal(5, 5, 6), context)
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.OVER_BUDGET, (5, 5, 4))


def test_a_fleet_over_budget_is_not_shrunk():
    assert passes(budget, proposal(4, 4, 4), scene(limits={"budget_per_hour": 0.1}))
    assert ask(budget, proposal(5, 4, 4), scene(limits={"budget_per_hour": 0.1})).after == (4, 4, 4)


def test_a_falling_bill_is_never_held():
    swap = proposal(6, 4, 3)
    assert passes(budget, swap, scene(limits={"budget_per_hour": 0.1}))


def test_over_budget_increases_get_as_much_as_decreases_pay_for():
    # Giving back one m5a.2xlarge pays for four m5a.large.
    effect = ask(budget, proposal(10, 4, 3), scene(limits={"budget_per_hour": 0.1}))
    assert effect.after == (8, 4, 3)


@pytest.mark.parametrize(
    "obstacle",
    [
        {"groups": {"workers_xl": {"suspended": ("Terminate",)}}},
        {"groups": {"workers_xl": {"refreshing": True}}},
        {"state": {"breakers": (Breaker("workers_xl", 3, NOON + 60.0, 300.0),)}},
    ],
)
def test_a_decrease_that_will_be_held_pays_for_nothing(obstacle):
    effect = ask(budget, proposal(8, 4, 3), scene(limits={"budget_per_hour": 0.1}, **obstacle))
    assert effect.after == (4, 4, 3)


def test_from_zero_the_budget_allows_what_it_can_pay():
    assert ask(budget, proposal(0, 0, 2), scene((0, 0, 0), limits={"budget_per_hour": 0.5})).after == (0, 0, 1)
    assert ask(budget, proposal(0, 0, 2), scene((0, 0, 0), limits={"budget_per_hour": 0.0})).after == (0, 0, 0)


def test_the_day_is_spent_plus_one_hour_at_the_asked_rate_plus_the_minimum_until_midnight():
    context = scene((1, 0, 0), state=spent(3.0), fleet=fleet(minimum=1))
    # 12 hours are left: one at the asked 2 $/h and eleven at one VM of each type.
    assert forecast(context, 2.0) == pytest.approx(3.0 + 2.0 + 11 * 0.602)


def test_a_forecast_of_exactly_the_daily_budget_passes_and_more_is_shrunk():
    day = {"budget_per_day": 3.0 + 0.172}
    assert passes(budget, proposal(2, 0, 0), scene((1, 0, 0), limits=day, state=spent(3.0)))
    assert ask(budget, proposal(4, 0, 0), scene((1, 0, 0), limits=day, state=spent(3.0))).after == (2, 0, 0)


def test_a_spent_daily_budget_holds_scale_out_only():
    context = scene(limits={"budget_per_day": 10.0}, state=spent(10.0))
    assert ask(budget, proposal(5, 3, 4), context).after == (5, 3, 4)
    assert ask(budget, proposal(5, 4, 4), context).after == (4, 4, 4)


def test_in_the_last_hour_only_the_rest_of_the_day_is_counted():
    at = NOON + 12 * 3600.0 - 360.0  # a tenth of an hour before midnight
    context = scene((1, 0, 0), limits={"budget_per_day": 3.0 + 0.0172}, state=spent(3.0, at), now=at)
    assert passes(budget, proposal(2, 0, 0), context)
    assert ask(budget, proposal(3, 0, 0), context).after == (2, 0, 0)


def test_the_day_begins_anew_at_midnight_utc():
    full = {"budget_per_day": 3.0}
    before = scene((0, 0, 0), limits=full, state=spent(3.0), now=MIDNIGHT + 86_399.0)
    assert ask(budget, proposal(1, 0, 0), before).after == (0, 0, 0)
    assert passes(budget, proposal(1, 0, 0), scene((0, 0, 0), limits=full, state=spent(3.0), now=MIDNIGHT + 86_400.0))


@pytest.mark.parametrize("origin", list(Origin))
def test_nobody_is_exempt(origin):
    assert not passes(budget, proposal(9, 4, 4, origin=origin), scene(limits={"budget_per_hour": 0.1}))


HOURLY = 2 * 0.086 + 0.172 + 3 * 0.344


def charged(spend: Spend, now: float, sizes: tuple[int, ...] = (2, 1, 3), **groups: dict[str, int]) -> Spend:
    context = scene(sizes, groups)
    return account(spend, context.fleet, context.snapshot, now)


def test_the_rate_is_the_price_of_every_vm() -> None:
    assert dollars_per_hour(scene().fleet, (2, 1, 3)) == pytest.approx(HOURLY)


def test_an_account_begins_at_its_first_minute_without_a_past() -> None:
    assert charged(Spend(), NOON) == Spend(MIDNIGHT, 0.0, NOON)


def test_time_is_charged_at_the_present_size_draining_vms_included() -> None:
    before = Spend(MIDNIGHT, 1.0, NOON)
    assert charged(before, NOON + 1800.0) == Spend(MIDNIGHT, pytest.approx(1.0 + HOURLY / 2), NOON + 1800.0)
    draining = charged(before, NOON + 3600.0, workers_m={"draining": 2})
    assert draining.dollars == pytest.approx(1.0 + HOURLY + 2 * 0.086)


def test_a_new_day_starts_at_zero_and_is_charged_from_midnight() -> None:
    late = Spend(MIDNIGHT, 50.0, MIDNIGHT + DAY_S - 1800.0)
    morning = charged(late, MIDNIGHT + DAY_S + 1800.0)
    assert morning == Spend(MIDNIGHT + DAY_S, pytest.approx(HOURLY / 2), MIDNIGHT + DAY_S + 1800.0)


def test_a_clock_set_back_charges_nothing() -> None:
    assert charged(Spend(MIDNIGHT, 5.0, NOON), NOON - 3600.0) == Spend(MIDNIGHT, 5.0, NOON - 3600.0)


@given(st.lists(st.floats(0.0, 7200.0), min_size=1, max_size=20))
def test_any_division_of_a_day_into_minutes_costs_the_same(gaps: list[float]) -> None:
    spend, now = Spend(MIDNIGHT, 0.0, MIDNIGHT + 1.0), MIDNIGHT + 1.0
    for gap in gaps:
        now = min(now + gap, MIDNIGHT + DAY_S - 1.0)
        spend = charged(spend, now)
    assert spend.dollars == pytest.approx(HOURLY * (now - MIDNIGHT - 1.0) / 3600.0)
    assert spend.day_start == MIDNIGHT


def test_what_the_minimum_costs_until_midnight_is_kept_back() -> None:
    # At noon eleven hours at the minimum follow the hour that is decided: 11 * 0.086 dollars.
    of = fleet(minimum=1, size=1)
    day = {"budget_per_day": 3.0 + 0.172 + 11 * 0.086}
    assert passes(budget, proposal(2), scene((1,), limits=day, state=spent(3.0), fleet=of))
    assert ask(budget, proposal(4), scene((1,), limits=day, state=spent(3.0), fleet=of)).after == (2,)


def test_of_equal_prices_the_first_group_gives_way_first() -> None:
    of = replace(fleet(size=2), groups=tuple(replace(one, vm_type=TYPES[0]) for one in fleet(size=2).groups))
    context = scene((4, 4), limits={"budget_per_hour": 9 * 0.086}, fleet=of)
    assert ask(budget, proposal(6, 5), context).after == (4, 5)
    assert ask(budget, proposal(5, 6), context).after == (4, 5)
    assert ask(budget, proposal(7, 6), context).after == (4, 5)


@pytest.mark.parametrize("limits", [{"budget_per_hour": 0.5}, {"budget_per_day": 0.5}])
def test_what_costs_nothing_is_never_held(limits: dict[str, float]) -> None:
    free = tuple(replace(one, vm_type=replace(one.vm_type, price_per_hour=0.0)) for one in fleet(size=1).groups)
    context = scene((1,), limits=limits, fleet=replace(fleet(size=1), groups=free))
    assert passes(budget, proposal(9), context)
