"""The threshold rule steps on consecutive periods beyond a threshold (autoscaler specification §9.2)."""

from hypothesis import given
from hypothesis import strategies as st

from domain.rules.autoscaling.threshold import threshold_step


def run(cpus: list[float], high: float = 0.75, low: float = 0.75, periods: int = 1) -> list[int]:
    deltas, up, down = [], 0, 0
    for cpu in cpus:
        delta, up, down = threshold_step(cpu, high, low, periods, up, down)
        deltas.append(delta)
    return deltas


def test_the_published_form_steps_up_above_and_down_below_one_value() -> None:
    assert run([0.76, 0.74, 0.75]) == [1, -1, 0]


def test_three_periods_are_needed_and_the_step_repeats_while_the_cpu_stays() -> None:
    assert run([0.9, 0.9, 0.9, 0.9, 0.5], periods=3) == [0, 0, 1, 1, 0]
    assert run([0.1, 0.1, 0.9, 0.1, 0.1, 0.1], periods=3) == [0, 0, 0, 0, 0, -1]


def test_between_the_thresholds_nothing_happens_and_streaks_end() -> None:
    assert run([0.8, 0.6, 0.8, 0.8], low=0.5, periods=2) == [0, 0, 0, 1]


def test_an_absent_cpu_is_beyond_neither_threshold() -> None:
    assert threshold_step(float("nan"), 0.75, 0.75, 1, 4, 4) == (0, 0, 0)


@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0, 1), st.floats(0, 1), st.integers(1, 4))
def test_a_step_up_needs_that_many_high_periods_in_a_row(cpus: list[float], a: float, b: float, periods: int) -> None:
    high, low = max(a, b), min(a, b)
    for end, delta in enumerate(run(cpus, high, low, periods), start=1):
        window = cpus[max(0, end - periods) : end]
        assert (delta == 1) == (len(window) == periods and all(cpu > high for cpu in window))
        assert (delta == -1) == (len(window) == periods and all(cpu < low for cpu in window))
