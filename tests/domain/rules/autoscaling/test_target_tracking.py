"""Target tracking sizes a group by the ratio of measured to wanted CPU (autoscaler specification §9.3)."""

from hypothesis import given
from hypothesis import strategies as st

from domain.rules.autoscaling.target_tracking import target_tracking_step


def step(
    current: int,
    cpu: float,
    *,
    target: float = 0.5,
    out: int = 1,
    into: int = 1,
    above: int = 0,
    below: int = 0,
    warming: bool = False,
) -> tuple[int, int, int]:
    return target_tracking_step(current, cpu, target, 0.9, out, into, above, below, warming)


def test_it_scales_out_in_proportion_rounding_up() -> None:
    assert step(4, 1.0) == (8, 1, 0)
    assert step(3, 0.7) == (5, 1, 0)


def test_it_scales_in_only_below_nine_tenths_of_the_target() -> None:
    assert step(10, 0.46) == (10, 0, 0)
    assert step(10, 0.44) == (9, 0, 1)
    assert step(10, 0.0) == (0, 0, 1)


def test_scale_out_waits_three_periods_and_scale_in_fifteen() -> None:
    assert step(4, 0.9, out=3, above=1) == (4, 2, 0)
    assert step(4, 0.9, out=3, above=2) == (8, 3, 0)
    assert step(4, 0.1, into=15, below=13) == (4, 0, 14)
    assert step(4, 0.1, into=15, below=14) == (1, 0, 15)


def test_a_warming_group_is_not_scaled_in_but_may_grow() -> None:
    assert step(4, 0.1, below=20, warming=True) == (4, 0, 21)
    assert step(4, 0.9, warming=True) == (8, 1, 0)


def test_an_exact_quotient_is_not_rounded_up_by_float_fuzz() -> None:
    assert 3 * 0.7 / 0.3 > 7.0 or 7 * 0.3 / 0.7 > 3.0
    assert target_tracking_step(7, 0.3, 0.7, 0.9, 3, 1, 0, 0, False)[0] == 3
    assert target_tracking_step(3, 0.7, 0.3, 0.9, 1, 1, 0, 0, False)[0] == 7


def test_an_absent_cpu_ends_both_streaks() -> None:
    assert step(4, float("nan"), above=5, below=5) == (4, 0, 0)


@given(st.integers(0, 200), st.floats(0, 1), st.floats(0.05, 1), st.booleans())
def test_direction_follows_the_side_of_the_target(current: int, cpu: float, target: float, warming: bool) -> None:
    desired, _, _ = target_tracking_step(current, cpu, target, 0.9, 1, 1, 0, 0, warming)
    if cpu > target:
        assert desired >= current
    elif cpu >= 0.9 * target or warming:
        assert desired == current
    else:
        assert 0 <= desired <= current
