"""The call budget: bursts, refill, a pause after throttling, and counters of all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors.aws import CallBudget
from domain.clock import VirtualClock
from tests.golden import check_wording


def test_a_burst_of_a_minute_s_calls_then_one_a_second() -> None:
    clock = VirtualClock()
    budget = CallBudget(60, clock)
    assert sum(budget.refusal("read") is None for _ in range(100)) == 60
    clock.advance(2.0)
    assert sum(budget.refusal("read") is None for _ in range(100)) == 2
    assert budget.refusal("change") is None
    assert budget.counts == {("read", "refused"): 138}


def test_throttling_pauses_a_family_longer_each_time_and_an_answer_ends_it() -> None:
    clock = VirtualClock()
    budget = CallBudget(60, clock)
    for pause_s in (5.0, 10.0, 20.0, 40.0, 40.0):
        assert budget.refusal("read") is None
        budget.settle("read", "throttle", throttled=True)
        assert f" {pause_s:.0f} s" in str(budget.refusal("read"))
        assert budget.refusal("change") is None
        clock.advance(pause_s)
    assert budget.refusal("read") is None
    budget.settle("read", "ok")
    assert budget.refusal("read") is None
    budget.settle("read", "throttle", throttled=True)
    throttled = str(budget.refusal("read"))
    assert budget.counts == {("read", "throttle"): 6, ("read", "ok"): 1, ("read", "refused"): 6}
    spent = CallBudget(1, clock)
    refusals = [spent.refusal("read") for _ in range(2)]
    check_wording("aws_budget", {"throttled": throttled, "spent": str(refusals[1])})


def test_a_clock_set_back_neither_adds_nor_takes() -> None:
    clock = VirtualClock(1000.0)
    budget = CallBudget(10, clock)
    for _ in range(10):
        budget.refusal("read")
    clock.step(-900.0)
    assert budget.refusal("read") is not None
    clock.advance(6.0)
    assert budget.refusal("read") is None


@given(st.integers(1, 300), st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60))
def test_no_minute_sees_more_than_two_bursts(per_minute: int, waits: list[float]) -> None:
    clock = VirtualClock()
    budget = CallBudget(per_minute, clock)
    taken = [
        clock.monotonic()
        for wait in waits
        for _ in range(20)
        if clock.advance(wait / 20) is None and budget.refusal("x") is None
    ]
    for start in taken:
        assert sum(start <= at < start + 60.0 for at in taken) <= 2 * per_minute
