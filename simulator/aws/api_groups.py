"""The API of groups: create, describe, update, delete, desired capacity, tags, suspended processes."""

from __future__ import annotations

import uuid

from simulator.aws.api_hooks import put_hook
from simulator.aws.api_instances import instance_fields
from simulator.aws.group import PROCESSES, Group, instant, stamp
from simulator.aws.machines import ACCOUNT_ID
from simulator.aws.region import Region
from simulator.aws.requests import AwsError, Params, page, validation_error
from simulator.aws.scaling import override_weights

STORED = (
    "LaunchConfigurationName",
    "LaunchTemplate",
    "MixedInstancesPolicy",
    "VPCZoneIdentifier",
    "DefaultCooldown",
    "DefaultInstanceWarmup",
    "HealthCheckType",
    "HealthCheckGracePeriod",
    "LoadBalancerNames",
    "TargetGroupARNs",
    "TerminationPolicies",
    "NewInstancesProtectedFromScaleIn",
    "PlacementGroup",
    "CapacityRebalance",
    "MaxInstanceLifetime",
    "Context",
    "DesiredCapacityType",
    "ServiceLinkedRoleARN",
    "InstanceMaintenancePolicy",
)
DEFAULTS: Params = {
    "DefaultCooldown": 300,
    "HealthCheckType": "EC2",
    "HealthCheckGracePeriod": 0,
    "LoadBalancerNames": [],
    "TargetGroupARNs": [],
    "TerminationPolicies": ["Default"],
    "NewInstancesProtectedFromScaleIn": False,
    "CapacityRebalance": False,
}
LARGEST_WEIGHT = 999
SOURCES = ("LaunchConfigurationName", "LaunchTemplate", "MixedInstancesPolicy")


def create_group(region: Region, params: Params, at: float) -> Params:
    """CreateAutoScalingGroup."""
    name = params["AutoScalingGroupName"]
    if name in region.groups:
        raise AwsError(
            "AlreadyExists",
            f"AutoScalingGroup by this name already exists - A group with the name {name} already exists",
        )
    if sum(1 for source in SOURCES if params.get(source)) != 1:
        raise validation_error(
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or "
            "MixedInstancesPolicy parameter."
        )
    _check_sizes(params)
    _check_weights(params)
    low, high = int(params["MinSize"]), int(params["MaxSize"])
    desired = int(params.get("DesiredCapacity", low))
    _check_bounds(low, high, desired)
    group = Group(
        name=name,
        arn=f"arn:aws:autoscaling:{region.name}:{ACCOUNT_ID}:autoScalingGroup:"
        f"{uuid.UUID(region.lifecycle.identity())}:autoScalingGroupName/{name}",
        created_at=at,
        min_size=low,
        max_size=high,
        desired=0,
        zones=_zones(region, params),
        source={**DEFAULTS, **{key: params[key] for key in STORED if key in params}},
    )
    region.scaling.blueprint(group)
    region.groups[name] = group
    _put_tags(group, params.get("Tags", []))
    for hook in params.get("LifecycleHookSpecificationList", ()):
        put_hook(region, {**hook, "AutoScalingGroupName": name}, at)
    because = (
        f"At {stamp(at)} a user request created an AutoScalingGroup "
        f"changing the desired capacity from 0 to {desired}.  "
    )
    region.set_desired(group, desired, at, because)
    return {}


def update_group(region: Region, params: Params, at: float) -> Params:
    """UpdateAutoScalingGroup: a size the bounds no longer admit moves to the nearer bound unless one is given."""
    group = region.group(params["AutoScalingGroupName"])
    _check_sizes(params)
    _check_weights(params)
    low, high = int(params.get("MinSize", group.min_size)), int(params.get("MaxSize", group.max_size))
    desired = int(params["DesiredCapacity"]) if "DesiredCapacity" in params else min(max(group.desired, low), high)
    _check_bounds(low, high, desired)
    changed = {key: params[key] for key in STORED if key in params}
    trial = Group(
        group.name, group.arn, at, low, high, desired, group.zones, {**group.source, **changed}, members=group.members
    )
    given = [source for source in SOURCES if params.get(source)]
    if len(given) > 1:
        raise validation_error(f"Valid requests must contain only one of {', '.join(SOURCES)} parameters.")
    if given:
        for source in SOURCES:
            if source not in given:
                trial.source.pop(source, None)
        region.scaling.blueprint(trial)
    if params.get("AvailabilityZones") or params.get("VPCZoneIdentifier"):
        group.zones = _zones(region, params)
    group.source, group.min_size, group.max_size = trial.source, low, high
    reweighed = _reweigh(group)
    if desired != group.desired:
        because = (
            f"At {stamp(at)} a user request update of AutoScalingGroup constraints to min: {low}, max: {high}, "
            f"desired: {desired} changing the desired capacity from {group.desired} to {desired}.  "
        )
        region.set_desired(group, desired, at, because)
    elif reweighed:
        because = f"At {stamp(at)} a user request update of AutoScalingGroup changed the weights of its VMs.  "
        region.scaling.reconcile(group, at, because)
    return {}


def delete_group(region: Region, params: Params, at: float) -> Params:
    """DeleteAutoScalingGroup."""
    region.delete(region.group(params["AutoScalingGroupName"]), at, force=bool(params.get("ForceDelete")))
    return {}


def set_desired_capacity(region: Region, params: Params, at: float) -> Params:
    """SetDesiredCapacity: within the bounds, and not during the cool-down when the caller honours it."""
    group = region.group(params["AutoScalingGroupName"])
    _check_sizes(params)
    desired = int(params["DesiredCapacity"])
    for bound, side, outside in (
        (group.max_size, "above max", desired > group.max_size),
        (group.min_size, "below min", desired < group.min_size),
    ):
        if outside:
            raise validation_error(
                f"New SetDesiredCapacity value {desired} is {side} value {bound} for the AutoScalingGroup."
            )
    if params.get("HonorCooldown"):
        _check_cooldown(region, group, at)
    if desired != group.desired:
        because = (
            f"At {stamp(at)} a user request explicitly set group desired capacity changing the desired capacity from "
            f"{group.desired} to {desired}.  "
        )
        region.set_desired(group, desired, at, because)
    return {}


def describe_groups(region: Region, params: Params, at: float) -> Params:
    """DescribeAutoScalingGroups: by name (at most 100) and by tag filters, in pages."""
    names = params.get("AutoScalingGroupNames", [])
    if len(names) > 100:
        raise validation_error("The number of Auto Scaling group names that can be passed in is limited to 100")
    groups = [group for group in region.groups.values() if not names or group.name in names]
    for wanted in params.get("Filters", []):
        groups = [group for group in groups if _has_tag(group, wanted["Name"], wanted.get("Values", []))]
    shown, token = page(sorted(groups, key=lambda group: group.name), params, default=50)
    return {"AutoScalingGroups": [_described(region, group) for group in shown], **token}


def _described(region: Region, group: Group) -> Params:
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


def _has_tag(group: Group, filter_name: str, values: list[str]) -> bool:
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


def suspend_processes(region: Region, params: Params, at: float) -> Params:
    """SuspendProcesses."""
    group = region.group(params["AutoScalingGroupName"])
    for process in _processes(params):
        group.suspended.setdefault(process, f"User suspended at {stamp(at)}")
    return {}


def resume_processes(region: Region, params: Params, at: float) -> Params:
    """ResumeProcesses: what was held back happens now."""
    group = region.group(params["AutoScalingGroupName"])
    for process in _processes(params):
        group.suspended.pop(process, None)
    region.resumed(group, at)
    return {}


def create_or_update_tags(region: Region, params: Params, at: float) -> Params:
    """CreateOrUpdateTags."""
    for tag in params.get("Tags", []):
        _put_tags(region.group(tag.get("ResourceId", "")), [tag])
    return {}


def delete_tags(region: Region, params: Params, at: float) -> Params:
    """DeleteTags."""
    for tag in params.get("Tags", []):
        region.group(tag.get("ResourceId", "")).tags.pop(tag["Key"], None)
    return {}


def describe_tags(region: Region, params: Params, at: float) -> Params:
    """DescribeTags."""
    fields = {
        "auto-scaling-group": "ResourceId",
        "key": "Key",
        "value": "Value",
        "propagate-at-launch": "PropagateAtLaunch",
    }
    tags = [tag for group in region.groups.values() for tag in group.tags.values()]
    for wanted in params.get("Filters", []):
        name = str(wanted.get("Name", ""))
        if name not in fields:
            allowed = ", ".join(fields)
            raise validation_error(f"Filter type {name} is not correct. Allowed Filter types are: {allowed}")
        values = [value.lower() for value in wanted.get("Values", [])]
        tags = [tag for tag in tags if str(tag[fields[name]]).lower() in values]
    shown, token = page(tags, params, default=50)
    return {"Tags": shown, **token}


def enable_metrics_collection(region: Region, params: Params, at: float) -> Params:
    """EnableMetricsCollection."""
    group = region.group(params["AutoScalingGroupName"])
    group.metrics = sorted({*group.metrics, *params.get("Metrics", [])})
    return {}


def _check_bounds(low: int, high: int, desired: int) -> None:
    if low > high:
        raise validation_error(f"Max bound, {high}, must be greater than or equal to min bound, {low}")
    if not low <= desired <= high:
        raise validation_error(
            f"Desired capacity:{desired} must be between the specified min size:{low} and max size:{high}"
        )


def _reweigh(group: Group) -> bool:
    """Give members the weights of their types; a type that the overrides no longer name keeps its last weight.

    Return whether any member weighs something else now.
    """
    weights, changed = override_weights(group.source), False
    for member in group.members.values():
        weight = weights.get(member.instance_type, member.weight)
        changed, member.weight = changed or weight != member.weight, weight
    return changed


def _check_sizes(params: Params) -> None:
    for name in ("MinSize", "MaxSize", "DesiredCapacity"):
        if int(params.get(name, 0)) < 0:
            raise validation_error(
                f"1 validation error detected: Value '{params[name]}' at '{name[0].lower()}{name[1:]}' failed to "
                "satisfy constraint: Member must have value greater than or equal to 0"
            )


def _check_weights(params: Params) -> None:
    overrides = ((params.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}).get("Overrides") or []
    weights = [one["WeightedCapacity"] for one in overrides if one.get("WeightedCapacity")]
    if weights and len(weights) != len(overrides):
        raise validation_error("Weighted capacity must be specified for all overrides, or for none of them.")
    for weight in weights:
        if not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= LARGEST_WEIGHT):
            raise validation_error(f"The weighted capacity {weight} must be a whole number between 1 and 999.")


def _check_cooldown(region: Region, group: Group, at: float) -> None:
    running = region.activities.running(group.name)
    ended = group.last_scaling_end
    cooling = ended is not None and at < ended + float(group.source["DefaultCooldown"])
    if running or cooling:
        blocking = running[0] if running else region.activities.newest_first(group.name)[0]
        raise AwsError(
            "ScalingActivityInProgress",
            f"Scaling activity {blocking.activity_id} is in progress and blocks this action",
        )


def _zones(region: Region, params: Params) -> list[str]:
    subnets = params.get("VPCZoneIdentifier")
    if subnets:
        return sorted(region.machines.zones_of_subnets(subnets.split(",")))
    zones = list(params.get("AvailabilityZones", []))
    if not zones:
        raise validation_error("At least one Availability Zone or VPC Subnet is required.")
    for zone in zones:
        if not zone.startswith(region.name):
            raise validation_error(f"The following Availability Zones are invalid: {zone}")
    return zones


def _put_tags(group: Group, tags: list[Params]) -> None:
    for tag in tags:
        group.tags[tag["Key"]] = {
            "ResourceId": group.name,
            "ResourceType": "auto-scaling-group",
            "Key": tag["Key"],
            "Value": tag.get("Value", ""),
            "PropagateAtLaunch": bool(tag.get("PropagateAtLaunch", False)),
        }


def _processes(params: Params) -> list[str]:
    names = params.get("ScalingProcesses") or list(PROCESSES)
    for name in names:
        if name not in PROCESSES:
            raise validation_error(f"1 validation error detected: {name} is not one of {', '.join(PROCESSES)}")
    return list(names)
