"""The Auto Scaling endpoint: who answers which operation, parsed and serialized by the service model boto3 uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SERIALIZERS, SerializationContext
from moto.core.utils import get_service_model

from simulator.aws import api_groups, api_hooks, api_instances
from simulator.aws.errors import AwsError, Response, validation_error
from simulator.aws.region import Region

Operation = Callable[[Region, dict[str, Any], float], dict[str, Any]]

OPERATIONS: Mapping[str, Operation] = {
    "CreateAutoScalingGroup": api_groups.create_group,
    "UpdateAutoScalingGroup": api_groups.update_group,
    "DeleteAutoScalingGroup": api_groups.delete_group,
    "DescribeAutoScalingGroups": api_groups.describe_groups,
    "SetDesiredCapacity": api_groups.set_desired_capacity,
    "SuspendProcesses": api_groups.suspend_processes,
    "ResumeProcesses": api_groups.resume_processes,
    "CreateOrUpdateTags": api_groups.create_or_update_tags,
    "DeleteTags": api_groups.delete_tags,
    "DescribeTags": api_groups.describe_tags,
    "EnableMetricsCollection": api_groups.enable_metrics_collection,
    "DescribeAutoScalingInstances": api_instances.describe_instances,
    "DescribeScalingActivities": api_instances.describe_activities,
    "TerminateInstanceInAutoScalingGroup": api_instances.terminate_instance,
    "SetInstanceProtection": api_instances.set_instance_protection,
    "SetInstanceHealth": api_instances.set_instance_health,
    "EnterStandby": api_instances.enter_standby,
    "ExitStandby": api_instances.exit_standby,
    "AttachInstances": api_instances.attach_instances,
    "DetachInstances": api_instances.detach_instances,
    "PutLifecycleHook": api_hooks.put_hook,
    "DescribeLifecycleHooks": api_hooks.describe_hooks,
    "DeleteLifecycleHook": api_hooks.delete_hook,
    "CompleteLifecycleAction": api_hooks.complete_action,
    "RecordLifecycleActionHeartbeat": api_hooks.record_heartbeat,
    "StartInstanceRefresh": api_hooks.start_refresh,
    "DescribeInstanceRefreshes": api_hooks.describe_refreshes,
    "CancelInstanceRefresh": api_hooks.cancel_refresh,
}

MOTO_OPERATIONS = frozenset(
    {
        "CreateLaunchConfiguration",
        "DescribeLaunchConfigurations",
        "DeleteLaunchConfiguration",
        "PutScalingPolicy",
        "DescribePolicies",
        "DeletePolicy",
        "PutScheduledUpdateGroupAction",
        "BatchPutScheduledUpdateGroupAction",
        "DescribeScheduledActions",
        "DeleteScheduledAction",
        "BatchDeleteScheduledAction",
    }
)
"""What moto may keep answering: it stores these and never acts on them, so they touch no group."""


def answer(region: Region, operation: str, form: Mapping[str, str], at: float, request_id: str) -> Response:
    """Carry out one Auto Scaling request, given as its decoded form fields, and return the HTTP answer.

    Raises: AwsError for a request the service refuses, and for operations this cloud does not have.
    """
    handler = OPERATIONS.get(operation)
    if handler is None:
        raise AwsError(
            "UnsupportedOperation",
            f"The simulated Auto Scaling service has no {operation}; see simulator/aws/autoscaling.py",
        )
    model = get_service_model("autoscaling").operation_model(operation)
    request = cast(
        Any, {"values": form, "headers": {}, "body": b"", "method": "POST", "url_path": "/", "url_params": {}}
    )
    params: dict[str, Any] = PROTOCOL_PARSERS["query"](model).parse(request)
    for name in model.input_shape.required_members if model.input_shape is not None else ():
        if name not in params:
            raise validation_error(f"1 validation error detected: Value null at '{name}' must not be null")
    result = handler(region, params, at)
    context = SerializationContext(request_id)
    rendered = SERIALIZERS["query"](model, context=context).serialize(result)
    headers = [("Content-Type", "text/xml"), ("x-amzn-RequestId", request_id)]
    return rendered["status_code"], headers, str(rendered["body"]).encode()
