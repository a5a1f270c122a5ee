"""The queue rule covers the queue within a horizon and gives idle VMs back (autoscaler specification §9.4)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.autoscaling.queue_rule import queue_rule_multi, queue_rule_single

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
