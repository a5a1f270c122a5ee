"""The API of instances and activities: terminate, protect, standby, attach, detach, health, and the activities."""

from __future__ import annotations

import datetime
from typing import Any

from simulator.aws.group import COUNTED, IN_SERVICE, LEAVING, STANDBY, Activity, Group, Member, stamp
from simulator.aws.machines import GONE
from simulator.aws.region import Region
from simulator.aws.requests import AwsError, Params, page, validation_error


def instance_fields(member: Member) -> Params:
    """Return the API's description of a member, in a group or on its own."""
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


def describe_instances(region: Region, params: Params, at: float) -> Params:
    """DescribeAutoScalingInstances."""
    ids = params.get("InstanceIds", [])
    rows = [
        {**instance_fields(member), "AutoScalingGroupName": group.name, "HealthStatus": member.health.upper()}
        for group in region.groups.values()
        for member in group.members.values()
        if not ids or member.instance_id in ids
    ]
    shown, token = page(rows, {"MaxRecords": 50, **params}, default=50)
    return {"AutoScalingInstances": shown, **token}


def describe_activities(region: Region, params: Params, at: float) -> Params:
    """DescribeScalingActivities: newest first, of one group or of all; of deleted groups only on request."""
    name = params.get("AutoScalingGroupName")
    deleted_too = bool(params.get("IncludeDeletedGroups"))
    if name is not None and not deleted_too:
        region.group(name)
    arns = {group.arn for group in region.groups.values()}
    found = [entry for entry in region.activities.newest_first(name) if deleted_too or entry.group_arn in arns]
    if params.get("ActivityIds"):
        found = [entry for entry in found if entry.activity_id in params["ActivityIds"]]
    for wanted in params.get("Filters", []):
        found = [entry for entry in found if _matches(entry, wanted["Name"], wanted.get("Values", []))]
    shown, token = page(found, params, default=100)
    return {"Activities": [entry.described(deleted=entry.group_arn not in arns) for entry in shown], **token}


def terminate_instance(region: Region, params: Params, at: float) -> Params:
    """TerminateInstanceInAutoScalingGroup: protection does not stop it; the group's minimum stops a decrement.

    With the Terminate process suspended a machine in service stays until the process resumes (the request and any
    decrement remain); AWS documents that suspension holds for machines in service only, not the response, so
    that part is an assumption.
    """
    group, member = region.member(params["InstanceId"])
    if member.state in LEAVING:
        activity = member.activity.activity_id if member.activity is not None else "unknown"
        raise AwsError(
            "ScalingActivityInProgress", f"Scaling activity {activity} is in progress and blocks this action"
        )
    decrement = bool(params.get("ShouldDecrementDesiredCapacity"))
    if decrement and group.desired - member.weight < group.min_size:
        raise validation_error(
            f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement will "
            "violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower "
            "group's min size."
        )
    before = group.desired
    cause = f"At {stamp(at)} instance {member.instance_id} was taken out of service in response to a user request"
    if decrement:
        group.desired -= member.weight
        cause += f", shrinking the capacity from {before} to {group.desired}"
    if "Terminate" in group.suspended and member.state == IN_SERVICE:
        member.termination_pending = True
        waiting = Activity(
            region.lifecycle.identity(),
            group.name,
            group.arn,
            f"Terminating EC2 instance: {member.instance_id}",
            f"{cause}.",
            at,
        )
        return {"Activity": waiting.described()}
    activity_made = region.lifecycle.leave(group, member, f"{cause}.", at)
    region.scaling.reconcile(group, at)
    return {"Activity": activity_made.described()}


def set_instance_protection(region: Region, params: Params, at: float) -> Params:
    """SetInstanceProtection."""
    group = region.group(params["AutoScalingGroupName"])
    members = [_of_group(group, instance_id) for instance_id in params["InstanceIds"]]
    for member in members:
        if member.state not in (IN_SERVICE, STANDBY):
            raise validation_error(
                f"The instance {member.instance_id} is not in InService or EnteringStandby or Standby."
            )
    for member in members:
        member.protected = bool(params["ProtectedFromScaleIn"])
    region.scaling.reconcile(group, at)
    return {}


def set_instance_health(region: Region, params: Params, at: float) -> Params:
    """SetInstanceHealth: Unhealthy within the grace period is ignored unless ShouldRespectGracePeriod is false."""
    group, member = region.member(params["InstanceId"])
    if params["HealthStatus"] == "Healthy":
        member.health = "Healthy"
        return {}
    grace_s = float(group.source["HealthCheckGracePeriod"])
    in_grace = member.in_service_at is None or at < member.in_service_at + grace_s
    if not (in_grace and params.get("ShouldRespectGracePeriod", True)):
        region.unhealthy(group, member, at, "a user health-check")
    return {}


def enter_standby(region: Region, params: Params, at: float) -> Params:
    """EnterStandby."""
    return _take_out(region, params, at, "Moving EC2 instance to Standby", "moved to standby", STANDBY)


def exit_standby(region: Region, params: Params, at: float) -> Params:
    """ExitStandby: back into service, and the desired capacity grows by what comes back."""
    group = region.group(params["AutoScalingGroupName"])
    members = [_of_group(group, instance_id) for instance_id in params["InstanceIds"]]
    for member in members:
        if member.state != STANDBY:
            raise validation_error(f"The instance {member.instance_id} is not in Standby.")
    if group.desired + sum(member.weight for member in members) > group.max_size:
        raise validation_error(
            f"AutoScalingGroup {group.name} has max-size={group.max_size}; the instances would exceed it."
        )
    rows = []
    for member in members:
        group.desired += member.weight
        member.state = IN_SERVICE
        cause = f"At {stamp(at)} instance {member.instance_id} was moved out of standby in response to a user request."
        activity = region.lifecycle.open_activity(
            group, f"Moving EC2 instance out of Standby: {member.instance_id}", cause, at, member.zone
        )
        activity.close("Successful", at)
        rows.append(activity.described())
    return {"Activities": rows}


def detach_instances(region: Region, params: Params, at: float) -> Params:
    """DetachInstances: the machines run on, outside the group."""
    return _take_out(region, params, at, "Detaching EC2 instance", "detached", None)


def attach_instances(region: Region, params: Params, at: float) -> Params:
    """AttachInstances: running machines join, and the desired capacity grows with them."""
    group = region.group(params["AutoScalingGroupName"])
    ids = params.get("InstanceIds", [])
    if group.desired + len(ids) > group.max_size:
        raise validation_error(
            f"AutoScalingGroup {group.name} has min-size={group.min_size}, max-size={group.max_size}, and desired-size="
            f"{group.desired}. To attach {len(ids)} more instance, please update the AutoScalingGroup sizes "
            "appropriately."
        )
    for instance_id in ids:
        machine = region.machines.find(instance_id)
        if machine is None or machine.state in GONE:
            raise validation_error(f"Invalid Instance ID(s): [{instance_id}] specified in request")
        member = Member(
            instance_id, machine.instance_type, str(machine.placement.zone), at, machine.image_id, state=IN_SERVICE
        )
        member.in_service_at = at
        group.members[instance_id] = member
        group.desired += 1
    return {}


def _take_out(region: Region, params: Params, at: float, title: str, verb: str, state: str | None) -> Params:
    group = region.group(params["AutoScalingGroupName"])
    members = [_of_group(group, instance_id) for instance_id in params["InstanceIds"]]
    for member in members:
        if member.state not in (IN_SERVICE, STANDBY):
            raise validation_error(f"The instance {member.instance_id} is not in InService or Standby.")
    rows = []
    for member in members:
        before = group.desired
        if params.get("ShouldDecrementDesiredCapacity") and member.state in COUNTED:
            if group.desired - member.weight < group.min_size:
                raise validation_error(
                    f"AutoScalingGroup {group.name} has min-size={group.min_size}: desired cannot shrink below it."
                )
            group.desired -= member.weight
        shrinking = f", shrinking the capacity from {before} to {group.desired}" if group.desired < before else ""
        cause = f"At {stamp(at)} instance {member.instance_id} was {verb} in response to a user request{shrinking}."
        activity = region.lifecycle.open_activity(group, f"{title}: {member.instance_id}", cause, at, member.zone)
        activity.close("Successful", at)
        rows.append(activity.described())
        if state is None:
            del group.members[member.instance_id]
        else:
            member.state = state
    region.scaling.reconcile(group, at)
    return {"Activities": rows}


def _of_group(group: Group, instance_id: str) -> Member:
    if instance_id not in group.members:
        raise validation_error(f"The instance {instance_id} is not part of Auto Scaling group {group.name}.")
    return group.members[instance_id]


def _matches(entry: Activity, name: str, values: list[str]) -> bool:
    if name == "Status":
        return entry.status in values
    bounds: dict[str, Any] = {"StartTimeLowerBound": entry.start.__ge__, "StartTimeUpperBound": entry.start.__le__}
    if name not in bounds:
        raise validation_error(f"Filter {name} is not one of Status, StartTimeLowerBound, StartTimeUpperBound")
    try:
        bound = datetime.datetime.fromisoformat(values[0])
    except (IndexError, ValueError) as problem:
        raise validation_error(f"Filter {name} needs one time, such as 2026-11-22T14:00:00Z") from problem
    return bool(bounds[name](bound.timestamp()))
