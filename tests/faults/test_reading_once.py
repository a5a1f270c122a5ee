"""AWS is asked for all groups once a minute, and once more only where settling an intent may have changed one."""

from __future__ import annotations

from domain.decisions import Reason
from tests.faults.evidence import TERMINATE
from tests.faults.world import MakeWorld, World, final_reasons


def whole_readings(world: World) -> int:
    """How often the agent has read every group of the fleet in one call."""
    described = [call["params"] for call in world.calls if call["operation"] == "DescribeAutoScalingGroups"]
    return sum(sum(name.startswith("AutoScalingGroupNames") for name in params) > 1 for params in described)


def test_a_scale_out_seen_done_needs_no_second_reading(world: World) -> None:
    world.submit(4)
    world.tick(4)
    assert Reason.DONE in final_reasons(world)
    assert whole_readings(world) == 4


def test_what_settling_changed_is_read_before_the_decision_of_that_minute(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), idle_s=60.0)
    world.fault("throttle", operations=[TERMINATE], duration_s=90.0)
    world.tick()
    assert world.outcomes[-1].reason is Reason.THROTTLED
    assert world.snapshot.groups[0].requested == 3
    world.tick()
    assert final_reasons(world) == [Reason.DONE]
    assert world.snapshot.groups[0].requested == world.desired()["small"] == 1
    assert whole_readings(world) == 3
