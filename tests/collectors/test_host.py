"""What a VM measures of itself: CPU from counters that may begin anew or change in number, and memory."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collectors.vm_reporter import CoreTimes, HostSampler, Memory, core_times, cpu_percent, memory, ram_percent
from domain.samples import VmMetric

FULL = Memory(8_000, 2_000)


def cores(*pairs: tuple[float, float]) -> tuple[CoreTimes, ...]:
    return tuple(CoreTimes(idle, total) for idle, total in pairs)


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [
        (cores((90, 100)), cores((95, 110)), 50.0),
        (cores((90, 100), (50, 100)), cores((100, 110), (50, 110)), 50.0),
        (cores((90, 100)), cores((100, 110)), 0.0),
        (cores((90, 100)), cores((90, 110)), 100.0),
        (cores((90, 100)), cores((89.99, 110)), 100.0),
        (cores((90, 100)), cores((101, 110)), 0.0),
    ],
    ids=["half", "one of two cores", "idle", "busy", "idle time corrected downwards", "more idle than time"],
)
def test_cpu_is_the_share_of_time_that_was_not_idle(
    before: tuple[CoreTimes, ...], after: tuple[CoreTimes, ...], percent: float
) -> None:
    assert cpu_percent(before, after) == pytest.approx(percent)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (cores((90, 100)), cores((1, 2))),
        (cores((90, 100), (90, 100)), cores((95, 110), (1, 2))),
        (cores((90, 100)), cores((95, 110), (95, 110))),
        (cores((90, 100), (90, 100)), cores((95, 110))),
        (cores((90, 100)), cores((90, 100))),
        ((), ()),
    ],
    ids=["counter began anew", "of one core", "a core more", "a core less", "no time passed", "no cores"],
)
def test_readings_that_cannot_be_compared_give_nothing(
    before: tuple[CoreTimes, ...], after: tuple[CoreTimes, ...]
) -> None:
    assert cpu_percent(before, after) is None


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), min_size=1, max_size=8))
def test_cpu_is_within_0_and_100_or_not_reported(counters: list[tuple[float, float, float, float]]) -> None:
    before = tuple(CoreTimes(idle, total) for idle, total, _, _ in counters)
    after = tuple(CoreTimes(idle, total) for _, _, idle, total in counters)
    found = cpu_percent(before, after)
    assert found is None or 0.0 <= found <= 100.0


@given(st.integers(1, 2**50), st.integers(0, 2**50))
def test_memory_is_within_0_and_100(total: int, available: int) -> None:
    assume(available <= total)
    found = ram_percent(Memory(total, available))
    assert found is not None
    assert math.isclose(found, 100.0 * (total - available) / total, abs_tol=1e-9)
    assert ram_percent(Memory(0, 0)) is None


def test_the_sampler_needs_two_readings_for_cpu_and_recovers_after_a_core_was_added() -> None:
    script = iter([cores((0, 0)), cores((5, 10)), cores((10, 20), (0, 1)), cores((10, 30), (10, 11))])
    sampler = HostSampler(lambda: next(script), lambda: FULL)
    assert sampler.sample() == {VmMetric.CPU_PERCENT: 50.0, VmMetric.RAM_PERCENT: 75.0}
    assert sampler.sample() == {VmMetric.RAM_PERCENT: 75.0}
    assert sampler.sample() == {VmMetric.CPU_PERCENT: 50.0, VmMetric.RAM_PERCENT: 75.0}


def test_this_machine_can_be_read() -> None:
    first = core_times()
    until = sum(core.total for core in first) + 0.05
    while sum(core.total for core in core_times()) < until:
        pass
    busy = cpu_percent(first, core_times())
    assert busy is not None
    assert 0.0 < busy <= 100.0
    assert all(0.0 <= core.idle <= core.total + 0.1 for core in first)
    assert 0 < memory().available <= memory().total
