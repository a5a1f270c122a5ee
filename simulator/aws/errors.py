"""An error as AWS would send it: code, message and status, rendered in the wire protocol the caller spoke."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape

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
