"""The OpenAPI description beyond what the routes say: tokens and their roles, HEAD, and what every request may meet."""

from __future__ import annotations

import copy
from typing import Any, Final

from agent.api.limits import RequestLimits
from agent.api.security import OPEN_PATHS, READING_METHODS, Role, roles_for

DESCRIPTION = """\
What a running Trimtab agent knows and lets its operators switch.

Over the unix socket whoever may open the socket may do everything. Over TCP each request carries a token, as
`Authorization: Bearer <token>` or as the password of Basic authentication. A token has one role: `read` opens what is
read; `ask` asks for admission and rates, reports events of deployments, and reads what it asks about; `control` opens
everything. Each operation lists its roles. Times are seconds since the epoch, durations seconds (of futures hours),
money dollars.
"""

CREDENTIALS: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Over TCP: a token of one of the roles listed."},
    "basic": {"type": "http", "scheme": "basic", "description": "Over TCP, for browsers: a token as the password."},
}
PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}


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
        "400": "The request cannot be read: no HTTP, or a body that is no JSON.",
        "408": "The request did not arrive in time.",
        "413": f"The body is larger than {limits.body_limit(path):,} bytes.",
        "414": f"Path and query are longer than {limits.target_bytes:,} bytes.",
        "421": "Over the unix socket: the Host is not localhost.",
        "431": f"The headers are larger than {limits.head_bytes:,} bytes.",
        "500": "The agent failed to answer; its log says why.",
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
    head["description"] = "What GET answers, without the body."
    head["operationId"] = f"head_{get['operationId']}"
    for response in head["responses"].values():
        response.pop("content", None)
    return head
