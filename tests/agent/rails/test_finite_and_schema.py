"""Rail 1 lets whole numbers through and holds the fleet on anything else."""

import math

import numpy as np
import pytest

from agent.rails.finite_and_schema import RAIL
from domain.decisions import Reason, Verdict
from tests.agent.rails.scenes import ask, fleet, group, passes, proposal, scene


def test_one_whole_number_per_group_passes():
    assert passes(RAIL, proposal(5, 4, 0), scene())


@pytest.mark.parametrize("number", [3.0, np.int64(3), np.float32(3.0)])
def test_whole_numbers_of_other_types_become_int(number):
    after, _ = RAIL.apply(proposal(number, 4, 4), scene())
    assert after.desired == (3, 4, 4)
    assert type(after.desired[0]) is int


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_a_number_that_is_not_finite_holds_all_groups(number):
    effect = ask(RAIL, proposal(9, number, 9), scene((1, 2, 3)))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.NOT_FINITE, (1, 2, 3))
    assert "workers_l" in effect.detail


@pytest.mark.parametrize("value", [-1, 2.5, True, "4", None])
def test_a_value_that_is_no_size_holds_all_groups(value):
    effect = ask(RAIL, proposal(9, value, 9), scene((1, 2, 3)))
    assert (effect.reason, effect.after) == (Reason.SCHEMA_MISMATCH, (1, 2, 3))


@pytest.mark.parametrize("desired", [(), (1, 2), (1, 2, 3, 4)])
def test_another_number_of_sizes_than_groups_holds(desired):
    effect = ask(RAIL, proposal(*desired), scene((1, 2, 3)))
    assert (effect.reason, effect.after) == (Reason.SCHEMA_MISMATCH, (1, 2, 3))
    assert f"{len(desired)} sizes proposed for 3 groups" in effect.detail


def test_a_proposal_for_another_fleet_holds():
    wanted = proposal(9, 9, 9)
    other = type(wanted)("batch", wanted.policy, wanted.desired, wanted.reason)
    assert ask(RAIL, other, scene()).reason is Reason.SCHEMA_MISMATCH


def test_a_snapshot_of_other_groups_holds_what_the_snapshot_shows():
    context = scene(fleet=fleet(size=3), snapshot={"groups": (group("workers_m", 7),)})
    effect = ask(RAIL, proposal(1, 2, 3), context)
    assert (effect.reason, effect.after) == (Reason.SCHEMA_MISMATCH, (7,))
