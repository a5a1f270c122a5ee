"""The API of lifecycle hooks and instance refreshes.

A refresh is recorded and takes its time: it is InProgress for `Delays.refresh_s`, then Successful, unless cancelled. It
replaces no instances; what it shows is that one is running, which is what an agent must respect.
"""

from __future__ import annotations

from typing import Any

from simulator.aws.group import (
    LAUNCHING_TRANSITION,
    TERMINATING_TRANSITION,
    Group,
    Hook,
    LifecycleAction,
    Member,
    instant,
)
from simulator.aws.lifecycle import waiting_action
from simulator.aws.region import Refresh, Region
from simulator.aws.requests import AwsError, Params, page, validation_error


def put_hook(region: Region, params: Params, at: float) -> Params:
    """PutLifecycleHook: creates a hook, or changes what is given of an existing one."""
    group = region.group(params["AutoScalingGroupName"])
    name = params["LifecycleHookName"]
    old = group.hooks.get(name)
    transition = params.get("LifecycleTransition", old.transition if old else None)
    if transition not in (LAUNCHING_TRANSITION, TERMINATING_TRANSITION):
        raise validation_error(f"LifecycleTransition must be {LAUNCHING_TRANSITION} or {TERMINATING_TRANSITION}")
    heartbeat_s = float(params.get("HeartbeatTimeout", old.heartbeat_s if old else 3600.0))
    if not 30.0 <= heartbeat_s <= 7200.0:
        raise validation_error(f"HeartbeatTimeout is {heartbeat_s:.0f}: it must be between 30 and 7200 seconds")
    result = params.get("DefaultResult", old.default_result if old else "ABANDON")
    if result not in ("CONTINUE", "ABANDON"):
        raise validation_error(f"DefaultResult is {result}: it must be CONTINUE or ABANDON")
    group.hooks[name] = Hook(
        name,
        transition,
        heartbeat_s,
        result,
        params.get("NotificationTargetARN", old.target_arn if old else None) or None,
        params.get("RoleARN", old.role_arn if old else None) or None,
        params.get("NotificationMetadata", old.metadata if old else None) or None,
    )
    return {}


def describe_hooks(region: Region, params: Params, at: float) -> Params:
    """DescribeLifecycleHooks."""
    group = region.group(params["AutoScalingGroupName"])
    names = params.get("LifecycleHookNames", [])
    hooks = [hook for hook in group.hooks.values() if not names or hook.name in names]
    return {"LifecycleHooks": [_described(group, hook) for hook in hooks]}


def delete_hook(region: Region, params: Params, at: float) -> Params:
    """DeleteLifecycleHook: machines that wait on it go on, a launch as abandoned."""
    group = region.group(params["AutoScalingGroupName"])
    hook = group.hooks.pop(params["LifecycleHookName"], None)
    if hook is None:
        raise validation_error("No lifecycle hook found with the specified name")
    for member in list(group.members.values()):
        for action in list(member.actions):
            if action.hook.name == hook.name and action.result is None:
                region.lifecycle.complete(group, member, action, "ABANDON", at)
    return {}


def complete_action(region: Region, params: Params, at: float) -> Params:
    """CompleteLifecycleAction, by instance id or by token."""
    group, member, action = _waiting(region, params)
    result = params["LifecycleActionResult"]
    if result not in ("CONTINUE", "ABANDON"):
        raise validation_error(f"LifecycleActionResult is {result}: it must be CONTINUE or ABANDON")
    region.lifecycle.complete(group, member, action, result, at)
    return {}


def record_heartbeat(region: Region, params: Params, at: float) -> Params:
    """RecordLifecycleActionHeartbeat, by instance id or by token."""
    _, _, action = _waiting(region, params)
    region.lifecycle.heartbeat(action, at)
    return {}


def start_refresh(region: Region, params: Params, at: float) -> Params:
    """StartInstanceRefresh."""
    group = region.group(params["AutoScalingGroupName"])
    if _running(region, group, at):
        raise AwsError(
            "InstanceRefreshInProgress",
            "An Instance Refresh is already in progress and blocks the execution of this Instance Refresh.",
        )
    made = Refresh(region.lifecycle.identity(), group.name, at, params.get("Preferences", {}), len(group.counted))
    region.refreshes.append(made)
    return {"InstanceRefreshId": made.refresh_id}


def describe_refreshes(region: Region, params: Params, at: float) -> Params:
    """DescribeInstanceRefreshes: newest first."""
    group = region.group(params["AutoScalingGroupName"])
    ids = params.get("InstanceRefreshIds", [])
    found = [
        refresh
        for refresh in reversed(region.refreshes)
        if refresh.group_name == group.name and (not ids or refresh.refresh_id in ids)
    ]
    shown, token = page(found, params, default=50)
    return {
        "InstanceRefreshes": [_described_refresh(refresh, at, region.delays.refresh_s) for refresh in shown],
        **token,
    }


def cancel_refresh(region: Region, params: Params, at: float) -> Params:
    """CancelInstanceRefresh."""
    refresh = _running(region, region.group(params["AutoScalingGroupName"]), at)
    if refresh is None:
        raise AwsError("ActiveInstanceRefreshNotFound", "No in progress or pending Instance Refresh found.")
    refresh.cancelled = at
    return {"InstanceRefreshId": refresh.refresh_id}


def _waiting(region: Region, params: Params) -> tuple[Group, Member, LifecycleAction]:
    group = region.group(params["AutoScalingGroupName"])
    token, instance_id = params.get("LifecycleActionToken"), params.get("InstanceId")
    for member in group.members.values():
        if instance_id == member.instance_id or any(action.token == token for action in member.actions):
            return group, member, waiting_action(member, params["LifecycleHookName"], token)
    named = f"token {token}" if instance_id is None else f"instance ID {instance_id}"
    raise validation_error(f"No active Lifecycle Action found with {named}")


def _running(region: Region, group: Group, at: float) -> Refresh | None:
    for refresh in region.refreshes:
        if refresh.group_name == group.name and refresh.status(at, region.delays.refresh_s) == "InProgress":
            return refresh
    return None


def _described(group: Group, hook: Hook) -> Params:
    optional = {
        "NotificationTargetARN": hook.target_arn,
        "RoleARN": hook.role_arn,
        "NotificationMetadata": hook.metadata,
    }
    return {
        "LifecycleHookName": hook.name,
        "AutoScalingGroupName": group.name,
        "LifecycleTransition": hook.transition,
        "HeartbeatTimeout": int(hook.heartbeat_s),
        "GlobalTimeout": int(hook.global_timeout_s),
        "DefaultResult": hook.default_result,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _described_refresh(refresh: Refresh, at: float, takes_s: float) -> Params:
    status = refresh.status(at, takes_s)
    done, ended = status == "Successful", refresh.cancelled
    until = at if ended is None else ended
    result: dict[str, Any] = {
        "InstanceRefreshId": refresh.refresh_id,
        "AutoScalingGroupName": refresh.group_name,
        "Status": status,
        "StartTime": instant(refresh.started),
        "PercentageComplete": 100 if done else int(min(99.0, 100.0 * (until - refresh.started) / takes_s)),
        "InstancesToUpdate": 0 if done else refresh.instances_to_update,
        "Preferences": refresh.preferences,
    }
    if done:
        result["EndTime"] = instant(refresh.started + takes_s)
    if ended is not None:
        result |= {"EndTime": instant(ended), "StatusReason": "Cancelled due to user request."}
    return result
