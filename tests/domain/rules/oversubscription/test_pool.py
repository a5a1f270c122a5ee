"""A pool's rules: what settings may say, what follows from them, and which budget of hot hours counts."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.rules.oversubscription.rates import (
    ACTIONS,
    FILTER,
    LARGEST_BUDGET,
    LOWEST_RATE,
    SHIELD,
    USUAL_BUDGET,
    USUAL_SPREAD,
    Margin,
    RateGuard,
    check_budget,
    clip_rate,
    guard_of_file,
    level_at_least,
    next_level,
    violation_hours,
    with_little_history,
)

POOL = PoolRules("main", 10, 64.0, 256.0)
NAN, INF = float("nan"), float("inf")


def test_what_is_not_given_has_the_documented_default() -> None:
    given_names = {"name", "machines", "machine_cores", "machine_memory_gb", "config_hash"}
    assert {one.name: getattr(POOL, one.name) for one in fields(POOL) if one.name not in given_names} == {
        "machine_network_gbit": 100.0,
        "subscribers": {},
        "policy": "moving-average",
        "objective": "core-hours",
        "actions": (0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
        "alpha": 0.95,
        "beta": 0.6,
        "horizon_h": 120,
        "hot_hours": None,
        "shield_budget": None,
        "drift_level": 0.0,
        "drift_hours": 0,
        "drift_spread": 2.5,
        "rho": None,
        "persistence": None,
        "cooldown_s": 7200.0,
        "stale_s": 7200.0,
        "start_within_s": 3600.0,
        "timezone": "UTC",
        "parameter": None,
        "risk_filter": False,
    }


@pytest.mark.parametrize(
    ("field", "allowed", "refused"),
    [
        ("machines", [1, 500], [0, -1, 1.5, True]),
        ("machine_cores", [0.5, 64.0], [0.0, -1.0, NAN, INF]),
        ("machine_memory_gb", [0.5], [0.0, -1.0, NAN, INF]),
        ("machine_network_gbit", [0.5], [0.0, -1.0, NAN, INF]),
        ("cooldown_s", [1.0], [0.0, -1.0, NAN, INF]),
        ("stale_s", [1.0], [0.0, -1.0, NAN, INF]),
        ("alpha", [0.5, 0.999], [0.499, 0.9995, NAN]),
        ("beta", [0.3, 0.95], [0.299, 0.951, NAN]),
        ("rho", [None, 0.0, 0.99], [-0.01, 0.991, NAN]),
        ("persistence", [None, 0.0, 0.99], [-0.01, 0.991, NAN]),
        ("horizon_h", [1, 8760], [0, 8761]),
        ("hot_hours", [None, 2, 120], [1, 121]),
        ("shield_budget", [None, 1e-6, 24.0], [0.0, -1.0, 24.1, NAN, INF]),
        ("drift_level", [0.0, 0.3, 2.0], [-0.01, 2.01, NAN, INF]),
        ("drift_spread", [0.0, 2.5, 6.0], [-0.01, 6.01, NAN, INF]),
        ("drift_hours", [0, 2, 12], [-1, 13, 1.5, True]),
        ("actions", [(1.0,), (0.5, 1.0)], [(), (0.5,), (0.5, 0.5, 1.0)]),
        ("timezone", ["UTC", "Europe/Berlin"], ["Nowhere/None", "../UTC"]),
        (
            "subscribers",
            [{"a": SubscriberRules(minimum_rate=1.0, fixed_rate=1.0)}],
            [{"a": SubscriberRules(minimum_rate=0.0)}, {"a": SubscriberRules(fixed_rate=1.1)}],
        ),
    ],
)
def test_each_field_has_its_range(field: str, allowed: list[Any], refused: list[Any]) -> None:
    for value in allowed:
        assert getattr(replace(POOL, **{field: value}), field) == value
    for value in refused:
        with pytest.raises(BadInput) as caught:
            replace(POOL, **{field: value})
        word = caught.value.field
        assert word == field or word.endswith(" of a")
        assert caught.value.remedy


def test_there_is_room_for_usual_drifts_unless_it_is_set_otherwise() -> None:
    assert (POOL.margin, POOL.margin.factor) == (Margin(0.0, 0, USUAL_SPREAD), 1.0)
    assert USUAL_SPREAD > 0.0
    assert replace(POOL, drift_level=0.25, drift_hours=2, drift_spread=0.0).margin == Margin(0.25, 2)
    assert Margin(0.25).factor == 1.25


def test_rho_and_persistence_share_a_usages_variance() -> None:
    both = replace(POOL, rho=0.4, persistence=0.59)
    assert (both.rho, both.persistence) == (0.4, 0.59)
    with pytest.raises(BadInput, match="persistence"):
        replace(POOL, rho=0.41, persistence=0.59)


def test_a_machine_is_hot_and_watched_from_shares_of_its_cores_on() -> None:
    assert POOL.threshold_cores == pytest.approx(38.4)
    assert POOL.warning_cores == pytest.approx(35.2)


def test_the_promise_breaks_at_two_hot_hours_at_least() -> None:
    assert [replace(POOL, horizon_h=hours).violation for hours in (1, 40, 80, 81, 120)] == [2, 2, 2, 3, 3]
    assert replace(POOL, hot_hours=7).violation == 7


def test_external_subscribers_are_opted_out_unless_they_opted_in() -> None:
    made = [
        SubscriberRules(internal=internal, opt_out=out) for internal in (False, True) for out in (None, False, True)
    ]
    assert [rules.opted_out for rules in made] == [True, False, True, False, False, True]


def test_any_change_of_the_rules_changes_their_hash() -> None:
    changed = [
        POOL,
        replace(POOL, alpha=0.96),
        replace(POOL, subscribers={"a": SubscriberRules()}),
        replace(POOL, subscribers={"a": SubscriberRules(internal=True)}),
        replace(POOL, parameter="/rates"),
    ]
    hashes = [one.config_hash for one in changed]
    assert len(set(hashes)) == len(changed)
    assert all(len(text) == 16 and set(text) <= set("0123456789abcdef") for text in hashes)
    assert replace(POOL).config_hash == POOL.config_hash


def test_a_pools_days_begin_at_its_midnight() -> None:
    berlin = replace(POOL, timezone="Europe/Berlin").zone
    assert str(berlin) == "Europe/Berlin"
    assert POOL.zone.utcoffset(None) in (None, timedelta(0))


def test_without_a_file_the_budget_is_the_settings_or_the_usual_one() -> None:
    assert POOL.budget(None) == USUAL_BUDGET == 0.003
    assert replace(POOL, shield_budget=0.5).budget(None) == 0.5


def test_settings_may_be_stricter_than_the_policys_file_and_not_laxer() -> None:
    guard = RateGuard(SHIELD, 0.01)
    assert replace(POOL, drift_spread=0.0).budget(guard) == 0.01
    # The room for drifts was chosen with the usual budget.
    assert POOL.budget(guard) == USUAL_BUDGET
    assert POOL.budget(RateGuard(SHIELD, 0.001)) == 0.001
    assert replace(POOL, shield_budget=0.01).budget(guard) == 0.01
    assert replace(POOL, shield_budget=0.005).budget(guard) == 0.005
    with pytest.raises(BadInput, match=r"shield_budget is 0.02: give at most 0.01"):
        replace(POOL, shield_budget=0.02).budget(guard)


def test_rates_stay_behind_the_guard_that_they_were_found_with() -> None:
    assert replace(POOL, risk_filter=True, drift_spread=0.0).budget(RateGuard(FILTER, 0.01)) == 0.01
    with pytest.raises(BadInput, match=r"risk_filter is True: set it to false: "):
        replace(POOL, risk_filter=True).budget(RateGuard(SHIELD, 0.01))
    with pytest.raises(BadInput, match=r"risk_filter is False: set it to true: "):
        POOL.budget(RateGuard(FILTER, 0.01))


def test_a_guard_is_of_a_kind_and_has_a_budget_of_at_most_a_day() -> None:
    assert RateGuard(SHIELD, 24.0).as_data() == {"kind": "shield", "budget": 24.0}
    with pytest.raises(BadInput, match="guard is 'wall': choose shield or filter"):
        RateGuard("wall", 1.0)
    for budget in (0.0, -1.0, LARGEST_BUDGET + 1e-9, NAN, INF):
        with pytest.raises(BadInput, match="guard's budget"):
            RateGuard(SHIELD, budget)
    assert [check_budget("x", value) for value in (1e-9, 1, 24)] == [1e-9, 1.0, 24.0]


def test_a_file_gives_a_guard_none_or_is_refused_by_its_name() -> None:
    assert guard_of_file("file", None) is None
    assert guard_of_file("file", {"kind": "filter", "budget": 1}) == RateGuard(FILTER, 1.0)
    for given_guard in (3, "shield", [], {}, {"kind": "shield"}, {"kind": 1, "budget": 1.0}):
        with pytest.raises(BadInput, match=r"file, guard is .*: give null, or an object"):
            guard_of_file("file", given_guard)
    for budget in (True, "1", None):
        with pytest.raises(BadInput, match=r"file, guard is"):
            guard_of_file("file", {"kind": "shield", "budget": budget})
    with pytest.raises(BadInput, match=r"file, guard is 'wall'"):
        guard_of_file("file", {"kind": "wall", "budget": 1.0})
    with pytest.raises(BadInput, match=r"file, guard's budget is 25.0"):
        guard_of_file("file", {"kind": "shield", "budget": 25.0})


_RATES = st.floats(-1.0, 2.0)


@given(_RATES)
def test_the_level_of_a_rate_is_the_lowest_that_reserves_as_much(rate: float) -> None:
    index = level_at_least(rate, ACTIONS)
    assert ACTIONS[index] >= min(rate, 1.0) - 1e-9
    assert all(level < rate - 1e-9 for level in ACTIONS[:index])


@given(_RATES)
def test_the_next_level_is_the_lowest_that_is_safer(rate: float) -> None:
    safer = [level for level in ACTIONS if level > rate + 1e-9]
    assert next_level(rate, ACTIONS) == (min(safer) if safer else 1.0)


@given(st.sampled_from(ACTIONS))
def test_of_a_level_itself_rounding_decides_nothing(level: float) -> None:
    assert ACTIONS[level_at_least(level + 1e-12, ACTIONS)] == level
    assert next_level(level - 1e-12, ACTIONS) == (*ACTIONS, 1.0)[ACTIONS.index(level) + 1]


@given(st.floats(allow_nan=True))
def test_a_continuous_rate_is_between_the_lowest_and_one(rate: float) -> None:
    clipped = clip_rate(rate)
    assert LOWEST_RATE <= clipped <= 1.0
    assert clipped == rate or not LOWEST_RATE <= rate <= 1.0


@given(st.floats(0.05, 1.0), st.floats(0.0, 400.0), st.floats(0.0, 40.0))
def test_trust_in_a_rate_only_grows_with_history(rate: float, hours: float, days: float) -> None:
    reserved = with_little_history(rate, hours, days)
    assert rate - 1e-12 <= reserved <= 1.0
    assert with_little_history(rate, hours + 1.0, days) <= reserved + 1e-12
    assert with_little_history(rate, 168.0, 5.0) == pytest.approx(rate)


@given(st.integers(1, 8760))
def test_three_in_120_hours_break_the_promise_in_any_horizon(hours: int) -> None:
    broken = violation_hours(hours)
    assert broken >= 1
    assert (broken - 1) * 40 < hours <= broken * 40
