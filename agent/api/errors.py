"""Every error as one small JSON object that says what is wrong and what to do, and nothing of the inside."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from agent.api.limits import FAILED
from domain.errors import BadInput, LedgerError, StateConflict, UnknownName

log = structlog.get_logger(__name__)

NOT_FOUND = "there is nothing here; see /api/v1/openapi.json for what there is"


class Wrong(BaseModel):
    """One thing that is wrong with a request."""

    field: str = Field(description="Where: a name in the body, the query or the path.")
    remedy: str = Field(description="What to give instead.")


class Problem(BaseModel):
    """Why a request was not answered as asked."""

    error: str = Field(description="The status in words.", examples=["Not Found"])
    detail: str = Field(description="What is wrong and what to do.", examples=[NOT_FOUND])
    wrong: list[Wrong] = Field([], description="With 404, 409 and 422: each value that is wrong.")


UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "There is none of that name."}}
"""Of operations that name a fleet, cluster, pool or decision."""
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "It contradicts what is recorded already; nothing was changed."}
}
"""Of operations that what was recorded before may forbid."""


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
    # Whatever is served to GET is served to HEAD; the router that names the methods does not know it.
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return problem(error.status_code, detail, headers=headers)


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return problem(400, "the body is not JSON")
    # The value itself is left out: whoever sent it has it, and it may be a secret in the wrong place.
    wrong = [Wrong(field=".".join(str(step) for step in item["loc"]), remedy=str(item["msg"])) for item in found]
    return problem(422, "some values are wrong", wrong)


async def _bad_input(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BadInput)
    status = 404 if isinstance(error, UnknownName) else 409 if isinstance(error, StateConflict) else 422
    return problem(status, f"{error.field}: {error.remedy}", [Wrong(field=error.field, remedy=error.remedy)])


async def _ledger(request: Request, error: Exception) -> JSONResponse:
    log.warning("ledger_not_answering", path=request.url.path, detail=str(error))
    return problem(503, "the ledger cannot be used now; the agent's log says why", headers={"Retry-After": "15"})


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return problem(500, FAILED)
