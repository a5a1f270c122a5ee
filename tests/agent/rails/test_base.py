"""The limits of a fleet that sets none, and how rails say what they did."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from agent.rails.base import RailLimits, conclude, held, replaced, shrunk, utc
from domain.decisions import Reason, Verdict
from domain.fleet import vms
from tests.agent.rails.scenes import NOON, proposal, scene


def test_what_is_not_set_has_the_documented_default() -> None:
    assert asdict(RailLimits()) == {
        "min_coverage": 0.5,
        "max_age_s": 150.0,
        "hold_bins": 3,
        "safe_floor": (),
        "sick_share": 0.45,
        "sick_count": 3,
        "max_step_out": 5,
        "max_step_in": 2,
        "max_step_out_percent": 0.0,
        "max_step_in_percent": 0.0,
        "cooldown_out_s": 300.0,
        "cooldown_in_s": 300.0,
        "boot_deadline_s": 300.0,
        "stop_deadline_s": 180.0,
        "max_replacements": 3,
        "max_replacements_percent": 0.0,
        "spares": 0,
        "in_periods": 3,
        "min_lifetime_s": 300.0,
        "max_reversals": 4,
        "budget_per_hour": None,
        "budget_per_day": None,
        "capacity_memory_s": 600.0,
        "breaker_failures": 3,
        "breaker_open_s": 300.0,
        "breaker_max_s": 1800.0,
        "count_booting": True,
    }


def test_a_time_is_said_with_its_date_on_another_day_alone() -> None:
    assert utc(NOON) == utc(NOON, NOON + 3600.0) == "12:00:00 UTC"
    assert utc(NOON, NOON + 12 * 3600.0) == "2026-11-20 12:00:00 UTC"
    assert utc(NOON, NOON - 13 * 3600.0) == "2026-11-20 12:00:00 UTC"


@pytest.mark.parametrize("at", [1e300, float("inf"), float("nan"), 1e12, 1e17, -1e17, 1e18])
def test_a_time_that_no_calendar_has_is_said_so(at: float) -> None:
    assert utc(at) == utc(NOON, at)
    assert "calendar" in utc(at)


def test_a_number_of_vms_is_said_in_words() -> None:
    assert [vms(count) for count in (0, 1, 2)] == ["0 VMs", "1 VM", "2 VMs"]


def test_an_effect_is_named_after_the_loudest_of_what_it_did_and_says_each_reason_once() -> None:
    context = scene()
    words = [
        shrunk(context, 0, 9, 6, Reason.STEP_LIMIT, "at most 2"),
        held(context, 1, 5, Reason.PAUSED, "paused"),
        shrunk(context, 2, 9, 6, Reason.STEP_LIMIT, "at most 2"),
    ]
    after, effect = conclude("some", proposal(9, 5, 9), words)
    assert (after.desired, effect.verdict, effect.reason) == ((6, 4, 6), Verdict.VETOED, Reason.PAUSED)
    assert [effect.detail.count(text) for text in ("at most 2", "paused", "shrunk to 6")] == [1, 1, 2]


def test_a_change_shrunk_to_nothing_is_held() -> None:
    word = shrunk(scene(), 0, 9, 4, Reason.STEP_LIMIT, "none")
    assert (word.verdict, word.desired) == (Verdict.VETOED, 4)


def test_another_size_is_raised_or_lowered() -> None:
    up, down = (replaced(scene(), 0, 5, desired, Reason.PINNED, "") for desired in (7, 3))
    assert (up.verdict, up.what[-1]) == (Verdict.RAISED, "7")
    assert (down.verdict, down.what[-1]) == (Verdict.SHRUNK, "3")
