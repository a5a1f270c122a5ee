"""What a group refuses: sizes outside its bounds, changes during the cool-down, names twice."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.simulator.aws.world import World


@pytest.mark.parametrize(
    ("desired", "message"),
    [
        (50, "New SetDesiredCapacity value 50 is above max value 5 for the AutoScalingGroup."),
        (0, "New SetDesiredCapacity value 0 is below min value 1 for the AutoScalingGroup."),
    ],
)
def test_desired_capacity_outside_the_bounds_is_refused(world: World, desired: int, message: str) -> None:
    world.group(size=(1, 2, 5))
    with pytest.raises(ClientError) as refusal:
        world.desire(desired)
    assert refusal.value.response["Error"]["Code"] == "ValidationError"
    assert refusal.value.response["Error"]["Message"] == message
    assert world.show()["DesiredCapacity"] == 2


def test_an_update_may_not_put_desired_outside_the_bounds(world: World) -> None:
    world.group(size=(1, 2, 5))
    with pytest.raises(ClientError, match="Desired capacity:9 must be between the specified min size:1 and max size:5"):
        world.groups.update_auto_scaling_group(AutoScalingGroupName="web", DesiredCapacity=9)
    with pytest.raises(ClientError, match="Max bound, 1, must be greater than or equal to min bound, 3"):
        world.groups.update_auto_scaling_group(AutoScalingGroupName="web", MinSize=3, MaxSize=1)
    assert (world.show()["MinSize"], world.show()["MaxSize"]) == (1, 5)


@pytest.mark.parametrize("name", ["MinSize", "MaxSize", "DesiredCapacity"])
def test_a_negative_size_is_refused(world: World, name: str) -> None:
    world.group(size=(0, 2, 5))
    refusal = f"Value '-1' at '{name[0].lower()}{name[1:]}' failed to satisfy constraint"
    with pytest.raises(ClientError, match=refusal):
        world.groups.update_auto_scaling_group(AutoScalingGroupName="web", **{name: -1})
    about = {"LaunchTemplate": {"LaunchTemplateName": "workers"}, "AvailabilityZones": ["us-east-1a"]}
    sizes = {"MinSize": 0, "MaxSize": 5, name: -1}
    with pytest.raises(ClientError, match=refusal):
        world.groups.create_auto_scaling_group(AutoScalingGroupName="other", **about, **sizes)
    if name == "DesiredCapacity":
        with pytest.raises(ClientError, match=refusal):
            world.desire(-1)
    shown = world.show()
    assert (shown["MinSize"], shown["DesiredCapacity"], shown["MaxSize"]) == (0, 2, 5)


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


def test_a_name_is_given_once_and_an_unknown_one_is_refused(world: World) -> None:
    world.group("web")
    with pytest.raises(ClientError, match="AlreadyExists"):
        world.group("web")
    with pytest.raises(ClientError, match=r"ValidationError.*AutoScalingGroup name not found"):
        world.desire(1, "nobody")


def test_a_group_with_machines_is_deleted_only_by_force_and_its_diary_survives(world: World) -> None:
    world.ready_group(size=(0, 2, 5))
    with pytest.raises(ClientError, match="ResourceInUse"):
        world.groups.delete_auto_scaling_group(AutoScalingGroupName="web")
    world.groups.delete_auto_scaling_group(AutoScalingGroupName="web", ForceDelete=True)
    assert world.show()["Status"] == "Delete in progress"
    world.control.advance(15.0)
    assert world.groups.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert {one["AutoScalingGroupState"] for one in world.activities(IncludeDeletedGroups=True)} == {"Deleted"}
