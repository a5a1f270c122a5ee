"""A running cloud with clients for it: the little world the simulated cloud's tests act in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config

from simulator.aws.client import CloudControl
from simulator.aws.process import RunningCloud

START = 1_795_209_000.0


@dataclass
class World:
    """A running cloud, clients for it, and short words for what tests do over and over."""

    running: RunningCloud
    control: CloudControl
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str, *, access_key: str = "AKIATRIMTABAGENT0001", timeout_s: float = 10.0) -> Any:
        key = f"{service}/{access_key}/{timeout_s}"
        if key not in self._clients:
            connect: Any = boto3.client
            self._clients[key] = connect(
                service,
                endpoint_url=self.running.endpoint,
                region_name="us-east-1",
                aws_access_key_id=access_key,
                aws_secret_access_key="simulated",
                config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=timeout_s),
            )
        return self._clients[key]

    @property
    def groups(self) -> Any:
        return self.client("autoscaling")

    def template(self, name: str = "workers", instance_type: str = "m5a.large", **data: Any) -> None:
        self.client("ec2").create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": instance_type, **data},
        )

    def group(self, name: str = "web", *, size: tuple[int, int, int] = (0, 2, 10), **about: Any) -> str:
        """Create a group (min, desired, max) in us-east-1a by default."""
        if not self.client("ec2").describe_launch_templates()["LaunchTemplates"]:
            self.template()
        about.setdefault("AvailabilityZones", ["us-east-1a"])
        if "MixedInstancesPolicy" not in about:
            about.setdefault("LaunchTemplate", {"LaunchTemplateName": "workers", "Version": "$Latest"})
        self.groups.create_auto_scaling_group(
            AutoScalingGroupName=name, MinSize=size[0], DesiredCapacity=size[1], MaxSize=size[2], **about
        )
        return name

    def ready_group(self, name: str = "web", **about: Any) -> list[str]:
        """Create a group and have its machines in service; return their ids."""
        self.group(name, **about)
        return self.control.ready_now(name)

    def show(self, name: str = "web") -> Any:
        return self.groups.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][0]

    def states(self, name: str = "web") -> list[str]:
        return sorted(instance["LifecycleState"] for instance in self.show(name)["Instances"])

    def ids(self, name: str = "web") -> list[str]:
        return [instance["InstanceId"] for instance in self.show(name)["Instances"]]

    def desire(self, count: int, name: str = "web", **about: Any) -> None:
        self.groups.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=count, **about)

    def activities(self, name: str = "web", **about: Any) -> list[Any]:
        return list(self.groups.describe_scaling_activities(AutoScalingGroupName=name, **about)["Activities"])

    def machine_state(self, instance_id: str) -> str:
        answer = self.client("ec2").describe_instances(InstanceIds=[instance_id])
        return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self.running.stop()
