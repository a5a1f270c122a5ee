"""Stacks of CloudFormation make groups of this cloud, and a reset leaves an empty account."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError

from collectors.inventory import TERMINATING
from tests.architecture.product import ROOT
from tests.simulator.aws.world import World

# moto passes over what it has not: policies of queues and roles.
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS:UserWarning")
TEMPLATE = (ROOT / "deploy" / "cloudformation" / "fleet.yaml").read_text("utf-8")


def given(world: World, **more: str) -> list[dict[str, str]]:
    """The parameters of the shipped template, with subnets and a security group of the account."""
    ec2 = world.client("ec2")
    subnets = ",".join(one["SubnetId"] for one in ec2.describe_subnets()["Subnets"][:2])
    (group,) = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    values = {"Image": "/ami", "Subnets": subnets, "WorkerSecurityGroup": group["GroupId"], **more}
    return [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]


@pytest.fixture
def stacks(world: World) -> Any:
    """A client of CloudFormation in an account with the shipped template's stack."""
    world.client("ssm").put_parameter(Name="/ami", Value="ami-12c6146b", Type="String")
    client = world.client("cloudformation", timeout_s=60.0)
    client.create_stack(StackName="fleet", TemplateBody=TEMPLATE, Parameters=given(world))
    return client


def test_the_shipped_template_makes_groups_that_launch_drain_and_bear_their_tags(world: World, stacks: Any) -> None:
    (stack,) = stacks.describe_stacks(StackName="fleet")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    groups = world.groups.describe_auto_scaling_groups()["AutoScalingGroups"]
    found = {tag["Value"]: group for group in groups for tag in group["Tags"] if tag["Key"] == "trimtab:group"}
    sizes = {key: (one["MinSize"], one["DesiredCapacity"], one["MaxSize"]) for key, one in found.items()}
    assert sizes == {"workers_s": (1, 1, 10), "workers_m": (0, 0, 10), "workers_l": (0, 0, 10)}
    small = found["workers_s"]["AutoScalingGroupName"]
    (hook,) = world.groups.describe_lifecycle_hooks(AutoScalingGroupName=small)["LifecycleHooks"]
    assert (hook["LifecycleTransition"], hook["HeartbeatTimeout"]) == (TERMINATING, 300)
    assert len(world.control.ready_now(small)) == 1
    (vm,) = world.show(small)["Instances"]
    assert (vm["InstanceType"], vm["LifecycleState"]) == ("m5a.large", "InService")
    urls = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    assert urls["ReadyQueueUrl"].endswith(".fifo")
    world.client("sqs").send_message(
        QueueUrl=urls["ReadyQueueUrl"], MessageBody="x", MessageGroupId="a", MessageDeduplicationId="b"
    )


def test_a_stack_changes_its_groups_in_place_and_takes_them_along(world: World, stacks: Any) -> None:
    before = {one["AutoScalingGroupName"] for one in world.groups.describe_auto_scaling_groups()["AutoScalingGroups"]}
    stacks.update_stack(StackName="fleet", TemplateBody=TEMPLATE, Parameters=given(world, MaxSize="4"))
    after = world.groups.describe_auto_scaling_groups()["AutoScalingGroups"]
    assert {one["AutoScalingGroupName"] for one in after} == before
    assert {one["MaxSize"] for one in after} == {4}
    stacks.delete_stack(StackName="fleet")
    world.control.advance(200.0)
    assert world.groups.describe_auto_scaling_groups()["AutoScalingGroups"] == []


def test_nothing_of_the_account_outlives_a_reset(world: World) -> None:
    world.ready_group()
    world.client("ec2").create_launch_template(
        LaunchTemplateName="other", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.large"}
    )
    world.desire(5)
    before = len(world.control.calls())
    post = urllib.request.Request(f"{world.running.endpoint}/moto-api/reset", method="POST")
    with urllib.request.urlopen(post) as answer:
        assert answer.status == 200
    assert world.groups.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert world.groups.describe_scaling_activities()["Activities"] == []
    with pytest.raises(ClientError, match="not found"):
        world.desire(1)
    # The launches that were under way do not come.
    world.control.advance(200.0)
    assert world.client("ec2").describe_instances()["Reservations"] == []
    assert len(world.ready_group()) == 2
    assert len(world.control.calls()) > before
