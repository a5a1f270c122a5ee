"""Whose request this is and what it asks, read from the wire: service, region, operation, protocol, access key."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

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
    """Decode a WSGI request and leave its body readable for whoever comes next."""
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
