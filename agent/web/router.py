"""Routes of the page: overview, one decision, the live stream and static files, and those of the parts."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from agent.api.errors import problem
from agent.kernel.http import LARGEST_SEQ, NOT_FOUND
from agent.view.view import AgentView
from agent.web.feed import EventStream, Feed, FeedLimits
from agent.web.page import Pages
from domain.errors import BadInput, LedgerError
from domain.subject import Subject

log = structlog.get_logger(__name__)

OneSubject = Annotated[str | None, Query(alias="subject", pattern="^[^/]+/[^/]+$", max_length=127)]


def create_page_router(view: AgentView, limits: FeedLimits | None = None) -> APIRouter:
    """Return the page's routes; the live stream is bounded by `limits`."""
    pages = Pages(view)
    feed = Feed(pages, limits or FeedLimits())
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    frame = _Frame(pages)
    for drawing in pages.drawing.values():
        router.include_router(drawing.router(frame))

    @router.get("/")
    def overview() -> HTMLResponse:
        """Every subject."""
        return frame.live(None)

    @router.get("/decisions/{decision_id}")
    def one_decision(decision_id: str) -> HTMLResponse:
        """Why one decision came out as it did: all that `trimtab explain` shows."""
        try:
            part, stored = view.parts.parts.find(decision_id)
            drawing = pages.drawing.get(part.name)
            if drawing is None:
                summary, lines = part.summary(stored), part.explain(stored).lines
                return frame.shown("explanation", decision_id=decision_id, record=stored, summary=summary, lines=lines)
            template, context = drawing.explained(stored)
        except (BadInput, LedgerError) as error:
            return frame.sorry(error)
        return frame.shown(template, **context)

    @router.get("/stream")
    async def stream(
        since: Annotated[int, Query(ge=0, le=LARGEST_SEQ)],
        of: OneSubject = None,
        last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    ) -> Response:
        """Server-sent events after `since`, or after Last-Event-ID where a broken stream goes on."""
        subject = None if of is None else Subject(*of.split("/"))
        if subject is not None:
            # A ledger that cannot be read is no reason to refuse: the stream says so, and goes on when it is back.
            with contextlib.suppress(LedgerError):
                await run_in_threadpool(pages.of, subject)
        if not feed.take():
            return problem(503, "too many pages are open; this one is not live", headers={"retry-after": "30"})
        resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() else since
        return EventStream(feed, min(resumed, LARGEST_SEQ), subject)

    @router.get("/static/{name}")
    def static(name: str, request: Request) -> Response:
        """Style, script and icon; the address changes with their content, so they may be kept."""
        asset = pages.assets.get(name)
        if asset is None:
            return problem(404, NOT_FOUND)
        is_pinned = request.query_params.get("v") == pages.build
        kept = "private, max-age=31536000, immutable" if is_pinned else "no-cache"
        return Response(asset.body, media_type=asset.media_type, headers={"cache-control": kept})

    return router


class _Frame:
    """Whole pages, for the routes here and those of the parts that draw their subjects themselves."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def live(self, subject: Subject | None) -> HTMLResponse:
        """Return the live page of a subject, or of all."""
        try:
            seen = self._pages.moment(subject)
        except (BadInput, LedgerError) as error:
            return self.sorry(error)
        return self.shown("live", seen=seen, subject=subject, parts=self._pages.parts(seen))

    def shown(self, template: str, **context: Any) -> HTMLResponse:
        """Return a whole page from a template."""
        return HTMLResponse(self._pages.draw(template, **context))

    def sorry(self, error: BadInput | LedgerError) -> HTMLResponse:
        """Return the page that says why there is nothing to show."""
        if isinstance(error, BadInput):
            sentence = f"There is no {error.field} {str(error.value)!r}: {error.remedy}."
            return HTMLResponse(self._pages.draw("sorry", missing=True, sentence=sentence), 404)
        log.warning("ledger_not_answering", detail=str(error))
        sentence = "The ledger is unavailable; see the agent's log. This page retries automatically."
        return HTMLResponse(self._pages.draw("sorry", missing=False, sentence=sentence), 503, {"retry-after": "15"})
