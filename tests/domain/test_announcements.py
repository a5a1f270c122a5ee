"""An announcement says when how much work comes; what is not such work is refused by its field."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.announcements import WEEKDAYS, Announcement, Recurring, rows_of
from domain.errors import BadInput


def test_rows_are_the_fields_in_order() -> None:
    told = [Announcement(60.0, 5, 30.0), Announcement(10.5, 1, 2.0, 600.0)]
    assert rows_of(told) == [[60.0, 5.0, 30.0, 0.0], [10.5, 1.0, 2.0, 600.0]]
    assert told[0].core_s == 150.0


@pytest.mark.parametrize(
    ("field", "value"),
    [("at", math.nan), ("jobs", 0), ("job_core_s", 0.0), ("job_core_s", math.inf), ("over_s", -1.0)],
)
def test_what_is_no_work_is_refused(field: str, value: float) -> None:
    with pytest.raises(BadInput, match=field):
        Announcement(**{"at": 0.0, "jobs": 1, "job_core_s": 1.0, field: value})  # type: ignore[arg-type]


@given(st.integers(0, 86_399), st.integers(0, 2**31), st.integers(1, 30 * 86_400), st.integers(1, 30 * 86_400))
def test_a_schedule_announces_each_day_once_however_time_is_cut(at_s: int, begin: int, one: int, two: int) -> None:
    nightly = Recurring(float(at_s), 5, 60.0, 600.0)
    whole = list(nightly.between(begin, begin + one + two))
    assert [*nightly.between(begin, begin + one), *nightly.between(begin + one, begin + one + two)] == whole
    assert abs(len(whole) - (one + two) / 86_400) < 1.0
    for told in whole:
        assert begin < told.at <= begin + one + two
        assert told == Announcement(told.at, 5, 60.0, 600.0)
        assert told.at % 86_400 == at_s


def test_a_schedule_keeps_to_its_weekdays() -> None:
    late = Recurring(18.5 * 3_600, 1, 1.0, weekdays=("mon", "fri"))
    told = [datetime.fromtimestamp(one.at, UTC) for one in late.between(1_700_000_000.0, 1_701_209_600.0)]
    assert [WEEKDAYS[day.weekday()] for day in told] == ["fri", "mon", "fri", "mon"]
    assert {(day.hour, day.minute) for day in told} == {(18, 30)}
