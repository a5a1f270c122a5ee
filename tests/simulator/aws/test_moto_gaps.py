"""Where plain moto is not AWS: each gap measured on moto itself and, with the same calls, closed by our cloud.

The left side of each pair is what moto does today; when a release closes a gap, its test fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto import mock_aws

from tests.simulator.aws.world import World


class Side:
    """Clients of one of the two clouds, and time that passes where it can."""

    def __init__(self, client: Callable[[str], Any], advance: Callable[[float], object]) -> None:
        self.groups, self.ec2, self.advance = client("autoscaling"), client("ec2"), advance
        self.ec2.create_launch_template(
            LaunchTemplateName="workers", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.large"}
        )

    def group(self, low: int = 0, desired: int = 2, high: int = 5, **about: Any) -> None:
        if "MixedInstancesPolicy" not in about:
            about["LaunchTemplate"] = {"LaunchTemplateName": "workers"}
        self.groups.create_auto_scaling_group(
            AutoScalingGroupName="web",
            MinSize=low,
            DesiredCapacity=desired,
            MaxSize=high,
            AvailabilityZones=["us-east-1a"],
            **about,
        )

    def in_service(self, **about: Any) -> list[str]:
        self.group(**about)
        self.advance(97.0)
        return [one["InstanceId"] for one in self.shown["Instances"]]

    @property
    def shown(self) -> Any:
        return self.groups.describe_auto_scaling_groups()["AutoScalingGroups"][0]

    @property
    def states(self) -> list[str]:
        return sorted(one["LifecycleState"] for one in self.shown["Instances"])

    def desire(self, count: int, **about: Any) -> str:
        return self.outcome(
            self.groups.set_desired_capacity, AutoScalingGroupName="web", DesiredCapacity=count, **about
        )

    def hook(self) -> dict[str, str]:
        action = {"AutoScalingGroupName": "web", "LifecycleHookName": "drain"}
        self.groups.put_lifecycle_hook(LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING", **action)
        return action

    @staticmethod
    def outcome(call: Callable[..., object], **about: Any) -> str:
        """Return "ok", the error code, or "broken" where the answer is none that a client can read."""
        try:
            call(**about)
        except ClientError as refusal:
            return str(refusal.response["Error"]["Code"])
        except Exception:
            return "broken"
        return "ok"


def desired_above_max(side: Side) -> object:
    side.group(low=1)
    return side.desire(50), side.shown["DesiredCapacity"]


def desired_below_min(side: Side) -> object:
    side.group(low=1)
    return side.desire(0), side.shown["DesiredCapacity"]


def update_beyond_max(side: Side) -> object:
    side.group()
    update = side.groups.update_auto_scaling_group
    return side.outcome(update, AutoScalingGroupName="web", DesiredCapacity=9), side.shown["DesiredCapacity"]


def cool_down(side: Side) -> object:
    side.in_service(desired=1)
    return side.desire(2), side.desire(3, HonorCooldown=True)


def default_instance_warmup(side: Side) -> object:
    side.group(DefaultInstanceWarmup=90)
    return side.shown.get("DefaultInstanceWarmup")


def state_of_a_new_instance(side: Side) -> object:
    side.group()
    return side.states


def termination_with_a_hook(side: Side) -> object:
    side.in_service(desired=1)
    side.hook()
    side.desire(0)
    return side.states


def heartbeat_and_completion(side: Side) -> object:
    (instance_id,) = side.in_service(desired=1)
    action = {**side.hook(), "InstanceId": instance_id}
    side.desire(0)
    return (
        side.outcome(side.groups.record_lifecycle_action_heartbeat, **action),
        side.outcome(side.groups.complete_lifecycle_action, LifecycleActionResult="CONTINUE", **action),
    )


def instance_refreshes(side: Side) -> object:
    side.group()
    return side.outcome(side.groups.describe_instance_refreshes, AutoScalingGroupName="web")


def scaling_activities(side: Side) -> object:
    side.in_service(desired=1)
    return [one["StatusCode"] for one in side.groups.describe_scaling_activities()["Activities"]]


def launch_while_suspended(side: Side) -> object:
    side.in_service(desired=1)
    side.groups.suspend_processes(AutoScalingGroupName="web", ScalingProcesses=["Launch"])
    side.desire(3)
    return len(side.shown["Instances"])


def weights_of_overrides(side: Side) -> object:
    template = {"LaunchTemplateName": "workers", "Version": "1"}
    overrides = [{"InstanceType": "m5a.xlarge", "WeightedCapacity": "2"}]
    side.group(
        desired=4,
        MixedInstancesPolicy={"LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": overrides}},
    )
    return [one["InstanceType"] for one in side.shown["Instances"]]


def spot_price(side: Side) -> object:
    history = side.ec2.describe_spot_price_history(InstanceTypes=["m5a.large"])["SpotPriceHistory"]
    return {float(one["SpotPrice"]) > 0.01 for one in history}


def scale_in_of_the_protected(side: Side) -> object:
    side.in_service(NewInstancesProtectedFromScaleIn=True)
    side.desire(0)
    return side.shown["DesiredCapacity"], side.states


def termination_outside_the_group(side: Side) -> object:
    first, second = side.in_service()
    side.ec2.terminate_instances(InstanceIds=[first])
    return sorted(one["InstanceId"] for one in side.shown["Instances"]) == sorted([first, second])


def repeated_client_token(side: Side) -> object:
    asked = {"ImageId": "ami-12c6146b", "MinCount": 1, "MaxCount": 1, "ClientToken": "once"}
    answers = [side.ec2.run_instances(**asked)["Instances"][0]["InstanceId"] for _ in range(2)]
    return len(set(answers))


GAPS: list[tuple[Callable[[Side], object], object, object]] = [
    (desired_above_max, ("ok", 50), ("ValidationError", 2)),
    (desired_below_min, ("ok", 0), ("ValidationError", 2)),
    (update_beyond_max, ("ok", 9), ("ValidationError", 2)),
    (cool_down, ("ok", "ok"), ("ok", "ScalingActivityInProgress")),
    (default_instance_warmup, None, 90),
    (state_of_a_new_instance, ["InService"] * 2, ["Pending"] * 2),
    (termination_with_a_hook, [], ["Terminating:Wait"]),
    (heartbeat_and_completion, ("broken", "broken"), ("ok", "ok")),
    (instance_refreshes, "broken", "ok"),
    (scaling_activities, [], ["Successful"]),
    (launch_while_suspended, 3, 1),
    (weights_of_overrides, ["m5a.large"] * 2, ["m5a.xlarge"] * 2),
    (spot_price, {False}, {True}),
    (scale_in_of_the_protected, (0, ["InService"] * 2), (0, ["InService"] * 2)),
    (termination_outside_the_group, False, True),
    (repeated_client_token, 2, 1),
]


@pytest.fixture
def plain_moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATRIMTABAGENT0001")
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "simulated")
    once = Config(retries={"total_max_attempts": 1})
    with mock_aws():
        connect: Any = boto3.client
        yield Side(lambda service: connect(service, region_name="us-east-1", config=once), lambda seconds: None)


@pytest.mark.parametrize(("measure", "moto", "aws"), GAPS, ids=[gap[0].__name__ for gap in GAPS])
def test_moto_still_has_this_gap(
    plain_moto: Side, measure: Callable[[Side], object], moto: object, aws: object
) -> None:
    assert measure(plain_moto) == moto


@pytest.mark.parametrize(("measure", "moto", "aws"), GAPS, ids=[gap[0].__name__ for gap in GAPS])
def test_our_cloud_does_as_aws_does(world: World, measure: Callable[[Side], object], moto: object, aws: object) -> None:
    assert measure(Side(world.client, world.control.advance)) == aws
