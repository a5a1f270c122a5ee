"""Windows: earlier ones to learn on, the latest held out, and a clear end where too little is recorded."""

import pytest

from tests.trainer.learning.recording import FLEET, batches, made
from trainer.learning.minutes import Record, record_of
from trainer.learning.windows import TooLittle, parts_of, windows_of


@pytest.fixture(scope="module")
def ten_hours() -> Record:
    return record_of(FLEET, [inputs for inputs, _ in made(10.0)])


def test_the_latest_two_fifths_are_held_out(ten_hours: Record) -> None:
    windows = windows_of(ten_hours)
    assert windows.window_s == 3600.0
    assert (len(windows.earlier), len(windows.held_out)) == (6, 4)
    assert windows.choosing == windows.earlier[4:]
    assert parts_of(10) == (4, 2, 4)
    assert max(span.start_s for span in windows.earlier) < min(span.start_s for span in windows.held_out)


def test_every_recorded_minute_with_jobs_is_in_one_window(ten_hours: Record) -> None:
    windows = windows_of(ten_hours)
    (whole,) = windows.stretches
    assert [last - first for _, first, last in whole.marks] == [60] * 10
    assert [name for name, _, _ in whole.marks] == [span.name for span in windows.replayed]
    assert whole.cost == pytest.approx(sum(minute.cost for minute in ten_hours.minutes[1:]))
    assert sum(span.cost for span in windows.replayed) == pytest.approx(whole.cost)


def test_too_little_recorded_says_how_much_is_missing() -> None:
    recorded = record_of(FLEET, [inputs for inputs, _ in made(3.0)])
    with pytest.raises(TooLittle, match=r"3\.0 h .* 3 windows .* 7\.0 h"):
        windows_of(recorded)


def test_hours_without_jobs_do_not_count() -> None:
    recorded = record_of(FLEET, [inputs for inputs, _ in made(10.0, trace=batches(2.5))])
    with pytest.raises(TooLittle, match=r"10\.0 h .* 3 windows"):
        windows_of(recorded)


def test_a_window_is_replayed_from_half_an_hour_before_it(ten_hours: Record) -> None:
    windows = windows_of(ten_hours)
    assert [span.lead for span in windows.replayed] == [0] + [30] * 9
    for span, replayed in zip((*windows.earlier, *windows.held_out), windows.replayed, strict=True):
        assert (replayed.start_s, replayed.steps, replayed.cost) == (span.start_s, span.steps, pytest.approx(span.cost))
        assert replayed.finished == span.finished
