"""Lifecycle hooks: machines wait at the hook, for its timeout at most, and proceed by the given result."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError

from tests.simulator.aws.world import World
from tests.stages import exhaustive

LAUNCHING, TERMINATING = "autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"


def hook(world: World, transition: str = TERMINATING, *, heartbeat_s: int = 300, **about: str) -> None:
    world.groups.put_lifecycle_hook(
        AutoScalingGroupName="web",
        LifecycleHookName="drain",
        LifecycleTransition=transition,
        HeartbeatTimeout=heartbeat_s,
        **about,
    )


def leaving(world: World, *, heartbeat_s: int = 300) -> str:
    """Return an instance that waits on its terminating hook."""
    (instance_id,) = world.ready_group(size=(0, 1, 5))
    hook(world, heartbeat_s=heartbeat_s)
    world.desire(0)
    assert world.states() == ["Terminating:Wait"]
    return instance_id


def complete(world: World, instance_id: str, result: str = "CONTINUE") -> None:
    world.groups.complete_lifecycle_action(
        AutoScalingGroupName="web", LifecycleHookName="drain", InstanceId=instance_id, LifecycleActionResult=result
    )


def heartbeat(world: World, instance_id: str) -> None:
    world.groups.record_lifecycle_action_heartbeat(
        AutoScalingGroupName="web", LifecycleHookName="drain", InstanceId=instance_id
    )


@pytest.mark.parametrize("result", ["CONTINUE", "ABANDON"])
def test_a_leaving_machine_waits_until_its_hook_is_completed(world: World, result: str) -> None:
    instance_id = leaving(world)
    assert world.activities()[0]["StatusCode"] == "MidLifecycleAction"
    assert world.machine_state(instance_id) == "running"
    world.control.advance(299.0)
    assert world.states() == ["Terminating:Wait"]
    complete(world, instance_id, result)
    assert world.states() == ["Terminating"]
    world.control.advance(15.0)
    assert world.ids() == []


@pytest.mark.parametrize("heartbeats", [0, 1])
def test_the_wait_ends_a_heartbeat_timeout_after_its_begin_or_the_last_heartbeat(world: World, heartbeats: int) -> None:
    instance_id = leaving(world)
    for _ in range(heartbeats):
        world.control.advance(200.0)
        heartbeat(world, instance_id)
    world.control.advance(299.9)
    assert world.states() == ["Terminating:Wait"]
    world.control.advance(0.1)
    assert world.states() == ["Terminating"]


@pytest.mark.parametrize(("heartbeat_s", "periods", "each_s"), [(7200, 24, 7199.0), *exhaustive((30, 149, 20.0))])
def test_heartbeats_cannot_pass_the_global_limit(world: World, heartbeat_s: int, periods: int, each_s: float) -> None:
    instance_id = leaving(world, heartbeat_s=heartbeat_s)
    for _ in range(periods):
        world.control.advance(each_s)
        heartbeat(world, instance_id)
    assert world.states() == ["Terminating:Wait"]
    world.control.advance(24.0)
    assert world.states() == ["Terminating"]


def test_completing_twice_or_for_an_unknown_instance_is_refused(world: World) -> None:
    instance_id = leaving(world)
    complete(world, instance_id)
    for unknown in (instance_id, "i-0123"):
        with pytest.raises(ClientError, match=f"No active Lifecycle Action found with instance ID {unknown}"):
            complete(world, unknown)
        with pytest.raises(ClientError, match=f"No active Lifecycle Action found with instance ID {unknown}"):
            heartbeat(world, unknown)


def test_a_launching_machine_enters_service_only_when_its_hook_is_completed(world: World) -> None:
    world.group(size=(0, 0, 5))
    hook(world, LAUNCHING)
    world.desire(1)
    world.control.advance(97.0)
    assert world.states() == ["Pending:Wait"]
    complete(world, world.ids()[0])
    assert world.states() == ["InService"]


def test_an_abandoned_launch_is_terminated_and_replaced(world: World) -> None:
    world.group(size=(0, 0, 5))
    hook(world, LAUNCHING)
    world.desire(1)
    world.control.advance(97.0)
    (first,) = world.ids()
    complete(world, first, "ABANDON")
    assert world.states() == ["Pending", "Terminating"]
    launch = [
        one for one in world.activities() if one["Description"].startswith(f"Launching a new EC2 instance: {first}")
    ]
    assert [one["StatusCode"] for one in launch] == ["Cancelled"]


@pytest.mark.parametrize(("default", "state"), [("CONTINUE", "InService"), ("ABANDON", "Terminating")])
def test_an_unanswered_launching_hook_ends_as_its_default_result(world: World, default: str, state: str) -> None:
    world.group(size=(0, 0, 5))
    hook(world, LAUNCHING, heartbeat_s=60, DefaultResult=default)
    world.desire(1)
    (first,) = world.ids()
    world.control.advance(97.0 + 60.0)
    assert {one["InstanceId"]: one["LifecycleState"] for one in world.show()["Instances"]}.get(first) in (state, None)
    assert (first in world.ids()) is (default == "CONTINUE") or world.machine_state(first) != "running"


def test_every_hook_must_be_answered(world: World) -> None:
    instance_id = leaving(world)
    world.groups.put_lifecycle_hook(
        AutoScalingGroupName="web",
        LifecycleHookName="archive",
        LifecycleTransition=TERMINATING,
        HeartbeatTimeout=300,
    )
    (second,) = world.ready_group("other", size=(0, 1, 5))
    for name in ("drain", "archive"):
        world.groups.put_lifecycle_hook(
            AutoScalingGroupName="other", LifecycleHookName=name, LifecycleTransition=TERMINATING, HeartbeatTimeout=300
        )
    world.desire(0, "other")
    answer = {"AutoScalingGroupName": "other", "InstanceId": second, "LifecycleActionResult": "CONTINUE"}
    world.groups.complete_lifecycle_action(LifecycleHookName="drain", **answer)
    assert world.states("other") == ["Terminating:Wait"]
    world.groups.complete_lifecycle_action(LifecycleHookName="archive", **answer)
    assert world.states("other") == ["Terminating"]
    complete(world, instance_id)
    assert world.states() == ["Terminating"], "a hook added later does not hold a machine that already waits"


def test_the_hook_tells_its_queue_and_its_token_completes_the_action(world: World) -> None:
    sqs = world.client("sqs")
    url = sqs.create_queue(QueueName="hooks")["QueueUrl"]
    (instance_id,) = world.ready_group(size=(0, 1, 5))
    hook(
        world,
        NotificationTargetARN="arn:aws:sqs:us-east-1:123456789012:hooks",
        RoleARN="arn:aws:iam::123456789012:role/x",
    )
    world.desire(0)
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    notification = json.loads(message["Body"])
    assert notification["EC2InstanceId"] == instance_id
    assert notification["LifecycleTransition"] == TERMINATING
    world.groups.complete_lifecycle_action(
        AutoScalingGroupName="web",
        LifecycleHookName="drain",
        LifecycleActionToken=notification["LifecycleActionToken"],
        LifecycleActionResult="CONTINUE",
    )
    assert world.states() == ["Terminating"]


def test_hooks_are_described_with_their_limits_and_can_be_deleted(world: World) -> None:
    instance_id = leaving(world, heartbeat_s=300)
    (shown,) = world.groups.describe_lifecycle_hooks(AutoScalingGroupName="web")["LifecycleHooks"]
    assert shown["HeartbeatTimeout"] == 300
    assert shown["GlobalTimeout"] == 30_000
    assert shown["DefaultResult"] == "ABANDON"
    world.groups.delete_lifecycle_hook(AutoScalingGroupName="web", LifecycleHookName="drain")
    assert world.groups.describe_lifecycle_hooks(AutoScalingGroupName="web")["LifecycleHooks"] == []
    assert world.states() == ["Terminating"]
    assert world.machine_state(instance_id) == "shutting-down"
