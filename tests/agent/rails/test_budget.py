"""Rail 10 holds scale-out to dollars per hour and UTC day; it forces no scale-in and holds no falling bill."""

import pytest

from agent.autoscaling.state import Breaker, Spend
from agent.rails.budget import RAIL, forecast
from domain.decisions import Origin, Reason, Verdict
from tests.agent.rails.scenes import NOON, ask, fleet, passes, proposal, scene

MIDNIGHT = NOON - 12 * 3600.0
# 4 m5a.large, 4 m5a.xlarge and 4 m5a.2xlarge
RATE = 4 * (0.086 + 0.172 + 0.344)


def spent(dollars: float, at: float = NOON) -> dict[str, object]:
    return {"spend": Spend(MIDNIGHT, dollars, at)}


def test_without_a_budget_everything_passes():
    assert passes(RAIL, proposal(20, 20, 20), scene())


def test_a_bill_of_exactly_the_budget_passes():
    assert passes(RAIL, proposal(5, 4, 4), scene(limits={"budget_per_hour": RATE + 0.086}))


def test_the_most_expensive_increase_gives_way_first():
    context = scene(limits={"budget_per_hour": RATE + 0.344 + 0.172})
    effect = ask(RAIL, proposal(5, 5, 6), context)
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.OVER_BUDGET, (5, 5, 4))


def test_the_sentence_has_the_figures():
    effect = ask(RAIL, proposal(3, 0, 0), scene((1, 0, 0), limits={"budget_per_hour": 0.2}))
    assert effect.after == (2, 0, 0)
    assert effect.detail == "workers_m 1 -> 3 shrunk to 2: $0.258 per hour asked, budget $0.200"


def test_a_fleet_over_budget_is_not_shrunk():
    assert passes(RAIL, proposal(4, 4, 4), scene(limits={"budget_per_hour": 0.1}))
    assert ask(RAIL, proposal(5, 4, 4), scene(limits={"budget_per_hour": 0.1})).after == (4, 4, 4)


def test_a_falling_bill_is_never_held():
    swap = proposal(6, 4, 3)
    assert passes(RAIL, swap, scene(limits={"budget_per_hour": 0.1}))


def test_over_budget_increases_get_as_much_as_decreases_pay_for():
    # Giving back one m5a.2xlarge pays for four m5a.large.
    effect = ask(RAIL, proposal(10, 4, 3), scene(limits={"budget_per_hour": 0.1}))
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
    effect = ask(RAIL, proposal(8, 4, 3), scene(limits={"budget_per_hour": 0.1}, **obstacle))
    assert effect.after == (4, 4, 3)


def test_from_zero_the_budget_allows_what_it_can_pay():
    assert ask(RAIL, proposal(0, 0, 2), scene((0, 0, 0), limits={"budget_per_hour": 0.5})).after == (0, 0, 1)
    assert ask(RAIL, proposal(0, 0, 2), scene((0, 0, 0), limits={"budget_per_hour": 0.0})).after == (0, 0, 0)


def test_the_day_is_spent_plus_one_hour_at_the_asked_rate_plus_the_minimum_until_midnight():
    context = scene((1, 0, 0), state=spent(3.0), fleet=fleet(minimum=1))
    # 12 hours are left: one at the asked 2 $/h and eleven at one VM of each type.
    assert forecast(context, 2.0) == pytest.approx(3.0 + 2.0 + 11 * 0.602)


def test_a_forecast_of_exactly_the_daily_budget_passes_and_more_is_shrunk():
    day = {"budget_per_day": 3.0 + 0.172}
    assert passes(RAIL, proposal(2, 0, 0), scene((1, 0, 0), limits=day, state=spent(3.0)))
    effect = ask(RAIL, proposal(4, 0, 0), scene((1, 0, 0), limits=day, state=spent(3.0)))
    assert effect.after == (2, 0, 0)
    assert effect.detail == (
        "workers_m 1 -> 4 shrunk to 2: $3.00 spent today, forecast to midnight UTC $3.34, budget $3.17"
    )


def test_a_spent_daily_budget_holds_scale_out_only():
    context = scene(limits={"budget_per_day": 10.0}, state=spent(10.0))
    assert ask(RAIL, proposal(5, 3, 4), context).after == (5, 3, 4)
    assert ask(RAIL, proposal(5, 4, 4), context).after == (4, 4, 4)


def test_in_the_last_hour_only_the_rest_of_the_day_is_counted():
    at = NOON + 12 * 3600.0 - 360.0  # a tenth of an hour before midnight
    context = scene((1, 0, 0), limits={"budget_per_day": 3.0 + 0.0172}, state=spent(3.0, at), now=at)
    assert passes(RAIL, proposal(2, 0, 0), context)
    assert ask(RAIL, proposal(3, 0, 0), context).after == (2, 0, 0)


def test_the_day_begins_anew_at_midnight_utc():
    full = {"budget_per_day": 3.0}
    before = scene((0, 0, 0), limits=full, state=spent(3.0), now=MIDNIGHT + 86_399.0)
    assert ask(RAIL, proposal(1, 0, 0), before).after == (0, 0, 0)
    assert passes(RAIL, proposal(1, 0, 0), scene((0, 0, 0), limits=full, state=spent(3.0), now=MIDNIGHT + 86_400.0))


@pytest.mark.parametrize("origin", list(Origin))
def test_nobody_is_exempt(origin):
    assert not passes(RAIL, proposal(9, 4, 4, origin=origin), scene(limits={"budget_per_hour": 0.1}))
