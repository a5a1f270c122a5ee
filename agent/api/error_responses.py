"""Answers made before a request reaches its route: bare ASGI, closing the connection, with the same small JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.types import Send

# Safe for JSON and for the page alike; a route may set its own.
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def body_of(status: int, detail: str) -> bytes:
    """Return the JSON of an error, as the routes answer it."""
    return json.dumps({"error": HTTPStatus(status).phrase, "detail": detail, "wrong": []}).encode()


async def refuse(send: Send, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
    """Answer with an error and close the connection: what is left of the request is not read."""
    body = body_of(status, detail)
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **SECURITY_HEADERS,
        **(headers or {}),
    }
    encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def raw_answer(status: int, detail: str) -> bytes:
    """Return a whole answer as bytes, for a connection on which no request could be read."""
    body = body_of(status, detail)
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **SECURITY_HEADERS,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("ascii") + body
