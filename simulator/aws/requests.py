"""What comes in and goes out: a decoded request, an error as AWS would send it, a page of a list, a modelled answer."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SERIALIZERS, SerializationContext
from moto.core.utils import get_service_model

_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d+/([^/]+)/([^/]+)/aws4_request")
_SIGNING_NAMES = {"monitoring": "cloudwatch"}
_READ_ONLY = ("Describe", "Get", "List", "Head", "BatchGet")
_READ_ONLY_TOO = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "DecodeAuthorizationMessage"})
_DATA_PLANE = frozenset(
    {
        ("sqs", "SendMessage"),
        ("sqs", "SendMessageBatch"),
        ("sqs", "ReceiveMessage"),
        ("sqs", "DeleteMessage"),
        ("sqs", "DeleteMessageBatch"),
        ("sqs", "ChangeMessageVisibility"),
        ("sqs", "ChangeMessageVisibilityBatch"),
        ("cloudwatch", "PutMetricData"),
        ("sns", "Publish"),
        ("sns", "PublishBatch"),
        ("events", "PutEvents"),
    }
)
_LOGGED = re.compile(
    r"AutoScalingGroupName|DesiredCapacity|MinSize|MaxSize|ShouldDecrement|HonorCooldown|InstanceId|LifecycleHookName|"
    r"LifecycleActionResult|ScalingProcesses|ProtectedFromScaleIn|QueueUrl|QueueName|^Names?$|Namespace|"
    r"HealthStatus|ResourceId"
)


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """One decoded request. `form` holds the fields of a query-protocol body, `document` the object of a JSON one."""

    service: str
    region: str
    operation: str
    protocol: str
    access_key: str
    body: bytes
    form: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mutating(self) -> bool:
        """Return whether the request can change anything.

        The rule: everything does, except operations named Describe*, Get*, List*, Head* or BatchGet*, the STS calls
        that only hand out or explain credentials, and EC2 requests with DryRun. Receiving from a queue hides messages,
        so it counts as mutating.
        """
        dry_run = self.form.get("DryRun", "").lower() == "true"
        return not (self.operation.startswith(_READ_ONLY) or self.operation in _READ_ONLY_TOO or dry_run)

    @property
    def plane(self) -> str:
        """Return "data" for traffic through queues, topics and metrics, "control" for everything else."""
        return "data" if (self.service, self.operation) in _DATA_PLANE else "control"

    @property
    def summary(self) -> dict[str, str]:
        """Return the parameters worth keeping in a log: names, sizes, ids; never message bodies or data."""
        fields = {
            **self.form,
            **{key: value for key, value in self.document.items() if isinstance(value, str | int | bool)},
        }
        return {key: str(value)[:200] for key, value in fields.items() if _LOGGED.search(key)}


def read_request(environ: dict[str, Any]) -> AwsRequest:
    """Decode a WSGI request and leave its body readable."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length) if length else b""
    environ["wsgi.input"] = io.BytesIO(body)
    signed = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    access_key, region, service = signed.groups() if signed else ("", "us-east-1", "")
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    form: dict[str, str] = {}
    document: dict[str, Any] = {}
    if target:
        operation, protocol = target.rsplit(".", 1)[-1], "json"
        document = _json_object(body)
    elif environ.get("HTTP_SMITHY_PROTOCOL"):
        operation, protocol = environ.get("PATH_INFO", "").rsplit("/", 1)[-1], "cbor"
    else:
        text = body.decode("utf-8", "replace") or environ.get("QUERY_STRING", "")
        form = dict(parse_qsl(text, keep_blank_values=True))
        operation, protocol = form.get("Action", ""), "ec2" if service == "ec2" else "query"
    return AwsRequest(
        _SIGNING_NAMES.get(service, service), region, operation, protocol, access_key, body, form, document
    )


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


Response = tuple[int, list[tuple[str, str]], bytes]
"""HTTP status, headers and body."""


@dataclass(slots=True)
class AwsError(Exception):
    """An API error: `code` as in the service's API reference, human `message`, HTTP `status`."""

    code: str
    message: str
    status: int = 400

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def validation_error(message: str) -> AwsError:
    """Return the error that Auto Scaling answers to a request it does not accept."""
    return AwsError("ValidationError", message)


def render(error: AwsError, protocol: str, request_id: str) -> Response:
    """Return `error` as `protocol` ("query", "ec2", "json" or "cbor") puts it on the wire."""
    sender = "Sender" if error.status < 500 else "Receiver"
    headers = [("x-amzn-RequestId", request_id)]
    if protocol == "json":
        body = json.dumps({"__type": error.code, "message": error.message}).encode()
        return (
            error.status,
            [*headers, ("Content-Type", "application/x-amz-json-1.0"), _query_error(error, sender)],
            body,
        )
    if protocol == "cbor":
        body = b"\xa2" + b"".join(_cbor_text(text) for text in ("__type", error.code, "message", error.message))
        kind = [("Content-Type", "application/cbor"), ("smithy-protocol", "rpc-v2-cbor"), _query_error(error, sender)]
        return error.status, [*headers, *kind], body
    code, message = escape(error.code), escape(error.message)
    if protocol == "ec2":
        text = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
    else:
        text = (
            f"<ErrorResponse><Error><Type>{sender}</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return error.status, [*headers, ("Content-Type", "text/xml")], f'<?xml version="1.0"?>\n{text}'.encode()


def _query_error(error: AwsError, sender: str) -> tuple[str, str]:
    return ("x-amzn-query-error", f"{error.code};{sender}")


def _cbor_text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 24:
        return bytes([0x60 + len(raw)]) + raw
    if len(raw) < 256:
        return bytes([0x78, len(raw)]) + raw
    return b"\x79" + len(raw).to_bytes(2, "big") + raw


Params = dict[str, Any]
"""A request's parameters, or a response, as the service model names them."""
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


def answer_modelled(
    request: AwsRequest, protocol: str, request_id: str, handle: Callable[[Params], Params]
) -> Response:
    """Parse a request's form fields by boto3's service model, let `handle` answer it, and serialize the answer.

    Raises: AwsError (ValidationError) for a required parameter that is missing, and what `handle` raises.
    """
    model = get_service_model(request.service).operation_model(request.operation)
    values: Any = {"headers": {}, "body": b"", "method": "POST", "url_path": "/", "url_params": {}}
    params: Params = PROTOCOL_PARSERS[protocol](model).parse(cast(Any, {"values": request.form, **values}))
    for name in model.input_shape.required_members if model.input_shape is not None else ():
        if name not in params:
            raise validation_error(f"1 validation error detected: Value null at '{name}' must not be null")
    rendered = SERIALIZERS[protocol](model, context=SerializationContext(request_id)).serialize(handle(params))
    return rendered["status_code"], [("Content-Type", "text/xml")], str(rendered["body"]).encode()
