"""The HTTP application of the agent: every route, as one app that needs no socket to be tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from starlette.types import Message, Receive, Scope, Send

from agent.api.admission import create_admission_router
from agent.api.control import create_control_router
from agent.api.description import DESCRIPTION, complete
from agent.api.errors import add_error_handlers
from agent.api.health import create_health_router
from agent.api.oversubscription import create_oversubscription_router
from agent.api.reading import create_reading_router
from agent.api.security import READING_METHODS
from agent.view.view import AgentView, installed_version


class _Application(FastAPI):
    """FastAPI that serves HEAD wherever it serves GET, and describes what is checked around it."""

    def openapi(self) -> dict[str, Any]:
        """Return the description of every operation."""
        return complete(super().openapi())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; HEAD as GET without the body."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await super().__call__(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        head = _Head(receive, send)
        try:
            await super().__call__(asked, head.receive, head.send)
        finally:
            # For whoever counts requests by their route.
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

    A page of another site cannot send this type without asking first, and is not answered when it asks.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method not in READING_METHODS and kind != "application/json":
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
    add_error_handlers(app)
    app.include_router(create_health_router(view, exposition))
    app.include_router(create_reading_router(view))
    app.include_router(create_control_router(view))
    app.include_router(create_admission_router(view))
    app.include_router(create_oversubscription_router(view))
    for router in routers:
        app.include_router(router)
    return app
