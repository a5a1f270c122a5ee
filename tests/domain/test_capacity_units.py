"""Conversion between VMs and capacity units: round trips, bounds, and never fewer VMs than were decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.capacity_units import CapacityUnits, bounds_in_vms, size_text


def at_rest(weights: list[int], weight: int, desired: int, minimum: int, maximum: int) -> CapacityUnits:
    """Return a group whose counted VMs have these weights."""
    return CapacityUnits(desired, minimum, maximum, sum(weights), len(weights), weight, max([weight, *weights]))


@st.composite
def even(draw: st.DrawFn) -> CapacityUnits:
    """Draw a group whose VMs all weigh the same, in the middle of a launch or of a termination too."""
    weight, vms = draw(st.integers(1, 9)), draw(st.integers(0, 12))
    minimum = draw(st.integers(0, 40))
    desired = minimum + draw(st.integers(0, 40))
    return at_rest([weight] * vms, weight, desired, minimum, desired + draw(st.integers(0, 40)))


@st.composite
def uneven(draw: st.DrawFn) -> CapacityUnits:
    """Draw a group whose VMs weigh what their types did when they were launched."""
    weights = draw(st.lists(st.integers(1, 9), max_size=8))
    minimum = draw(st.integers(0, 30))
    desired = minimum + draw(st.integers(0, 60))
    return at_rest(weights, draw(st.integers(1, 9)), desired, minimum, desired + draw(st.integers(0, 40)))


@given(even())
def test_vms_of_one_weight_are_the_units_divided(group: CapacityUnits) -> None:
    assert group.desired_vms == -(-group.desired // group.weight)
    for vms in range(20):
        assert group.units_of(vms) == vms * group.weight
    if group.desired % group.weight == group.minimum % group.weight == group.maximum % group.weight == 0:
        assert group.minimum_vms * group.weight == group.minimum
        assert group.maximum_vms * group.weight == group.maximum


@given(even(), st.integers(0, 30))
def test_what_a_size_asks_for_reads_as_that_size_again(group: CapacityUnits, vms: int) -> None:
    units = group.units_of(vms)
    asked = CapacityUnits(units, 0, units, group.counted, group.vms, group.weight, group.heaviest)
    assert asked.desired_vms == vms


@given(st.one_of(even(), uneven()), st.integers(1, 30))
def test_growth_asks_for_more_than_there_is_and_within_the_maximum(group: CapacityUnits, more: int) -> None:
    vms = group.desired_vms + more
    units = group.units_of(vms)
    assert units > group.desired
    assert (units <= group.maximum) == (vms <= group.maximum_vms)
    launched = max(0, -(-(units - group.counted) // group.weight))
    assert launched == max(0, vms - group.vms)


@given(st.one_of(even(), uneven()))
def test_bounds_hold_the_desired_size_and_terminations_down_to_the_minimum_are_accepted(group: CapacityUnits) -> None:
    assert group.minimum_vms <= group.desired_vms <= group.maximum_vms
    removable = group.desired_vms - group.minimum_vms
    assert group.desired - removable * group.heaviest >= group.minimum
    assert group.desired - (removable + 1) * group.heaviest < group.minimum


@given(st.one_of(even(), uneven()), st.integers(0, 30))
def test_lowering_leaves_what_aws_counts(group: CapacityUnits, vms: int) -> None:
    lowered = group.lowered_to(vms)
    assert lowered >= max(group.counted, group.minimum)
    assert lowered in (group.counted, group.minimum, group.units_of(vms))


@pytest.mark.parametrize(
    ("minimum", "maximum", "weight", "vms"),
    [(0, 10, 1, (0, 10)), (2, 10, 2, (1, 5)), (1, 9, 2, (1, 4)), (5, 5, 2, (3, 3)), (0, 3, 4, (0, 0))],
)
def test_bounds_are_those_that_reach_the_minimum_and_fit_the_maximum(
    minimum: int, maximum: int, weight: int, vms: tuple[int, int]
) -> None:
    assert bounds_in_vms(minimum, maximum, weight) == vms


@pytest.mark.parametrize(
    ("group", "sizes"),
    [
        (at_rest([2, 2, 2], 2, 5, 1, 9), (3, 1, 4)),
        (at_rest([2, 2], 2, 5, 5, 5), (3, 3, 3)),
        (at_rest([2, 2, 2], 1, 6, 2, 8), (3, 1, 5)),
        (at_rest([1, 1], 4, 6, 1, 10), (3, 2, 4)),
        (at_rest([], 3, 0, 0, 7), (0, 0, 2)),
        (at_rest([1], 1, 4, 5, 3), (4, 5, 3)),
    ],
)
def test_examples(group: CapacityUnits, sizes: tuple[int, int, int]) -> None:
    assert (group.desired_vms, group.minimum_vms, group.maximum_vms) == sizes


def test_a_size_is_said_with_its_units_where_these_differ() -> None:
    assert [size_text(3, 3), size_text(6, 12), size_text(1, 2), size_text(2, 1)] == [
        "3",
        "6 VMs = 12 units",
        "1 VM = 2 units",
        "2 VMs = 1 unit",
    ]
