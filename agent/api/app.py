"""The HTTP application of the agent: every route, as one app that needs no socket to be tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI

from agent.api.admission import create_admission_router
from agent.api.control import create_control_router
from agent.api.errors import add_error_handlers
from agent.api.health import create_health_router
from agent.api.oversubscription import create_oversubscription_router
from agent.api.reading import create_reading_router
from agent.api.security import OPEN_PATHS, READING_METHODS, roles_for
from agent.api.view import AgentView, installed_version

DESCRIPTION = """\
What a running Trimtab agent knows and lets its operators switch.

Over the unix socket whoever may open the socket may do everything. Over TCP each request carries a token, as
`Authorization: Bearer <token>` or as the password of Basic authentication. A token has one role: `read` opens what is
read; `ask` asks for admission and rates, reports events of deployments, and reads what it asks about; `control` opens
everything. Each operation lists its roles. Times are seconds since the epoch, durations seconds (of futures hours),
money dollars.
"""


CREDENTIALS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Over TCP: a token of one of the roles listed."},
    "basic": {"type": "http", "scheme": "basic", "description": "Over TCP, for browsers: a token as the password."},
}


class _Application(FastAPI):
    """FastAPI that also describes which token opens what, which is checked outside of it."""

    def openapi(self) -> dict[str, Any]:
        """Return the description of every route."""
        schema = super().openapi()
        schema.setdefault("components", {})["securitySchemes"] = CREDENTIALS
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                operation["security"] = _security(method.upper(), path)
        return schema


def _security(method: str, path: str) -> list[dict[str, list[str]]]:
    """Return what opens an operation: nothing over the socket, over TCP a token whose role is among those listed."""
    if path in OPEN_PATHS and method in READING_METHODS:
        return [{}]
    roles = [role.value for role in roles_for(method, path)]
    return [{}, *({name: roles} for name in CREDENTIALS)]


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
