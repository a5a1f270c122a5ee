"""What the API shows: pages, groups and instances as answers, and which groups a tag filter finds."""

from __future__ import annotations

import base64
from typing import Any, TypeVar

from simulator.aws.activities import instant
from simulator.aws.errors import AwsError, validation_error
from simulator.aws.group import Group, Member
from simulator.aws.machines import ACCOUNT_ID
from simulator.aws.region import Region

Params = dict[str, Any]
"""A request's parameters, or an answer, as the service model names them."""
T = TypeVar("T")


def page(items: list[T], params: Params, *, default: int) -> tuple[list[T], Params]:
    """Return one page of `items` and, where more follow, the NextToken that leads to them.

    Raises: AwsError (ValidationError, InvalidNextToken) for more than 100 records a page or a token we did not give.
    """
    size = int(params.get("MaxRecords", default))
    if not 1 <= size <= 100:
        raise validation_error(f"MaxRecords is {size}: it must be between 1 and 100")
    try:
        start = int(base64.b64decode(params["NextToken"])) if params.get("NextToken") else 0
    except ValueError as problem:
        raise AwsError("InvalidNextToken", "The NextToken value is not valid.") from problem
    more = start + size < len(items)
    token = {"NextToken": base64.b64encode(str(start + size).encode()).decode()} if more else {}
    return items[start : start + size], token


def instance_fields(member: Member) -> Params:
    """Return what the API shows of a member, in a group or on its own."""
    fields: Params = {
        "InstanceId": member.instance_id,
        "InstanceType": member.instance_type,
        "AvailabilityZone": member.zone,
        "LifecycleState": member.state,
        "HealthStatus": member.health,
        "ProtectedFromScaleIn": member.protected,
    }
    if member.template is not None:
        fields["LaunchTemplate"] = member.template
    if member.launch_configuration is not None:
        fields["LaunchConfigurationName"] = member.launch_configuration
    if member.weight != 1:
        fields["WeightedCapacity"] = str(member.weight)
    return fields


def described_group(region: Region, group: Group) -> Params:
    """Return the API's `AutoScalingGroup` structure."""
    result: Params = {
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn,
        "MinSize": group.min_size,
        "MaxSize": group.max_size,
        "DesiredCapacity": group.desired,
        "AvailabilityZones": group.zones,
        "CreatedTime": instant(group.created_at),
        "Instances": [instance_fields(member) for member in group.members.values()],
        "SuspendedProcesses": [{"ProcessName": name, "SuspensionReason": why} for name, why in group.suspended.items()],
        "EnabledMetrics": [{"Metric": name, "Granularity": "1Minute"} for name in group.metrics],
        "Tags": list(group.tags.values()),
        "ServiceLinkedRoleARN": f"arn:aws:iam::{ACCOUNT_ID}:role/aws-service-role/autoscaling.amazonaws.com/"
        "AWSServiceRoleForAutoScaling",
        **group.source,
    }
    if "LaunchTemplate" in group.source:
        shown = region.scaling.blueprint(group).template or {}
        version = group.source["LaunchTemplate"].get("Version")
        result["LaunchTemplate"] = (
            {**shown, "Version": version} if version else {k: shown[k] for k in shown if k != "Version"}
        )
    if group.deleting:
        result["Status"] = "Delete in progress"
    return result


def has_tag(group: Group, filter_name: str, values: list[str]) -> bool:
    """Return whether a filter tag-key, tag-value or tag:<key> finds the group.

    Raises: AwsError (ValidationError) for any other filter.
    """
    if filter_name == "tag-key":
        return any(key in values for key in group.tags)
    if filter_name == "tag-value":
        return any(tag["Value"] in values for tag in group.tags.values())
    if filter_name.startswith("tag:"):
        tag = group.tags.get(filter_name.removeprefix("tag:"))
        return tag is not None and tag["Value"] in values
    raise validation_error(
        f"Filter type {filter_name} is not correct. Allowed Filter types are: tag-key, tag-value, tag:<key>"
    )
