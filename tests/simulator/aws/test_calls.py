"""The call log: every request with its key, its operation, whether it may change anything, and its result."""

from __future__ import annotations

import pytest
from botocore.exceptions import ConnectionClosedError

from tests.simulator.aws.world import START, World


def test_a_call_is_logged_with_caller_time_and_the_parameters_that_matter(world: World) -> None:
    world.group(size=(0, 1, 5))
    world.control.advance(10.0)
    world.desire(3)
    (call,) = world.control.calls(operation="SetDesiredCapacity")
    assert call == {
        "seq": call["seq"],
        "at": START + 10.0,
        "access_key": "AKIATRIMTABAGENT0001",
        "service": "autoscaling",
        "operation": "SetDesiredCapacity",
        "mutating": True,
        "plane": "control",
        "params": {"AutoScalingGroupName": "web", "DesiredCapacity": "3"},
        "status": 200,
        "fault": None,
    }


def test_reading_is_not_mutating_and_queue_traffic_is_the_data_plane(world: World) -> None:
    sqs, agent = world.client("sqs", access_key="AKIATRIMTABWORKER001"), world.groups
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="secret")
    sqs.receive_message(QueueUrl=url)
    sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    agent.describe_auto_scaling_groups()
    world.client("ssm").put_parameter(Name="/trimtab/x", Value="secret", Type="String")
    world.client("cloudwatch").put_metric_data(Namespace="trimtab", MetricData=[{"MetricName": "m", "Value": 1.0}])
    logged = [(call["operation"], call["mutating"], call["plane"]) for call in world.control.calls()]
    assert logged == [
        ("CreateQueue", True, "control"),
        ("SendMessage", True, "data"),
        ("ReceiveMessage", True, "data"),
        ("GetQueueAttributes", False, "control"),
        ("DescribeAutoScalingGroups", False, "control"),
        ("PutParameter", True, "control"),
        ("PutMetricData", True, "data"),
    ]
    assert [call["operation"] for call in world.control.mutations()] == ["CreateQueue", "PutParameter"]
    assert {call["access_key"] for call in world.control.calls(service="sqs")} == {"AKIATRIMTABWORKER001"}
    assert "secret" not in str(world.control.calls())


def test_an_ec2_dry_run_is_not_mutating(world: World) -> None:
    ec2 = world.client("ec2")
    with pytest.raises(ec2.exceptions.ClientError):
        ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, DryRun=True)
    assert [call["mutating"] for call in world.control.calls(operation="RunInstances")] == [False]


def test_since_gives_only_what_is_new(world: World) -> None:
    world.groups.describe_auto_scaling_groups()
    last = world.control.calls()[-1]["seq"]
    world.groups.describe_tags()
    assert [call["operation"] for call in world.control.calls(last)] == ["DescribeTags"]


def test_refused_and_unanswered_calls_name_their_fault(world: World) -> None:
    world.control.add_fault("throttle", operations=["DescribeTags"])
    world.control.add_fault("timeout_before", operations=["DescribeAutoScalingGroups"])
    with pytest.raises(world.groups.exceptions.ClientError):
        world.groups.describe_tags()
    with pytest.raises(ConnectionClosedError):
        world.groups.describe_auto_scaling_groups()
    logged = [(call["status"], call["fault"]) for call in world.control.calls()]
    assert logged == [(400, "throttle"), (0, "timeout_before")]
