"""AWS is asked for all groups once a minute, and once more only where settling an intent may have changed one."""

from __future__ import annotations

import pytest

from domain.decisions import Reason
from tests.faults.world import World, final_reasons


def whole_readings(world: World) -> int:
    """How often the agent has read every group of the fleet in one call."""
    described = [call["params"] for call in world.calls if call["operation"] == "DescribeAutoScalingGroups"]
    return sum(sum(name.startswith("AutoScalingGroupNames") for name in params) > 1 for params in described)


@pytest.mark.exhaustive
def test_a_scale_out_seen_done_needs_no_second_reading(world: World) -> None:
    world.submit(4)
    world.tick(4)
    assert Reason.DONE in final_reasons(world)
    assert whole_readings(world) == 4
