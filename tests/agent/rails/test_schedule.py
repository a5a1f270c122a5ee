"""Windows of a schedule: when they open by the clock of their zone, which of several counts, what the rail does."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rails.order import apply_rails
from agent.rails.schedule import (
    WindowSetting,
    coming_text,
    cron_fault,
    moment,
    opened,
    policy_at,
    schedule,
    scheduled,
    shortest_gap_minutes,
    windows_at,
    with_pauses,
)
from domain.controls import Controls, PauseScope, Window
from domain.decisions import Reason, Verdict
from tests.agent.rails.scenes import NOON, ask, fleet, passes, paused, pinned, proposal, scene
from tests.golden import check_wording

BERLIN = "Europe/Berlin"


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def opening(planned: WindowSetting, now: str) -> tuple[str, str] | None:
    """Beginning and end of the window that is open at a time in UTC or comes next, in UTC too."""
    window = planned.at(utc(now))
    if window is None:
        return None
    start, end = (datetime.fromtimestamp(at, UTC).strftime("%d %H:%M") for at in (window.start, window.end))
    return start, end


def nightly(cron: str = "30 2 * * *", minutes: float = 60.0, zone: str = BERLIN) -> WindowSetting:
    return WindowSetting("night", cron, minutes, zone=zone, minimum=1)


class TestTimes:
    """On 29 March 2026 Berlin's clock skips 02:00 to 03:00, at 01:00 UTC; on 25 October it repeats that hour."""

    def test_a_time_of_day_moves_in_utc_with_the_clock(self) -> None:
        assert opening(nightly(), "2026-03-27T12:00") == ("28 01:30", "28 02:30")
        assert opening(nightly(), "2026-03-29T12:00") == ("30 00:30", "30 01:30")

    def test_a_skipped_beginning_is_the_moment_of_the_change(self) -> None:
        assert opening(nightly(), "2026-03-28T12:00") == ("29 01:00", "29 01:30")

    def test_a_skipped_end_is_the_moment_of_the_change(self) -> None:
        assert opening(nightly("30 1 * * *"), "2026-03-28T12:00") == ("29 00:30", "29 01:00")

    def test_a_window_within_the_skipped_hour_does_not_open(self) -> None:
        assert opening(nightly("15 2 * * *", 30.0), "2026-03-28T12:00") == ("30 00:15", "30 00:45")

    def test_a_repeated_beginning_opens_once_and_first(self) -> None:
        assert opening(nightly("30 2 * * *", 15.0), "2026-10-24T12:00") == ("25 00:30", "25 00:45")
        assert opening(nightly("30 2 * * *", 15.0), "2026-10-25T00:50") == ("26 01:30", "26 01:45")

    def test_a_window_over_the_repeated_hour_ends_by_the_clock(self) -> None:
        assert opening(nightly("30 1 * * *", 120.0), "2026-10-24T12:00") == ("24 23:30", "25 02:30")

    def test_zones_that_shift_by_half_an_hour(self) -> None:
        assert opening(nightly("15 2 * * *", 60.0, "Australia/Lord_Howe"), "2026-10-03T00:00") == (
            "03 15:30",
            "03 16:15",
        )

    @given(minutes=st.integers(0, 365 * 24 * 60))
    def test_a_moment_is_where_the_clock_first_shows_at_least_that_time(self, minutes: int) -> None:
        zone = ZoneInfo(BERLIN)
        local = datetime.fromtimestamp(utc("2026-01-01T00:00") + 60 * minutes, UTC).replace(tzinfo=None)
        at = moment(local, zone)
        shown = datetime.fromtimestamp(at, zone).replace(tzinfo=None)
        assert shown >= local
        assert datetime.fromtimestamp(at - 1, zone).replace(tzinfo=None) < local

    def test_open_from_the_beginning_until_before_the_end(self) -> None:
        window = Window("a", NOON, NOON + 60.0)
        assert [len(opened([window], NOON + at)) for at in (-1.0, 0.0, 59.0, 60.0)] == [0, 1, 1, 0]

    def test_a_window_of_one_time_ends_for_good(self) -> None:
        once = WindowSetting("sale", begins="2026-11-27T18:00", ends="2026-11-28T02:00", zone=BERLIN, maximum=3)
        assert opening(once, "2026-11-27T20:00") == ("27 17:00", "28 01:00")
        assert opening(once, "2026-11-28T01:00") is None

    def test_a_window_that_comes_in_more_than_a_week_is_not_shown(self) -> None:
        once = WindowSetting("sale", begins="2026-11-27T18:00", ends="2026-11-28T02:00")
        assert [bool(windows_at([once], utc(now))) for now in ("2026-11-20T17:59", "2026-11-20T18:00")] == [False, True]

    @pytest.mark.parametrize(
        ("days", "opens"),
        [("0", "29"), ("7", "29"), ("1-5", "23"), ("sun", "29"), ("fri-sun", "27"), ("5-7", "27"), ("*/6", "28")],
    )
    def test_days_of_the_week_count_from_sunday_as_in_crontab(self, days: str, opens: str) -> None:
        planned = nightly(f"0 18 * * {days}", 60.0, "UTC")
        # A Monday for weekdays, a Friday for what includes Saturday, a Sunday.
        now = "2026-11-23T12:00" if opens != "28" else "2026-11-28T00:00"
        assert opening(planned, now) == (f"{opens} 18:00", f"{opens} 19:00")

    @pytest.mark.parametrize(
        "cron",
        ["", "0 18 * *", "60 * * * *", "0 18 * * 8", "0 18 1 * mon", "0 0 30 2 *", "0 18 * * 5-2", "0 18 * * */0"],
    )
    def test_what_is_no_usable_expression(self, cron: str) -> None:
        assert cron_fault(cron)

    @pytest.mark.parametrize(
        ("cron", "minutes"), [("0 18 * * *", 1440.0), ("*/20 * * * *", 20.0), ("0 9,12 * * *", 180.0)]
    )
    def test_how_long_a_window_may_be(self, cron: str, minutes: float) -> None:
        assert cron_fault(cron) is None
        assert shortest_gap_minutes(cron) == minutes


def window(name: str = "rush", start: float = NOON - 60.0, **more: object) -> Window:
    return Window(name, start, NOON + 3600.0, **more)  # type: ignore[arg-type]


class TestOrder:
    def test_one_time_before_repeated_then_the_latest_then_the_name(self) -> None:
        windows = [window("b"), window("a"), window("late", NOON), window("sale", NOON - 600.0, once=True)]
        assert [one.name for one in opened(windows, NOON)] == ["sale", "late", "a", "b"]

    def test_each_limit_is_of_the_first_that_sets_it(self) -> None:
        windows = (window("late", NOON, maximum=20), window("early", minimum=15, maximum=16, policy="hold"))
        assert scheduled((4, 4, 4), scene(windows=windows)) == (7, 4, 4)
        assert scheduled((8, 8, 8), scene(windows=windows, requested=(8, 8, 8))) == (8, 8, 4)
        assert policy_at(windows, NOON) == "hold"

    def test_of_two_that_contradict_each_other_the_first_counts(self) -> None:
        low = scene(windows=(window("late", NOON, maximum=5), window("early", minimum=30)))
        high = scene(windows=(window("late", NOON, minimum=30), window("early", maximum=5)))
        assert sum(scheduled((4, 4, 4), low)) == 5
        assert sum(scheduled((4, 4, 4), high)) == 30


class TestRail:
    def test_it_raises_the_group_with_the_cheapest_core_that_has_room(self) -> None:
        effect = ask(schedule, proposal(4, 4, 4), scene(windows=(window(minimum=40),)))
        assert (effect.after, effect.verdict, effect.reason) == ((20, 16, 4), Verdict.RAISED, Reason.SCHEDULED_MINIMUM)

    def test_it_takes_off_increases_before_what_is_there(self) -> None:
        effect = ask(schedule, proposal(9, 6, 4), scene(windows=(window(maximum=13),)))
        assert (effect.after, effect.reason) == ((5, 4, 4), Reason.SCHEDULED_MAXIMUM)

    def test_a_window_that_is_not_open_does_nothing(self) -> None:
        assert passes(schedule, proposal(4, 4, 4), scene(windows=(window(start=NOON + 1.0, minimum=40),)))

    def test_a_fleet_without_windows_is_decided_as_before(self) -> None:
        _, effects = apply_rails(proposal(4, 4, 4), scene())
        assert "schedule" not in [effect.rail for effect in effects]

    def test_it_takes_no_vm_while_scale_in_is_held(self) -> None:
        windows = (window(maximum=3),)
        assert passes(schedule, proposal(4, 4, 4), scene(windows=windows, controls=paused(PauseScope.IN)))
        assert passes(schedule, proposal(4, 4, 4), scene(windows=windows, snapshot={"coverage": 0.0}))

    def test_it_adds_none_while_scale_out_is_paused(self) -> None:
        assert passes(
            schedule, proposal(4, 4, 4), scene(windows=(window(minimum=30),), controls=paused(PauseScope.OUT))
        )

    def test_it_adds_vms_on_absent_measurements(self) -> None:
        final, _ = apply_rails(proposal(4, 4, 4), scene(windows=(window(minimum=14),), snapshot={"coverage": 0.0}))
        assert final.desired == (6, 4, 4)

    def test_a_pinned_group_keeps_its_size(self) -> None:
        context = scene(windows=(window(minimum=30),), controls=pinned({"workers_m": 4}))
        final, _ = apply_rails(proposal(4, 4, 4), context)
        assert final.desired == (4, 20, 6)

    def test_its_maximum_needs_no_streak_of_proposals(self) -> None:
        without = scene(state={"in_streak": {}})
        assert apply_rails(proposal(4, 4, 2), without)[0].desired == (4, 4, 4)
        context = scene(state={"in_streak": {}}, windows=(window(maximum=10),))
        assert apply_rails(proposal(4, 4, 4), context)[0].desired == (4, 4, 2)

    def test_its_minimum_is_not_reduced_by_vms_that_boot(self) -> None:
        context = scene(groups={"workers_m": {"booting": 2}}, windows=(window(minimum=14),))
        assert apply_rails(proposal(4, 4, 4, counts_pending=False), context)[0].desired == (6, 4, 4)

    def test_a_move_to_another_type_stays_within_it(self) -> None:
        context = scene(windows=(window(maximum=14),))
        assert sum(apply_rails(proposal(9, 9, 9), context)[0].desired) == 14

    @given(
        sizes=st.lists(st.integers(0, 25), min_size=3, max_size=3),
        requested=st.lists(st.integers(0, 20), min_size=3, max_size=3),
        low=st.integers(0, 70),
        more=st.integers(0, 30),
    )
    def test_the_total_comes_as_near_as_the_groups_allow(
        self, sizes: list[int], requested: list[int], low: int, more: int
    ) -> None:
        limits = window(minimum=low, maximum=low + more)
        after = scheduled(sizes, scene(tuple(requested), fleet=fleet(20, 1), windows=(limits,)))
        total = sum(after)
        assert (
            low <= total <= low + more
            or (total < low and all(n >= 20 for n in after))
            or (total > low + more and all(n <= 1 for n in after))
        )
        if low <= sum(sizes) <= low + more:
            assert list(after) == sizes


def test_a_pause_holds_as_an_operators_does() -> None:
    held = with_pauses(Controls(), (window(pause=PauseScope.OUT),), NOON)
    (pause,) = held.pauses
    assert (pause.scope, pause.reason, pause.until) == (PauseScope.OUT, "window rush", NOON + 3600.0)
    final, effects = apply_rails(proposal(9, 4, 4), scene(controls=held))
    assert final.desired == (4, 4, 4)
    assert any("paused by the schedule" in effect.detail for effect in effects)
    assert with_pauses(Controls(), (window(pause=PauseScope.OUT),), NOON + 3600.0) == Controls()


def test_what_comes_in_words() -> None:
    evening = WindowSetting("evening", "0 18 * * *", 240.0, zone=BERLIN, minimum=4, maximum=40).at(NOON)
    summer = WindowSetting("summer", "", 0.0, "2026-06-01T08:00", "2026-09-01T00:00", "UTC", minimum=4).at(
        utc("2026-06-05T12:00")
    )
    assert evening is not None
    assert summer is not None
    check_wording(
        "schedule",
        {
            "later today": coming_text(evening, NOON),
            "open": coming_text(evening, evening.start),
            "of everything": coming_text(window(policy="hold", pause=PauseScope.ALL, maximum=1), NOON),
            "open to another month": coming_text(summer, utc("2026-06-05T12:00")),
            "open to a day of this week": coming_text(summer, utc("2026-08-26T00:00")),
            "this week": coming_text(summer, utc("2026-05-26T09:00")),
            "later than this week": coming_text(summer, utc("2026-05-25T07:00")),
        },
    )
