"""Every error as one small JSON object that says what is wrong and what to do, and nothing of the inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Send

from agent.kernel.http import NOT_FOUND, Problem, Wrong
from domain.errors import BadInput, LedgerError, StateConflict, UnknownName

log = structlog.get_logger(__name__)

FAILED = "internal error; see the agent's log"
REMEDIES: Mapping[str, str] = {
    "extra_forbidden": "there is no such field: correct its name, or leave it out; see /api/v1/openapi.json",
    "missing": "give it",
}
"""Remedies by pydantic's kind of error, where its own message has none."""
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


def problem(
    status: int, detail: str, wrong: list[Wrong] | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that cannot be met."""
    body = Problem(error=HTTPStatus(status).phrase, detail=detail, wrong=wrong or [])
    return JSONResponse(body.model_dump(), status, dict(headers or {}))


def add_error_handlers(app: FastAPI) -> None:
    """Have the application answer every error as a problem; no value, path or trace of the inside is in it."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(BadInput, _bad_input)
    app.add_exception_handler(LedgerError, _ledger)
    app.add_exception_handler(Exception, _unexpected)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    details = {
        404: NOT_FOUND,
        405: "this path does not take this method; see /api/v1/openapi.json",
        415: "send the body as application/json",
    }
    detail = details.get(error.status_code, HTTPStatus(error.status_code).description or "see /api/v1/openapi.json")
    headers = dict(error.headers or {})
    if "Allow" in headers:
        headers["Allow"] = ", ".join(_methods(request, headers["Allow"]))
    return problem(error.status_code, detail, headers=headers)


def _methods(request: Request, named: str) -> list[str]:
    """Return the methods of the request's path; named: those of its first route, which is all the router knows of.

    Whatever is served to GET is served to HEAD, which the router does not know either.
    """
    path = getattr(request.scope.get("route"), "path", "")
    found = set(getattr(request.app, "methods", {}).get(path, ())) | set(named.split(", "))
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return problem(400, "the body is not JSON")
    # The value itself is left out: whoever sent it has it, and it may be a secret in the wrong place.
    wrong = [
        Wrong(field=".".join(map(str, item["loc"])), remedy=REMEDIES.get(item["type"], str(item["msg"])))
        for item in found
    ]
    return problem(422, "some values are wrong", wrong)


async def _bad_input(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BadInput)
    status = 404 if isinstance(error, UnknownName) else 409 if isinstance(error, StateConflict) else 422
    return problem(status, f"{error.field}: {error.remedy}", [Wrong(field=error.field, remedy=error.remedy)])


async def _ledger(request: Request, error: Exception) -> JSONResponse:
    log.warning("ledger_not_answering", path=request.url.path, detail=str(error))
    return problem(503, "the ledger is unavailable; see the agent's log", headers={"Retry-After": "15"})


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return problem(500, FAILED)


# Before a request reaches its route: bare ASGI, closing the connection, with the same small JSON.


def _bare(status: int, detail: str) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an error, as the routes answer it."""
    body = json.dumps({"error": HTTPStatus(status).phrase, "detail": detail, "wrong": []}).encode()
    length = str(len(body))
    return body, {
        "content-type": "application/json",
        "content-length": length,
        "connection": "close",
        **SECURITY_HEADERS,
    }


LINGER_S = 1.0
LINGER_BYTES = 4 * 2**20
"""For how long, and for how much, what a refused client still sends is read and dropped."""


async def refuse(
    send: Send, status: int, detail: str, headers: Mapping[str, str] | None = None, *, unread: Receive | None = None
) -> None:
    """Answer with an error and close the connection.

    `unread` gives what the client still sends. It is dropped within LINGER_S and LINGER_BYTES: a connection that is
    closed over unread bytes is reset, and a reset takes the answer away from a client that had not read it yet.
    """
    body, fields = _bare(status, detail)
    encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in {**fields, **(headers or {})}.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": unread is not None})
    if unread is not None:
        await _drop(unread)
        await send({"type": "http.response.body", "body": b""})


async def _drop(unread: Receive) -> None:
    dropped = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while dropped <= LINGER_BYTES:
                message = await unread()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                dropped += len(message.get("body", b""))


def raw_answer(status: int, detail: str) -> bytes:
    """Return a whole answer as bytes, for a connection on which no request could be read."""
    body, fields = _bare(status, detail)
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("ascii") + body
