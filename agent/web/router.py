"""Routes of the page: overview, one fleet, decisions, one decision, VMs, the live stream and static files."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from agent.api.errors import NOT_FOUND, problem
from agent.api.reading import LARGEST_SEQ
from agent.autoscaling.explain import explain, plain
from agent.view.view import AgentView
from agent.web.feed import EventStream, Feed, FeedLimits
from agent.web.moment import vms_of
from agent.web.page import Pages
from agent.web.rows import decision_item
from domain.errors import BadInput, LedgerError

log = structlog.get_logger(__name__)

DECISIONS_PER_PAGE = 50
VMS_PER_PAGE = 100

OneFleet = Annotated[str | None, Query(max_length=63)]
Before = Annotated[int | None, Query(ge=1, le=LARGEST_SEQ)]
PageNumber = Annotated[int, Query(ge=1, le=100_000)]


def create_page_router(view: AgentView, limits: FeedLimits | None = None) -> APIRouter:
    """Return the page's routes; the live stream is bounded by `limits`."""
    pages = Pages(view)
    feed = Feed(pages, limits or FeedLimits())
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    def shown(template: str, **context: Any) -> HTMLResponse:
        return HTMLResponse(pages.page(template, **context))

    def live(fleet: str | None) -> HTMLResponse:
        try:
            seen = pages.moment(fleet)
        except (BadInput, LedgerError) as error:
            return sorry(error)
        return shown("live", seen=seen, fleet=fleet, parts=pages.parts(seen, fleet))

    def sorry(error: BadInput | LedgerError) -> HTMLResponse:
        if isinstance(error, BadInput):
            sentence = f"There is no {error.field} {str(error.value)!r}: {error.remedy}."
            return HTMLResponse(pages.page("sorry", missing=True, sentence=sentence), 404)
        log.warning("ledger_not_answering", detail=str(error))
        sentence = "The ledger cannot be read now; the agent's log says why. This page tries again by itself."
        return HTMLResponse(pages.page("sorry", missing=False, sentence=sentence), 503, {"retry-after": "15"})

    @router.get("/")
    def overview() -> HTMLResponse:
        """Every fleet."""
        return live(None)

    @router.get("/fleets/{fleet}")
    def one_fleet(fleet: str) -> HTMLResponse:
        """One fleet."""
        return live(fleet)

    @router.get("/fleets/{fleet}/vms")
    def vms(fleet: str, page: PageNumber = 1) -> HTMLResponse:
        """Every VM of a fleet, those that do not report first, a page at a time."""
        try:
            if fleet not in view.fleet_names():
                view.fleet(fleet)
            reports = vms_of(view, fleet)
        except (BadInput, LedgerError) as error:
            return sorry(error)
        start = (page - 1) * VMS_PER_PAGE
        return shown(
            "vms",
            fleet=fleet,
            rows=[(fleet, report) for report in reports[start : start + VMS_PER_PAGE]],
            total=len(reports),
            silent=sum(not report.reporting for report in reports),
            start=start,
            page=page,
            more=start + VMS_PER_PAGE < len(reports),
            now=view.parts.now(),
        )

    @router.get("/decisions")
    def decisions(fleet: OneFleet = None, before: Before = None, changed: bool = False) -> HTMLResponse:
        """Decisions, the newest first, a page at a time."""
        try:
            listed = view.decisions(fleet, before_seq=before, limit=DECISIONS_PER_PAGE, changed_only=changed)
        except (BadInput, LedgerError) as error:
            return sorry(error)
        items = [decision_item(row.seq, plain(row.decision)) for row in listed.decisions]
        return shown(
            "decisions",
            items=items,
            fleet=fleet,
            changed=changed,
            before=before,
            following=listed.next_before_seq,
            now=view.parts.now(),
        )

    @router.get("/decisions/{decision_id}")
    def one_decision(decision_id: str) -> HTMLResponse:
        """Why one decision came out as it did: all that `trimtab explain` shows."""
        try:
            record = view.decision(decision_id)
        except (BadInput, LedgerError) as error:
            return sorry(error)
        return shown(
            "decision", record=record, told=explain(record), item=decision_item(record.seq, plain(record.decision))
        )

    @router.get("/stream")
    async def stream(
        since: Annotated[int, Query(ge=0, le=LARGEST_SEQ)],
        fleet: OneFleet = None,
        last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    ) -> Response:
        """Server-sent events after `since`, or after Last-Event-ID where a broken stream goes on."""
        if fleet is not None:
            # A ledger that cannot be read is no reason to refuse: the stream says so, and goes on when it is back.
            with contextlib.suppress(LedgerError):
                await run_in_threadpool(view.fleet, fleet)
        if not feed.take():
            return problem(503, "too many pages are open; this one is not live", headers={"retry-after": "30"})
        resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() else since
        return EventStream(feed, min(resumed, LARGEST_SEQ), fleet)

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
