"""Times, durations, columns and results of checks as people read them; numbers of requests as programs write them."""

from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agent.kernel import checks
from agent.kernel.checks import CheckResult, State
from agent.kernel.http import CONFLICT, DIGITS, LARGEST_SEQ, NUMERIC, UNKNOWN, Body
from agent.kernel.metrics import Kind, Metric, counter, gauge
from agent.kernel.text import clock_time, columns, duration_text, money, time_text
from domain.decisions import Mode
from tests.agent.rails.scenes import NOON


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5.0, "0 s"),
        (90.0, "90 s"),
        (900.0, "15 min"),
        (7500.0, "2 h 5 min"),
        (273600.0, "3 d 4 h"),
        (0.0, "0 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (3600.0, "1 h"),
        (3600.0 + 300.0, "1 h 5 min"),
        (7200.0, "2 h"),
        (86_400.0, "1 d"),
        (86_400.0 * 3 + 3600.0 * 4 + 60.0 * 5, "3 d 4 h"),
        (86_400.0 + 60.0, "1 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_time_is_said_in_utc() -> None:
    assert time_text(NOON + 1.0) == "2026-11-20 12:00:01 UTC"
    for beyond in (1e300, float("inf"), float("nan"), -1e300):
        assert time_text(beyond) == "a time beyond the calendar"


def test_columns_are_aligned_numbers_to_the_right() -> None:
    assert columns([]) == []
    assert columns([("a", 1, "x"), ("long", 10, "")]) == ["  a      1  x", "  long  10"]
    assert columns([(1.5,), (-100,)], indent="") == [" 1.5", "-100"]


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-999, 9999)), min_size=1, max_size=6))
def test_every_line_of_columns_ends_with_its_last_number(rows: list[tuple[str, int]]) -> None:
    lines = columns(rows, indent="> ")
    assert len({len(line) for line in lines}) == 1
    assert all(line.endswith(str(number)) for line, (_, number) in zip(lines, rows, strict=True))


def test_a_check_says_how_it_stands_and_what_to_do() -> None:
    assert checks.ok("a", "fine") == CheckResult("a", State.OK, "fine", "")
    assert checks.missing("a", "gone", "add it") == CheckResult("a", State.MISSING, "gone", "add it")
    assert checks.advice("a", "slow", "grow it") == CheckResult("a", State.ADVICE, "slow", "grow it")
    assert checks.unknown("a", "no answer") == CheckResult("a", State.UNKNOWN, "no answer", "")
    assert checks.needed_to_act(Mode.ACT, "a", "gone", "add it").state is State.MISSING
    assert checks.needed_to_act(Mode.OBSERVE, "a", "gone", "add it").state is State.ADVICE


@pytest.mark.parametrize("state", list(State))
def test_only_what_is_missing_fails_the_checks(state: State) -> None:
    results = [checks.ok("a", "fine"), CheckResult("b", state, "")]
    assert checks.passed(results) is (state is not State.MISSING)
    assert checks.passed([])


def test_a_metric_carries_the_prefix_and_a_counter_its_suffix() -> None:
    assert gauge("tokens", "left", "desk", unit="VMs") == Metric("trimtab_tokens", Kind.GAUGE, "VMs", "left", ("desk",))
    assert counter("turns", "made") == Metric("trimtab_turns_total", Kind.COUNTER, "", "made", ())


number = TypeAdapter(Annotated[float, NUMERIC])
digits = TypeAdapter(Annotated[int, DIGITS])


@pytest.mark.parametrize("value", [True, False, "1", b"1"])
def test_a_number_in_a_body_is_written_as_a_number(value: object) -> None:
    with pytest.raises(ValidationError, match="not text or true or false"):
        number.validate_python(value)
    assert number.validate_python(1) == 1.0


@pytest.mark.parametrize("value", ["1_0", "1.0", "+1", " 1", "1 ", "", "a", "1" * 21, "\u0661"])
def test_a_whole_number_in_a_query_is_decimal_digits(value: str) -> None:
    with pytest.raises(ValidationError, match="whole number in decimal digits"):
        digits.validate_python(value)


@pytest.mark.parametrize("value", [0, -1, LARGEST_SEQ])
def test_digits_give_their_number(value: int) -> None:
    assert digits.validate_python(str(value)) == value
    assert digits.validate_python(value) == value


def test_a_body_has_no_unknown_fields_and_its_errors_repeat_no_value() -> None:
    class Tokens(Body):
        tokens: int

    for wrong in ({"tokens": "secret"}, {"tokens": 1, "other": "secret"}):
        with pytest.raises(ValidationError) as caught:
            Tokens.model_validate(wrong)
        assert "secret" not in str(caught.value)


def test_a_journal_number_is_a_signed_whole_number_of_64_bits_and_statuses_are_those_of_http() -> None:
    assert LARGEST_SEQ == 9_223_372_036_854_775_807
    assert (list(UNKNOWN), list(CONFLICT)) == ([404], [409])


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_time_and_no_sum_breaks_the_page(value: float) -> None:
    assert clock_time(value)
    assert money(abs(value))


def test_times_of_another_day_carry_their_date() -> None:
    now = 1_795_209_000.0
    assert clock_time(now, now) == "21:10:00"
    assert clock_time(now - 86_400.0, now) == "19 Nov 21:10:00"
    assert clock_time(None) == "never"
