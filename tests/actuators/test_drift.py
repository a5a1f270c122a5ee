"""Drift: another party's change is reported once, adopted or announced."""

from actuators.drift import DriftRule, drift
from domain.decisions import Reason
from domain.observed import GroupObserved, Observed
from tests.actuators.shift import FLEET

NOW = 1_795_209_000.0


def seen(**desired: int) -> Observed:
    return Observed(NOW, {f"web-{key}": GroupObserved(f"web-{key}", size, 0, 10) for key, size in desired.items()})


def test_a_changed_size_is_adopted_and_reported_once() -> None:
    events, known = drift(FLEET, {"s": 2, "m": 1, "l": 0}, seen(s=5, m=1, l=0), (), DriftRule.ADOPT, NOW)
    assert [(event.reason, event.about) for event in events] == [(Reason.DRIFT_ADOPTED, "s")]
    assert known == {"s": 5, "m": 1, "l": 0}
    assert drift(FLEET, known, seen(s=5, m=1, l=0), (), DriftRule.ADOPT, NOW) == ((), known)


def test_or_reported_as_something_to_look_into_also_once() -> None:
    events, known = drift(FLEET, {"s": 2}, seen(s=1), (), DriftRule.REPORT, NOW)
    assert [event.reason for event in events] == [Reason.DRIFT_REPORTED]
    assert known == {"s": 1}


def test_what_is_seen_for_the_first_time_is_no_drift() -> None:
    assert drift(FLEET, {}, seen(s=2, m=1), (), DriftRule.ADOPT, NOW) == ((), {"s": 2, "m": 1})


def test_a_group_in_flight_or_unread_keeps_what_was_known() -> None:
    events, known = drift(FLEET, {"s": 4, "m": 3}, seen(s=2), ("s",), DriftRule.ADOPT, NOW)
    assert (events, known) == ((), {"s": 4, "m": 3})


def test_a_group_that_the_settings_dropped_is_forgotten() -> None:
    assert drift(FLEET, {"old": 4}, seen(s=2), (), DriftRule.ADOPT, NOW) == ((), {"s": 2})


def test_a_group_after_one_in_flight_is_compared_all_the_same() -> None:
    events, known = drift(FLEET, {"s": 4, "m": 3, "l": 1}, seen(s=2, m=5, l=2), ("s",), DriftRule.ADOPT, NOW)
    assert [event.about for event in events] == ["m", "l"]
    assert known == {"s": 4, "m": 5, "l": 2}
