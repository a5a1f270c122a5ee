"""Sizes follow a change of the bounds, a cool-down binds who honours it, and a deleted group ends its machines."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.simulator.aws.world import World


def test_bounds_that_no_longer_admit_the_size_move_it(world: World) -> None:
    world.ready_group(size=(0, 4, 5))
    world.groups.update_auto_scaling_group(AutoScalingGroupName="web", MaxSize=3)
    assert world.show()["DesiredCapacity"] == 3
    assert world.states() == ["InService", "InService", "InService", "Terminating"]
    world.groups.update_auto_scaling_group(AutoScalingGroupName="web", MinSize=5, MaxSize=6)
    assert world.show()["DesiredCapacity"] == 5


def test_the_cool_down_binds_only_who_honours_it(world: World) -> None:
    world.ready_group(size=(0, 1, 5), DefaultCooldown=300)
    world.desire(2, HonorCooldown=False)
    world.control.advance(97.0)
    with pytest.raises(ClientError) as refusal:
        world.desire(3, HonorCooldown=True)
    newest = world.activities()[0]["ActivityId"]
    assert refusal.value.response["Error"]["Code"] == "ScalingActivityInProgress"
    assert refusal.value.response["Error"]["Message"] == (
        f"Scaling activity {newest} is in progress and blocks this action"
    )
    world.desire(3)
    world.control.advance(97.0 + 300.0)
    world.desire(4, HonorCooldown=True)
    assert world.show()["DesiredCapacity"] == 4


def test_a_group_with_machines_is_deleted_only_by_force_and_its_diary_survives(world: World) -> None:
    world.ready_group(size=(0, 2, 5))
    with pytest.raises(ClientError, match="ResourceInUse"):
        world.groups.delete_auto_scaling_group(AutoScalingGroupName="web")
    world.groups.delete_auto_scaling_group(AutoScalingGroupName="web", ForceDelete=True)
    assert world.show()["Status"] == "Delete in progress"
    world.control.advance(15.0)
    assert world.groups.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert {one["AutoScalingGroupState"] for one in world.activities(IncludeDeletedGroups=True)} == {"Deleted"}
