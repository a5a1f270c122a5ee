"""How large a request may be and how long its body may take; and headers on every answer, an answer to every error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api.errors import FAILED, SECURITY_HEADERS, refuse
from agent.api.paths import is_list

log = structlog.get_logger(__name__)

Count = Callable[[str, str, int, float], None]
"""Takes what was served: method, route (its pattern), status, seconds."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bytes of a request's target, of its head and of its body; seconds for head and body; open connections.

    A body may have `body_bytes`, enough for one request with every text at its longest and escaped; on the paths that
    list many `batch_bytes`, enough for as many as a batch takes with every text at its longest in ASCII.
    """

    target_bytes: int = 4096
    head_bytes: int = 32_768
    body_bytes: int = 32_768
    batch_bytes: int = 2**20
    timeout_s: float = 10.0
    connections: int = 64

    def body_limit(self, path: str) -> int:
        """Return how many bytes the body of a request to this path may have."""
        return self.batch_bytes if is_list(path) else self.body_bytes


class _TooLarge(Exception):
    """The body is larger than allowed."""


class Bounds:
    """Answers 414, 431, 413 and 408 before a route sees the request; reads a body whole before it goes on."""

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body already read, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits, headers = self._limits, dict(scope["headers"])
        body_bytes = limits.body_limit(scope["path"])
        if len(scope["raw_path"]) + len(scope["query_string"]) > limits.target_bytes:
            await refuse(send, 414, f"keep the path and query below {limits.target_bytes} bytes", unread=receive)
            return
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limits.head_bytes:
            await refuse(send, 431, f"keep the headers below {limits.head_bytes} bytes", unread=receive)
            return
        declared = headers.get(b"content-length", b"0")
        if len(declared) > 18 or int(declared) > body_bytes:
            await refuse(send, 413, f"keep the body below {body_bytes} bytes", unread=receive)
            return
        try:
            async with asyncio.timeout(limits.timeout_s):
                body = await self._body(receive, body_bytes)
        except TimeoutError:
            await refuse(send, 408, f"the body did not arrive within {limits.timeout_s:g} s")
            return
        except _TooLarge:
            await refuse(send, 413, f"keep the body below {body_bytes} bytes", unread=receive)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _body(self, receive: Receive, most: int) -> bytes | None:
        """Return the whole body, None when the client went away."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise _TooLarge
            if not message.get("more_body", False):
                return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that gives the body once and then waits for the client to go away."""
    waiting = [body]

    async def replayed() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replayed


class Envelope:
    """Puts the security headers on every answer, counts it, and turns what a route raises into a bare 500."""

    def __init__(self, app: ASGIApp, count: Count) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def wrapped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                fields = {name.lower() for name, _ in message.get("headers", ())}
                extra = [(k.encode(), v.encode()) for k, v in SECURITY_HEADERS.items() if k.encode() not in fields]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self._app(scope, receive, wrapped)
        except Exception:
            log.exception("request_failed", method=scope["method"], route=_route(scope))
            # An answer that had begun is left as it is: uvicorn closes the connection on it.
            if not status:
                await refuse(wrapped, 500, FAILED)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._count(method, _route(scope), status, time.monotonic() - began)


def _route(scope: Scope) -> str:
    """Return the pattern of the route that took the request, `none` when none did: a label with few values."""
    return str(getattr(scope.get("route"), "path", "none"))
