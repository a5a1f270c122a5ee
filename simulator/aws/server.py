"""The endpoint: a WSGI application before moto that logs every call, lets faults strike and answers Auto Scaling."""

from __future__ import annotations

import functools
import io
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from simulator.aws import api_groups, api_hooks, api_instances, control
from simulator.aws.cloud import Cloud
from simulator.aws.faults import Fault, error_for
from simulator.aws.limits import OPERATIONS as LIMIT_OPERATIONS
from simulator.aws.machines import ACCOUNT_ID
from simulator.aws.prices import priced, products
from simulator.aws.region import Region
from simulator.aws.requests import AwsError, AwsRequest, Response, answer_modelled, read_request, render
from simulator.aws.scaling import insufficient_capacity
from simulator.aws.stacks import adopt

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Environ = dict[str, Any]
MOTO_RESET = "/moto-api/reset"
FOREIGN_PAGE = b"<html><head><title>Sign in</title></head><body>Please sign in to this network.</body></html>"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


_log = logging.getLogger(__name__)


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
"""Operations left to moto: it stores them and never acts on them, so they touch no group."""


def answer_autoscaling(region: Region, request: AwsRequest, at: float, request_id: str) -> Response:
    """Carry out one Auto Scaling request and return the HTTP answer.

    Raises: AwsError for a request the service refuses, and for operations this cloud does not have.
    """
    handler = OPERATIONS.get(request.operation)
    if handler is None:
        raise AwsError(
            "UnsupportedOperation",
            f"The simulated Auto Scaling service has no {request.operation}; see simulator/aws/server.py",
        )
    return answer_modelled(request, "query", request_id, lambda params: handler(region, params, at))


def _with_id(response: Response, request_id: str) -> Response:
    """Return the response with a request id among its headers, which no answer of AWS is without."""
    status, headers, body = response
    if any(name.lower() == "x-amzn-requestid" for name, _ in headers):
        return response
    return status, [*headers, ("x-amzn-RequestId", request_id)], body


class NoAnswer(ConnectionError):
    """Raised to close the caller's connection without a word."""


class Endpoint:
    """The WSGI application.

    closing: set when the server stops, so that held connections let go. connections: the open ones.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.closing = threading.Event()
        self.connections: set[socket.socket] = set()
        self._moto = DomainDispatcherApplication(create_backend_app)
        # Moto lists the folders of its services with each request.
        vars(self._moto)["get_backend_for_host"] = functools.cache(self._moto.get_backend_for_host)
        self._tokens: dict[tuple[str, str], tuple[bytes, Response]] = {}

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one HTTP request; a connection kept open beyond the cloud's end gets no answer."""
        if self.closing.is_set():
            raise NoAnswer
        if environ.get("PATH_INFO", "").startswith(control.PREFIX):
            status, headers, body = control.answer(self.cloud, environ)
        elif environ.get("PATH_INFO") == MOTO_RESET:
            status, headers, body = self._reset(environ)
        else:
            status, headers, body = self._aws(environ)
        phrase = _PHRASES.get(status, "Unknown")
        start_response(f"{status} {phrase}", [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def _reset(self, environ: Environ) -> Response:
        """Empty the account: moto's state and what this cloud has beside it; faults and the call log stay."""
        with self.cloud.lock:
            response = self._ask_moto(environ)
            if response[0] == 200:
                self.cloud.reset()
                self._tokens.clear()
        return response

    def _aws(self, environ: Environ) -> Response:
        request = read_request(environ)
        now = self.cloud.settle()
        fault = self.cloud.faults.meet(request, now)
        status, name = 0, fault.kind if fault is not None else None
        try:
            response = self._answer(request, environ, now, fault)
            status = response[0]
            return response
        finally:
            self.cloud.calls.record(request, now, status, name)

    def _answer(self, request: AwsRequest, environ: Environ, now: float, fault: Fault | None) -> Response:
        request_id = str(uuid.uuid4())
        if fault is not None and fault.kind == "timeout_before":
            self._drop(fault)
        try:
            error = error_for(fault.kind, request) if fault is not None else None
            if error is not None:
                raise error
            if fault is not None and fault.kind == "lost_completion":
                response = self._without_effect(request, request_id)
            elif fault is not None and fault.kind == "late_heartbeat":
                later = now + fault.delay_s
                with self.cloud.lock:
                    self.cloud.agenda.schedule(later, lambda due: self._quietly(request, due))
                response = self._without_effect(request, request_id)
            else:
                response = self._carry_out(request, environ, now, request_id)
        except AwsError as refusal:
            response = render(refusal, request.protocol, request_id)
        except Exception as mistake:
            _log.exception("%s %s met a mistake of ours", request.service, request.operation)
            own = AwsError("InternalFailure", f"the simulated cloud failed: {mistake!r}", 500)
            response = render(own, request.protocol, request_id)
        if fault is not None and fault.kind == "timeout_after":
            self._drop(fault)
        if fault is not None and fault.kind == "foreign_page":
            return 200, [("Content-Type", "text/html")], FOREIGN_PAGE
        if self.cloud.account != ACCOUNT_ID:
            status, headers, body = response
            response = status, headers, body.replace(ACCOUNT_ID.encode(), self.cloud.account.encode())
        return _with_id(response, request_id)

    def _carry_out(self, request: AwsRequest, environ: Environ, now: float, request_id: str) -> Response:
        def forward(body: bytes) -> Response:
            environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
            return self._ask_moto(environ)

        if request.service == "sqs":
            return self.cloud.queues.call(request, forward, self.closing)
        with self.cloud.lock:
            region = self.cloud.region(request.region)
            if request.service == "autoscaling" and request.operation not in MOTO_OPERATIONS:
                return answer_autoscaling(region, request, now, request_id)
            if request.service == "servicequotas" and request.operation == "GetServiceQuota":
                return self.cloud.limits.quota(request.document, request.region)
            if request.service == "servicequotas" and request.operation == "ListServiceQuotas":
                return self.cloud.limits.list_quotas(request.document, request.region)
            if request.service == "ec2" and request.operation in LIMIT_OPERATIONS:
                return self.cloud.limits.answer(request, now, request_id)
            if request.service == "pricing" and request.operation == "GetProducts":
                return products(request.document)
            if request.service == "cloudformation":
                adopt(self.cloud)
            if request.service == "ec2":
                if request.operation == "RunInstances":
                    return self._run_instances(request, forward, now)
                response = forward(request.body)
                if request.mutating:
                    region.notice_machines(now)
                if request.operation == "DescribeSpotPriceHistory":
                    return response[0], response[1], priced(response[2])
                return response
        return forward(request.body)

    def _run_instances(self, request: AwsRequest, forward: Callable[[bytes], Response], now: float) -> Response:
        """Answer a repeated ClientToken as the first time, and refuse what there is no capacity for."""
        token = request.form.get("ClientToken", "")
        known = self._tokens.get((request.region, token))
        if token and known is not None:
            if known[0] != request.body:
                raise AwsError(
                    "IdempotentParameterMismatch", f"Arguments on this idempotent request are inconsistent with {token}"
                )
            return known[1]
        kind, zone = request.form.get("InstanceType", ""), request.form.get("Placement.AvailabilityZone", "")
        if self.cloud.region(request.region).scaling.is_short(kind, zone, now):
            raise AwsError("InsufficientInstanceCapacity", insufficient_capacity(kind, zone, []), 500)
        response = forward(request.body)
        if token and response[0] == 200:
            self._tokens[request.region, token] = (request.body, response)
        return response

    def _without_effect(self, request: AwsRequest, request_id: str) -> Response:
        body = (
            f'<{request.operation}Response xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
            f"<{request.operation}Result/><ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{request.operation}Response>"
        )
        return 200, [("Content-Type", "text/xml")], body.encode()

    def _quietly(self, request: AwsRequest, at: float) -> None:
        """Carry out a delayed request whose caller has long been answered; a refusal has no recipient."""
        try:
            answer_autoscaling(self.cloud.region(request.region), request, at, "late")
        except AwsError:
            return

    def _drop(self, fault: Fault) -> None:
        self.closing.wait(fault.hold_s)
        raise NoAnswer

    def _ask_moto(self, environ: Environ) -> Response:
        head: list[Any] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], None]:
            head[:] = [int(status.split(" ", 1)[0]), headers]
            return lambda data: None

        chunks = self._moto(environ, start_response)
        try:
            body = b"".join(chunks)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        headers = [
            (key, value)
            for key, value in head[1]
            if key.lower() not in ("content-length", "connection", "server", "date")
        ]
        return int(head[0]), headers, body
