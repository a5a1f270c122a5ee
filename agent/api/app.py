"""The HTTP application of the agent: every route, as one app that needs no socket to be tried.

Its OpenAPI description says more than the routes do: tokens and roles, HEAD, and what every request may meet.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Message, Receive, Scope, Send

from agent.api.control import create_control_router
from agent.api.errors import add_error_handlers
from agent.api.limits import RequestLimits
from agent.api.reading import anonymous, create_health_router, create_reading_router, create_subject_router
from agent.api.security import OPEN_PATHS, READING_METHODS, Role, roles_for
from agent.view.view import AgentView, installed_version

DESCRIPTION = """\
State and controls of a running Trimtab agent.

Over the unix socket access to the socket permits everything. Over TCP each request carries a token, as
`Authorization: Bearer <token>` or as the password of Basic authentication. A token has one role: `read` opens what is
read; `ask` asks for decisions, reports what became of them, and reads what it asks about; `control` opens everything.
Each operation lists its roles. Times are seconds since the epoch, durations seconds (of futures hours), money dollars.
"""

CREDENTIALS: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Over TCP: a token of one of the roles listed."},
    "basic": {"type": "http", "scheme": "basic", "description": "Over TCP, for browsers: a token as the password."},
}
GZIP_LEVEL: Final = 4
GZIP_FROM_BYTES: Final = 1024
PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header permits gzip: it names it, or `*`, with a weight above 0 (RFC 9110)."""
    weights = {}
    for part in accepted.lower().split(","):
        coding, *parameters = (word.strip() for word in part.split(";"))
        q = next((word.partition("=")[2].strip() for word in parameters if word.startswith("q")), "1")
        weights[coding] = q.strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))


class _Gzip(GZipMiddleware):
    """The middleware with the weights of Accept-Encoding, whose letters alone Starlette looks for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with gzip where the client accepts it."""
        if scope["type"] == "http":
            headers = MutableHeaders(raw=list(scope["headers"]))
            headers["accept-encoding"] = "gzip" if accepts_gzip(headers.get("accept-encoding", "")) else "identity"
            # Not a copy: the counter of requests reads the route from this scope.
            scope["headers"] = headers.raw
        await super().__call__(scope, receive, send)


class _Application(FastAPI):
    """FastAPI that serves HEAD wherever it serves GET, and describes what is checked around it.

    A path of the release before is served by the one that took its place, with headers that name that one.
    """

    def __init__(self, **given: Any) -> None:
        self.methods: dict[str, set[str]] = {}
        """The methods of every path, of all its routes."""
        super().__init__(**given)

    def include_router(self, router: APIRouter, *args: Any, **given: Any) -> None:
        """Mount a router's routes."""
        for route in router.routes:
            if isinstance(route, APIRoute):
                self.methods.setdefault(route.path, set()).update(route.methods or ())
        super().include_router(router, *args, **given)

    def openapi(self) -> dict[str, Any]:
        """Return the description of every operation."""
        return complete(super().openapi())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; HEAD as GET without the body."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        asked = scope
        if scope["method"] == "HEAD":
            head = _Head(receive, send)
            asked, receive, send = {**asked, "method": "GET"}, head.receive, head.send
        try:
            await super().__call__(asked, receive, send)
        finally:
            # Requests are counted by their route, outside.
            if "route" in asked:
                scope["route"] = asked["route"]


class _Head:
    """The channels of a HEAD request: the answer ends with its head, and a stream ends as if its reader had left."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._answered = asyncio.Event()

    async def receive(self) -> Message:
        """Return what the client sends, and that it left once the head is out."""
        if self._answered.is_set():
            return {"type": "http.disconnect"}
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Pass the head on and nothing after it."""
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b""})
            self._answered.set()


async def take_json_alone(request: Request) -> None:
    """Raise 415 when a body comes as something else than JSON, before any route sees it.

    A page of another site cannot send this type without asking first, nor DELETE, which has no body; and it is not
    answered when it asks.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method not in READING_METHODS and request.method != "DELETE" and kind != "application/json":
        raise HTTPException(415)


def create_app(
    view: AgentView, exposition: Callable[[], bytes] = lambda: b"", routers: Sequence[APIRouter] = ()
) -> FastAPI:
    """Return the application; `exposition` writes the metrics, `routers` are mounted beside its own routes.

    It guards nothing: `agent.api.server` puts access, limits and headers around it.
    """
    app = _Application(
        title="Trimtab agent",
        version=installed_version(),
        description=DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(take_json_alone)],
    )
    # Event streams and compressed bodies pass unchanged.
    app.add_middleware(_Gzip, minimum_size=GZIP_FROM_BYTES, compresslevel=GZIP_LEVEL)
    add_error_handlers(app)
    app.include_router(create_health_router(view, exposition))
    app.include_router(create_reading_router(view))
    app.include_router(create_control_router(view))
    for part in view.parts.parts:
        own = part.router()
        if own is not None:
            app.include_router(own)
        routes = [route for route in (own.routes if own else ()) if isinstance(route, APIRoute)]
        served = {anonymous(route.path) for route in routes if "GET" in (route.methods or ())}
        app.include_router(create_subject_router(view, part, served))
    for router in routers:
        app.include_router(router)
    return app


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """Add to the description of the routes, in place, what is answered around them; doing so again changes nothing."""
    parts = schema.setdefault("components", {})
    parts["securitySchemes"] = CREDENTIALS
    # FastAPI describes its own form of 422, which is never answered.
    for unused in ("HTTPValidationError", "ValidationError"):
        parts.get("schemas", {}).pop(unused, None)
    for path, operations in schema["paths"].items():
        operations.pop("head", None)
        for method, operation in operations.items():
            operation["security"] = _security(method.upper(), path)
            for status, text in _refusals(method.upper(), path, operation).items():
                _add(operation["responses"], status, text)
        if "get" in operations:
            operations["head"] = _head(operations["get"])
    return schema


def _security(method: str, path: str) -> list[dict[str, list[str]]]:
    """Return what opens an operation: nothing over the socket, over TCP a token whose role is among those listed."""
    if path in OPEN_PATHS and method in READING_METHODS:
        return [{}]
    roles = [role.value for role in roles_for(method, path)]
    return [{}, *({name: roles} for name in CREDENTIALS)]


def _refusals(method: str, path: str, operation: dict[str, Any]) -> dict[str, str]:
    """Return what an operation may answer before its route decides, by status."""
    limits, roles = RequestLimits(), roles_for(method, path)
    found = {
        "400": "The request is not valid HTTP, or its body is not valid JSON.",
        "408": "The request did not arrive in time.",
        "413": f"The body is larger than {limits.body_limit(path):,} bytes.",
        "414": f"Path and query are longer than {limits.target_bytes:,} bytes.",
        "421": "Over the unix socket: the Host is not localhost.",
        "431": f"The headers are larger than {limits.head_bytes:,} bytes.",
        "500": "Internal error; see the agent's log.",
        "503": "The ledger cannot be used now, or too many connections are open; nothing was changed.",
    }
    if path not in OPEN_PATHS:
        found["401"] = "Over TCP: no valid token."
    missing = [role.value for role in Role if role is not Role.NOBODY and role not in roles]
    if path not in OPEN_PATHS and (missing or method not in READING_METHODS):
        others = f"the token's role is {' or '.join(missing)}" if missing else ""
        foreign = "the page of another site sent it" if method not in READING_METHODS else ""
        found["403"] = f"Refused: {', or '.join(filter(None, (others, foreign)))}."
    if "requestBody" in operation:
        found["415"] = "The body is not sent as application/json."
    if "requestBody" in operation or operation.get("parameters"):
        found["422"] = "A value is wrong; nothing was changed."
    return found


def _add(responses: dict[str, Any], status: str, text: str) -> None:
    """Add an error to an operation's answers, beside the one that its route describes under the same status."""
    own = responses.get(status, {})
    described = own.get("content", {}).get("application/json", {}).get("schema", PROBLEM)
    if described == PROBLEM or described.get("$ref", "").endswith("/HTTPValidationError"):
        responses[status] = {
            "description": own["description"] if own and described == PROBLEM else text,
            "content": {"application/json": {"schema": PROBLEM}},
        }
    elif "anyOf" not in described:
        own["description"] = f"{own['description']} Or: {text}"
        own["content"]["application/json"]["schema"] = {"anyOf": [described, PROBLEM]}


def _head(get: dict[str, Any]) -> dict[str, Any]:
    """Return the description of HEAD: what GET answers, without the body."""
    head = copy.deepcopy({name: part for name, part in get.items() if name != "operationId"})
    head["summary"] = f"{get['summary']} (headers only)"
    head["description"] = "The headers of GET, without the body."
    head["operationId"] = f"head_{get['operationId']}"
    for response in head["responses"].values():
        response.pop("content", None)
    return head
