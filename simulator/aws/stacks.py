"""CloudFormation's groups and queues: moto makes a stack, its groups are those of this cloud's Auto Scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moto.autoscaling.models import FakeAutoScalingGroup
from moto.sqs.models import Queue

from simulator.aws import api_groups
from simulator.aws.requests import Params

if TYPE_CHECKING:
    from simulator.aws.cloud import Cloud

_NUMBERS = ("MinSize", "MaxSize", "DesiredCapacity", "HealthCheckGracePeriod", "DefaultInstanceWarmup")
_QUEUE_NAME = 80
_FIFO = ".fifo"


class StackQueue(Queue):
    """A queue of a stack: a FIFO queue without a name gets one that ends in .fifo."""

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **about: Any
    ) -> Queue:
        """Create the queue in moto."""
        fifo = str(cloudformation_json["Properties"].get("FifoQueue", "")).lower() == "true"
        if fifo and "QueueName" not in cloudformation_json["Properties"]:
            resource_name = resource_name[: _QUEUE_NAME - len(_FIFO)] + _FIFO
        return Queue.create_from_cloudformation_json(
            resource_name, cloudformation_json, account_id, region_name, **about
        )


def stack_group(cloud: Cloud) -> type[FakeAutoScalingGroup]:
    """Return the class by which moto makes, changes and deletes the groups of stacks in this cloud."""

    class StackGroup(FakeAutoScalingGroup):
        def __init__(self, name: str) -> None:
            self.name = name

        @classmethod
        def create_from_cloudformation_json(
            cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **about: Any
        ) -> FakeAutoScalingGroup:
            params = _parameters(resource_name, cloudformation_json["Properties"])
            api_groups.create_group(cloud.region(region_name), params, cloud.clock.now())
            return cls(resource_name)

        @classmethod
        def update_from_cloudformation_json(
            cls,
            original_resource: FakeAutoScalingGroup,
            new_resource_name: str,
            cloudformation_json: Any,
            account_id: str,
            region_name: str,
        ) -> FakeAutoScalingGroup:
            region, now = cloud.region(region_name), cloud.clock.now()
            params = _parameters(original_resource.name, cloudformation_json["Properties"])
            tags = [{**tag, "ResourceId": original_resource.name} for tag in params.pop("Tags", ())]
            api_groups.update_group(region, params, now)
            api_groups.create_or_update_tags(region, {"Tags": tags}, now)
            return cls(original_resource.name)

        @classmethod
        def delete_from_cloudformation_json(
            cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
        ) -> None:
            cls(resource_name).delete(account_id, region_name)

        def delete(self, account_id: str, region_name: str) -> None:
            region = cloud.region(region_name)
            if self.name in region.groups:
                region.delete(region.groups[self.name], cloud.clock.now(), force=True)

    return StackGroup


def adopt(cloud: Cloud) -> None:
    """Let moto's CloudFormation make groups in this cloud from now on."""
    # Imported with the first stack: it brings the models of every service of moto.
    from moto.cloudformation.parsing import get_model_map

    classes = get_model_map()
    classes[FakeAutoScalingGroup.cloudformation_type()] = stack_group(cloud)
    classes[Queue.cloudformation_type()] = StackQueue  # type: ignore[type-abstract]


def _parameters(name: str, properties: Params) -> Params:
    """Return CreateAutoScalingGroup's parameters: CloudFormation has texts for numbers, and lists for some texts."""
    params = {**properties, "AutoScalingGroupName": name}
    if "Cooldown" in params:
        params["DefaultCooldown"] = int(params.pop("Cooldown"))
    params |= {key: int(params[key]) for key in _NUMBERS if key in params}
    if "VPCZoneIdentifier" in params:
        params["VPCZoneIdentifier"] = ",".join(params["VPCZoneIdentifier"])
    if "LaunchTemplate" in params:
        params["LaunchTemplate"] = {key: str(value) for key, value in params["LaunchTemplate"].items()}
    params["Tags"] = [
        {**tag, "PropagateAtLaunch": str(tag.get("PropagateAtLaunch", "")).lower() == "true"}
        for tag in params.get("Tags", ())
    ]
    return params
