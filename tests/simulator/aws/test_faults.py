"""Faults on demand: each kind strikes where, when and as often as its rule demands, the same way for the same seed."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World


def code_of(call: Callable[..., object], **about: object) -> str:
    with pytest.raises(ClientError) as refusal:
        call(**about)
    return str(refusal.value.response["Error"]["Code"])


def describe(world: World) -> str:
    """Return the result of a describe: "ok" or the error code."""
    try:
        world.groups.describe_auto_scaling_groups()
    except ClientError as refusal:
        return str(refusal.response["Error"]["Code"])
    return "ok"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("throttle", ["Throttling", "RequestLimitExceeded", "Throttling", "ThrottlingException", "Throttling"]),
        (
            "access_denied",
            ["AccessDenied", "UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AccessDenied"],
        ),
        ("expired_token", ["ExpiredToken", "RequestExpired", "ExpiredToken", "ExpiredTokenException", "ExpiredToken"]),
        (
            "internal_error",
            ["InternalFailure", "InternalError", "InternalFailure", "InternalFailure", "InternalFailure"],
        ),
    ],
)
def test_refusals_parse_in_every_protocol(world: World, kind: str, codes: list[str]) -> None:
    world.control.add_fault(kind)
    assert [
        code_of(world.groups.describe_auto_scaling_groups),
        code_of(world.client("ec2").describe_instances),
        code_of(world.client("sqs").list_queues),
        code_of(world.client("ssm").get_parameter, Name="x"),
        code_of(world.client("cloudwatch").list_metrics),
    ] == codes
    world.control.clear_faults()
    assert describe(world) == "ok"


def test_a_rate_strikes_that_share_of_calls_and_the_same_ones_for_the_same_seed() -> None:
    seen = []
    for seed in (1, 1, 2):
        running = start_in_thread(VirtualClock(START), seed=seed)
        world = World(running, CloudControl(running.endpoint))
        try:
            world.control.add_fault("throttle", rate=0.3)
            seen.append([describe(world) for _ in range(100)])
        finally:
            world.close()
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
    assert 15 <= seen[0].count("Throttling") <= 45


def test_a_fault_is_about_the_operations_services_and_callers_it_names(world: World) -> None:
    world.group()
    world.control.add_fault("access_denied", operations=["SetDesiredCapacity"])
    world.control.add_fault("throttle", services=["sqs"], access_keys=["AKIATRIMTABAGENT0001"])
    assert describe(world) == "ok"
    assert code_of(world.desire, count=1) == "AccessDenied"
    assert code_of(world.client("sqs").list_queues) == "Throttling"
    assert (
        world.client("sqs", access_key="AKIATRIMTABWORKER001").list_queues()["ResponseMetadata"]["HTTPStatusCode"]
        == 200
    )


def test_a_fault_ends_with_its_duration_and_with_its_count(world: World) -> None:
    world.control.add_fault("throttle", duration_s=300)
    assert describe(world) == "Throttling"
    world.control.advance(300.0)
    assert describe(world) == "ok"
    world.control.add_fault("internal_error", count=2)
    assert [describe(world) for _ in range(3)] == ["InternalFailure", "InternalFailure", "ok"]


def test_after_a_timeout_after_effect_the_change_has_happened_once(world: World) -> None:
    world.ready_group(size=(0, 1, 5))
    world.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], count=1)
    with pytest.raises(ConnectionClosedError):
        world.desire(3)
    assert world.show()["DesiredCapacity"] == 3
    assert len(world.ids()) == 3


def test_after_a_timeout_before_effect_nothing_has_happened(world: World) -> None:
    world.ready_group(size=(0, 1, 5))
    world.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], count=1)
    with pytest.raises(ConnectionClosedError):
        world.desire(3)
    assert world.show()["DesiredCapacity"] == 1
    world.desire(3)
    assert world.show()["DesiredCapacity"] == 3


def test_a_held_connection_runs_into_the_callers_own_timeout_and_stops_no_other(world: World) -> None:
    world.ready_group(size=(0, 1, 5))
    world.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], hold_s=60.0)
    impatient = world.client("autoscaling", timeout_s=1.0)
    began = time.monotonic()
    with pytest.raises(ReadTimeoutError):
        impatient.set_desired_capacity(AutoScalingGroupName="web", DesiredCapacity=2)
    assert 0.9 <= time.monotonic() - began < 30.0
    assert world.show()["DesiredCapacity"] == 2


def test_some_terminations_of_many_fail(world: World) -> None:
    ids = world.ready_group(size=(0, 5, 5))
    world.control.add_fault("fail_terminate", instance_ids=ids[:2])
    for instance_id in ids:
        if instance_id in ids[:2]:
            terminate = world.groups.terminate_instance_in_auto_scaling_group
            code = code_of(terminate, InstanceId=instance_id, ShouldDecrementDesiredCapacity=True)
            assert code == "ScalingActivityInProgress"
        else:
            world.groups.terminate_instance_in_auto_scaling_group(
                InstanceId=instance_id, ShouldDecrementDesiredCapacity=True
            )
    world.control.advance(15.0)
    assert sorted(world.ids()) == sorted(ids[:2])
    assert world.show()["DesiredCapacity"] == 2


def waiting_on_a_hook(world: World) -> dict[str, str]:
    (instance_id,) = world.ready_group(size=(0, 1, 5))
    world.groups.put_lifecycle_hook(
        AutoScalingGroupName="web",
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=300,
    )
    world.desire(0)
    return {"AutoScalingGroupName": "web", "LifecycleHookName": "drain", "InstanceId": instance_id}


def test_a_lost_completion_is_answered_and_has_no_effect(world: World) -> None:
    action = waiting_on_a_hook(world)
    world.control.add_fault("lost_completion", count=1)
    world.groups.complete_lifecycle_action(LifecycleActionResult="CONTINUE", **action)
    assert world.states() == ["Terminating:Wait"]
    world.groups.complete_lifecycle_action(LifecycleActionResult="CONTINUE", **action)
    assert world.states() == ["Terminating"]


@pytest.mark.parametrize(("delay_s", "state"), [(50.0, "Terminating:Wait"), (150.0, "Terminating")])
def test_a_late_heartbeat_saves_the_machine_only_when_not_too_late(world: World, delay_s: float, state: str) -> None:
    action = waiting_on_a_hook(world)
    world.control.advance(200.0)
    world.control.add_fault("late_heartbeat", delay_s=delay_s)
    world.groups.record_lifecycle_action_heartbeat(**action)
    world.control.advance(110.0)
    assert world.states() == [state]


def test_rules_are_listed_with_how_often_they_struck_and_dropped_one_by_one(world: World) -> None:
    first = world.control.add_fault("throttle", operations=["DescribeTags"])
    world.control.add_fault("throttle", count=1)
    assert describe(world) == "Throttling"
    assert [rule["met"] for rule in world.control.faults()["faults"]] == [0, 1]
    world.control.clear_faults(first["fault_id"])
    assert [rule["fault_id"] for rule in world.control.faults()["faults"]] == [2]


def test_a_request_without_what_it_needs_is_refused_not_dropped(world: World) -> None:
    scope = "AKIATRIMTABAGENT0001/20261120/us-east-1/autoscaling/aws4_request"
    request = urllib.request.Request(
        world.running.endpoint,
        b"Action=SetDesiredCapacity&AutoScalingGroupName=web",
        {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"},
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=60.0)
    with refusal.value as answer:
        assert answer.code == 400
        assert b"Value null at &#x27;DesiredCapacity&#x27; must not be null" in answer.read()
