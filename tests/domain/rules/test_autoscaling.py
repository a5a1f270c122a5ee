"""Queue rule, target tracking and threshold (autoscaler specification §9.2 to §9.4)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.autoscaling import (
    queue_rule_multi,
    queue_rule_single,
    signal_need,
    signal_tracking_step,
    target_tracking_step,
    threshold_step,
)

CORES = np.array([2, 4, 8], dtype=np.int64)
MINIMUM = np.array([1, 0, 0], dtype=np.int64)
MAXIMUM = np.array([10, 10, 10], dtype=np.int64)
NONE = np.zeros(3, dtype=np.int64)
counts = st.lists(st.integers(0, 10), min_size=3, max_size=3)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def multi(
    waiting: float, requested: np.ndarray, *, booting: np.ndarray = NONE, idle: np.ndarray = NONE, free: float = 0.0
) -> list[int]:
    return queue_rule_multi(waiting, 60.0, CORES, requested, booting, idle, MINIMUM, MAXIMUM, free).tolist()


def single(
    waiting: float, requested: np.ndarray, *, booting: np.ndarray = NONE, idle: np.ndarray = NONE, free: float = 0.0
) -> int:
    return queue_rule_single(waiting, 60.0, CORES, requested, booting, idle, MINIMUM, MAXIMUM, free)


def test_the_need_is_covered_with_the_largest_vms_and_the_rest_with_the_smallest_that_covers_it() -> None:
    assert multi(60.0 * 29, ints(1, 0, 0)) == [2, 1, 3]  # 29 cores: 8 + 8 + 8 + 4, one left for an S
    assert multi(1.0, ints(1, 0, 0)) == [2, 0, 0]


def test_booting_and_free_cores_count_as_covered() -> None:
    assert multi(60.0 * 12, ints(1, 1, 1), booting=ints(0, 1, 0)) == [1, 1, 2]
    assert multi(60.0 * 12, ints(1, 1, 1), booting=ints(0, 1, 1)) == [1, 1, 1]
    assert multi(60.0 * 12, ints(1, 1, 1), booting=ints(0, 1, 0), free=8.0) == [1, 1, 1]


def test_a_type_at_its_limit_is_replaced_by_the_next() -> None:
    assert multi(60.0 * 16, ints(1, 0, 10)) == [1, 4, 10]
    assert multi(60.0 * 500, ints(1, 0, 0)) == [10, 10, 10]
    assert multi(60.0 * 1, ints(10, 0, 0)) == [10, 1, 0]


def test_an_exact_quotient_asks_for_no_extra_core() -> None:
    assert queue_rule_multi(0.1 * 3 * 8, 0.3, CORES, ints(1, 0, 0), NONE, NONE, MINIMUM, MAXIMUM, 0.0).tolist() == [
        1,
        0,
        1,
    ]


def test_idle_vms_are_given_back_only_when_nothing_waits_and_never_below_the_minimum() -> None:
    assert multi(0.0, ints(3, 2, 1), idle=ints(3, 1, 1)) == [1, 1, 0]
    assert multi(0.5, ints(3, 2, 1), idle=ints(3, 1, 1), free=20.0) == [3, 2, 1]


def test_the_one_action_form_adds_the_largest_vm_the_need_fills() -> None:
    assert single(60.0 * 9, ints(1, 0, 0)) == 5
    assert single(60.0 * 7, ints(1, 0, 0)) == 3
    assert single(60.0 * 1, ints(1, 0, 0)) == 1
    assert single(60.0 * 9, ints(1, 0, 10)) == 3
    assert single(60.0 * 9, ints(10, 10, 10)) == 0
    assert single(60.0 * 9, ints(1, 1, 1), booting=ints(0, 1, 1)) == 0


def test_the_one_action_form_gives_back_the_largest_idle_type() -> None:
    assert single(0.0, ints(2, 2, 2), idle=ints(2, 1, 1)) == 6
    assert single(0.0, ints(2, 2, 2), idle=ints(2, 1, 0)) == 4
    assert single(0.0, ints(1, 0, 0), idle=ints(1, 0, 0)) == 0
    assert single(0.0, ints(1, 1, 1)) == 0


@given(st.floats(0, 1e6), st.floats(1.0, 5000.0), counts, counts, counts, st.floats(0, 100))
def test_sizes_stay_within_limits_and_the_overshoot_below_one_smallest_vm(
    waiting: float, horizon: float, requested: list[int], booting: list[int], idle: list[int], free: float
) -> None:
    now = ints(*requested)
    under_way = np.minimum(ints(*booting), now)
    desired = queue_rule_multi(waiting, horizon, CORES, now, under_way, ints(*idle), MINIMUM, MAXIMUM, free)
    assert np.all(desired <= MAXIMUM)
    assert np.all(desired >= np.minimum(now, MINIMUM))
    if waiting > 0.0:
        assert np.all(desired >= now)
        need = max(np.ceil(waiting / horizon - 1e-9), 1.0) - free - float(under_way @ CORES)
        room = CORES[desired < MAXIMUM]
        added = float((desired - now) @ CORES)
        if added > 0 and room.size > 0 and desired[0] < MAXIMUM[0]:
            assert added < need + CORES[0]
        if room.size > 0:
            assert added >= need - 1e-6
    else:
        assert np.all(desired <= now)


@given(st.floats(0, 1e5), counts, counts, counts)
def test_the_one_action_form_goes_the_way_of_the_multi_action_form(
    waiting: float, requested: list[int], booting: list[int], idle: list[int]
) -> None:
    now = ints(*requested)
    under_way, idle_long = np.minimum(ints(*booting), now), np.minimum(ints(*idle), now)
    desired = np.array(multi(waiting, now, booting=under_way, idle=idle_long))
    action = single(waiting, now, booting=under_way, idle=idle_long)
    if action == 0:
        assert np.array_equal(desired, now)
    else:
        change = 1 if action % 2 == 1 else -1
        assert np.sign(desired - now)[(action - 1) // 2] == change


def test_types_in_any_order_give_the_same_cores_and_an_exact_fit_is_the_largest() -> None:
    for cores in ([4, 2, 8], [8, 4, 2], [4, 8, 2]):
        wanted = queue_rule_multi(60.0 * 4, 60.0, ints(*cores), NONE, NONE, NONE, NONE, MAXIMUM, 0.0)
        assert dict(zip(cores, wanted.tolist(), strict=True)) == {2: 0, 4: 1, 8: 0}


def tracked(
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
    assert tracked(4, 1.0) == (8, 1, 0)
    assert tracked(3, 0.7) == (5, 1, 0)


def test_it_scales_in_only_below_nine_tenths_of_the_target() -> None:
    assert tracked(10, 0.46) == (10, 0, 0)
    assert tracked(10, 0.44) == (9, 0, 1)
    assert tracked(10, 0.0) == (0, 0, 1)


def test_scale_out_waits_three_periods_and_scale_in_fifteen() -> None:
    assert tracked(4, 0.9, out=3, above=1) == (4, 2, 0)
    assert tracked(4, 0.9, out=3, above=2) == (8, 3, 0)
    assert tracked(4, 0.1, into=15, below=13) == (4, 0, 14)
    assert tracked(4, 0.1, into=15, below=14) == (1, 0, 15)


def test_a_warming_group_is_not_scaled_in_but_may_grow() -> None:
    assert tracked(4, 0.1, below=20, warming=True) == (4, 0, 21)
    assert tracked(4, 0.9, warming=True) == (8, 1, 0)


def test_an_exact_quotient_is_not_rounded_up_by_float_fuzz() -> None:
    assert 3 * 0.7 / 0.3 > 7.0 or 7 * 0.3 / 0.7 > 3.0
    assert target_tracking_step(7, 0.3, 0.7, 0.9, 3, 1, 0, 0, False)[0] == 3
    assert target_tracking_step(3, 0.7, 0.3, 0.9, 1, 1, 0, 0, False)[0] == 7


def test_an_absent_cpu_ends_both_streaks() -> None:
    assert tracked(4, float("nan"), above=5, below=5) == (4, 0, 0)


@given(st.integers(0, 200), st.floats(0, 1), st.floats(0.05, 1), st.booleans())
def test_direction_follows_the_side_of_the_target(current: int, cpu: float, target: float, warming: bool) -> None:
    desired, _, _ = target_tracking_step(current, cpu, target, 0.9, 1, 1, 0, 0, warming)
    if cpu > target:
        assert desired >= current
    elif cpu >= 0.9 * target or warming:
        assert desired == current
    else:
        assert 0 <= desired <= current


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


# Signal tracking


def test_a_total_is_divided_among_cores_and_a_level_scales_those_there_are() -> None:
    assert signal_need(1200.0, 100.0, False, 8.0) == 12.0
    assert signal_need(300.0, 200.0, True, 8.0) == 12.0
    assert signal_need(300.0, 200.0, True, 0.0) == 0.0


FLEETS = st.lists(
    st.tuples(st.integers(1, 16), st.integers(0, 20), st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=4
)


@given(FLEETS, st.floats(0.0, 500.0), st.floats(0.1, 1.0), st.booleans())
def test_signal_tracking_covers_the_need_where_there_is_room_and_never_removes_what_is_needed(
    kinds: list[tuple[int, int, int, int]], need: float, factor: float, may_shrink: bool
) -> None:
    cores = [one[0] for one in kinds]
    requested = [one[1] for one in kinds]
    minimum = [one[2] for one in kinds]
    maximum = [one[2] + one[3] for one in kinds]
    held = float(sum(n * c for n, c in zip(requested, cores, strict=True)))
    found, above, below = signal_tracking_step(
        need, held, cores, requested, minimum, maximum, factor, 1, 1, 0, 0, may_shrink
    )
    after = sum(n * c for n, c in zip(found, cores, strict=True))
    if need > held + 1e-9:
        assert (above, below) == (1, 0)
        assert all(new >= old for new, old in zip(found, requested, strict=True))
        full = all(n >= most for n, most in zip(found, maximum, strict=True))
        assert after >= need - 1e-6 or full
        if after >= need and after > held:
            smallest = min(c for c, new, old in zip(cores, found, requested, strict=True) if new > old)
            assert after - need < smallest + 1e-6, "one VM fewer would not do"
    else:
        assert all(new <= old for new, old in zip(found, requested, strict=True))
        assert after >= need - 1e-6
        assert all(new >= min(old, least) for new, old, least in zip(found, requested, minimum, strict=True))
        if not may_shrink or need >= factor * held:
            assert (found, below) == (requested, 0)


def test_signal_tracking_waits_for_its_periods_in_both_directions() -> None:
    def step(need: float, above: int, below: int, may_shrink: bool = True) -> tuple[int, int, int]:
        (size,), above, below = signal_tracking_step(
            need, 10.0, [1], [10], [1], [20], 0.9, 2, 3, above, below, may_shrink
        )
        return size, above, below

    assert step(12.0, 0, 2) == (10, 1, 0)
    assert step(12.0, 1, 0) == (12, 2, 0)
    assert step(8.5, 0, 1) == (10, 0, 2)
    assert step(8.5, 0, 2) == (9, 0, 3)
    assert step(8.5, 0, 2, may_shrink=False) == (10, 0, 0)
    assert step(9.0, 0, 5) == (10, 0, 0)
